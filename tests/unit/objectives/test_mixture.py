"""Several corpora in one run: each step takes its share of each, as a function of the step alone."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.objectives.batches import Mixture, parse_weights
from bertwright.objectives.dataset import Examples
from bertwright.objectives.settings import ExampleSettings
from tests.support.example_oracle import FakeCorpus, random_documents


def examples_of(folder: Path, seed: int) -> Examples:
    corpus = FakeCorpus(random_documents(seed, num_documents=40), folder=folder)
    return Examples(corpus, ExampleSettings(), length=32, seed=0)  # type: ignore[arg-type]


def test_steps_take_the_next_rows_of_each(tmp_path: Path) -> None:
    parts = [examples_of(tmp_path, seed) for seed in (1, 2, 3)]
    mixture = Mixture(parts, [6, 3, 1])
    taken = [0, 0, 0]
    for step in range(60):
        batch = mixture.step_batch(step, 7)
        assert len(batch.ids) == 7
        at = 0
        for position, part in enumerate(parts):
            count = mixture.rows_per_corpus((step + 1) * 7)[position] - taken[position]
            alone = part.rows_between(taken[position], taken[position] + count) if count else None
            if alone is not None:
                np.testing.assert_array_equal(batch.ids[at : at + count], alone.ids)
                np.testing.assert_array_equal(batch.labels[at : at + count], alone.labels)
            at += count
            taken[position] += count
        assert at == 7
    assert [abs(count - 420 * share) <= 1 for count, share in zip(taken, (0.6, 0.3, 0.1), strict=True)] == [True] * 3
    again = mixture.step_batch(3, 7)  # out of order, as after a restart
    np.testing.assert_array_equal(again.ids, Mixture(parts, [6, 3, 1]).step_batch(3, 7).ids)


def test_the_rows_for_measuring_come_from_all(tmp_path: Path) -> None:
    parts = [examples_of(tmp_path, seed) for seed in (1, 2)]
    batches = list(Mixture(parts, [1, 3]).first(20, batch_size=4))
    expected = [*parts[0].first(5, 4), *parts[1].first(15, 4)]
    assert len(batches) == len(expected) == 6
    for batch, other in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(batch.ids, other.ids)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=6), st.integers(0, 10**12), st.integers(0, 1000))
def test_counts_follow_the_weights_and_only_grow(weights: list[float], n: int, more: int) -> None:
    mixture = Mixture.__new__(Mixture)
    total = sum(map(Fraction, weights))
    mixture.fractions = tuple(Fraction(weight) / total for weight in weights)
    before, after = mixture.rows_per_corpus(n), mixture.rows_per_corpus(n + more)
    assert sum(before) == n
    assert sum(after) == n + more
    for one, other, share in zip(before, after, mixture.fractions, strict=True):
        assert 0 <= one <= other
        assert abs(one - n * share) <= len(weights)


def test_passes_are_those_of_each_corpus(tmp_path: Path) -> None:
    parts = [examples_of(tmp_path, seed) for seed in (1, 2)]
    rows = 1000 * parts[0].num_rows(0)
    passes = Mixture(parts, [1e-9, 1]).passes(rows)
    assert passes[0] < 0.01
    assert passes[1] == pytest.approx(1000 * parts[0].num_rows(0) / parts[1].num_rows(0))


def test_weights_are_read() -> None:
    assert parse_weights(["a", "b=0.5", "c=d=2"]) == [("a", 1.0), ("b", 0.5), ("c=d", 2.0)]
    for bad in ("a=0", "a=-1", "a=inf", "a=nan", "a=much"):
        with pytest.raises(ValueError, match=r"a=|could not convert"):
            parse_weights([bad])
