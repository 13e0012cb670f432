"""Draw rows once, for the server of `faults`: its processes then have the functions that numba loads in a second."""

import tempfile
from pathlib import Path

from tests.support import tiny_run

with tempfile.TemporaryDirectory() as folder:
    tiny_run.examples(Path(folder)).step_batch(1, 4)
