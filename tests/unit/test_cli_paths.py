"""Paths that a command cannot use are refused before its work: not UTF-8, or nothing can be written there."""

import inspect
import os
from pathlib import Path

import pytest

from bertwright import cli
from bertwright.commands import COMMANDS, CommandResult, load_command
from bertwright.errors import InputError

WRITERS = [
    (name, option)
    for name in COMMANDS
    for option in inspect.signature(load_command(name)).parameters
    if option in ("out", "output")
]


def test_all_commands_that_write_are_known() -> None:
    assert len(WRITERS) == 23


@pytest.mark.parametrize(("name", "option"), WRITERS)
def test_a_command_that_cannot_write_does_no_work(name: str, option: str) -> None:
    def command(**options: object) -> CommandResult:
        raise AssertionError("the command began its work")

    with pytest.raises(
        InputError, match=rf"--{option} /proc/x/y: (no file can be written in|there is no folder) /proc"
    ):
        cli._checked(command)(**{option: Path("/proc/x/y")})
    with pytest.raises(InputError, match=rf"--{option} /proc/y: no file can be written in /proc \("):
        cli._checked(command)(**{option: Path("/proc/y")})
    with pytest.raises(AssertionError, match="began its work"):
        cli._checked(command)(**{option: "-"} if option == "output" else {option: Path("/proc/y"), "plan": True})


def test_the_check_comes_with_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The model is missing too: the message shows which path was checked first."""
    features = ["features", "--model", "absent", "--input", "absent.txt"]
    assert cli.main([*features, "--output", "/proc/y.npz"]) == 2
    assert "--output /proc/y.npz: no file can be written in /proc" in capsys.readouterr().err
    assert cli.main(["predict", "--model", "absent", "--input", "absent.tsv", "--output", "/proc/a.tsv"]) == 2
    assert "--output /proc/a.tsv: no file can be written in /proc" in capsys.readouterr().err
    assert cli.main(["export", "onnx", "--model", "absent", "--out", "/proc/x"]) == 2
    assert "--out /proc/x: no file can be written in /proc" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["pretrain", "--corpus", "absent", "--out", "n\udcff/run"],
        ["pretrain", "--corpus", "n\udcff", "--out", "run"],
        ["finetune", "sst2", "--data", "absent", "--model", "absent", "--out", "n\udcff/run"],
        ["export", "onnx", "--model", "absent", "--out", "n\udcff/run"],
        ["serve", "--model", "n\udcff/run=tuned"],
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert r"'n\xff" in said
    assert "expected UTF-8 text, got other bytes" in said


def test_a_current_folder_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.fsencode(tmp_path) + b"/n\xff"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    assert cli.main(["runs", "."]) == 2
    assert r"n\xff': expected UTF-8 text, got other bytes" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        cli.main(["runs", "--help"])


def test_what_a_kill_left_beside_an_output_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even where the command is refused later: here its model is not there."""
    for name in (".onnx.bw-0000dead.tmp", ".answers.tsv.bw-0000dead.tmp"):
        (tmp_path / name).touch()
    assert cli.main(["export", "onnx", "--model", "absent", "--out", str(tmp_path / "onnx")]) == 2
    predict = ["predict", "--model", "absent", "--input", "absent.tsv", "--output", str(tmp_path / "answers.tsv")]
    assert cli.main(predict) == 2
    assert [path.name for path in tmp_path.iterdir()] == []
