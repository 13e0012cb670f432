"""URL → files: a file, all files below a folder, or those of a pattern. Only keys with its beginning are listed."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.stores.remote import (
    LOCAL,
    RemoteFile,
    current_file,
    is_http,
    named_faults,
    open_store,
    remote_file,
    without_query,
)

_PATTERN: Final = re.compile(r"[*?\[]")


def find_remote(url: str) -> list[RemoteFile]:
    """Return the files that a URL stands for, sorted: a file, a folder with all below it, or a pattern.

    A pattern lists the keys with its beginning, the text before its first `*`, `?` or `[`. A folder whose name fits is
    taken with all below it. Names that begin with a dot are left out. Raises InputError where there is no file.
    """
    if not is_pattern(url):
        file = current_file(url)
        if file is None and is_http(url) and not without_query(url).endswith("/"):
            raise InputError(f"{without_query(url)}: is no file of the server; end the URL of a folder with /")
        files = [file] if file else [each for name, each in files_below(url).items() if not _is_hidden(name)]
    else:
        files = _matching(url)
    if not files:
        raise InputError(f"{without_query(url)}: no file of the store has this name, folder or pattern")
    return files


def is_pattern(url: str) -> bool:
    """Return whether a URL has `*`, `?` or `[`; a `?` of http begins a query."""
    return not is_http(url) and _PATTERN.search(url) is not None


def leads_outside(name: str) -> bool:
    """Return whether a path from a folder leads out of it."""
    return name.startswith("/") or ".." in name.split("/")


def files_below(url: str) -> dict[str, RemoteFile]:
    """Return all files below a folder of a store by their path from it, sorted; empty where there is no such folder.

    Raises InputError for a key that would lead out of the folder of a copy.
    """
    system, path = open_store(url)
    with named_faults(url):
        try:
            entries: Mapping[str, Any] = system.find(path, detail=True)
        except FileNotFoundError:
            return {}
    base = path.rstrip("/") + "/"
    files: dict[str, RemoteFile] = {}
    for path, info in entries.items():
        if path.startswith(base) and not path.endswith("/") and info.get("type") == "file":
            name = path.removeprefix(base)
            below = f"{url.rstrip('/')}/{name}"
            # The page that lists a folder of http does not have the marks of its files.
            file = current_file(below) if is_http(url) else remote_file(below, info)
            files |= {name: file} if file else {}
    if outside := next(filter(leads_outside, files), None):
        raise InputError(f"{without_query(url)}: the key {outside} leads out of the folder; rename it in the store")
    return dict(sorted(files.items(), key=lambda item: item[0].split("/")))


def _matching(url: str) -> list[RemoteFile]:
    from fsspec.utils import glob_translate

    system, path = open_store(url)
    begin = _PATTERN.split(path)[0]
    scheme, _, rest = url.partition("://")
    if _PATTERN.search(rest.partition("/")[0]):
        raise InputError(f"{url}: the pattern begins in the name of the bucket; name one bucket")
    parent = begin.rpartition("/")[0]
    fits = re.compile(glob_translate(path)).match
    with named_faults(url):
        entries = _with_beginning(system, begin)
    names = [
        name
        for name in sorted(entries, key=lambda name: name.split("/"))
        if any(fits(name[: match.start()]) for match in re.finditer("/|$", name))
        and not _is_hidden(name.removeprefix(parent))
    ]
    root = f"{scheme}:///" if scheme.lower() in LOCAL else f"{scheme}://"
    return [remote_file(root + name.lstrip("/"), entries[name]) for name in names]


def _with_beginning(system: Any, begin: str) -> dict[str, Any]:
    """Return the files whose path has this beginning. A store that lists by prefix lists no other."""
    parent, _, prefix = begin.rpartition("/")
    if "prefix" in inspect.signature(system.find).parameters:
        entries = system.find(parent, prefix=prefix, detail=True)
    else:
        entries = {}
        for entry in system.ls(parent or "/", detail=True):
            if entry["name"].rpartition("/")[2].startswith(prefix):
                below = {entry["name"]: entry} if entry["type"] == "file" else system.find(entry["name"], detail=True)
                entries.update(below)
    return {name: info for name, info in entries.items() if info.get("type") == "file" and name.startswith(begin)}


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
