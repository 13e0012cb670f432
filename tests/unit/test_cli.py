"""Results and messages of several processes: the main one prints them."""

import pytest

from bertwright import cli
from bertwright.errors import Stopped


@pytest.mark.parametrize("rank", ["0", "1"])
def test_several_processes_say_once_that_they_stopped(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise Stopped("stopped with 1 of 3 seeds done")

    monkeypatch.setattr(cli, "_run", stopped)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    assert cli.main(["runs", ".", "--json"]) == 0
    printed = capsys.readouterr()
    is_main = rank == "0"
    assert printed.out == ('{"stopped": true}\n' if is_main else "")
    assert printed.err == ("bertwright: stopped with 1 of 3 seeds done\n" if is_main else "")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_several_processes_print_one_result(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_run", lambda *_: {"steps": 3})
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    assert cli.main(["runs", ".", "--json"]) == 0
    assert capsys.readouterr().out == ('{"steps": 3}\n' if rank == "0" else "")
