"""Errors reach another process whole: a worker of joblib pickles what it raises."""

import errno
import pickle
from pathlib import Path

import pytest

from bertwright.errors import DiskFull, MissingExtra
from bertwright.tasks.finite import NotFinite


@pytest.mark.parametrize(
    "error",
    [
        NotFinite(3, "X[3]"),
        MissingExtra("tasks", "scoring"),
        DiskFull(Path("never-there"), OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_an_error_survives_a_pickle(error: Exception) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)
