"""Muon's iteration in bf16, in one call of C++ (model/cpu/muon_iteration.cpp) and in torch: matrices a second.

    python -m benchmarks.studies.muon [--threads 2] [--repeats 9] [--json]

The updates are random numbers: so many matrices of so many outputs and inputs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.side_by_side import compare, finish, parser
from bertwright.model.cpu.muon_iteration import muon_iteration
from bertwright.training.hardware import prepare_processor
from bertwright.training.muon import bf16_function, orthogonalise

SHAPES = [(18, 128, 128), (12, 352, 128), (24, 192, 192), (12, 512, 192), (12, 384, 384), (4, 1536, 384), (3, 768, 768)]


def matrices_done(way: Callable[[Tensor], Tensor], updates: Tensor) -> float:
    """Compute the updates, and return their number."""
    return len(way(updates))


def main() -> None:
    """Print a row for each shape."""
    options = parser(__doc__)
    options.set_defaults(repeats=9)
    arguments = options.parse_args()
    prepare_processor()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for count, outputs, inputs in SHAPES:
        updates = torch.randn(count, outputs, inputs, generator=torch.Generator().manual_seed(0))
        ours = partial(matrices_done, bf16_function(muon_iteration), updates)
        theirs = partial(matrices_done, partial(orthogonalise, dtype=torch.bfloat16), updates)
        work = f"{count} matrices of {outputs} x {inputs}"
        rows += compare(work, ours, {"torch": theirs}, repeats=arguments.repeats, unit="matrices a second")
    finish(arguments, rows, packages=())


if __name__ == "__main__":
    main()
