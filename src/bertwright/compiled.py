"""Python loops → machine code, kept on disk for the next process."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **options: Any) -> Function:
    """Compile with numba, without the interpreter lock; the machine code is kept on disk for the next process.

    numba looks for a place beside the source, then in the person's own cache folder. Where neither can be written, the
    function is compiled anew in every process: a slower start, the same numbers.
    """
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:
        return cast(Function, numba.njit(nogil=True, **options)(function))
