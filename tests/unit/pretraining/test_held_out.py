"""The fraction of the documents that is kept for validation."""

from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.commands.pretraining import fraction_of
from bertwright.corpus.build import build_corpus
from bertwright.errors import InputError
from bertwright.pretraining.held_out import held_out_fraction


def corpus_of(texts: list[str], folder: Path, tokenizer: Path) -> Path:
    (folder / "text.txt").write_text("\n\n".join(texts) + "\n", "utf-8")
    build_corpus([folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus")
    return folder / "corpus"


def test_a_fraction_that_keeps_enough_documents_stays(own_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert held_out_fraction([own_corpus], 0.4) == 0.4
    assert "--held-out" not in capsys.readouterr().err


def test_few_documents_get_the_next_larger_fraction(own_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fraction = held_out_fraction([own_corpus], 0.001)
    assert 0.001 < fraction <= 0.5
    assert f"--held-out 0.001 keeps fewer than 2 documents; {fraction:g} is used" in capsys.readouterr().err
    assert held_out_fraction([own_corpus], fraction) == fraction


def test_one_of_several_processes_names_the_larger_fraction(
    own_corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    fractions = []
    for rank, printed in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        fractions.append(held_out_fraction([own_corpus], 0.001))
        assert ("--held-out 0.001 keeps fewer" in capsys.readouterr().err) == printed
    assert fractions[0] == fractions[1]


def test_one_document_is_refused_with_what_separates_documents(own_corpus: Path, tmp_path: Path) -> None:
    corpus = corpus_of(["One text. It has two sentences."], tmp_path, own_corpus / "tokenizer")
    with pytest.raises(InputError, match="has 1; blank lines separate the documents"):
        held_out_fraction([corpus], 0.01)


def test_documents_that_equal_an_earlier_one_do_not_count(own_corpus: Path, tmp_path: Path) -> None:
    corpus = corpus_of(["One text. It has two sentences."] * 20, tmp_path, own_corpus / "tokenizer")
    with pytest.raises(InputError, match=r"--held-out 0\.1: .* need 2 documents each, and .* has 1;"):
        held_out_fraction([corpus], 0.1)


@pytest.mark.parametrize("copies", [1, 2])
def test_inspect_and_pretrain_say_the_same_about_one_document(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], copies: int
) -> None:
    corpus = corpus_of(["One text. It has two sentences."] * copies, tmp_path, own_corpus / "tokenizer")
    assert main(["corpus", "inspect", str(corpus)]) == 0
    (warning,) = (line for line in capsys.readouterr().out.splitlines() if "two documents" in line)
    start = f"pretrain --corpus {corpus} --out {tmp_path / 'run'} --steps 1 --lengths 16 --batch-size 2".split()
    start += ["--threads", "1"]
    for more in ([], ["--plan"]):
        assert main([*start, *more]) == 2
        assert f"{corpus}: {warning.removeprefix('  warning: ')}" in capsys.readouterr().err
    assert main([*start, "--second-sentence", "none"]) == 0


def test_the_command_trains_with_a_fraction_that_fits(own_corpus: Path, tmp_path: Path) -> None:
    start = f"pretrain --corpus {own_corpus} --out {tmp_path / 'run'} --steps 1 --lengths 32 --batch-size 4"
    assert main([*start.split(), "--held-out", "0.001", "--threads", "1"]) == 0


def test_a_folder_that_is_named_as_a_number_is_a_corpus(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fraction_of("0.5") == 0.5
    with pytest.raises(InputError, match="--held-out 2024: expected a fraction between 0 and 1, or a corpus folder"):
        fraction_of("2024")
    (tmp_path / "2024").symlink_to(own_corpus)
    assert fraction_of("2024") is None


def test_a_percentage_is_refused_with_the_fraction(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), "--steps", "1"]
    assert main([*start, "--held-out", "5%"]) == 2
    assert "--held-out 5%: expected a fraction of the documents, such as 0.05" in capsys.readouterr().err
