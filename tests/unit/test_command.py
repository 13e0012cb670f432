"""Commands from Python: their values, and errors that are raised instead of printed."""

from pathlib import Path
from typing import Any

import pytest

import bertwright as bw
from bertwright import cli
from bertwright.errors import InputError, Stopped


class Printer:
    """Stands for IPython's printer."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def printed(output: Any) -> str:
    printer = Printer()
    output._repr_pretty_(printer, False)
    return printer.shown


def test_values_come_back_and_print_as_the_command_does(
    own_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted = f"tokenizer train '{own_text}' --vocab-size 500 --out '{tmp_path / 'a folder'}'"
    output = bw.command(quoted)
    assert isinstance(output, dict)
    assert output["vocab_size"] == 500
    assert capsys.readouterr().out == ""
    assert cli.main(["tokenizer", "train", str(own_text), "--vocab-size", "500", "--out", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.replace(str(tmp_path / "b"), str(tmp_path / "a folder")) == printed(output) + "\n"


def test_a_command_with_a_text_prints_the_text(tmp_path: Path) -> None:
    assert printed(bw.command(f"runs {tmp_path}")) == f"{tmp_path}: no run lies here"


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(bw.command("fill --help")) == ""
    assert "[MASK]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bake bread", "there is no command 'bake bread'"),
        ("", "there is no command ''"),
        ("report nowhere", "nowhere: not a run folder"),
        ("fill --modle small-wiki x", "cannot be read as a command; the reason is printed above"),
        ("fill 'half a quote", "quotation"),
    ],
)
def test_bad_usage_raises(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bw.command(line)


def test_stopped_work_gives_its_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> None:
        raise Stopped("stopped in epoch 2; continue with --resume")

    monkeypatch.setattr(cli, "_run", stop)
    assert bw.command("runs here") == {"stopped": True}
    assert capsys.readouterr().err == "bertwright: stopped in epoch 2; continue with --resume\n"
