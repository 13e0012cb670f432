"""Masked LM: which pieces are chosen and which pieces replace them."""

import numpy as np
import pytest
from pydantic import ValidationError

from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.settings import ExampleSettings, MaskingSettings, predictions_by_length
from tests.support import example_oracle as oracle

VOCAB = 500


def many_rows(corpus, masking: MaskingSettings, *, num_rows: int, length: int = 128) -> list[PretrainingBatch]:
    examples = Examples(corpus, ExampleSettings(masking=masking), length=length, seed=0)
    return [examples.step_batch(step, 1000) for step in range(num_rows // 1000)]


def unmasked(batch: PretrainingBatch) -> np.ndarray:
    ids = batch.ids.copy()
    row, column = np.nonzero(batch.weights)
    ids[row, batch.positions[row, column]] = batch.labels[row, column]
    return ids


def chosen_pieces(batch: PretrainingBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the piece that is shown and the original piece of every prediction."""
    row, column = np.nonzero(batch.weights)
    return batch.ids[row, batch.positions[row, column]], batch.labels[row, column]


def test_the_count_is_the_paper_s_with_halves_to_the_even_number():
    counts = predictions_by_length(MaskingSettings(), 512)
    assert {n: int(counts[n]) for n in (3, 5, 10, 30, 50, 64, 128, 512)} == {
        3: 1,  # never none
        5: 1,  # 0.75
        10: 2,  # 1.5
        30: 4,  # 4.5
        50: 8,  # 7.5
        64: 10,  # 9.6
        128: 19,  # 19.2
        512: 77,  # 76.8
    }
    assert predictions_by_length(MaskingSettings(max_predictions=20), 512).max() == 20
    assert predictions_by_length(MaskingSettings(max_predictions=20), 128)[-1] == 19


@pytest.mark.parametrize(
    "masking",
    [
        MaskingSettings(),
        MaskingSettings(units="word"),
        MaskingSettings(units="word", share=0.5, max_predictions=7),
        MaskingSettings(share=1.0, mask=0.3, same=0.3, random=0.4),
        MaskingSettings(units="span"),
        MaskingSettings(units="span", share=0.5, max_predictions=7, mask=0.3, same=0.3, random=0.4),
        MaskingSettings(units="span", share=1.0),
        MaskingSettings(units="ngram"),
        MaskingSettings(units="ngram", share=0.5, max_predictions=7, mask=0.3, same=0.3, random=0.4),
    ],
)
def test_masks_are_those_of_plain_python(masking_corpus, masking):
    examples = Examples(masking_corpus, ExampleSettings(masking=masking), length=48, seed=5)
    rows = np.arange(300)
    batch = examples.batch(2, rows)
    plain = unmasked(batch)
    for row in rows:
        before = plain[row, : batch.lengths[row]].tolist()
        expected = oracle.masked(before, int(row), masking, masking_corpus.tokenizer, 48, 5, 2)
        count = len(expected.positions)
        assert batch.ids[row, : batch.lengths[row]].tolist() == expected.ids
        assert batch.positions[row].tolist() == expected.positions + [0] * (examples.max_predictions - count)
        assert batch.labels[row].tolist() == expected.labels + [0] * (examples.max_predictions - count)
        assert batch.weights[row].tolist() == [1.0] * count + [0.0] * (examples.max_predictions - count)


def test_an_exact_number_of_ordinary_pieces_is_chosen_in_ascending_order(masking_corpus):
    counts = predictions_by_length(MaskingSettings(), 128)
    for batch in many_rows(masking_corpus, MaskingSettings(), num_rows=3000):
        assert (batch.weights.sum(1) == counts[batch.lengths]).all()
        assert (np.diff(batch.positions, axis=1)[batch.weights[:, 1:] > 0] > 0).all()
        assert not np.isin(chosen_pieces(batch)[1], [oracle.CLS, oracle.SEP, oracle.PAD]).any()


def test_the_shares_are_those_of_the_paper_over_a_hundred_thousand_rows(masking_corpus):
    kinds = np.zeros(3)
    chosen = tokens = 0
    for batch in many_rows(masking_corpus, MaskingSettings(), num_rows=100_000):
        shown, label = chosen_pieces(batch)
        kinds += [(shown == oracle.MASK).sum(), (shown == label).sum(), label.size]
        chosen += label.size
        tokens += batch.lengths.sum()
    # A random entry is [MASK] once in V, and the piece that was there once in V.
    for measured, share in [(kinds[0], 0.8 + 0.1 / VOCAB), (kinds[1], 0.1 + 0.1 / VOCAB)]:
        assert abs(measured / chosen - share) < 3 * (share * (1 - share) / chosen) ** 0.5
    # Rounding to whole pieces leaves the share of all tokens within half a piece in a hundred.
    assert chosen / tokens == pytest.approx(0.15, abs=0.001)


def test_every_position_is_chosen_equally_often(masking_corpus):
    times, num_full = np.zeros(128), 0
    for batch in many_rows(masking_corpus, MaskingSettings(), num_rows=20_000):
        full = (batch.lengths == 128) & (batch.ids[:, 64] != oracle.SEP)
        np.add.at(times, batch.positions[full][batch.weights[full] > 0], 1)
        num_full += full.sum()
    assert num_full > 5000
    assert times[[0, 127]].sum() == 0  # [CLS] and the last [SEP]
    middle = times[1:127]
    # 19 of 125 candidates in every row; a place is none where the middle [SEP] stands on it, which is seldom.
    expected = num_full * 19 / 125
    assert middle.sum() == num_full * 19
    assert abs(middle - expected).max() < 5 * expected**0.5


def test_random_entries_are_uniform_over_the_whole_vocabulary(masking_corpus):
    masking = MaskingSettings(mask=0.0, same=0.0, random=1.0)
    counts = np.zeros(VOCAB)
    for batch in many_rows(masking_corpus, masking, num_rows=20_000):
        counts += np.bincount(chosen_pieces(batch)[0], minlength=VOCAB)
    expected = counts.sum() / VOCAB
    assert ((counts - expected) ** 2 / expected).sum() < 603  # chi-square, 499 degrees of freedom, p = 0.001
    assert counts[: oracle.MASK + 1].min() > 0  # special pieces too


def test_whole_words_are_chosen_whole(masking_corpus):
    continues = masking_corpus.tokenizer.continuation
    masking = MaskingSettings(units="word")
    full = 0
    for batch in many_rows(masking_corpus, masking, num_rows=2000):
        plain = unmasked(batch)
        for row in range(len(plain)):
            chosen = set(batch.positions[row][batch.weights[row] > 0].tolist())
            for position in range(2, int(batch.lengths[row])):
                is_piece = plain[row, position] not in (oracle.CLS, oracle.SEP)
                if (
                    is_piece
                    and continues[plain[row, position]]
                    and plain[row, position - 1] not in (oracle.CLS, oracle.SEP)
                ):
                    assert (position in chosen) == (position - 1 in chosen)
        counts = predictions_by_length(masking, 128)[batch.lengths]
        assert (batch.weights.sum(1) <= counts).all()
        full += (batch.weights.sum(1) == counts).sum()
    assert full > 1900  # a group that does not fit is passed over for a smaller one


def test_nothing_is_replaced_where_all_stay_the_same(masking_corpus):
    plain = many_rows(masking_corpus, MaskingSettings(mask=0.0, same=1.0, random=0.0), num_rows=1000)[0]
    hidden = many_rows(masking_corpus, MaskingSettings(mask=1.0, same=0.0, random=0.0), num_rows=1000)[0]
    assert (plain.ids == unmasked(hidden)).all()
    assert (chosen_pieces(hidden)[0] == oracle.MASK).all()
    assert (plain.positions == hidden.positions).all()


@pytest.mark.parametrize(
    "values", [{"mask": 0.5}, {"share": 0.0}, {"share": 1.1}, {"max_predictions": 0}, {"mask": 1.2, "same": -0.2}]
)
def test_impossible_settings_are_refused(values):
    with pytest.raises(ValidationError):
        MaskingSettings(**values)
