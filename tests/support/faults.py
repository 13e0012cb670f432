"""Commands that are run in processes of their own and hurt there: killed, or with a disk that is full.

Processes are forked off a server that has already imported what they need, so that one takes a tenth of a second.
"""

import io
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "bertwright.cli",
        *(f"bertwright.commands.{name}" for name in ("pretraining", "finetuning", "text")),
        "bertwright.corpus.build",
        "bertwright.finetuning.run",
        "bertwright.pretraining.run",
        "bertwright.reports.report",
        *("torch._dynamo", "torch.onnx", "torch.profiler", "onnxruntime"),  # a run imports them when it needs them
        *("matplotlib.backends.backend_agg", "matplotlib.figure", "typeguard"),
        *("sklearn.feature_extraction.text", "sklearn.linear_model", "sklearn.pipeline", "tests.support.warmed"),
    ]
)
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
"""Python's audit events that change a folder; `open` changes it if its flags say so."""


@dataclass(frozen=True)
class Ended:
    """Exit code (negative: a signal), what stood on standard error, and how often it was about to change a file."""

    code: int | None
    said: str
    changes: int

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    die_before: int | None = None,
    die_after: float | None = None,
    largest_file: int | None = None,
) -> Ended:
    """`bertwright ARGUMENTS`, counting what it is about to change below `folder`.

    die_before: SIGKILL comes just before that change (from 1), or before the exit, for one more than there are.
    die_after: after so many seconds of work. largest_file: bytes beyond which no file grows, as on a full disk.
    """
    here, there = SERVER.Pipe(duplex=False)
    limits = {"die_before": die_before, "die_after": die_after, "largest_file": largest_file}
    process = SERVER.Process(target=_run, args=(there, list(map(str, arguments)), str(folder), limits))
    process.start()
    there.close()
    try:
        said, changes = here.recv()
    except EOFError:
        said, changes = "", 0
    process.join(300)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"bertwright {' '.join(arguments)} did not end in five minutes")
    return Ended(process.exitcode, said, changes)


def _run(answer: Any, arguments: list[str], folder: str, limits: dict[str, Any]) -> None:
    """In the process of its own."""
    changes = 0
    inside = folder.rstrip("/") + "/"

    def watch(event: str, event_arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event in _WRITES or (event == "open" and bool((event_arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)))
        if (
            writes
            and event_arguments
            and isinstance(event_arguments[0], str | os.PathLike)
            and os.fspath(event_arguments[0]).startswith(inside)
        ):
            changes += 1
            if changes == limits["die_before"]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    os.fsync = lambda _: None  # a kill takes nothing from the system, and waiting for the disk is a fourth of the time
    if limits["die_after"] is not None:
        threading.Timer(limits["die_after"], lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if limits["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["largest_file"],) * 2)
    from bertwright.cli import main
    from bertwright.console import console

    said = io.StringIO()
    console.file = said
    code = 70
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = main(arguments)
    except BaseException as error:
        said.write(f"Traceback: {type(error).__name__}: {error}")
    if changes + 1 == limits["die_before"]:
        os.kill(os.getpid(), signal.SIGKILL)
    answer.send((said.getvalue(), changes))
    answer.close()
    os._exit(code)
