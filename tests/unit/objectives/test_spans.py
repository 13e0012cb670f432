"""Span masking: lengths, starts and fates of spans; nothing beyond the wanted number; short rows."""

from pathlib import Path

import numpy as np
import pytest

from bertwright.objectives.dataset import Examples
from bertwright.objectives.masking import SPAN_LENGTHS, choose_spans, span_words
from bertwright.objectives.sampling import draw, stream_key
from bertwright.objectives.settings import ExampleSettings, MaskingSettings, predictions_by_length
from tests.support import example_oracle as oracle

VOCAB = 500
SPECIAL = (oracle.CLS, oracle.SEP)
WHOLE = np.zeros(VOCAB, np.bool_)  # no piece goes on with a word
SPANS = SPAN_LENGTHS["span"]
LONGEST_SPAN = 10
GEOMETRIC = np.array([0.2 * 0.8 ** (words - 1) for words in range(1, 11)])


def spans_of(ids: np.ndarray, *, row: int, wanted: int, continuation: np.ndarray = WHOLE) -> list[list[int]]:
    """Return the positions of each span that is chosen in a row."""
    heads, sizes, sources = (np.zeros(ids.size, np.int64) for _ in range(3))
    chosen = choose_spans(ids, continuation, SPECIAL, stream_key(row), wanted, SPANS, heads, sizes, sources)
    spans: dict[int, list[int]] = {}
    for position in np.flatnonzero(chosen):
        spans.setdefault(int(sources[position]), []).append(int(position))
    return list(spans.values())


def test_lengths_are_geometric_up_to_ten_words():
    key = stream_key(1)
    lengths = np.array([span_words(np.uint64(draw(key, np.uint64(number))), SPANS) for number in range(100_000)])
    counts = np.bincount(lengths, minlength=LONGEST_SPAN + 1)[1:]
    expected = 100_000 * GEOMETRIC / GEOMETRIC.sum()
    assert counts.size == 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees of freedom, p = 0.001
    assert lengths.mean() == pytest.approx(3.8, abs=0.03)  # the paper's figure


def test_n_grams_have_one_to_three_words_with_alberts_probabilities():
    key, lengths = stream_key(2), SPAN_LENGTHS["ngram"]
    words = [span_words(np.uint64(draw(key, np.uint64(number))), lengths) for number in range(100_000)]
    counts = np.bincount(words, minlength=4)[1:]
    expected = 100_000 * np.array([6, 3, 2]) / 11
    assert counts.size == 3
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001


def test_spans_in_rows_have_those_lengths_where_nothing_stops_them_and_begin_anywhere():
    # Of a row of 4,000 words of one piece: where ten pieces are wanted, nothing ends the first span early but the row's
    # end. Which span is the first is seen where one piece is wanted.
    ids = np.full(4000, 7, np.int32)
    first = []
    for row in range(5000):
        heads, sizes, sources = (np.zeros(ids.size, np.int64) for _ in range(3))
        chosen = choose_spans(ids, WHOLE, SPECIAL, stream_key(row), 1, SPANS, heads, sizes, sources)
        (position,) = np.flatnonzero(chosen)
        long = choose_spans(ids, WHOLE, SPECIAL, stream_key(row), 10, SPANS, heads, sizes, sources)
        first.append((position, int((sources[long] == position).sum())))
    starts, lengths = np.array(first).T
    inner = starts < 3990
    counts = np.bincount(lengths[inner], minlength=11)[1:]
    expected = inner.sum() * GEOMETRIC / GEOMETRIC.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    tenths = np.bincount(starts // 400, minlength=10)
    assert ((tenths - 500) ** 2 / 500).sum() < 27.9


def test_a_span_is_whole_words_of_one_segment_side_by_side():
    generator = np.random.default_rng(0)
    continuation = np.arange(VOCAB) % 3 == 0
    for row in range(400):
        ids = generator.integers(5, VOCAB, 60).astype(np.int32)
        ids[[0, 25, 59]] = oracle.CLS, oracle.SEP, oracle.SEP
        begins = [p for p in range(60) if ids[p] not in SPECIAL and (ids[p - 1] in SPECIAL or not continuation[ids[p]])]
        for span in spans_of(ids, row=row, wanted=12, continuation=continuation):
            assert span == list(range(span[0], span[-1] + 1))
            assert not np.isin(ids[span], SPECIAL).any()
            assert span[0] in begins
            after = span[-1] + 1
            assert ids[after] in SPECIAL or after in begins
            assert 1 <= sum(position in begins for position in span) <= LONGEST_SPAN


def test_the_wanted_number_is_reached_where_words_allow_it_and_never_exceeded(masking_corpus):
    masking = MaskingSettings(units="span")
    for length in (16, 128):
        counts = predictions_by_length(masking, length)
        examples = Examples(masking_corpus, ExampleSettings(masking=masking), length=length, seed=0)
        batch = examples.step_batch(0, 3000)
        made = batch.weights.sum(1)
        assert (made <= counts[batch.lengths]).all()
        assert (made == counts[batch.lengths]).mean() > (0.95 if length == 128 else 0.8)
        assert (np.diff(batch.positions, axis=1)[batch.weights[:, 1:] > 0] > 0).all()


def test_short_rows_and_words_that_do_not_fit():
    assert spans_of(np.array([oracle.CLS, 7, oracle.SEP], np.int32), row=0, wanted=1) == [[1]]
    everything = spans_of(np.full(9, 7, np.int32), row=0, wanted=50)
    assert sorted(position for span in everything for position in span) == list(range(9))
    three = np.array([7, 3, 3], np.int32)  # one word of three pieces
    joined = np.arange(VOCAB) == 3
    words = np.array([oracle.CLS, *(three + 5), oracle.SEP], np.int32)
    assert spans_of(words, row=0, wanted=2, continuation=np.roll(joined, 5)) == []
    assert spans_of(words, row=0, wanted=3, continuation=np.roll(joined, 5)) == [[1, 2, 3]]
    assert spans_of(np.array([oracle.CLS, oracle.SEP], np.int32), row=0, wanted=1) == []


def test_the_fates_of_spans_have_their_shares_over_a_hundred_thousand_rows(masking_corpus):
    examples = Examples(masking_corpus, ExampleSettings(masking=MaskingSettings(units="span")), length=128, seed=0)
    totals, hidden, same = [], [], []
    for step in range(100):
        batch = examples.step_batch(step, 1000)
        shown = np.take_along_axis(batch.ids, batch.positions, axis=1)
        real = batch.weights > 0
        totals.append(real.sum(1))
        hidden.append((real & (shown == oracle.MASK)).sum(1))
        same.append((real & (shown == batch.labels)).sum(1))
    num = np.concatenate(totals)
    # A random entry is [MASK] once in V, and the piece that was there once in V. A row's pieces share fates, so the
    # standard error is of rows.
    for parts, share in [(hidden, 0.8 + 0.1 / VOCAB), (same, 0.1 + 0.1 / VOCAB)]:
        fates = np.concatenate(parts)
        error = np.sqrt(((fates - share * num) ** 2).sum()) / num.sum()
        assert abs(fates.sum() / num.sum() - share) < 3 * error


def test_the_pieces_of_a_span_share_one_fate():
    documents = [[[10 + word % 300 for word in range(500)]] * 2 for _ in range(20)]
    masking = MaskingSettings(units="span", share=0.02, mask=0.5, same=0.5, random=0.0)
    corpus = oracle.FakeCorpus(documents, folder=Path(), vocab_size=VOCAB)
    corpus.tokenizer.continuation = WHOLE
    examples = Examples(corpus, ExampleSettings(second_sentence="none", masking=masking), length=512, seed=0)
    batch = examples.batch(0, np.arange(examples.num_rows(0)))
    mixed = runs = 0
    for row in range(len(batch.ids)):
        places = batch.positions[row][batch.weights[row] > 0]
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            runs += 1
            mixed += len(set((batch.ids[row, run] == oracle.MASK).tolist())) > 1
    assert runs > 60
    assert mixed / runs < 0.1  # two spans side by side are seldom at 2 %; a coin for each piece would mix most runs
