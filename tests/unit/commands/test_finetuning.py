"""Finetune, evaluate and predict on the command line: early refusals, and messages that come once."""

from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.text.wordpiece import train_tokenizer


@pytest.fixture
def working_folder(tmp_path: Path, own_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a vocabulary and small files of several kinds."""
    monkeypatch.chdir(tmp_path)
    train_tokenizer([own_text.read_text("utf-8")], vocab_size=400).save(tmp_path / "tok")
    rows = "".join(f"the {'large' if n % 2 else 'small'} house {n}\t{'ab'[n % 2]}\n" for n in range(24))
    Path("rows.tsv").write_text("text\tlabel\n" + rows)
    Path("words.conll").write_text("".join(f"house O\nParis B-LOC\nno{n} O\n\n" for n in range(12)))
    Path("words.jsonl").write_text("".join(f'{{"tokens": ["a", "b{n}"], "tags": ["x", "y"]}}\n' for n in range(12)))
    return tmp_path


def run_line(text: str) -> int:
    return main(text.split())


TUNE = "--model random:tiny --tokenizer tok --out run --threads 1 --epochs 1 --batch-size 8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("classify --data rows.tsv --text-column text --text-column text", "--text-column text: given twice"),
        ("classify --data rows.tsv --text-column label", "rows.tsv: column 'label' cannot be both text and"),
        ("regress --data rows.tsv --text-column label", "rows.tsv: column 'label' cannot be both text and"),
        ("sst2 --data rows.tsv --text-column text --label-column text", "'text' cannot be both text and label"),
        ("pos --data words.jsonl --text-column tags", "words.jsonl: field 'tags' cannot be both"),
        ("classify --data rows.tsv --max-length 0", "--max-length 0: Input should be greater than or equal to 8"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    working_folder: Path, arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(f"finetune {arguments} {TUNE}") == 2
    assert words in capsys.readouterr().err
    assert not Path("run").exists()


def test_which_file_is_trained_on_is_reported_once(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("codah").mkdir()
    rows = "".join(f"Who?,A man {n},sits,stands,{n % 2}\n" for n in range(12))
    Path("codah/codah-train.csv").write_text("sent1,sent2,ending0,ending1,label\n" + rows)
    assert run_line(f"finetune swag --data codah {TUNE}") == 0
    stderr = capsys.readouterr().err
    assert stderr.count("training on codah-train.csv") == 1
    assert stderr.count("no dev file; a tenth of the rows") == 1
