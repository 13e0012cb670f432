"""arguments → exit code: finds the command, runs it, prints its result. Imports little, so that --help is quick."""

import errno
import functools
import io
import json
import math
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bertwright.commands import COMMANDS, CommandResult, load_command, parse
from bertwright.commands.urls import with_urls
from bertwright.portable import END_SIGNALS

if TYPE_CHECKING:
    from pydantic import ValidationError

SPIN_ROUNDS = "20000"
"""Rounds that a waiting thread of OpenMP spins before it sleeps."""


def process() -> NoReturn:
    """Run `bertwright` as a process of its own, or as one of several that train together, and end the process."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(main())
    try:
        status = main()
    except SystemExit as error:  # a signal, --help, or an unknown option, with or without a text
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


def leave(status: int) -> NoReturn:
    """End one of several processes at once, without finalising the interpreter.

    A thread of gloo needs the interpreter to release its last tensor. During finalisation that would abort the process,
    although its work is done.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed by its reader
            stream.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0, 1 for a failure, 2 for bad usage or bad input."""
    from bertwright.errors import InputError, RunFailed, Stopped

    if argv is None:  # a process of its own: signals raise SystemExit, so that temporary files are removed
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_torch()
    as_json = "--json" in arguments
    arguments = [argument for argument in arguments if argument != "--json"]
    try:
        name, rest = _split(arguments)
        if name is None:
            return _overview(arguments)
        result = _run(name, rest)
        if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal lacks are shown by their numbers
            sys.stdout.reconfigure(errors="backslashreplace")
        _print(result, as_json=as_json)
        return int(result.get("exit_code", 0))
    except Stopped as error:
        from bertwright.console import is_main_process

        if is_main_process():  # all of several processes stop, and one says so
            _print_error(error)
            if as_json:
                print(json.dumps({"stopped": True}), flush=True)
        return 0
    except (InputError, RunFailed) as error:
        _print_error(error)
        return 2 if isinstance(error, InputError) else 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        from bertwright.files import FULL_DISK

        if error.errno in FULL_DISK:
            path = error.filename or "standard output, or the folder of temporary files"
            _print_error(f"{path}: the disk is full ({error.strerror}). Make room and give the same command again")
        else:
            _print_error(error)
        return 1
    except KeyboardInterrupt:
        _print_error("interrupted")
        return 130


def command(line: str) -> "CommandOutput":
    """Run a command from Python, such as `command("corpus build text.txt --tokenizer tok --out corpus")`.

    line: the words behind `bertwright`, with the quotes of a shell. Returns the values that --json prints. Ctrl-C stops
    a training as on a terminal: it is saved, and the value `stopped` is True. Raises InputError for bad usage or bad
    input and RunFailed for a failure.
    """
    from bertwright.errors import InputError, Stopped

    _prepare_torch()
    try:
        name, rest = _split(shlex.split(line))
    except ValueError as error:
        raise InputError(f"{line[:60]!r}: expected words with closed quotation marks: {error}") from None
    if name is None:
        raise InputError(f"there is no command {line[:60]!r}; `bertwright --help` lists the commands")
    try:
        return CommandOutput(_run(name, rest))
    except Stopped as error:
        _print_error(error)
        return CommandOutput(stopped=True)
    except SystemExit as error:
        if error.code:
            raise InputError(f"bertwright {line}: cannot be read as a command; the reason is printed above") from None
        return CommandOutput(text=None)  # --help


class CommandOutput(dict[str, Any]):
    """Values of a command. A notebook displays them as the command prints them."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(_text(self) or "")


def _prepare_torch() -> None:
    """Set the environment variables that torch and OpenMP read when they are loaded, unless they are set already.

    torch then asks for huge pages. A waiting thread of OpenMP spins fewer rounds before it sleeps than its 300,000. On
    an idle machine that is as fast. On a busy one, the spinning takes less time from the thread that it waits for
    (docs/log.md).
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_ROUNDS)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raise InputError for an argument or a current folder that is not UTF-8 text, since run.json could not hold it."""
    from bertwright.errors import InputError, legible

    # A token is a secret: the command that takes it refuses it without showing it.
    public = [
        text for before, text in pairwise(["", *arguments]) if before != "--token" and not text.startswith("--token=")
    ]
    for kind, text in (*(("argument", each) for each in public), ("current folder", os.getcwd())):
        if legible(text) != text:
            raise InputError(
                f"{kind} '{legible(text)}': expected UTF-8 text, got other bytes; if it is a path, rename it"
            )


def _checked(command: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Return the command with a check that --out, --output or --errors can be written. With --plan, none is written."""
    from bertwright.leftovers import remove_leftovers
    from bertwright.output_paths import refuse_unwritable

    @functools.wraps(command)
    def checked(*values: Any, **options: Any) -> CommandResult:
        for name in () if options.get("plan") else ("out", "output", "errors"):
            if (path := options.get(name)) and str(path) != "-":
                refuse_unwritable(Path(path), f"--{name}", is_folder=name == "out")
                remove_leftovers(Path(path).parent, Path(path).name)
                remove_leftovers(Path(path))
        return command(*values, **options)

    return checked


def _split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the name of the command, of one or two words, and the other arguments; None for an unknown command."""
    for count in (2, 1):
        name = " ".join(arguments[:count])
        if len(arguments) >= count and name in COMMANDS:
            return name, list(arguments[count:])
    return None, list(arguments)


def _overview(arguments: Sequence[str]) -> int:
    """Print the commands, or the version; return 2 for a command that does not exist."""
    if arguments[:1] == ["--version"]:
        from bertwright.version import version_lines

        print(*version_lines(), sep="\n")
        return 0
    is_help = not arguments or arguments[0] in ("-h", "--help") or arguments[1:2] in (["-h"], ["--help"])
    group = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    lines = {name: f"  {name:18}{text}" for name, (_, text) in COMMANDS.items()}
    members = [line for name, line in lines.items() if not group or name.startswith(f"{group} ")]
    is_help = is_help and bool(members)
    stream = sys.stdout if is_help else sys.stderr
    if not is_help:
        print(f"bertwright: there is no command '{' '.join(arguments[:2])}'", file=stream)
    print("usage: bertwright COMMAND …   (bertwright COMMAND --help lists its options)\n", file=stream)
    print(*(members or lines.values()), sep="\n", file=stream)
    print(
        "\n--json with any command: one JSON object as the last line of standard output, all else on standard error.\n"
        "MODEL is a model folder, a run folder, small-wiki (comes along), or random:SIZE (random weights).",
        file=stream,
    )
    return 0 if is_help else 2


def _run(name: str, arguments: list[str]) -> CommandResult:
    """Run a command; raise InputError for settings that are not valid."""
    from pydantic import ValidationError

    from bertwright.errors import InputError

    command = with_urls(name, _checked(load_command(name, arguments)))
    if not {"-h", "--help"} & set(arguments):
        _refuse_undecodable(arguments)
    try:
        result: CommandResult = parse(command, arguments, prog=f"bertwright {name}")
        return result
    except ValidationError as error:
        raise InputError(_invalid(error)) from None


def _invalid(error: "ValidationError") -> str:
    """Return a message about invalid settings: option or setting, value, and what was expected."""
    from bertwright.commands.options import option_at
    from bertwright.errors import shown

    faults = []
    for fault in error.errors():
        name = option_at(error.title, fault["loc"]) or ".".join(map(str, fault["loc"])) or "settings"
        if fault["type"] == "value_error":  # messages of our own validators name the value
            faults.append(f"{name}: {fault['msg'].removeprefix('Value error, ')}")
        else:
            value = f" {shown(fault['input'])}" if isinstance(fault["input"], str | int | float) else ""
            faults.append(f"{name}{value}: {fault['msg']}")
    return "; ".join(faults)


def _print_error(error: object) -> None:
    """Print an error on standard error, where that is still open."""
    from bertwright.console import ignore_closed_stderr

    with ignore_closed_stderr():
        print(f"bertwright: {error}", file=sys.stderr)


def _print(result: CommandResult, *, as_json: bool) -> None:
    """Print a result, in the main one of several processes.

    A terminal that was closed meanwhile is no error, since the work is done.
    """
    from bertwright.console import is_main_process, silence

    if not is_main_process():
        return
    try:
        _print_result(result, as_json=as_json)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        silence(sys.stdout)


def _print_result(result: CommandResult, *, as_json: bool) -> None:
    """Print a result as JSON, or as its text."""
    if as_json:
        shown = {key: value for key, value in result.items() if key not in ("text", "exit_code")}
        print(json.dumps(_finite(shown), ensure_ascii=False, allow_nan=False), flush=True)
    elif (text := _text(result)) is not None:
        print(text, flush=True)


def _text(result: CommandResult) -> str | None:
    """Return the text of a result, or a line for each of its values; None where nothing is to be printed."""
    from bertwright.console import result_lines

    text: str | None = result["text"] if "text" in result else "\n".join(result_lines(result))
    return text


def _finite(value: Any) -> Any:
    """Return the value with null in place of infinite numbers and NaN, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
