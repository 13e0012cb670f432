"""Batches → seconds of a step, from trial steps; and advice where the memory of a GPU does not suffice."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from bertwright.errors import RunFailed
from bertwright.training.distributed import SINGLE_PROCESS, Batch, Ranks, Trainable
from bertwright.training.hardware import Numerics, synchronize
from bertwright.training.loop import Loop, Plan

_Result = TypeVar("_Result")
RESUME_ADVICE: Final = "; --resume --allow-other-numerics continues a run with it"
FITS_ADVICE: Final = (
    "the rows of a step fit, so an evaluation or another program took the memory; continue with --resume"
)
CPU_ADVICE: Final = "--device cpu computes it on the processors"


def measure_step_seconds(
    trainable: Trainable[Batch],
    batches: Callable[[int], Sequence[Batch]],
    *,
    plan: Plan,
    numerics: Numerics,
    seconds: float,
    ranks: Ranks = SINGLE_PROCESS,
) -> float:
    """Return the seconds of a step, from trial steps on the first micro-batch of each; the weights are restored.

    A BERT-large step takes minutes, so the other micro-batches are estimated by their FLOPs. The first three steps
    compile and warm up; the result is the median of the steps after them. Where a step takes longer than `seconds`,
    there are few steps, and the fastest counts, since any of them may have compiled a new shape. Each rank measures on
    its own, all at once; the seconds in which the ranks sum their gradients are added.
    """
    weights_before = {name: tensor.clone() for name, tensor in trainable.module.state_dict().items()}
    loop = Loop(trainable, plan, numerics, None)
    times: list[float] = []
    result = 0.0
    while not result:
        start = time.perf_counter()
        micro_batches = batches(len(times))
        after_batches = time.perf_counter()
        losses, norm = loop.compute_gradients(len(times), micro_batches[:1])
        after_gradients = time.perf_counter()
        loop.update(len(times), losses, norm)
        synchronize(loop.engine.device)
        after_update = time.perf_counter()
        factor = sum(map(trainable.flops, micro_batches)) / trainable.flops(micro_batches[0])
        factor *= len(ranks.partition(micro_batches)) / len(micro_batches)
        times.append(
            after_batches - start + (after_gradients - after_batches) * factor + after_update - after_gradients
        )
        if after_update - start > seconds and len(times) >= (4 if numerics.compiled else 2):
            result = min(times[1:])
        elif len(times) >= 6 and sum(times[3:]) >= seconds:
            result = statistics.median(times[3:])
    trainable.module.load_state_dict(weights_before)
    return result + ranks.sum_seconds(sum(tensor.numel() for tensor in weights_before.values()), loop.engine.device)


def advise_on_full_gpu(compute: Callable[[], _Result], advice: Callable[[], str]) -> _Result:
    """Return `compute()`. Raises RunFailed with the advice where the memory of a GPU does not suffice."""
    try:
        return compute()
    except torch.OutOfMemoryError as error:
        message = str(error).partition(". ")[0]
    _free_gpu_memory()
    raise RunFailed(f"{message}: {advice()}")


def most_fitting_rows(rows: int, compute: Callable[[int], object]) -> int:
    """Return `rows`, halved until a GPU's memory suffices for `compute`; 0 where one row does not fit."""
    while rows:
        try:
            compute(rows)
        except torch.OutOfMemoryError:
            rows //= 2
        else:
            return rows
        _free_gpu_memory()
    return 0


def _free_gpu_memory() -> None:
    """Free what a failed computation held. Call this outside of the error's handler, which still holds it."""
    gc.collect()
    torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
