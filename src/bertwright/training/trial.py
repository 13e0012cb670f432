"""loss → weights: the one training loop, which knows neither BERT nor tasks.

A step sums losses and counts over its micro-batches and divides once: masked positions are ragged.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from bertwright.errors import RunFailed
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable
from bertwright.training.hardware import Numerics, finish
from bertwright.training.loop import Batch, Loop, Plan


def measure_step_seconds(
    trainable: Trainable[Batch],
    batches: Callable[[int], Sequence[Batch]],
    *,
    plan: Plan,
    numerics: Numerics,
    seconds: float,
    ranks: Ranks = SINGLE_PROCESS,
) -> float:
    """Seconds of a step, from throw-away updates on the first micro-batch of each; the weights are put back.

    The rest of a step is taken to cost what its floating-point work says: a step of BERT-large takes minutes. The first
    three compile and warm up; of the others it is the median. Where a step takes longer than `seconds`, few are taken,
    and the fastest counts: any of them may have compiled a shape that is new to it. Each of several ranks measures by
    itself, all at once, and then how long they take to add up their gradients.
    """
    before = {name: tensor.clone() for name, tensor in trainable.module.state_dict().items()}
    loop = Loop(trainable, plan, numerics, None)
    times: list[float] = []
    found = 0.0
    while not found:
        begin = time.perf_counter()
        micro = batches(len(times))
        made = time.perf_counter()
        losses, norm = loop.learn(len(times), micro[:1])
        learned = time.perf_counter()
        loop.update(len(times), losses, norm)
        finish(loop.engine.place)
        updated = time.perf_counter()
        whole = sum(map(trainable.flops, micro)) / trainable.flops(micro[0])
        whole *= len(ranks.partition(micro)) / len(micro)
        times.append(made - begin + (learned - made) * whole + updated - learned)
        if updated - begin > seconds and len(times) >= (4 if numerics.compiled else 2):
            found = min(times[1:])
        elif len(times) >= 6 and sum(times[3:]) >= seconds:
            found = statistics.median(times[3:])
    trainable.module.load_state_dict(before)
    return found + ranks.sum_seconds(sum(tensor.numel() for tensor in before.values()), loop.engine.place)


Found = TypeVar("Found")
GOES_ON: Final = "; a run goes on with it by --resume --allow-other-numerics"
FITS_ALONE: Final = "the rows of a step fit, so an evaluation or another program did not; go on with --resume"
ON_PROCESSORS: Final = "--device cpu computes it on the processors"


def unless_full(compute: Callable[[], Found], advice: Callable[[], str]) -> Found:
    """What `compute` returns; RunFailed with the advice where the memory of a GPU does not suffice for it."""
    try:
        return compute()
    except torch.OutOfMemoryError as error:
        told = str(error).partition(". ")[0]
    _free()
    raise RunFailed(f"{told}: {advice()}")


def largest(rows: int, compute: Callable[[int], object]) -> int:
    """`rows`, halved until a GPU's memory suffices to compute them; 0 where it does not for one."""
    while rows:
        try:
            compute(rows)
        except torch.OutOfMemoryError:
            rows //= 2
        else:
            return rows
        _free()
    return 0


def _free() -> None:
    """Give back what a computation that failed held; within the handler of its error it is still held."""
    gc.collect()
    torch.cuda.empty_cache()
