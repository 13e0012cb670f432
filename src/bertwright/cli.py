"""The command line: finds the command, runs it, prints its result, turns errors into exit codes. Imports little."""

import errno
import functools
import importlib
import io
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

Result = Mapping[str, Any]
"""What a command found: printed line by line, or as one JSON object with --json.

`text` is printed instead of the lines and `exit_code` returned instead of 0; neither is in the object.
"""

TURNS = "20000"
"""After how many looks a waiting thread of OpenMP goes to sleep."""
_COMMANDS = {
    "quickstart": (
        "pretraining.quickstart",
        "learn a vocabulary, pre-train, fine-tune and compare, on the documentation of this machine",
    ),
    "tokenizer train": ("text.tokenizer_train", "learn a vocabulary from text: WordPiece, or byte pairs"),
    "tokenizer import": ("text.tokenizer_import", "take a released vocab.txt"),
    "tokenizer extend": ("text.tokenizer_extend", "add pieces for another domain's text to a vocabulary"),
    "corpus build": ("text.corpus_build", "text → tokenised shards"),
    "corpus merge": ("text.corpus_merge", "several corpora under one manifest"),
    "corpus inspect": ("text.corpus_inspect", "what a corpus holds, and what in it will hurt"),
    "corpus verify": ("text.corpus_verify", "check every byte of a corpus"),
    "pretrain": ("pretraining.pretrain", "shards → encoder: BERT by masked LM and next sentence, or a language model"),
    "join": ("pretraining.join", "a left-to-right and a right-to-left model side by side, as ELMo"),
    "runs": ("reports.runs", "the runs below a folder: how far, how fast, how good"),
    "report": ("reports.report", "a run on one page, or two side by side: curves, figures, settings"),
    "finetune": ("finetuning.finetune", "encoder + labelled table → a model for a task"),
    "evaluate": ("finetuning.evaluate", "a model's figures on a task, or of its pre-training"),
    "predict": ("finetuning.predict", "answer every row of a table"),
    "submission": ("finetuning.submission", "answer GLUE's test files, as the zip that its server takes"),
    "score squad": ("finetuning.score_squad", "exact match and F1 of a predictions file, as SQuAD's official scripts"),
    "features": ("interop.features", "the states of a frozen encoder for every line of a text, as .npz"),
    "import": ("interop.import_model", "a checkpoint of Google's, Hugging Face's or OpenAI's format → a model folder"),
    "export onnx": ("interop.export_onnx", "a model for ONNX Runtime, compared with PyTorch first; int8 if asked for"),
    "fill": ("pretraining.fill", "what stands behind [MASK]"),
    "next-sentence": ("pretraining.next_sentence", "does B follow A?"),
    "serve": ("serving.serve", "models over HTTP, and a page to try them"),
    "demo": ("serving.demo", "the page in your browser, with a model of yours"),
    "paper": ("experiments.paper", "the tables and figures of the paper as experiments, each with a page of results"),
    "doctor": ("reports.doctor", "what costs people weeks: in the machine, a model, a corpus, labelled data"),
    "completion": ("completion.completion", "what makes bash, zsh or fish complete all these"),
}


def process() -> NoReturn:
    """`bertwright` as a process of its own, or as one of several that train together."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(main())
    try:
        status = main()
    except SystemExit as error:  # a signal, --help, or an option that does not exist; perhaps with a text
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


def leave(status: int) -> NoReturn:
    """End one of several processes as it stands.

    A thread of gloo's lets go of its last tensor when it gets to it, for which it needs the interpreter; one that waits
    for that while the interpreter is taken apart aborts the process, whose work is done by then.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a failure, 2 for bad usage or bad input."""
    from bertwright.errors import InputError, RunFailed, Stopped

    if argv is None:  # the process is ours: let signals unwind, so that temporary files are removed on the way out
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = list(sys.argv[1:] if argv is None else argv)
    _set_torch_up()
    as_json = "--json" in arguments
    arguments = [argument for argument in arguments if argument != "--json"]
    try:
        found = _find(arguments)
        if found is None:
            return _overview(arguments)
        name, rest = found
        result = _parse(name, rest)
        if isinstance(sys.stdout, io.TextIOWrapper):  # what is no character of the terminal is shown by its number
            sys.stdout.reconfigure(errors="backslashreplace")
        if os.environ.get("RANK", "0") == "0":  # of several processes that torchrun started, one speaks
            _tell(result, as_json=as_json)
        return int(result.get("exit_code", 0))
    except Stopped as error:
        _complain(error)
        if as_json:
            print(json.dumps({"stopped": True}), flush=True)
        return 0
    except InputError as error:
        _complain(error)
        return 2
    except RunFailed as error:
        _complain(error)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        from bertwright.files import FULL_DISK

        if error.errno in FULL_DISK:
            place = error.filename or "standard output, or the folder of temporary files"
            _complain(f"{place}: the disk is full ({error.strerror}). Make room and give the same command again")
        else:
            _complain(error)
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130


def _set_torch_up() -> None:
    """What torch and its OpenMP read when they are loaded, unless a person has said it.

    It asks for huge pages. A thread that waits for the others turns TURNS times and then sleeps, where it would turn
    300,000 times: that is as fast on a machine with nothing else to do, and where other programs have some of the
    cores it does not take the time of the very thread that it waits for (docs/log.md).
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", TURNS)


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Raise InputError for an argument or a current folder that is not UTF-8: records and answers could not hold it."""
    from bertwright.errors import InputError, legible

    # A token is a secret: the command that takes it refuses it without showing it.
    shown = [
        text for before, text in pairwise(["", *arguments]) if before != "--token" and not text.startswith("--token=")
    ]
    for kind, text in (*(("argument", each) for each in shown), ("current folder", os.getcwd())):
        if legible(text) != text:
            raise InputError(
                f"{kind} '{legible(text)}': is not UTF-8 text, which records and answers are; "
                "if it is a path, rename it"
            )


def _checked(command: Callable[..., Result]) -> Callable[..., Result]:
    """Return the command with a check before its work: can its --out or --output be written (a --plan writes none)?"""
    from bertwright.files import refuse_unwritable
    from bertwright.leftovers import remove_leftovers

    @functools.wraps(command)
    def checked(*values: Any, **options: Any) -> Result:
        for name in () if options.get("plan") else ("out", "output"):
            if (path := options.get(name)) and str(path) != "-":
                refuse_unwritable(Path(path), f"--{name}", is_folder=name == "out")
                remove_leftovers(Path(path).parent, Path(path).name)
                remove_leftovers(Path(path))
        return command(*values, **options)

    return checked


def _find(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if len(arguments) >= words and name in _COMMANDS:
            return name, list(arguments[words:])
    return None


def _overview(arguments: Sequence[str]) -> int:
    """--help, --version, or a command that does not exist."""
    from bertwright.version import __version__

    if arguments[:1] == ["--version"]:
        print(f"bertwright {__version__}")
        return 0
    asked = not arguments or arguments[0] in ("-h", "--help") or arguments[1:2] in (["-h"], ["--help"])
    group = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    shown = {name: text for name, (_, text) in _COMMANDS.items() if not group or name.startswith(f"{group} ")}
    answers = asked and bool(shown)
    out = sys.stdout if answers else sys.stderr
    if not answers:
        print(f"bertwright: there is no command '{' '.join(arguments[:2])}'", file=out)
    print("usage: bertwright COMMAND …   (bertwright COMMAND --help tells its options)\n", file=out)
    for name, text in (shown or {name: text for name, (_, text) in _COMMANDS.items()}).items():
        print(f"  {name:18}{text}", file=out)
    print(
        "\n--json with any command: one JSON object as the last line of standard output, all else on standard error.",
        file=out,
    )
    print("MODEL is a model folder, a run folder, small-wiki (comes along), or random:SIZE (random weights).", file=out)
    return 0 if answers else 2


def _parse(name: str, rest: list[str]) -> Result:
    import tyro
    from pydantic import ValidationError

    from bertwright.errors import InputError, shown

    module, function = _COMMANDS[name][0].split(".")
    command: Callable[..., Result] = getattr(importlib.import_module(f"bertwright.commands.{module}"), function)
    if name == "completion":  # it writes down this table
        command = functools.partial(command, _COMMANDS)
    if not {"-h", "--help"} & set(rest):
        _refuse_bytes(rest)
    settings = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone)
    try:
        return tyro.cli(_checked(command), args=rest, prog=f"bertwright {name}", config=settings)
    except ValidationError as error:
        places = []
        for part in error.errors():
            value, place = part["input"], ".".join(map(str, part["loc"])) or "settings"
            if part["type"] == "value_error":  # our own, which say the value where there is one
                places.append(f"{place}: {part['msg'].removeprefix('Value error, ')}")
            else:
                told = f"{shown(value)}: " if isinstance(value, str | int | float) else ""
                places.append(f"{place}: {told}{part['msg']}")
        raise InputError("; ".join(places)) from None


def _complain(what: object) -> None:
    from bertwright.console import heard_or_not

    with heard_or_not():
        print(f"bertwright: {what}", file=sys.stderr)


def _tell(result: Result, *, as_json: bool) -> None:
    """Print it; where the terminal was closed meanwhile, the work is done all the same."""
    from bertwright.console import silence

    try:
        _print_result(result, as_json=as_json)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        silence(sys.stdout)


def _print_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        shown = {key: value for key, value in result.items() if key not in ("text", "exit_code")}
        print(json.dumps(_finite(shown), ensure_ascii=False, allow_nan=False), flush=True)
        return
    if "text" in result:
        if result["text"] is not None:
            print(result["text"], flush=True)
        return
    figures = dict(_flat(result))
    width = max([24, *map(len, figures)]) + 2
    for key, value in figures.items():
        print(f"{key:{width}}{value:.4f}" if isinstance(value, float) else f"{key:{width}}{value}", flush=True)


def _finite(value: Any) -> Any:
    """The same with null in place of the numbers that JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(result: Result) -> Iterator[tuple[str, Any]]:
    """Nested figures as name.name."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", figure) for inner, figure in _flat(value))
        else:
            yield key, value
