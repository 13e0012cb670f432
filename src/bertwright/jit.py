"""Python loops → machine code, kept on disk for the next process."""

import functools
import hashlib
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
_DIGEST = "made_of"
"""The attribute of a compiled function that holds the digest of all that went into its machine code."""


def compiled(function: Function, **options: Any) -> Function:
    """Compile with numba, without the interpreter lock; the machine code is kept on disk for the next process.

    It is kept beside the source, else in the person's own cache folder. Where neither can be written, the function is
    compiled anew in every process: a slower start, the same numbers.

    A function that calls another holds the other's machine code, and numba asks only whether the caller's own file is
    still the same: kept code is therefore parted by what the called ones are made of, too.
    """
    try:
        digest = _digest(function)
        with _kept(function, digest):
            made = numba.njit(cache=True, nogil=True, **options)(function)
        setattr(made, _DIGEST, digest)
    except (OSError, RuntimeError):
        made = numba.njit(nogil=True, **options)(function)
    return cast(Function, made)


def _digest(function: Callable[..., Any]) -> str:
    """Of the function's file, and of the compiled functions and numbers that it has from other files."""
    found = hashlib.sha256(Path(function.__code__.co_filename).read_bytes())
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, Number):
            found.update(f"{name} {value}".encode())
        elif getattr(value, "__module__", None) != function.__module__:
            found.update(getattr(value, _DIGEST, "").encode())
    return found.hexdigest()[:16]


@contextmanager
def _kept(function: Callable[..., Any], digest: str) -> Iterator[None]:
    """Let numba keep what it makes in a folder of that digest; OSError where there is no place for one."""
    usual = _CONFIG.CACHE_DIR
    place = next(filter(_is_writable, _places(Path(function.__code__.co_filename), usual)), None)
    if place is None:
        raise OSError("nothing can be kept: no folder can be written to")
    _CONFIG.CACHE_DIR = str(place / f"compiled-{digest}")
    try:
        yield
    finally:
        _CONFIG.CACHE_DIR = usual


def _places(source: Path, named: str) -> Iterator[Path]:
    """Where numba was told to, beside the source, and in the person's cache folder."""
    if named:
        yield Path(named)
    yield source.parent / "__pycache__"
    yield cache_folder()


@functools.cache
def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return False
    return True
