"""URL → path: files of a store that are copied to this machine once, whole or not at all."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_file, named_cache
from bertwright.stores.listing import files_below, find_remote, is_pattern
from bertwright.stores.remote import RemoteFile, current_file, without_query

_BLOCK: Final = 1 << 20  # bytes
_LONGEST: Final = 100
"""Number of bytes of the name of a copy, at most."""
_ORIGIN: Final = "url.txt"
"""File beside a folder of copies, with their URL."""
_STEPS: Final = "checkpoints/"
"""Folder of a run that no model, tokenizer or table needs."""


def fetch_tables(url: str) -> Path:
    """Return the path of a copy of a file, or of a folder with all files below it.

    The copy belongs to the URL and to the marks of its files: an unchanged file is not downloaded again.
    """
    if file := current_file(url):
        return fetch_files(url, {local_name(url): file}) / local_name(url)
    return fetch_files(url, _listed(url))


def fetch_model(url: str) -> Path:
    """Return the path of a copy of a model, tokenizer, run or corpus folder, with the files of its model or tokenizer.

    The files of a run's checkpoints and of a corpus' shards are not downloaded.
    """
    files = _listed(url)
    within = next((part for part in ("model/", "tokenizer/") if any(name.startswith(part) for name in files)), "")
    if "config.json" in files:
        within = ""
    return fetch_files(
        url,
        {name: file for name, file in files.items() if name.startswith(within) and not name.startswith(_STEPS)},
    )


def _listed(url: str) -> dict[str, RemoteFile]:
    """Return the files of a folder by their path from it. Raises InputError where there is no file, or no folder."""
    if files := files_below(url):
        return files
    if is_pattern(url):
        raise InputError(
            f"{url}: expected one file or folder, got a pattern; name the folder of the files, or one file"
        )
    file = find_remote(url)[0]  # raises where there is no file
    raise InputError(f"{file}: expected a folder, got a file of {file.size:,} bytes; name the folder that holds it")


def fetch_files(url: str, files: Mapping[str, RemoteFile]) -> Path:
    """Return the folder of the copies of these files; `files` are by their path in the folder.

    The folder belongs to the URL, and to the names, sizes and marks of the files.
    """
    content = "\n".join(f"{name} {file.size} {file.mark}" for name, file in sorted(files.items()))
    folder = copies_folder(url, content)
    complete_copies(url, files, folder)
    with atomic_file(folder.parent / _ORIGIN) as stream:
        stream.write(without_query(url).encode())
    return folder


def url_of_copy(path: str | Path) -> str | None:
    """Return the URL of a folder that `fetch_model` or `fetch_tables` copied; None for another path.

    A run that notes it can be continued on a machine whose cache lies elsewhere.
    """
    origin = Path(path).absolute().parent / _ORIGIN
    is_copy = named_cache("stores").absolute() in origin.parents and origin.is_file()
    return origin.read_text("utf-8") if is_copy else None


def copies_folder(url: str, content: str) -> Path:
    """Return the folder of the copies of a URL with some content, which a text identifies."""
    key = hashlib.sha256(f"{url}\n{content}".encode()).hexdigest()[:32]
    return named_cache("stores") / key / local_name(url)


def local_name(url: str) -> str:
    """Return the name of a copy of a URL: its last part without a query, of which the end is kept if it is long."""
    last = without_query(url).rstrip("/").rpartition("/")[2].encode()[-_LONGEST:].decode(errors="ignore")
    return last if last.strip(".") else "files"


def complete_copies(
    url: str, files: Mapping[str, RemoteFile], folder: Path, *, digests: Mapping[str, str] | None = None
) -> None:
    """Download the files that a folder of copies lacks, in their order.

    digests: sha256 of files, in hex; a download with another one is refused. A copy gets its name when it is complete,
    so that a copy with a name is whole. A file without a digest and without a mark of the store is downloaded again.
    Raises RunFailed where a file changes during its download, or the disk has too little room.
    """
    digests = digests or {}
    unknown = {name for name, file in files.items() if not file.has_mark and name not in digests}
    if any((folder / name).exists() for name in unknown):
        say(f"{without_query(url)}: the store gives no checksum and no time of change; the files are downloaded again")
    missing = {name: file for name, file in files.items() if name in unknown or not _is_whole(folder / name, file)}
    if missing:
        _say_size(url, missing, folder)
    for name, file in missing.items():
        download(file, folder / name, sha256=digests.get(name))


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and (not file.size or path.stat().st_size == file.size)


def _say_size(url: str, missing: Mapping[str, RemoteFile], folder: Path) -> None:
    """Print the size of a download. Raises RunFailed where the disk has too little room."""
    size = sum(file.size for file in missing.values())
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(above).free
    text = f"{without_query(url)}: {size / 1e6:,.1f} MB are to be downloaded into {folder}"
    if size > free:
        raise RunFailed(f"{text}, where {free / 1e6:,.1f} MB are free; set BERTWRIGHT_CACHE to a folder with more room")
    if size >= _BLOCK:
        say(f"{text} ({free / 1e6:,.0f} MB are free)")


def download(file: RemoteFile, path: Path, *, sha256: str | None = None) -> None:
    """Copy a file to `path`, which is complete or absent. RunFailed where it changed, or has another digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with file.open() as source, atomic_file(path) as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            target.write(block)
        file.refuse_changed()
        if sha256 is not None and digest.hexdigest() != sha256:
            raise RunFailed(
                f"{file}: expected the sha256 {sha256[:12]}…, got {digest.hexdigest()[:12]}…: the file in the store is "
                "damaged or belongs to another folder; copy it there again"
            )
