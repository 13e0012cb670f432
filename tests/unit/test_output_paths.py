"""Outputs of commands: files that would be lost are refused before the work begins."""

from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.output_paths import refuse_target
from tests.support.encoders import write_encoder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "README.md"])
def test_files_of_a_model_are_no_outputs(name: str, tmp_path: Path, own_tokenizer: Path) -> None:
    write_encoder(tmp_path / "m", own_tokenizer)
    (tmp_path / "m" / "README.md").write_text("a card", "utf-8")
    with pytest.raises(InputError, match=r"--output .*: is a file of a model, run, corpus or index, and would be lost"):
        refuse_target(str(tmp_path / "m" / name), source="-")


def test_files_of_a_run_are_no_outputs(tmp_path: Path) -> None:
    names = ("run.json", "metrics.jsonl", "validation.json", "predictions.json")
    for name in names:
        (tmp_path / name).write_text("{}\n", "utf-8")
    for name in names:
        with pytest.raises(InputError, match="would be lost; name another one"):
            refuse_target(str(tmp_path / name), source="-")


def test_answers_beside_them_are_replaced(tmp_path: Path, own_tokenizer: Path) -> None:
    write_encoder(tmp_path / "m", own_tokenizer)
    for name in ("answers.tsv", "answers.jsonl.gz", "answers.json", "features.npz"):
        (tmp_path / "m" / name).write_text("earlier", "utf-8")
        refuse_target(str(tmp_path / "m" / name), source="-")
    for name in ("answers", "answers.txt", "answers.TSV", "tagged.conll"):
        (tmp_path / "m" / name).write_text("earlier", "utf-8")
        refuse_target(str(tmp_path / "m" / name), source="-")
    (tmp_path / "config.txt").write_text("of another program", "utf-8")
    refuse_target(str(tmp_path / "config.txt"), source="-")


def test_a_link_to_such_a_file_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    write_encoder(tmp_path / "m", own_tokenizer)
    (tmp_path / "answers.tsv").symlink_to(tmp_path / "m" / "config.json")
    with pytest.raises(InputError, match="would be lost; name another one"):
        refuse_target(str(tmp_path / "answers.tsv"), source="-")


def test_a_command_leaves_the_weights_as_they_are(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_encoder(tmp_path / "m", own_tokenizer)
    (tmp_path / "lines.txt").write_text("The ship\n", "utf-8")
    weights = tmp_path / "m" / "model.safetensors"
    before = weights.read_bytes()
    arguments = ["features", "--model", tmp_path / "m", "--input", tmp_path / "lines.txt", "--output", weights]
    assert main([*map(str, arguments)]) == 2
    assert "would be lost" in capsys.readouterr().err
    assert weights.read_bytes() == before
