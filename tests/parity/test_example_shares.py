"""Over a hundred thousand rows: the shares that the original's rules give (paper §A.1, §A.2), to three standard errors.

What is expected is computed here from the rules themselves, for this corpus; no random number is shared with the code.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.sentence_pairs import plan_rows
from bertwright.objectives.settings import ExampleSettings
from tests.support import example_oracle as oracle

LENGTH, SEED, EPOCHS = 32, 17, 50
PIECES = 60_000
"""Number of different pieces of the text. Piece n is n modulo this number, so a row shows which pieces were cut off."""
SHORT = 0.1
FIRST = oracle.MASK + 1
Sums = tuple[float, float]


@dataclass(frozen=True)
class Rows:
    """All rows of some epochs: `text` before masking, and what each was planned to be."""

    batch: PretrainingBatch
    text: NDArray[np.int32]
    plan: NDArray[np.void]
    epoch: NDArray[np.int64]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> oracle.FakeCorpus:
    draw = np.random.default_rng(0)
    documents: list[oracle.Document] = []
    piece = 0
    for num_sentences in draw.integers(1, 24, 400):
        document = []
        for size in draw.integers(1, 20, num_sentences).tolist():
            document.append([FIRST + (piece + at) % PIECES for at in range(size)])
            piece += size
        documents.append(document)
    folder = tmp_path_factory.mktemp("corpus")
    return oracle.FakeCorpus(documents, folder=folder, vocab_size=FIRST + PIECES)


@pytest.fixture(scope="module")
def walk(numbered: oracle.FakeCorpus) -> Rows:
    examples = Examples(numbered, ExampleSettings(), length=LENGTH, seed=SEED)  # type: ignore[arg-type]
    plans = [
        plan_rows(
            numbered.sentence_lengths(),
            numbered.document_first(),
            length=LENGTH,
            seed=SEED,
            epoch=epoch,
            short_share=SHORT,
        )
        for epoch in range(EPOCHS)
    ]
    batches = [examples.batch(epoch, np.arange(plan.size)) for epoch, plan in enumerate(plans)]
    names = PretrainingBatch.__dataclass_fields__
    batch = PretrainingBatch(**{name: np.concatenate([getattr(some, name) for some in batches]) for name in names})
    text = batch.ids.copy()
    row, column = np.nonzero(batch.weights)
    text[row, batch.positions[row, column]] = batch.labels[row, column]
    epoch = np.repeat(np.arange(EPOCHS), [plan.size for plan in plans])
    assert len(text) > 100_000
    return Rows(batch, text, np.concatenate(plans), epoch)


def standard_errors(measured: float, expected: float, num: float) -> float:
    """Return the difference in standard deviations of a fraction of `num` independent coin tosses."""
    return abs(measured - expected) / (expected * (1 - expected) / num) ** 0.5


def test_the_count_of_predictions_is_exact(walk: Rows) -> None:
    wanted = [max(1, round(0.15 * length)) for length in walk.batch.lengths.tolist()]
    assert walk.batch.weights.sum(1).tolist() == wanted
    assert set(wanted) == {1, 2, 3, 4, 5}


def test_of_the_chosen_pieces_so_many_are_masked_kept_and_random(walk: Rows) -> None:
    row, column = np.nonzero(walk.batch.weights)
    shown, label = walk.batch.ids[row, walk.batch.positions[row, column]], walk.batch.labels[row, column]
    size = FIRST + PIECES
    masked, kept = (shown == oracle.MASK).mean(), (shown == label).mean()
    assert standard_errors(masked, 0.8 + 0.1 / size, label.size) < 3  # a random entry is [MASK] once in so many
    assert standard_errors(kept, 0.1 + 0.1 / size, label.size) < 3
    assert standard_errors(1 - masked - kept, 0.1 - 0.2 / size, label.size) < 3


def expected_of(sizes: list[int], target: int) -> Sums:
    """Rows of a document, and those of them with a random B, on average over the cut and the coin of each chunk."""
    after: list[Sums] = [(0.0, 0.0)] * (len(sizes) + 1)  # from sentence i on
    for i in reversed(range(len(sizes))):
        count = 1
        while i + count < len(sizes) and sum(sizes[i : i + count]) < target:
            count += 1
        if count == 1:
            after[i] = 1 + after[i + 1][0], 1 + after[i + 1][1]
            continue
        cuts = after[i + 1 : i + count]  # a random B puts back what comes after A
        put_back = [sum(some[kind] for some in cuts) / len(cuts) for kind in (0, 1)]
        after[i] = (
            1 + 0.5 * after[i + count][0] + 0.5 * put_back[0],
            0.5 + 0.5 * after[i + count][1] + 0.5 * put_back[1],
        )
    return after[0]


def expected_rows(corpus: oracle.FakeCorpus) -> NDArray[np.float64]:
    """For each document: rows, and rows with a random B, on average also over its target."""
    most = LENGTH - 3
    expected = []
    for document in corpus.documents:
        sizes = [len(sentence) for sentence in document]
        usual, short = expected_of(sizes, most), [expected_of(sizes, target) for target in range(2, most + 1)]
        expected.append(
            [(1 - SHORT) * usual[kind] + SHORT * np.mean([some[kind] for some in short]) for kind in (0, 1)]
        )
    return np.array(expected)


def test_rows_and_random_ones_are_as_many_as_the_walk_gives(numbered: oracle.FakeCorpus, walk: Rows) -> None:
    """More than half are random: chunks of one sentence always are."""
    expected = expected_rows(numbered)
    document = np.searchsorted(numbered.document_first(), walk.plan["a"], side="right") - 1
    counts = np.zeros((EPOCHS, len(expected), 2))
    np.add.at(counts, (walk.epoch, document, 0), 1)
    np.add.at(counts, (walk.epoch, document, 1), walk.batch.is_random)
    assert (walk.batch.is_random == walk.plan["random"]).all()
    beyond = counts - expected  # documents and epochs have draws of their own
    assert (abs(beyond.sum((0, 1))) < 3 * (beyond**2).sum((0, 1)) ** 0.5).all()
    share = expected[:, 1].sum() / expected[:, 0].sum()
    assert 0.55 < share < 0.75
    ratio = beyond[..., 1] - share * beyond[..., 0]
    assert abs(ratio.sum()) < 3 * (ratio**2).sum() ** 0.5
    assert walk.batch.is_random.mean() == pytest.approx(share, abs=0.005)


def test_tokens_are_cut_off_front_and_back_alike(numbered: oracle.FakeCorpus, walk: Rows) -> None:
    """A and B are runs of the text; what they lack of the planned sentences stood before them as often as after."""
    begins = np.concatenate([[0], np.cumsum(numbered.sentence_lengths())])
    every, columns = np.arange(len(walk.text)), np.arange(LENGTH)
    in_b = walk.batch.segments.sum(1)  # with its [SEP]
    middle = walk.batch.lengths - in_b - 1
    fronts = cuts = 0
    for side, first, size in (("a", np.ones_like(middle), middle - 1), ("b", middle + 1, in_b - 1)):
        assert (size >= 1).all()
        numbers = walk.text - FIRST
        is_inside = (columns >= first[:, None]) & (columns < (first + size - 1)[:, None])
        assert (((np.roll(numbers, -1, axis=1) - numbers) % PIECES)[is_inside] == 1).all()
        planned = begins[walk.plan[side]], begins[walk.plan[side] + walk.plan[f"{side}_count"]]
        front = (numbers[every, first] - planned[0]) % PIECES
        cut = planned[1] - planned[0] - size
        assert (front <= cut).all()
        fronts, cuts = fronts + int(front.sum()), cuts + int(cut.sum())
    assert cuts > 500_000
    assert standard_errors(fronts / cuts, 0.5, cuts) < 3
