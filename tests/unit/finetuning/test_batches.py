"""Micro-batches of fine-tuning: bounded tokens, every row once, and the tokens that are left after each step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertwright.finetuning.batches import steps_of, tokens_left


def bound(lengths: list[int], *, contrasts: bool = False) -> Any:
    """A stand-in for a bound task, whose batches are the numbers of their rows."""
    array = np.array(lengths)
    kind = SimpleNamespace(contrasts=contrasts)
    return SimpleNamespace(kind=kind, lengths=array, tokens=array, batch=lambda rows: rows.tolist())


@pytest.mark.parametrize(
    ("length", "rows", "expected"),
    [(128, 32, [32]), (384, 32, [10, 10, 10, 2]), (512, 16, [8, 8]), (5000, 3, [1, 1, 1]), (40, 64, [64])],
)
def test_a_step_of_long_rows_has_several_micro_batches(length: int, rows: int, expected: list[int]) -> None:
    micro_batches = steps_of(bound([length] * rows), rows, seed=0)(0)
    assert list(map(len, micro_batches)) == expected
    assert sorted(row for batch in micro_batches for row in batch) == list(range(rows))


def test_padding_counts_in_a_micro_batch() -> None:
    lengths = [8] * 31 + [512]
    micro_batches = steps_of(bound(lengths), 32, seed=0)(0)
    assert sum(map(len, micro_batches)) == 32
    assert all(len(batch) * max(lengths[row] for row in batch) <= 4096 for batch in micro_batches)


def test_the_tokens_that_are_left_are_those_of_the_steps_that_follow() -> None:
    lengths = np.random.default_rng(0).integers(5, 400, size=103).tolist()
    steps, left = steps_of(bound(lengths), 8, seed=3), tokens_left(bound(lengths), 8, seed=3, epochs=3)
    tokens = [sum(lengths[row] for batch in steps(step) for row in batch) for step in range(3 * 13)]
    assert [left(done) for done in range(3 * 13 + 1)] == [sum(tokens[done:]) for done in range(3 * 13 + 1)]


def test_rows_that_are_each_others_negatives_stay_together_and_meet_rows_of_any_length() -> None:
    work = bound([100 * (row + 1) for row in range(32)], contrasts=True)
    steps = steps_of(work, 8, seed=0)
    assert all(len(steps(step)) == 1 for step in range(8))
    first, second = ([sorted(*steps(step)) for step in steps_of_epoch] for steps_of_epoch in (range(4), range(4, 8)))
    assert sorted(row for batch in first for row in batch) == list(range(32))
    assert not any(batch in second for batch in first)
    assert all(batch != list(range(batch[0], batch[0] + 8)) for batch in first)
