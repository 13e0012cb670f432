"""loss → weights: the one training loop, which knows neither BERT nor tasks.

A step sums losses and counts over its micro-batches and divides once: masked positions are ragged.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertwright.console import Status, clock
from bertwright.errors import RunFailed
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.machine import Numerics
from bertwright.training.optimizer import OptimizerSettings, build_optimizer, clip_gradients, rate_at, set_rate
from bertwright.training.tracking import RunFolder

Batch = TypeVar("Batch")
Terms = Mapping[str, tuple[Tensor, str]]


@dataclass(frozen=True)
class Trainable(Generic[Batch]):
    """What the loop trains.

    `step` returns {term: (sum, count name)}; `counts` reads the same counts from the batch before forward; `flops` is
    the floating-point work of forward and backward; `tokens` counts real tokens; `blocks` are the units for sharding.
    """

    module: nn.Module
    blocks: Sequence[nn.Module]
    step: Callable[[Batch], Terms]
    counts: Callable[[Batch], Mapping[str, float]]
    flops: Callable[[Batch], float]
    tokens: Callable[[Batch], int]


@dataclass(frozen=True)
class Plan:
    """How long and how often. `evaluate` returns figures for a line of metrics.jsonl; it runs with dropout off."""

    steps: int
    seed: int
    optimizer: OptimizerSettings
    scale: Callable[[str], float] = lambda _: 1.0
    log_every: int = 50
    save_seconds: float = 300.0
    save_every: int | None = None
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    evaluate_at: frozenset[int] = frozenset()
    steps_left: Callable[[int], float] | None = None
    """After `done` steps, how many more in units of the last one's cost; for the time left of a run with phases."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `steps` done, whether a signal came, and the last evaluation."""

    steps: int
    signalled: bool
    finished: bool
    last: Mapping[str, float] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether there is more to do."""
        return not self.finished


def train(
    trainable: Trainable[Batch],
    batches: Callable[[int], Sequence[Batch]],
    *,
    plan: Plan,
    numerics: Numerics,
    run: RunFolder | None = None,
    quiet: bool = False,
) -> Outcome:
    """Train for `plan.steps` steps; `batches(step)` gives a step's micro-batches.

    With a run folder it logs, saves checkpoints and goes on from the newest one. SIGINT and SIGTERM save and stop.
    RunFailed when the loss or the gradient is not finite; the update is not applied and the checkpoints stay.
    """
    loop = Loop(trainable, plan, numerics, run)
    first = loop.restore()
    measured = [line["held_out"] for line in run.metrics() if "held_out" in line] if run else []
    last: Mapping[str, float] = measured[-1] if measured else {}
    with Signals() as signals, nullcontext() if quiet else Status() as status:
        for step in range(first, plan.steps):
            loop.step(step, batches)
            done = step + 1
            if status:
                status.update(loop.progress(done))
            if done % plan.log_every == 0 or done == plan.steps:
                loop.log(done)
            if done == plan.steps:
                loop.optimizer.settle()
                loop.refuse_broken(done)
            if plan.evaluate and done in plan.evaluate_at:
                last = loop.evaluate(done)
            if signals.received or done == plan.steps or loop.is_time_to_save(done):
                loop.save(done)
            if signals.received and done < plan.steps:
                return Outcome(done, signalled=True, finished=False, last=last)
    return Outcome(plan.steps, signalled=signals.received, finished=True, last=last)


def measure_step_seconds(
    trainable: Trainable[Batch],
    batches: Callable[[int], Sequence[Batch]],
    *,
    plan: Plan,
    numerics: Numerics,
    seconds: float,
) -> float:
    """Mean seconds of a step, from throw-away updates on the first micro-batch of each; the weights are put back.

    The rest of a step is taken to cost what its floating-point work says: a step of BERT-large takes minutes. The first
    ones compile and warm up and do not count, unless one alone takes longer than `seconds`.
    """
    before = {name: tensor.clone() for name, tensor in trainable.module.state_dict().items()}
    loop = Loop(trainable, plan, numerics, None)
    times: list[float] = []
    while len(times) < 6 or sum(times[3:]) < seconds:
        begin = time.perf_counter()
        micro = batches(len(times))
        made = time.perf_counter()
        losses, norm = loop.learn(len(times), micro[:1])
        learned = time.perf_counter()
        loop.update(len(times), losses, norm)
        updated = time.perf_counter()
        whole = sum(map(trainable.flops, micro)) / trainable.flops(micro[0])
        times.append(made - begin + (learned - made) * whole + updated - learned)
        if updated - begin > seconds:
            times = times[-1:]
            break
    trainable.module.load_state_dict(before)
    counted = times[3:] or times
    return sum(counted) / len(counted)


class Signals:
    """Remembers SIGINT and SIGTERM instead of dying of them; a second one stops at once."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread: the caller's handlers stay
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True


class Loop(Generic[Batch]):
    """The state of one training: optimiser, sums since the last log line, clocks."""

    def __init__(self, trainable: Trainable[Batch], plan: Plan, numerics: Numerics, run: RunFolder | None) -> None:
        self.trainable, self.plan, self.numerics, self.run = trainable, plan, numerics, run
        self.optimizer = build_optimizer(trainable.module, plan.optimizer, scale=plan.scale)
        self.forward = torch.compile(trainable.step, dynamic=True) if numerics.compiled else trainable.step
        self._sums: dict[str, float] = {}
        self._work = {"seconds": 0.0, "waiting": 0.0, "tokens": 0.0, "flops": 0.0, "steps": 0.0}
        self._saved = time.monotonic()

    def restore(self) -> int:
        """Load the newest checkpoint; returns the number of steps done."""
        if self.run is None:
            return 0
        for stale in self.run.checkpoints.glob(".step-*"):  # of a process that was killed while it wrote
            shutil.rmtree(stale)
        found = load_checkpoint(self.run.checkpoints, self.trainable.module, self.optimizer)
        done = found[0] if found else 0
        self._sums, self._work = (found[1]["sums"], found[1]["work"]) if found else (self._sums, self._work)
        self.run.forget_after(done)
        return done

    def step(self, step: int, batches: Callable[[int], Sequence[Batch]]) -> None:
        """One optimiser step over its micro-batches, making them included."""
        start = time.perf_counter()
        micro = batches(step)
        made = time.perf_counter()
        losses, norm = self.learn(step, micro)
        if not math.isfinite(norm) or not all(map(math.isfinite, losses.values())):
            self._save_last_good(step)
            raise RunFailed(self._not_finite(step, losses, norm))
        self.update(step, losses, norm)
        work = {
            "tokens": sum(map(self.trainable.tokens, micro)),
            "flops": sum(map(self.trainable.flops, micro)),
            "steps": 1,
        }
        self._work = _added((self._work, work, {"seconds": time.perf_counter() - start, "waiting": made - start}))

    def learn(self, step: int, micro: Sequence[Batch]) -> tuple[dict[str, float], float]:
        """Forward and backward over the micro-batches of a step: losses, and the gradient's norm before clipping."""
        module = self.trainable.module
        module.train()
        totals = _added(self.trainable.counts(batch) for batch in micro)
        self.optimizer.zero_grad(set_to_none=True)
        losses: dict[str, float] = {}
        for index, batch in enumerate(micro):
            torch.manual_seed(_dropout_seed(self.plan.seed, step, index))
            with precision(self.numerics):
                terms = self.forward(batch)
            parts = [total / (totals[name] or 1.0) for total, name in terms.values()]  # counts may be weights below 1
            torch.stack(parts).sum().backward()
            for term, part in zip(terms, parts, strict=True):
                losses[term] = losses.get(term, 0.0) + float(part.detach())
        return losses, float(clip_gradients(module.parameters(), self.plan.optimizer.clip))

    def update(self, step: int, losses: Mapping[str, float], norm: float) -> None:
        """Apply the gradients of `step` at its rate."""
        set_rate(
            self.optimizer,
            self.plan.optimizer.learning_rate * rate_at(step, self.plan.steps, self.plan.optimizer.warmup),
        )
        self.optimizer.step()
        self._sums = _added((self._sums, losses, {"gradient_norm": norm}))

    def log(self, done: int) -> None:
        """Write the means since the last line."""
        work, settings = self._work, self.plan.optimizer
        line = {
            "step": done,
            **{name: value / work["steps"] for name, value in self._sums.items()},
            "learning_rate": settings.learning_rate * rate_at(done - 1, self.plan.steps, settings.warmup),
            "seconds": work["seconds"],
            "data_share": work["waiting"] / work["seconds"],
            "tokens_per_second": work["tokens"] / work["seconds"],
            "matrix_share": work["flops"] / work["seconds"] / self.numerics.matrix_rate,
        }
        if self.run:
            self.run.log(line)
        self._sums, self._work = {}, dict.fromkeys(work, 0.0)

    def evaluate(self, done: int) -> Mapping[str, float]:
        """Held-out figures with dropout off."""
        assert self.plan.evaluate
        self.optimizer.settle()
        self.trainable.module.eval()
        with torch.inference_mode():
            figures = self.plan.evaluate(done)
        if self.run:
            self.run.log({"step": done, "held_out": dict(figures)})
        return figures

    def is_time_to_save(self, done: int) -> bool:
        """By the step where `save_every` says so, by the clock otherwise."""
        if self.plan.save_every:
            return done % self.plan.save_every == 0
        return time.monotonic() - self._saved >= self.plan.save_seconds

    def save(self, done: int) -> None:
        """A checkpoint with the sums of the unfinished log line."""
        if self.run:
            notes = {"sums": self._sums, "work": self._work}
            save_checkpoint(self.run.checkpoints, self.trainable.module, self.optimizer, step=done, notes=notes)
            self._saved = time.monotonic()

    def progress(self, done: int) -> str:
        """One line for the person who waits; called after a step and before `log` clears the sums."""
        work = self._work
        means = {name: value / work["steps"] for name, value in self._sums.items() if name != "gradient_norm"}
        losses = " ".join(f"{name} {value:.3f}" for name, value in means.items())
        steps_left = self.plan.steps_left(done) if self.plan.steps_left else self.plan.steps - done
        left = steps_left * work["seconds"] / work["steps"]
        share = work["flops"] / work["seconds"] / self.numerics.matrix_rate
        speed = f"{work['tokens'] / work['seconds']:,.0f} tokens/s · {share:.0%} of the matrix rate"
        return f"step {done}/{self.plan.steps} · {losses} · {speed} · {clock(left)} left"

    def refuse_broken(self, done: int) -> None:
        """RunFailed where the last update, which no further loss could tell of, left weights that are not finite."""
        if not self._is_finite():
            raise RunFailed(f"step {done}: the weights are not finite after the update; no model is written")

    def _is_finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in self.trainable.module.state_dict().values())

    def _save_last_good(self, step: int) -> None:
        """Keep the weights before the update that was refused, where they are finite."""
        if self.run and self._is_finite():
            self.save(step)

    def _not_finite(self, step: int, losses: Mapping[str, float], norm: float) -> str:
        values = ", ".join(f"{name} {value}" for name, value in losses.items())
        is_kept = self.run and self.run.checkpoints.exists()
        kept = f"; checkpoints up to the last good one are in {self.run.checkpoints}" if self.run and is_kept else ""
        return (
            f"step {step + 1}: the loss is not finite ({values}, gradient norm {norm}); stopped before the update{kept}"
        )


def recompute_inside(blocks: Iterable[nn.Module]) -> None:
    """From now on keep only the inputs of the blocks for backward, and compute what is inside anew there (in place).

    Dropout draws the same numbers again, so that results do not change.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def precision(numerics: Numerics) -> AbstractContextManager[object]:
    """bf16 compute with fp32 master weights where resolved so."""
    return torch.autocast("cpu", torch.bfloat16) if numerics.precision == "bf16" else nullcontext()


def _dropout_seed(seed: int, step: int, micro: int) -> int:
    """A function of (seed, step, micro-batch), so that dropout does not depend on history."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + micro * 0x94D049BB133111EB) & (2**64 - 1)
    mixed ^= mixed >> 31
    return (mixed * 0xD6E8FEB86659FD93 & (2**64 - 1)) >> 1


def _added(parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
