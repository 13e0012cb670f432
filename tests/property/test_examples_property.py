"""Properties of rows that hold for every corpus, seed, epoch and batch."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.masking import truncate
from bertwright.objectives.sampling import Sampler, shuffled, stream_key
from bertwright.objectives.sentence_pairs import plan_rows
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from tests.support import example_oracle as oracle

NAMES = [field.name for field in dataclasses.fields(PretrainingBatch)]
FOLDER = Path(tempfile.gettempdir())  # nothing is written: the plans are small

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 1000)
corpora = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=8)  # sentence lengths


def with_pieces(sizes: list[list[int]]) -> list[oracle.Document]:
    piece = 5
    documents: list[oracle.Document] = []
    for document in sizes:
        documents.append([])
        for size in document:
            documents[-1].append([5 + (piece + i) % 495 for i in range(size)])
            piece += size
    return documents


@given(num_rows=st.integers(1, 3000), seed=seeds, epoch=epochs)
@settings(deadline=None, max_examples=60)
def test_the_order_of_an_epoch_is_a_bijection(num_rows, seed, epoch):
    rows = shuffled(np.arange(num_rows), num_rows, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


@given(num_rows=st.integers(2**31, 2**40), places=st.lists(st.integers(0, 2**31 - 1), unique=True), seed=seeds)
@settings(deadline=None, max_examples=60)
def test_the_order_of_a_huge_epoch_repeats_no_row(num_rows, places, seed):
    rows = shuffled(np.array(places, np.int64), num_rows, seed=seed, epoch=0)
    assert len(set(rows.tolist())) == len(places)
    assert all(0 <= row < num_rows for row in rows)


@given(sizes=st.lists(st.integers(1, 20), min_size=60, max_size=60), batch_size=st.integers(1, 30), seed=seeds)
@settings(deadline=None, max_examples=40)
def test_steps_are_the_epochs_one_after_another(sizes, batch_size, seed):
    sampler = Sampler(lambda epoch: sizes[epoch], seed)
    seen = [
        (epoch, int(row))
        for step in range(60 // batch_size)
        for epoch, rows in sampler.rows(step * batch_size, (step + 1) * batch_size)
        for row in rows
    ]
    expected = [
        (epoch, int(row))
        for epoch, size in enumerate(sizes)
        for row in shuffled(np.arange(size), size, seed=seed, epoch=epoch)
    ]
    assert seen == expected[: len(seen)]


@pytest.mark.parametrize(("second_sentence", "plain_rows"), [("next", oracle.pair_rows), ("order", oracle.order_rows)])
@given(sizes=corpora, length=st.integers(5, 80), seed=seeds, epoch=epochs, short_share=st.sampled_from([0.0, 0.1, 1.0]))
@settings(deadline=None, max_examples=80)
def test_the_walk_is_the_plain_one(second_sentence, plain_rows, sizes, length, seed, epoch, short_share):
    """Walks of pairs also use every sentence once."""
    documents = with_pieces(sizes)
    corpus = oracle.FakeCorpus(documents, folder=FOLDER, num_shards=1)
    plan = plan_rows(
        corpus.sentence_lengths(),
        corpus.document_first(),
        length=length,
        seed=seed,
        epoch=epoch,
        second_sentence=second_sentence,
        short_share=short_share,
    )
    expected = plain_rows(documents, length, seed, epoch, short_share)
    assert plan.tolist() == [(r.a_first, len(r.a), r.b_first, len(r.b), int(r.is_random)) for r in expected]
    if second_sentence == "next":
        used = [
            sentence
            for row in plan
            for sentence in range(row["a"], row["a"] + row["a_count"] + (0 if row["random"] else row["b_count"]))
        ]
        assert used == list(range(sum(map(len, sizes))))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), min_size=1),
    most=st.integers(2, 300),
    seed=seeds,
)
@settings(deadline=None, max_examples=60)
def test_truncation_leaves_two_runs_of_nearly_equal_length(sizes, most, seed):
    before = np.array(sizes, np.int64)
    fronts, left = truncate(np.arange(len(sizes)), before, most, stream_key(seed))
    assert (left.sum(1) == np.minimum(before.sum(1), most)).all()
    assert (fronts >= 0).all()
    assert (fronts + left <= before).all()
    cut = left < before
    both = cut.all(1)
    assert (abs(left[both, 0] - left[both, 1]) <= 1).all()
    # A side that was cut is not shorter than the other by more than the token that a tie takes from B.
    assert (left[cut[:, 0], 0] >= left[cut[:, 0], 1]).all()
    assert (left[cut[:, 1], 1] >= left[cut[:, 1], 0] - 1).all()


@given(sizes=corpora.filter(lambda documents: len(documents) > 1), data=st.data(), seed=seeds, epoch=epochs)
@settings(deadline=None, max_examples=40)
def test_a_row_is_the_same_in_every_batch(sizes, data, seed, epoch):
    corpus = oracle.FakeCorpus(with_pieces(sizes), folder=FOLDER, num_shards=2)
    kind = data.draw(st.sampled_from(["next", "order", "none"]))
    if kind == "order" and max(map(len, sizes)) < 2:
        kind = "none"
    masking = MaskingSettings(units=data.draw(st.sampled_from(["piece", "word", "span", "ngram"])))
    examples = Examples(corpus, ExampleSettings(second_sentence=kind, masking=masking), length=24, seed=seed)
    num_rows = examples.num_rows(epoch)
    everything = examples.batch(epoch, np.arange(num_rows))
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=12))
    some = examples.batch(epoch, np.array(rows, np.int64))
    for name in NAMES:
        assert np.array_equal(getattr(some, name), getattr(everything, name)[rows])
