"""Locks of files: one holder at a time, who is named; they end with their process; looking at them changes nothing."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

from bertwright import locks
from bertwright.errors import InputError
from bertwright.leftovers import remove_leftovers
from bertwright.locks import is_held, locked_file


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PAUSE", 0.0)


@contextmanager
def other_process(code: str, path: Path) -> Iterator[int]:
    """Start a process that runs `code` and then waits; yield its number; kill it at the end."""
    code = f"import os, sys; from pathlib import Path; path = Path(sys.argv[1]); {code}; print('in', flush=True)"
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"in\n"
        yield process.pid
        os.kill(process.pid, signal.SIGKILL)


HOLD = "from bertwright.locks import locked_file; lock = locked_file(path, ''); lock.__enter__()"
WRITE = "from bertwright.leftovers import temporary; files = temporary(path); files.__enter__()"


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught, locked_file(path, "run: another process works here"):
        pass
    return str(caught.value)


def test_another_process_is_refused_with_the_name_of_the_holder_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with other_process(HOLD, path) as pid:
        assert is_held(path)
        named = f"run: another process works here (process {pid} on {os.uname().nodename}); wait for it or stop it"
        assert refused(path) == named
        assert refused(path) == named  # a refused process does not empty the file
    assert not is_held(path)
    with locked_file(path, "") as is_locked_here:
        assert is_locked_here
        assert path.read_text().startswith(f" process {os.getpid()} on ")
    assert path.read_bytes() == b""


def test_the_lock_ends_with_an_error_in_its_block(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), locked_file(tmp_path / "lock", ""):
        raise ValueError("inside")
    assert not is_held(tmp_path / "lock")
    assert (tmp_path / "lock").read_bytes() == b""


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    messages: list[str] = []
    with locked_file(tmp_path / "lock", ""):
        thread = threading.Thread(target=lambda: messages.append(refused(tmp_path / "lock")))
        thread.start()
        thread.join()
        assert is_held(tmp_path / "lock")
    assert f"(process {os.getpid()} on " in messages[0]


def test_the_end_of_a_forked_process_ends_no_lock(tmp_path: Path) -> None:
    fork = "child = os.fork(); child or os._exit(0); os.waitpid(child, 0)"
    with other_process(f"{HOLD}; {fork}", tmp_path / "lock"):
        assert is_held(tmp_path / "lock")
    with other_process(f"{WRITE}; {fork}", tmp_path / "out"):
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.glob(".out.bw-*.tmp"))) == 1
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob(".out.*"))


def test_looking_writes_nothing_and_does_not_take_another_look_for_a_holder(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "lock")
    assert not list(tmp_path.iterdir())
    (tmp_path / "lock").write_text("left by a killed process")
    with (tmp_path / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_held(tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == "left by a killed process"


def test_a_look_delays_the_holder_and_does_not_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        monkeypatch.setattr(locks, "sleep", lambda _: other.close())
        with locked_file(tmp_path / "lock", "") as is_locked_here:
            assert is_locked_here


def test_a_file_that_was_removed_before_it_was_locked_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_first(descriptor: int, *, blocking: bool) -> bool:
        (tmp_path / "lock").unlink(missing_ok=True)
        return filelock.lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr(locks, "lock_descriptor", remove_first)
    assert "it has just ended, so give the command again" in refused(tmp_path / "lock")


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, *, blocking: bool) -> bool:
        raise OSError("no locks available")

    monkeypatch.setattr(locks, "lock_descriptor", fail)
    (tmp_path / "lock").write_text("process 1 on a")
    with locked_file(tmp_path / "lock", "") as is_locked_here:
        assert not is_locked_here
    assert (tmp_path / "lock").read_text() == "process 1 on a"  # another process may work here
