"""The progress line that a person sees while rows are answered: the part that is done and the time left."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bertwright import console
from bertwright.console import Status, clock
from bertwright.serving import embeddings as features
from bertwright.tasks import inference

LENGTHS = np.array([10, 40, 20, 10])


class Minutes:
    """A clock that stands still until `work` lets a minute pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def work(self, done: Any) -> Any:
        self.seconds += 60.0
        return done


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> Minutes:
    """The clock of the console, which prints lines, and batches of one row."""
    minutes = Minutes()
    monkeypatch.setattr(console.time, "monotonic", lambda: minutes.seconds)
    monkeypatch.setattr(console, "console", Console(file=io.StringIO(), force_terminal=False))
    monkeypatch.setattr(inference, "ANSWERED_TOKENS", 40)
    return minutes


def test_rows_are_answered_with_the_time_left(minutes: Minutes, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [minutes.work(rows).tolist() for rows in inference.answered_batches(LENGTHS)]
    assert batches == [rows.tolist() for rows in inference.batches_by_length(LENGTHS)] == [[1], [2, 0], [3]]
    assert capsys.readouterr().err.splitlines() == [  # half of the tokens in a minute, seven eighths in two
        "50% of 4 rows answered · 1:00 left",
        "88% of 4 rows answered · 0:17 left",
        "100% of 4 rows answered · 0:00 left",
    ]


def test_nothing_is_said_of_what_is_quick(minutes: Minutes, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(inference.answered_batches(LENGTHS))) == 3
    assert not capsys.readouterr().err


def test_lines_are_counted_and_what_is_read_ahead_is_not_done(
    minutes: Minutes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("short\n" * 3 + "é" * 8 + "s\n")

    def computed(texts: Iterator[str]) -> Iterator[str]:
        return map(minutes.work, list(texts))

    assert list(features._with_progress(str(source), computed)) == ["short"] * 3 + ["é" * 8 + "s"]
    left = ["5:00", "4:00", "3:00", "0:00"]
    assert capsys.readouterr().err.splitlines() == [
        f"{number} lines · {text} left" for number, text in enumerate(left, 1)
    ]


def test_the_time_that_is_left_is_unknown_at_the_beginning_and_never_negative(minutes: Minutes) -> None:
    status = Status()
    minutes.work(None)
    assert [status.remaining(done) for done in (0.0, 0.25, 2.0)] == ["…", "3:00", "0:00"]


def test_one_status_within_another_takes_over_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines that change in place at once are an error in some versions of rich."""
    monkeypatch.setattr(console, "console", Console(file=io.StringIO(), force_terminal=True))
    with Status() as outer:
        for _ in range(2):
            with Status(ends=False) as inner:
                assert inner._live is outer._live is not None
        assert Status._active is outer
    assert Status._active is None
    with Status() as later:
        assert later._live is not outer._live


def test_a_last_text_is_printed_or_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "console", Console(file=io.StringIO(), force_terminal=False))
    for ends in (True, False):
        with Status(ends=ends) as status:
            status.update(f"said {ends}")
    assert capsys.readouterr().err == "said True\n"


def test_in_a_notebook_one_line_changes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, dict[str, str]]] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            shown.append(("update", content))

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(("display", content))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(console, "console", Console(force_jupyter=True))
    with Status() as outer:
        with Status() as inner:
            inner.update("first [b]")
        for number in range(100):
            outer.update(f"step {number}")
    assert shown[0] == ("display", {"text/plain": "first [b]"})
    assert {kind for kind, _ in shown[1:]} == {"update"}
    assert shown[-1] == ("update", {"text/plain": "step 99"})
    assert len(shown) < 100


def test_a_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 65.0, 3723.0)] == ["0:00", "1:05", "1:02:03"]


SPEAKS_ON = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from bertwright.console import Status, say
with Status() as status:
    status.update("before")
    sys.stdin.readline()  # until the terminal is closed
    for number in range(3):
        status.update(f"after {number}")
        say("somebody?")
open(sys.argv[1], "w").write("done")
"""


def test_a_closed_terminal_ends_no_work(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-c", SPEAKS_ON, str(tmp_path / "mark")],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert os.read(ours, 1)  # it is at its work
    os.close(ours)
    running.communicate(b"\n", timeout=60)
    assert running.returncode == 0
    assert (tmp_path / "mark").read_text() == "done"


@pytest.mark.parametrize(
    ("rank", "world_size", "prints"), [("0", "2", True), ("1", "2", False), ("1", "1", True), (None, None, True)]
)
def test_one_of_several_processes_prints(
    rank: str | None,
    world_size: str | None,
    prints: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the processes have met too: the rank is known from the start."""
    monkeypatch.setattr(console, "console", Console(stderr=True, force_terminal=False))
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    console.say("a message")
    with Status() as status:
        status.update("progress")
    assert capsys.readouterr().err == ("a message\nprogress\n" if prints else "")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert console.table_lines([("a", "12,345", ""), ("bcd", "6", "x")], left=1) == ["a     12,345", "bcd        6   x"]
