"""The commands of the group tokenizer: text that cannot be read ends them, or is skipped and counted."""

from pathlib import Path

import pytest

from tests.support.commands import run_json
from tests.support.texts import OWN_TEXT


@pytest.mark.parametrize("command", ["train", "extend"])
def test_text_that_cannot_be_read_is_skipped_on_request(
    command: str, own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_bytes(OWN_TEXT.read_bytes())
    bad.write_bytes(OWN_TEXT.read_bytes() + b"\nbad \xff line\n\xfe\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    learn = {
        "train": ("tokenizer", "train", "--vocab-size", "400"),
        "extend": ("tokenizer", "extend", own_tokenizer, "--add", "5"),
    }[command]
    _, said = run_json(capsys, *learn, bad, "--out", tmp_path / "stopped", code=2)
    assert "bad.txt:" in said
    assert ": not UTF-8 text" in said
    skip = ("--on-error", "skip")
    skipped, said = run_json(capsys, *learn, bad, tmp_path / "broken.jsonl", *skip, "--out", tmp_path / "skipped")
    assert said.count("skipped: ") == 1
    assert "texts left out, since they cannot be read: 3" in said
    expected, said = run_json(capsys, *learn, good, *skip, "--out", tmp_path / "good")
    assert "skipped" not in said
    assert skipped["hash"] == expected["hash"]
