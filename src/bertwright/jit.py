"""Python function → machine code, cached on disk for the next process; and the compiler for C++."""

import functools
import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from bertwright.files import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

_CONFIG: Any = numba.config
_DIGEST = "source_digest"
"""Attribute of a compiled function: digest of everything that its machine code was made from."""


def compiled(function: Function, **options: Any) -> Function:
    """Compile a function with numba, without the interpreter lock, and cache its machine code on disk.

    The cache lies beside the source, else in the user's cache folder. Where neither can be written, every process
    compiles the function again: the start is slower, the results are the same.

    The machine code of a function contains that of the functions that it calls, but numba only checks whether the file
    of the caller changed. The folder of the cache therefore depends on the digests of the called functions too.
    """
    try:
        digest = _digest(function)
        with _cache_for(function, digest):
            dispatcher = numba.njit(cache=True, nogil=True, **options)(function)
        setattr(dispatcher, _DIGEST, digest)
    except (OSError, RuntimeError):
        dispatcher = numba.njit(nogil=True, **options)(function)
    return cast(Function, dispatcher)


def cpp_compiler() -> str | None:
    """Return the command of the C++ compiler, the environment's CXX first; None where there is none."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def compiler_words(command: str) -> list[str]:
    """Return the words of a compiler's command. The path of a program is one word, even with blanks and backslashes."""
    return [command] if shutil.which(command) else shlex.split(command)


def _digest(function: Callable[..., Any]) -> str:
    """Return a digest of the function's file, and of the compiled functions and numbers imported there."""
    digest = hashlib.sha256(Path(function.__code__.co_filename).read_bytes())
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, Number):
            digest.update(f"{name} {value}".encode())
        elif getattr(value, "__module__", None) != function.__module__:
            digest.update(getattr(value, _DIGEST, "").encode())
    return digest.hexdigest()[:16]


@contextmanager
def _cache_for(function: Callable[..., Any], digest: str) -> Iterator[None]:
    """Let numba cache in a folder of that digest. Raises OSError where no folder can be written."""
    usual = _CONFIG.CACHE_DIR
    folder = next(filter(_is_writable, _cache_folders(Path(function.__code__.co_filename), usual)), None)
    if folder is None:
        raise OSError("no folder for the cache of compiled functions can be written")
    _CONFIG.CACHE_DIR = str(folder / f"compiled-{digest}")
    try:
        yield
    finally:
        _CONFIG.CACHE_DIR = usual


def _cache_folders(source: Path, configured: str) -> Iterator[Path]:
    """Yield the possible folders: numba's configured one, the one beside the source, the user's cache folder."""
    if configured:
        yield Path(configured)
    yield source.parent / "__pycache__"
    yield cache_folder()


@functools.cache
def _is_writable(folder: Path) -> bool:
    """Return whether files can be written in a folder, which is made where it is absent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
