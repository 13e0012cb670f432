"""loss → weights: the one training loop, which knows neither BERT nor tasks.

A step sums losses and counts over its micro-batches and divides once: masked positions are ragged.
"""

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

from bertwright.console import Status, clock, say
from bertwright.errors import InputError, RunFailed
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.distributed import SINGLE_PROCESS, Engine, Ranks, Sharding, Trainable, local
from bertwright.training.hardware import Numerics, own_device
from bertwright.training.loss_guard import BadStep, LossGuard
from bertwright.training.missing import Due, tell_missing
from bertwright.training.optimizer import build_optimizer, clip_gradients, rate_at, set_rate
from bertwright.training.run_folder import RunFolder
from bertwright.training.settings import OptimizerSettings

# signals → a training that ends after its step.


class Signals:
    """Remembers SIGINT, SIGTERM and SIGHUP (a terminal that is closed) instead of dying of them; a second one stops at
    once. One that is ignored, as SIGHUP under nohup, stays so."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
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


Batch = TypeVar("Batch")


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
    keep: int = 2
    """Checkpoints that are kept, the newest ones; more than one, since the newest may be damaged later."""
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    evaluate_at: frozenset[int] = frozenset()
    snapshot: Callable[[int], None] | None = None
    """Keeps the model as it is after a step of `snapshot_at`; before that step is in a checkpoint, so that a run that
    goes on has it or makes it."""
    snapshot_at: frozenset[int] = frozenset()
    skip_loss_spikes: bool = False
    """Leave out the update of a step whose loss is not finite or leapt up, MOST_SKIPPED times at most, instead of
    stopping."""
    watch_spikes: bool = False
    """Whether a loss that leaps up is a bad step."""
    steps_left: Callable[[int], float] | None = None
    """After `done` steps, how many more in units of the last one's cost; for the time left of a run with phases."""

    def due(self, done: int) -> Due:
        """The lines that a run has logged after `done` steps."""
        lines = [*range(self.log_every, done + 1, self.log_every)]
        lines += [done] if done == self.steps and done % self.log_every else []
        return Due(tuple(lines), tuple(sorted(step for step in self.evaluate_at if step <= done)))


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
    ranks: Ranks = SINGLE_PROCESS,
    sharding: Sharding = "ddp",
    quiet: bool = False,
) -> Outcome:
    """Train for `plan.steps` steps; `batches(step)` gives a step's micro-batches.

    With a run folder it logs, saves checkpoints and goes on from the newest one. SIGINT, SIGTERM and SIGHUP save and
    stop; one that reaches one of several ranks stops all of them after the same step.
    RunFailed when the loss or the gradient is not finite; the update is not applied and the checkpoints stay.
    """
    loop = Loop(trainable, plan, numerics, run, ranks=ranks, sharding=sharding)
    first = loop.restore()
    measured = [line["held_out"] for line in run.metrics() if "held_out" in line] if run else []
    last: Mapping[str, float] = measured[-1] if measured else {}
    stopped = False
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
            if plan.snapshot and done in plan.snapshot_at:
                loop.optimizer.settle()
                plan.snapshot(done)
            stopped, due = loop.agree(signals.received, loop.is_time_to_save(done))
            if stopped or due or done == plan.steps:
                loop.save(done)
            if stopped and done < plan.steps:
                return Outcome(done, signalled=True, finished=False, last=last)
    return Outcome(plan.steps, signalled=stopped, finished=True, last=last)


class Loop(Generic[Batch]):
    """The state of one training: optimiser, sums since the last log line, clocks."""

    def __init__(
        self,
        trainable: Trainable[Batch],
        plan: Plan,
        numerics: Numerics,
        run: RunFolder | None,
        *,
        ranks: Ranks = SINGLE_PROCESS,
        sharding: Sharding = "ddp",
    ) -> None:
        self.trainable, self.plan, self.numerics, self.run, self.ranks = trainable, plan, numerics, run, ranks
        place = own_device(numerics.device)
        self.engine = Engine(trainable, compiled=numerics.compiled, place=place, ranks=ranks, sharding=sharding)
        self.optimizer = build_optimizer(trainable.module, plan.optimizer, scale=plan.scale, blocks=trainable.blocks)
        self._sums: dict[str, float] = {}
        self._bad = LossGuard(watch_spikes=plan.watch_spikes, skips=plan.skip_loss_spikes)
        self._work = {"seconds": 0.0, "waiting": 0.0, "tokens": 0.0, "flops": 0.0, "steps": 0.0}
        self._saved = time.monotonic()

    @property
    def peak_flops(self) -> float:
        """FLOP/s of the ranks together."""
        return self.numerics.peak_flops * self.ranks.world_size

    def agree(self, stopped: bool, due: bool) -> tuple[bool, bool]:
        """Whether one of the ranks was told to stop, and whether rank zero's clock says that it is time to save."""
        told = self.ranks.sum([float(stopped), float(due and self.ranks.is_main)])
        return told[0] > 0, told[1] > 0

    def restore(self) -> int:
        """Load the newest checkpoint; returns the number of steps done."""
        if self.run is None:
            return 0
        found = load_checkpoint(self.run.checkpoints, self.trainable.module, self.optimizer, ranks=self.ranks)
        done = found[0] if found else 0
        if found:
            notes = found[1]
            self._sums, self._work = notes["sums"], notes["work"]
            self._bad.go_on(notes)
            if done > self.plan.steps:
                raise InputError(
                    f"{self.run.folder}: its newest checkpoint is of step {done}, and the run has {self.plan.steps}"
                )
            if self.run.writes:
                say(f"{self.run.folder}: goes on from step {done}")
        lines = self.run.forget_after(done)
        if done and self.run.writes:
            tell_missing(self.run.folder, lines, self.plan.due(done), ends=f"the run goes on from step {done}")
        return done

    def step(self, step: int, batches: Callable[[int], Sequence[Batch]]) -> None:
        """One optimiser step over its micro-batches, making them included."""
        start = time.perf_counter()
        micro = batches(step)
        made = time.perf_counter()
        losses, norm = self.learn(step, micro)
        bad = self._bad.find(losses, norm)
        if bad is None:
            self.update(step, losses, norm)
            self._bad.learn(step, losses)
        else:
            self._skip_or_stop(step, bad, losses, norm)
        work = {
            "tokens": sum(map(self.trainable.tokens, micro)),
            "flops": sum(map(self.trainable.flops, micro)),
            "steps": int(bad is None),
        }
        self._work = _added((self._work, work, {"seconds": time.perf_counter() - start, "waiting": made - start}))

    def learn(self, step: int, micro: Sequence[Batch]) -> tuple[dict[str, float], float]:
        """Forward and backward over the micro-batches of a step: losses, and the gradient's norm before clipping."""
        module = self.trainable.module
        module.train()
        totals = _added(self.trainable.counts(batch) for batch in micro)
        self.optimizer.zero_grad(set_to_none=True)
        found: list[tuple[str, Tensor | float]] = []
        share = self.ranks.partition(micro)
        for place, (index, batch, counts) in enumerate(share, start=1):
            torch.manual_seed(_dropout_seed(self.plan.seed, step, index))
            with self.engine.adding_up(is_last=place == len(share)):
                with precision(self.numerics):
                    terms = self.engine.losses(batch)
                parts = [total / (totals[name] or 1.0) for total, name in terms.values()]  # counts may be weights < 1
                self.engine.backward(torch.stack(parts).sum(), counts=counts)
            found += [(term, part.detach() if counts else 0.0) for term, part in zip(terms, parts, strict=True)]
        if self.engine.place.type == "cuda":
            self.ranks.barrier()  # who is lost is told here: reading a figure below waits for ever for its gradients
        losses = _added({term: float(part)} for term, part in found)
        losses = dict(zip(losses, self.ranks.sum(list(losses.values())), strict=True))
        return losses, float(clip_gradients(module.parameters(), self.plan.optimizer.clip))

    def update(self, step: int, losses: Mapping[str, float], norm: float) -> None:
        """Apply the gradients of `step` at its rate."""
        set_rate(self.optimizer, self._rate(step))
        self.optimizer.step()
        self._sums = _added((self._sums, losses, {"gradient_norm": norm}))

    def log(self, done: int) -> None:
        """Write the means since the last line."""
        work = self._work
        line = {
            "step": done,
            **{name: value / work["steps"] for name, value in self._sums.items()},
            **({"skipped": self._bad.skipped} if self._bad.skipped else {}),
            "learning_rate": self._rate(done - 1),
            "seconds": work["seconds"],
            "data_share": work["waiting"] / work["seconds"],
            "tokens_per_second": work["tokens"] / work["seconds"],
            "mfu": work["flops"] / work["seconds"] / self.peak_flops,
        }
        if self.run:
            self.run.log(line)
        self._sums, self._work = {}, dict.fromkeys(work, 0.0)

    def evaluate(self, done: int) -> Mapping[str, float]:
        """Held-out figures with dropout off."""
        assert self.plan.evaluate
        self.optimizer.settle()
        self.trainable.module.eval()
        evaluate = self.plan.evaluate
        figures = self.engine.call(lambda: evaluate(done))
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
            self.run.keep_lines()
            notes = {"sums": self._sums, "work": self._work, **self._bad.notes()}
            save_checkpoint(
                self.run.checkpoints,
                self.trainable.module,
                self.optimizer,
                step=done,
                notes=notes,
                keep=self.plan.keep,
                ranks=self.ranks,
            )
            self._saved = time.monotonic()

    def progress(self, done: int) -> str:
        """One line for the person who waits; called after a step and before `log` clears the sums."""
        work = self._work
        means = {name: value / work["steps"] for name, value in self._sums.items() if name != "gradient_norm"}
        losses = " ".join(f"{name} {value:.3f}" for name, value in means.items())
        steps_left = self.plan.steps_left(done) if self.plan.steps_left else self.plan.steps - done
        left = steps_left * work["seconds"] / max(1.0, work["steps"])
        share = work["flops"] / work["seconds"] / self.peak_flops
        speed = f"{work['tokens'] / work['seconds']:,.0f} tokens/s · {share:.0%} of the matrix rate"
        return f"step {done}/{self.plan.steps} · {losses} · {speed} · {clock(left)} left"

    def refuse_broken(self, done: int) -> None:
        """RunFailed where the last update, which no further loss could tell of, left weights that are not finite."""
        if not self._is_finite():
            raise RunFailed(f"step {done}: the weights are not finite after the update; no model is written")

    def _rate(self, step: int) -> float:
        settings = self.plan.optimizer
        return settings.learning_rate * rate_at(step, self.plan.steps, settings.warmup, settings.schedule)

    def _is_finite(self) -> bool:
        tensors = map(local, self.trainable.module.state_dict().values())
        return not self.ranks.any(not all(bool(tensor.isfinite().all()) for tensor in tensors))

    def _save_last_good(self, step: int) -> None:
        """Keep the weights before the update that was refused, where they are finite."""
        if self.run and self._is_finite():
            self.save(step)

    def _skip_or_stop(self, step: int, bad: BadStep, losses: Mapping[str, float], norm: float) -> None:
        values = ", ".join(f"{name} {value}" for name, value in losses.items())
        told = f"step {step + 1}: {bad.what} ({values}, gradient norm {norm})"
        if skipped := self._bad.skip():
            say(f"{told}; {skipped}")
            return
        if not bad.leapt:  # weights that a loss leaps with may themselves be what is wrong
            self._save_last_good(step)
        is_kept = self.run and self.run.checkpoints.exists()
        kept = f"; checkpoints up to the last good one are in {self.run.checkpoints}" if self.run and is_kept else ""
        before = f" after {self._bad.skipped} such steps" if self._bad.skipped else ""
        raise RunFailed(f"{told}; stopped before the update{before}{kept}{self._bad.advice(bad)}")


def checkpoint_activations(blocks: Iterable[nn.Module]) -> None:
    """From now on keep only the inputs of the blocks for backward, and compute what is inside anew there (in place).

    Dropout draws the same numbers again, so that results do not change.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def precision(numerics: Numerics) -> AbstractContextManager[object]:
    """bf16 compute with fp32 master weights where resolved so."""
    return torch.autocast(numerics.device, torch.bfloat16) if numerics.precision == "bf16" else nullcontext()


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
