"""Batches → weights: the training loop, which is the same for every model and task.

A step adds up losses and counts over its micro-batches and divides once, since these mask unequal numbers of pieces.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from bertwright.console import Status, clock, say
from bertwright.errors import Diverged, InputError
from bertwright.training import muon
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.distributed import SINGLE_PROCESS, Batch, Engine, Ranks, Sharding, Trainable, local_tensor
from bertwright.training.hardware import Numerics, resolve_device
from bertwright.training.loss_guard import BadStep, LossGuard
from bertwright.training.missing_lines import ExpectedLines, say_missing_lines
from bertwright.training.optimizer import build_optimizer, clip_gradients, rate_at, set_rate
from bertwright.training.run_folder import RunFolder
from bertwright.training.settings import OptimizerSettings
from bertwright.training.signals import Signals
from bertwright.training.step_means import StepMeans
from bertwright.training.time_left import TimeLeft


@dataclass(frozen=True)
class Plan:
    """Number of steps, optimiser, and the steps at which to log, save and evaluate."""

    steps: int
    seed: int
    optimizer: OptimizerSettings
    scale: Callable[[str], float] = lambda _: 1.0
    """Factor of the learning rate for a parameter's name."""
    log_every: int = 50
    save_seconds: float = 300.0
    """Seconds between checkpoints."""
    save_every: int | None = None
    """Steps between checkpoints; replaces `save_seconds`."""
    keep: int = 2
    """Number of checkpoints to keep; more than one, since the newest may be damaged later."""
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    """Validation metrics after a step, for metrics.jsonl; called with dropout off."""
    evaluate_at: frozenset[int] = frozenset()
    is_enough: Callable[[int], bool] | None = None
    """True where training ends after a step of `evaluate_at`, before the last step."""
    snapshot: Callable[[int], None] | None = None
    """Saves the model after a step of `snapshot_at`, before the checkpoint of that step: a resumed run has the snapshot
    or makes it."""
    snapshot_at: frozenset[int] = frozenset()
    stable: int | None = None
    """Step after which a checkpoint is kept for longer runs: the last one with the peak learning rate."""
    skip_loss_spikes: bool = False
    """Skip the update of a bad step, MOST_SKIPPED times at most, instead of stopping."""
    watch_spikes: bool = False
    """True where a loss spike is a bad step."""
    work_left: Callable[[int], float] | None = None
    """Work of the steps after `done` steps, in any unit, such as tokens; None where all steps are alike."""
    words: Callable[[int], int] | None = None
    """Number of words of text seen after a step; None where it is unknown."""

    def expected_lines(self, done: int) -> ExpectedLines:
        """Return the lines that metrics.jsonl must have after `done` steps."""
        training = [*range(self.log_every, done + 1, self.log_every)]
        training += [done] if done == self.steps and done % self.log_every else []
        return ExpectedLines(tuple(training), tuple(sorted(step for step in self.evaluate_at if step <= done)))


@dataclass(frozen=True)
class Outcome:
    """Result of `train`."""

    steps: int
    """Number of steps done."""
    signalled: bool
    """True where a signal came."""
    finished: bool
    """True where no step is left."""
    last: Mapping[str, float]
    """The last validation metrics; empty without any."""


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
    """Train for `plan.steps` steps; `batches(step)` returns the micro-batches of a step.

    With a run folder, the loop logs, saves checkpoints and continues from the newest one. SIGINT, SIGTERM and SIGHUP
    save and stop; a signal to one rank stops all ranks after the same step. Raises RunFailed where the loss or the
    gradient is not finite; the update is not applied, and the checkpoints stay.
    """
    loop = Loop(trainable, plan, numerics, run, ranks=ranks, sharding=sharding)
    first = loop.restore()
    evaluations = [line["held_out"] for line in run.metrics() if "held_out" in line] if run else []
    last: Mapping[str, float] = evaluations[-1] if evaluations else {}
    stopped = False
    with Signals() as signals, nullcontext() if quiet else Status() as status:
        for step in range(first, plan.steps):
            if plan.is_enough and step in plan.evaluate_at and plan.is_enough(step):
                if loop.has_unlogged_steps():
                    loop.log(step)
                loop.save(step)
                stopped, _ = loop.sync_decisions(signals.received, False)
                return Outcome(step, signalled=stopped, finished=True, last=last)
            loop.step(step, batches)
            done = step + 1
            if status:
                status.update(loop.progress(done))
            if done % plan.log_every == 0 or done == plan.steps:
                loop.log(done)
            if done == plan.steps:
                loop.optimizer.apply_pending_decay()
                loop.refuse_broken_weights(done)
            if plan.evaluate and done in plan.evaluate_at:
                last = loop.evaluate(done)
            if plan.snapshot and done in plan.snapshot_at:
                loop.optimizer.apply_pending_decay()
                plan.snapshot(done)
            if done == plan.stable and run:
                loop.save(done, run.stable)
            stopped, save = loop.sync_decisions(signals.received, loop.is_time_to_save(done))
            if stopped or save or done == plan.steps:
                loop.save(done)
            if done == plan.steps:  # a signal may have come while the last checkpoint was written
                stopped, _ = loop.sync_decisions(stopped or signals.received, False)
            if stopped and done < plan.steps:
                return Outcome(done, signalled=True, finished=False, last=last)
    return Outcome(plan.steps, signalled=stopped, finished=True, last=last)


class Loop(Generic[Batch]):
    """State of one training: engine, optimiser, loss guard, sums since the last log line, clocks."""

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
        device = resolve_device(numerics.device)
        self.engine = Engine(trainable, compiled=numerics.compiled, device=device, ranks=ranks, sharding=sharding)
        in_bf16 = numerics.precision == "bf16"
        self.optimizer = build_optimizer(
            trainable.module,
            plan.optimizer,
            scale=plan.scale,
            blocks=trainable.blocks,
            orthogonalise=muon.bf16_function(trainable.muon_iteration) if in_bf16 else muon.orthogonalise,
        )
        self._peak_flops = numerics.peak_flops * ranks.world_size
        self._means = StepMeans()
        self._guard = LossGuard(watch_spikes=plan.watch_spikes, skips=plan.skip_loss_spikes)
        self._work = {"seconds": 0.0, "waiting": 0.0, "tokens": 0.0, "flops": 0.0, "steps": 0.0}
        self._time_left = TimeLeft(plan.work_left or (lambda done: float(plan.steps - done)))
        self._saved = time.monotonic()

    def sync_decisions(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return (stop, save) for all ranks: stop where any rank wants to, save where rank zero wants to."""
        stops, saves = self.ranks.sum([float(stop), float(save and self.ranks.is_main)])
        return stops > 0, saves > 0

    def restore(self) -> int:
        """Load the newest checkpoint; return the number of steps done."""
        if self.run is None:
            return 0
        loaded = load_checkpoint(self.run.checkpoints, self.trainable.module, self.optimizer, ranks=self.ranks)
        done = 0
        if loaded:
            done, notes = loaded
            self._work = notes["work"]
            self._means.restore(notes, steps=self._work["steps"])
            self._guard.restore(notes)
            if done > self.plan.steps:
                raise InputError(
                    f"{self.run.folder}: expected a checkpoint of at most {self.plan.steps} steps, which is the length "
                    f"of the run; its newest one has {done}"
                )
            if self.run.writes:
                say(f"{self.run.folder}: continues from step {done}")
        lines = self.run.truncate_metrics(done)
        if done and self.run.writes:
            state = f"the run continues from step {done}"
            say_missing_lines(self.run.folder, lines, self.plan.expected_lines(done), state=state)
        return done

    def step(self, step: int, batches: Callable[[int], Sequence[Batch]]) -> None:
        """Make the micro-batches of a step, compute its gradients, and apply its update unless it is a bad step."""
        start = time.perf_counter()
        micro_batches = batches(step)
        waited = time.perf_counter() - start
        losses, norm = self.compute_gradients(step, micro_batches)
        bad = self._guard.check(losses, norm)
        if bad is None:
            self.update(step, losses, norm)
            self._guard.record(step, losses)
        else:
            self._skip_or_stop(step, bad, losses, norm)
        work = {
            "tokens": sum(map(self.trainable.tokens, micro_batches)),
            "flops": sum(map(self.trainable.flops, micro_batches)),
            "steps": int(bad is None),
        }
        seconds = time.perf_counter() - start
        self._work = _added((self._work, work, {"seconds": seconds, "waiting": waited}))
        self._time_left.add(step + 1, seconds)

    def compute_gradients(self, step: int, micro_batches: Sequence[Batch]) -> tuple[dict[str, float], float]:
        """Run forward and backward over the micro-batches of a step.

        Returns the mean of each term of the loss that has a count in this step, and the gradient norm before clipping.
        """
        module = self.trainable.module
        module.train()
        totals = _added(self.trainable.counts(batch) for batch in micro_batches)
        self.optimizer.zero_grad(set_to_none=True)
        terms_of_step: list[tuple[str, Tensor | float]] = []
        count_of: dict[str, str] = {}
        partition = self.ranks.partition(micro_batches)
        for position, (index, batch, counts) in enumerate(partition, start=1):
            torch.manual_seed(_dropout_seed(self.plan.seed, step, index))
            with self.engine.accumulate(is_last=position == len(partition)):
                with autocast(self.numerics):
                    terms = self.engine.losses(batch)
                count_of |= {term: name for term, (_, name) in terms.items()}
                parts = [total / (totals[name] or 1.0) for total, name in terms.values()]  # counts may be weights < 1
                self.engine.backward(self.trainable.loss(zip(terms, parts, strict=True)), counts=counts)
            terms_of_step += [(term, part.detach() if counts else 0.0) for term, part in zip(terms, parts, strict=True)]
        if self.engine.device.type == "cuda":
            self.ranks.barrier()  # reports a lost rank; reading a loss below would wait for its gradients without end
        losses = _added({term: float(part)} for term, part in terms_of_step)
        summed = zip(losses, self.ranks.sum(list(losses.values())), strict=True)
        losses = {term: value for term, value in summed if totals[count_of[term]]}
        return losses, float(clip_gradients(module.parameters(), self.plan.optimizer.clip))

    def update(self, step: int, losses: Mapping[str, float], norm: float) -> None:
        """Apply the gradients of a step at its learning rate."""
        set_rate(self.optimizer, self._rate(step))
        self.optimizer.step()
        self._means.add({**losses, "gradient_norm": norm})

    def log(self, done: int) -> None:
        """Write the means since the last line to metrics.jsonl."""
        work = self._work
        line = {
            **self._position(done),
            **self._means.means(),
            **({"skipped": self._guard.skipped} if self._guard.skipped else {}),
            "learning_rate": self._rate(done - 1),
            "seconds": work["seconds"],
            "data_share": work["waiting"] / work["seconds"],
            "tokens_per_second": work["tokens"] / work["seconds"],
            "mfu": self._mfu(),
        }
        if self.run:
            self.run.log(line)
        self._means.clear()
        self._work = dict.fromkeys(work, 0.0)

    def has_unlogged_steps(self) -> bool:
        """Return whether steps were done since the last log line."""
        return self._work["steps"] > 0

    def evaluate(self, done: int) -> Mapping[str, float]:
        """Compute and log validation metrics, with dropout off."""
        assert self.plan.evaluate
        self.optimizer.apply_pending_decay()
        self.trainable.module.eval()
        evaluate = self.plan.evaluate
        metrics = self.engine.call(lambda: evaluate(done))
        if self.run:
            self.run.log({**self._position(done), "held_out": dict(metrics)})
        return metrics

    def _position(self, done: int) -> dict[str, int]:
        """Return the step and, where it is known, the number of words seen."""
        return {"step": done, **({"words": self.plan.words(done)} if self.plan.words else {})}

    def is_time_to_save(self, done: int) -> bool:
        """Return whether a checkpoint is to be written: by steps with `save_every`, otherwise by the clock."""
        if self.plan.save_every:
            return done % self.plan.save_every == 0
        return time.monotonic() - self._saved >= self.plan.save_seconds

    def save(self, done: int, folder: Path | None = None) -> None:
        """Write a checkpoint with the sums of the unfinished log line, into the run's folder of them or another one."""
        if self.run:
            self.run.flush_metrics()
            notes = {**self._means.notes(), "work": self._work, **self._guard.notes()}
            save_checkpoint(
                folder or self.run.checkpoints,
                self.trainable.module,
                self.optimizer,
                step=done,
                notes=notes,
                keep=self.plan.keep,
                ranks=self.ranks,
            )
            if folder is None:
                self._saved = time.monotonic()

    def progress(self, done: int) -> str:
        """Return the progress line. Call this after a step and before `log`, which clears the sums."""
        work = self._work
        means = self._means.means().items()
        losses = " ".join(f"{name} {value:.3f}" for name, value in means if name != "gradient_norm")
        speed = f"{work['tokens'] / work['seconds']:,.0f} tokens/s · MFU {self._mfu():.0%}"
        return f"step {done}/{self.plan.steps} · {losses} · {speed} · {clock(self._time_left.seconds(done))} left"

    def refuse_broken_weights(self, done: int) -> None:
        """Raise Diverged where the last update left weights that are not finite; no later loss would show it."""
        if not self._is_finite():
            raise Diverged(f"step {done}: the weights are not finite after the update; no model is written")

    def _mfu(self) -> float:
        """Return the model FLOP/s utilisation since the last log line.

        A step that is faster than the peak shows that the peak was measured on a busy machine: it is then the peak.
        """
        flops = self._work["flops"] / self._work["seconds"]
        self._peak_flops = max(self._peak_flops, flops)
        return flops / self._peak_flops

    def _rate(self, step: int) -> float:
        settings = self.plan.optimizer
        fraction = rate_at(step, self.plan.steps, settings.warmup, settings.schedule, settings.decay_share)
        return settings.learning_rate * fraction

    def _is_finite(self) -> bool:
        """Return whether all weights are finite, on every rank."""
        tensors = map(local_tensor, self.trainable.module.state_dict().values())
        is_broken = not all(bool(tensor.isfinite().all()) for tensor in tensors)
        return not any(self.ranks.sum([float(is_broken)]))

    def _skip_or_stop(self, step: int, bad: BadStep, losses: Mapping[str, float], norm: float) -> None:
        values = ", ".join(f"{name} {value}" for name, value in losses.items())
        fault = f"step {step + 1}: {bad.message} ({values}, gradient norm {norm})"
        if skipped := self._guard.skip():
            say(f"{fault}; {skipped}")
            return
        if not bad.is_spike and self.run and self._is_finite():  # after a spike the weights may be at fault
            self.save(step)
        has_checkpoint = self.run and self.run.checkpoints.exists()
        kept = f"; the last good checkpoint is in {self.run.checkpoints}" if self.run and has_checkpoint else ""
        skips = f" after {self._guard.skipped} skipped steps" if self._guard.skipped else ""
        raise Diverged(f"{fault}; stopped before the update{skips}{kept}{self._guard.advice(bad)}")


def autocast(numerics: Numerics) -> AbstractContextManager[object]:
    """Return a context that computes in bf16 with fp32 weights where the run's precision is bf16."""
    return torch.autocast(numerics.device, torch.bfloat16) if numerics.precision == "bf16" else nullcontext()


def _dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return a hash of the arguments, so that dropout does not depend on earlier steps."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + micro_batch * 0x94D049BB133111EB) & (2**64 - 1)
    mixed ^= mixed >> 31
    return (mixed * 0xD6E8FEB86659FD93 & (2**64 - 1)) >> 1


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of the values by name."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
