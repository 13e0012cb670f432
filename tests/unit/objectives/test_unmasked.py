"""Rows of language models: sentences without masks, and GPT-1's spans, which have every token of an epoch once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.objectives.batches import Mixture
from bertwright.objectives.dataset import Examples, Spans, Unmasked
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from tests.support.example_oracle import FakeCorpus, random_documents

SINGLE_PROCESS = ExampleSettings(second_sentence="none")


def corpus(folder: Path, *, num_documents: int = 60, longest: int = 12, **more: Any) -> Any:
    return FakeCorpus(random_documents(1, num_documents=num_documents, longest=longest), folder=folder, **more)


def text_of(data: Any, documents: Any = None) -> list[int]:
    chosen = range(len(data.documents)) if documents is None else documents
    return [piece for document in chosen for sentence in data.documents[document] for piece in sentence]


def spelled(rows: Spans, epoch: int) -> list[list[int]]:
    """The tokens of each row of an epoch."""
    batch = rows.batch(epoch, np.arange(rows.num_rows(epoch)))
    assert not batch.segments.any()
    for ids, length in zip(batch.ids, batch.lengths, strict=True):
        assert (ids[length:] == 0).all()
    return [ids[:length].tolist() for ids, length in zip(batch.ids, batch.lengths, strict=True)]


def test_unmasked_rows_are_those_of_masked_lm_before_they_are_masked(tmp_path: Path) -> None:
    data = corpus(tmp_path)
    shown = SINGLE_PROCESS.model_copy(update={"masking": MaskingSettings(mask=0.0, same=1.0, random=0.0)})
    masked, plain = (kind(data, shown, length=24, seed=3) for kind in (Examples, Unmasked))
    assert masked.num_rows(2) == plain.num_rows(2)
    for step in (0, 7):
        mine, theirs = plain.step_batch(step, 16), masked.step_batch(step, 16)
        for name in ("ids", "segments", "lengths"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert list(vars(mine)) == ["ids", "segments", "lengths"]


@pytest.mark.parametrize("length", [1, 7, 24, 5000])
def test_an_epoch_has_every_token_once_and_in_order(tmp_path: Path, length: int) -> None:
    data = corpus(tmp_path)
    rows, text = Spans(data, length=length, seed=0), text_of(data)
    heads = set()
    for epoch in range(6):
        pieces = spelled(rows, epoch)
        assert [piece for row in pieces for piece in row] == text
        assert all(len(row) == length for row in pieces[1:-1])
        heads.add(len(pieces[0]))
    assert length == 1 or len(heads) > 1  # epochs cut in places of their own


def test_documents_may_be_shorter_and_longer_than_rows(tmp_path: Path) -> None:
    documents = [[[5], [6]], [[7] * 3], [list(range(10, 90)), list(range(90, 130))], [[8]]]
    data: Any = FakeCorpus(documents, folder=tmp_path, num_shards=2)
    assert [piece for row in spelled(Spans(data, length=9, seed=4), 1) for piece in row] == text_of(data)


@pytest.mark.parametrize("length", [1, 2, 7, 24, 5000])
def test_the_end_of_a_text_follows_each_document(tmp_path: Path, length: int) -> None:
    data, end = corpus(tmp_path), 900
    text = [piece for number in range(len(data.documents)) for piece in [*text_of(data, [number]), end]]
    rows = Spans(data, length=length, seed=0, end_id=end)
    for epoch in range(4):
        assert [piece for row in spelled(rows, epoch) for piece in row] == text
    assert rows.text_tokens() == len(text) - len(data.documents)


def test_parts_are_whole_documents_and_together_everything(tmp_path: Path) -> None:
    data = corpus(tmp_path)
    data.duplicates = np.array([2, 9], np.int64)
    parts = [Spans(data, length=16, seed=0, part=part, held_out_share=0.3) for part in ("train", "held_out")]  # type: ignore[arg-type]
    pieces_of_parts = [[piece for row in spelled(part, 0) for piece in row] for part in parts]
    kept = [text_of(data, [number]) for number in range(60) if number not in (2, 9)]
    for text in kept:
        assert sum(_holds(side, text) for side in pieces_of_parts) >= 1
    assert sum(map(len, pieces_of_parts)) == sum(map(len, kept))


def _holds(text: list[int], part: list[int]) -> bool:
    return any(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))


def test_a_row_is_the_same_in_any_batch_and_in_any_order(tmp_path: Path) -> None:
    rows = Spans(corpus(tmp_path), length=16, seed=0)
    whole = rows.batch(3, np.arange(rows.num_rows(3)))
    again = Spans(corpus(tmp_path), length=16, seed=0).batch(3, np.array([5, 1, 5]))
    np.testing.assert_array_equal(again.ids, whole.ids[[5, 1, 5]])
    other = Spans(corpus(tmp_path), length=16, seed=1)
    assert other.num_rows(0) + other.num_rows(1) > 0
    assert spelled(other, 3) != spelled(rows, 3)
    with pytest.raises(IndexError, match="has rows 0 to"):
        rows.batch(0, np.array([10**6]))


def test_every_row_comes_once_in_an_epoch_of_steps(tmp_path: Path) -> None:
    rows = Spans(corpus(tmp_path), length=16, seed=0)
    count = rows.num_rows(0)
    batch = rows.rows_between(0, count)
    in_order = rows.batch(0, np.arange(count))
    assert sorted(map(tuple, batch.ids.tolist())) == sorted(map(tuple, in_order.ids.tolist()))
    assert rows.missing_plan_bytes(10**9) == 0
    assert rows.passes(2 * count) == [2.0]


def test_spans_are_mixed_as_other_rows_are(tmp_path: Path) -> None:
    parts = [Spans(corpus(tmp_path, num_documents=size), length=16, seed=0) for size in (20, 40)]
    batch = Mixture(parts, [1, 3]).step_batch(0, 8)
    np.testing.assert_array_equal(batch.ids[:2], parts[0].rows_between(0, 2).ids)
    np.testing.assert_array_equal(batch.ids[2:], parts[1].rows_between(0, 6).ids)


def test_a_part_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="part 'held_out': expected at least one document with text"):
        Spans(corpus(tmp_path), length=16, seed=0, part="held_out", held_out_share=0.0)
