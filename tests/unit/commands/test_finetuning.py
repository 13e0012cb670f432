"""Finetune, evaluate and predict on the command line: early refusals, and messages that come once."""

from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.text.wordpiece import train_wordpiece
from tests.support.commands import run_json


@pytest.fixture
def working_folder(tmp_path: Path, own_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a vocabulary and small files of several kinds."""
    monkeypatch.chdir(tmp_path)
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=400).save(tmp_path / "tok")
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


def test_a_dirty_table_under_another_name_is_trained_measured_and_checked(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hints of the messages name options that finetune, evaluate and doctor have."""
    rows = Path("rows.tsv").read_text("utf-8")
    Path("rows.dat").write_bytes(rows.encode() + b"no label\t\n\t\ncaf\xe9\ta\n")
    tune, evaluate = f"finetune classify --data rows.dat {TUNE}", "evaluate classify --model run --data rows.dat"
    check = "doctor --quick --data rows.dat"
    assert run_line(tune) == 2
    assert "rows.dat: not a table's name" in (error := capsys.readouterr().err)
    assert "or add --input-format" in error
    assert run_line(f"{tune} --input-format tsv") == 2
    assert "rows.dat:28: not UTF-8 text (byte 4 of the cell)" in capsys.readouterr().err
    assert run_line(f"{check} --input-format tsv") == 1
    assert "rows.dat:28: not UTF-8 text" in capsys.readouterr().out
    assert run_line("doctor --quick --input-format tsv") == 2
    assert "describe --data PATH, and it is missing" in capsys.readouterr().err
    reading = "--input-format tsv --on-error skip"
    counts = "3 rows are left out: 1 not UTF-8 text, 1 without a label, 1 without a text"
    assert run_line(f"{tune} {reading}") == 0
    assert counts in capsys.readouterr().err
    measured, _ = run_json(capsys, *f"{evaluate} {reading}".split())
    assert (measured["examples"], measured["left_out"]) == (2, 3)  # the tenth that training kept
    checked, _ = run_json(capsys, *f"{check} {reading}".split())
    (finding,) = [finding for finding in checked["findings"] if finding["name"] == "bad rows"]
    assert (finding["level"], finding["value"]["without a label"], sum(finding["value"].values())) == ("warning", 1, 3)
