"""The time that is left: from the work that is left and a smoothed rate, for steps of any length."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import Tensor

from bertwright.training import loop as training_loop
from bertwright.training.loop import Loop
from bertwright.training.run_folder import start_run
from bertwright.training.time_left import TimeLeft
from tests.unit.training.test_loop import NUMERICS, Batch, linear, linear_rows, plan, trainable

TOKENS = [30, 5, 5, 80, 10, 10, 10, 60, 2, 88]
"""Tokens of each step."""


def work_left(done: int) -> float:
    return float(sum(TOKENS[done:]))


def test_steps_of_any_length_leave_the_right_time() -> None:
    """Each token takes 0.1 s, and the first step 20 s more."""
    time_left = TimeLeft(work_left)
    assert time_left.seconds(0) == 0.0
    for step, tokens in enumerate(TOKENS):
        time_left.add(step + 1, 0.1 * tokens + (20.0 if step == 0 else 0.0))
        expected = 0.1 * work_left(step + 1)
        if step:
            assert time_left.seconds(step + 1) == pytest.approx(expected)
    assert time_left.seconds(len(TOKENS)) == 0.0


def test_one_slow_step_moves_the_time_little_and_a_slower_machine_counts_in_the_end() -> None:
    def left(done: int) -> float:
        return float(1000 - done)

    time_left = TimeLeft(left)
    for step in range(100):
        time_left.add(step + 1, 1.0)
    time_left.add(101, 5.0)
    assert 899 < time_left.seconds(101) < 1.15 * 899
    for step in range(101, 500):
        time_left.add(step + 1, 2.0)
    assert time_left.seconds(500) == pytest.approx(1000.0, rel=0.01)


def test_the_progress_line_counts_tokens_not_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 1 s for each row; the clock of the loop is replaced."""
    now = [0.0]
    monkeypatch.setattr(training_loop, "time", SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0]))

    def batches(step: int) -> list[tuple[Tensor, Tensor]]:
        now[0] += TOKENS[step]
        return linear_rows(step, (TOKENS[step],))

    loop: Loop[Batch] = Loop(trainable(linear()), plan(len(TOKENS), work_left=work_left), NUMERICS, None)
    for step in range(len(TOKENS)):
        loop.step(step, batches)
        shown = re.search(r"(\d+):(\d\d) left", loop.progress(step + 1))
        assert shown is not None
        assert 60 * int(shown[1]) + int(shown[2]) == work_left(step + 1)
        if step % 2:
            loop.log(step + 1)


def test_the_utilisation_is_at_most_1_where_the_peak_was_measured_too_low(tmp_path: Path) -> None:
    run = start_run(tmp_path / "r", kind="t", settings={}, data={}, resume=False)
    busy = NUMERICS.model_copy(update={"peak_flops": 1e-3})
    training_loop.train(trainable(linear()), linear_rows, plan=plan(), numerics=busy, run=run, quiet=True)
    utilisations = [entry["mfu"] for entry in run.metrics()]
    assert len(utilisations) == 7
    assert all(0 < utilisation <= 1 for utilisation in utilisations)
    assert max(utilisations) == 1.0
