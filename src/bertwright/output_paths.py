"""path of an output → nothing, or an error before the work begins: it cannot be written, or something would be lost."""

import os
import re
import tempfile
from os.path import samefile
from pathlib import Path
from typing import Final

from bertwright.errors import InputError
from bertwright.files import LONGEST_NAME, is_stream

_OWN_NAME: Final = re.compile(
    r"(vocab|merges)\.txt|README\.md|metrics\.jsonl|report\.html"
    r"|(\w*config\w*|vocab|tokenizer|special_tokens_map|added_tokens|modules|run|entry|manifest|build|drawn|state|grid"
    r"|search|mined|metrics|evaluation|validation|predictions|export|results?|diverged|sources|cost|subset|\.store)\.json"
    r"|.*\.(safetensors|safetensors\.index\.json|sha256|bin|pt|npy|arrow|i8|hashes|rows|onnx|onnx\.data|model)"
)
"""Names of files that the program writes into a folder of its own."""
_MARKS: Final = ("config.json", "tokenizer_config.json", "run.json", "state.json", "entry.json", "manifest.json")
"""Files by which the folder of a model, tokenizer, run, checkpoint, entry, corpus or index is known."""


def refuse_target(target: str, *, source: str, option: str = "--output", read: str = "--input") -> None:
    """Raise InputError for a target that cannot be written, that is the file that is read, or a file of the program.

    option, read: names of the options that hold the two. "-" stands for a standard stream, which is always accepted.
    """
    if target != "-":
        refuse_unwritable(Path(target), option, is_folder=False)
        refuse_own_file(Path(target), option)
    if "-" not in (source, target) and Path(source).exists() and Path(target).exists() and samefile(source, target):
        raise InputError(f"{option} {target}: expected another file than that of {read}; name another one")


def refuse_own_file(path: Path, option: str) -> None:
    """Raise InputError for a file of a model, run, corpus or index: it would be lost. `option` holds the path."""
    path = path.resolve()
    if path.is_file() and _OWN_NAME.fullmatch(path.name) and any((path.parent / name).is_file() for name in _MARKS):
        raise InputError(
            f"{option} {path}: is a file of a model, run, corpus or index, and would be lost; name another one"
        )


def refuse_folder(target: str | Path, option: str = "--output") -> None:
    """Raise InputError for a folder where a file is written; `option` names where it was given."""
    if Path(target).is_dir():
        raise InputError(f"{option} {target}: expected a file, got a folder; name a file")


def refuse_existing(out: Path) -> None:
    """Raise InputError for an --out that exists already, or cannot be written, before a command begins its work."""
    if out.exists():
        raise InputError(f"--out {out}: exists already; name another folder or remove it")
    refuse_unwritable(out, "--out", is_folder=True)


def refuse_unwritable(path: Path, option: str, *, is_folder: bool) -> None:
    """Raise InputError where `path` cannot be written, before a command begins its work.

    option: name of the option that holds the path, for the message. is_folder: `path` becomes a folder, and missing
    folders above it are made later; the folder of a file must exist.
    """
    try:
        if is_stream(path):
            return
        folder = path if path.is_dir() else next(parent for parent in path.absolute().parents if parent.exists())
        is_loop = path.is_symlink() and os.path.islink(os.path.realpath(path))
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be opened ({error.strerror}); name another path") from None
    if is_loop:
        raise InputError(f"{option} {path}: is a link that leads to itself; name another path")
    if (length := len(os.fsencode(path.name))) > LONGEST_NAME:
        raise InputError(f"{option} {path}: the name has {length} bytes; expected at most {LONGEST_NAME}")
    if not folder.is_dir():
        raise InputError(f"{option} {path}: expected a folder, but {folder} is a file; name another path")
    if not is_folder and not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"{option} {path}: no file can be written in {folder} ({error.strerror}); name a path that can be written"
        ) from None
