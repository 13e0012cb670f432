"""The largest differences from transformers, over all files of parity."""

from collections.abc import Iterator

import pytest

from tests.support.parity import Largest


@pytest.fixture(scope="session")
def largest() -> Iterator[Largest]:
    """Collect the largest differences, and print them at the end."""
    differences = Largest()
    yield differences
    print(f"\n{differences}")
