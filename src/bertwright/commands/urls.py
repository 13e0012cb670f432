"""URLs among the arguments of a command → paths on this machine, before the command begins.

Texts of `corpus build` and `tokenizer train` are read as streams (`text/documents.py`). All else that is read by URL is
copied into the cache, and the command gets the path of the copy. `pretrain --out URL` and `finetune --out URL` work in
a folder of this machine (`training/remote_run.py`).
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bertwright.commands import CommandResult
from bertwright.errors import InputError

_CORPORA: Final = frozenset({"corpus", "held_out"})
_MODELS: Final = frozenset({"model", "tokenizer", "init_from", "teacher", "left", "right", "rerank"})
_TABLES: Final = frozenset({"data", "input"})
_TABLES_OF: Final = frozenset({("index", "texts"), ("search", "queries")})
"""Commands and their parameters that are tables too."""
_WRITTEN: Final = frozenset({"out", "output", "errors"})
_RUNS: Final = frozenset({"pretrain", "finetune"})
"""Commands whose --out may be a URL."""
_SEARCHES: Final = ("grid", "search", "search_minutes")
"""Options of a search over settings, which removes the folders of its runs."""
_TEXT_IN_CORPUS: Final = frozenset({"babylm", "paper", "quickstart"})
"""Commands whose --corpus is a text, which they read by paths."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_NAME: Final = re.compile(r"([\w.-]+=)([a-z][a-z0-9+.-]+://)", re.IGNORECASE)
_WEIGHT: Final = re.compile(r"=[0-9.eE+-]+")


def with_urls(name: str, command: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Return the command `name` with paths in place of the URLs among its arguments.

    Raises InputError for a URL where the command takes paths alone.
    """

    @functools.wraps(command)
    def converted(*values: Any, **options: Any) -> CommandResult:
        signature = inspect.signature(command)
        bound = signature.bind(*values, **options)
        copies: dict[str, Path] = {}
        for option, value in bound.arguments.items():
            is_positional = signature.parameters[option].kind is inspect.Parameter.POSITIONAL_ONLY
            printed = option.upper() if is_positional else f"--{option.replace('_', '-')}"
            bound.arguments[option] = _converted(name, option, value, copies, printed=printed)
        url = _written_url(bound.arguments.get("out"))
        is_plan = bool(bound.arguments.get("plan"))
        if url is not None and not is_plan:
            return _run_to(url, command, bound)
        if url is not None:
            bound.arguments["out"] = _working_folder(url)
        result = command(*bound.args, **bound.kwargs)
        return _with_copies(result, copies) if is_plan and copies else result

    return converted


def _working_folder(url: str) -> Path:
    """Return the folder in which the run of a URL would work."""
    from bertwright.training.remote_run import working_folder

    return working_folder(url)


def _run_to(url: str, command: Callable[..., CommandResult], bound: inspect.BoundArguments) -> CommandResult:
    """Run a pre-training or fine-tuning whose run folder is a URL."""
    from bertwright.training.remote_run import run_by_url

    if any(bound.arguments.get(option) is not None for option in _SEARCHES):
        raise InputError(
            f"--out {url}: --grid and --search need an --out on this machine; copy its folder `model` to the store "
            "afterwards"
        )
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(f"--out {url}: one process trains to a store; several processes need an --out on this machine")
    with run_by_url(url, resume=bool(bound.arguments.get("resume"))) as folder:
        bound.arguments["out"] = folder
        result = command(*bound.args, **bound.kwargs)
    text = {"text": f"{result['text']}\nuploaded to {url}"} if "text" in result else {}
    return {**result, **text, "store": url}


def _with_copies(result: CommandResult, copies: Mapping[str, Path]) -> CommandResult:
    """Return a plan with the bytes of the copies that it needs in the cache."""
    sizes = {
        url: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for url, folder in copies.items()
    }
    lines = [f"  cache    {size / 1e6:,.1f} MB of {url} in {copies[url]}" for url, size in sizes.items()]
    return {**result, "cache": sizes, "text": "\n".join([result["text"], "", *lines])}


def _converted(command: str, option: str, value: Any, copies: dict[str, Path], *, printed: str) -> Any:
    """Return the value of an option with paths in place of URLs; add each copy to `copies`.

    printed: the option as messages name it.
    """
    if isinstance(value, tuple):
        return tuple(_converted(command, option, each, copies, printed=printed) for each in value)
    if not isinstance(value, str | Path) or not _SCHEME.search(str(value)):
        return value
    from bertwright.stores.remote import is_url, url_of_path, without_query

    url = url_of_path(value) if isinstance(value, Path) else value
    before, after = "", ""
    if url and (match := _NAME.match(url)):
        before, url = match[1], url.removeprefix(match[1])
    if not url or not is_url(url) or (option == "out" and command in _RUNS):
        return value
    if option == "corpus" and _WEIGHT.fullmatch(weight := "=" + url.rpartition("=")[2]) and url.endswith(weight):
        url, after = url.removesuffix(weight), weight
    if (copy := _copy(command, option, url)) is not None:
        copies[without_query(url)] = copy
        return copy if isinstance(value, Path) else f"{before}{copy}{after}"
    is_text = option in ("corpus", "mix") and command in _TEXT_IN_CORPUS
    if option in _WRITTEN or isinstance(value, Path) or is_text or option in ("index", "source"):
        advice = "copy the result to the store afterwards" if option in _WRITTEN else "copy it to this machine first"
        raise InputError(
            f"{printed} {without_query(url)}: expected a path of this machine; '{command}' takes no URL here; {advice}"
        )
    return value


def _copy(command: str, option: str, url: str) -> Path | None:
    """Return the path of a copy of what a URL names; None for an option that reads no URL."""
    if option in _MODELS:
        from bertwright.stores.cache import fetch_model

        return fetch_model(url)
    if command in _TEXT_IN_CORPUS:
        return None
    if option in _CORPORA:
        from bertwright.corpus.fetch import fetch_corpus

        return fetch_corpus(url)
    if option in _TABLES or (command, option) in _TABLES_OF:
        from bertwright.stores.cache import fetch_tables

        return fetch_tables(url)
    return None


def _written_url(value: Any) -> str | None:
    """Return the URL of --out, if it is one."""
    if not isinstance(value, Path) or not _SCHEME.match(str(value)):
        return None
    from bertwright.stores.remote import url_of_path

    return url_of_path(value)
