"""Random moments of a test: an error names their seed, and an environment variable sets it."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SEED: Final = "BERTWRIGHT_TEST_SEED"


@contextmanager
def drawn_moments() -> Iterator[random.Random]:
    """Yield a generator; the message of an error in the block names the seed that draws the same again."""
    seed = int(os.environ.get(SEED) or time.time_ns())
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"{SEED}={seed} draws the same moments")
        raise
