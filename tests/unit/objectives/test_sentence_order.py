"""Sentence-order prediction: A and the B that follows it, half of them swapped, and no other difference."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.errors import InputError
from bertwright.objectives.dataset import Examples
from bertwright.objectives.sentence_pairs import plan_rows
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from tests.support import example_oracle as oracle
from tests.support import tiny_run
from tests.support.example_oracle import even_corpus

ORDER = ExampleSettings(second_sentence="order")
UNCHANGED = MaskingSettings(mask=0.0, same=1.0, random=0.0)


def test_swapped_or_not_a_row_is_two_neighbouring_runs_of_one_document():
    lengths, first = even_corpus(3000, 37, 11)
    plan = plan_rows(lengths, first, length=128, seed=0, epoch=0, second_sentence="order")
    swapped = plan["random"] == 1
    earlier = np.where(swapped, plan["b"], plan["a"])
    later = np.where(swapped, plan["a"], plan["b"])
    count = np.where(swapped, plan["b_count"], plan["a_count"])
    assert (earlier + count == later).all()
    ends = later + np.where(swapped, plan["a_count"], plan["b_count"])
    assert (earlier // 37 == (ends - 1) // 37).all()
    # Together the rows have every sentence once, but for one before a last sentence that was left over alone.
    used = np.zeros(lengths.size, int)
    for begin, end in zip(earlier, ends, strict=True):
        used[begin:end] += 1
    assert used.min() == 1
    assert used.max() == 2
    assert set(np.flatnonzero(used == 2) % 37) == {35}


def test_half_of_the_rows_are_swapped_and_sizes_do_not_tell_which():
    lengths, first = even_corpus(30_000, 40, 10)
    plan = plan_rows(lengths, first, length=128, seed=1, epoch=0, second_sentence="order")
    swapped = plan["random"] == 1
    assert plan.size > 100_000
    assert abs(swapped.mean() - 0.5) < 3 * (0.25 / plan.size) ** 0.5
    for name in ("a_count", "b_count"):
        one, other = plan[name][swapped], plan[name][~swapped]
        error = (one.var() / one.size + other.var() / other.size) ** 0.5
        assert abs(one.mean() - other.mean()) < 3 * error


def test_a_swapped_row_has_exactly_the_tokens_of_its_text(tmp_path):
    # Every piece of a document is another one, so that places in the text can be read off a row.
    documents = [[list(range(5 + 9 * s, 14 + 9 * s)) for s in range(50)] for _ in range(60)]
    corpus = oracle.FakeCorpus(documents, folder=tmp_path)
    examples = Examples(corpus, ExampleSettings(second_sentence="order", masking=UNCHANGED), length=64, seed=0)
    batch = examples.batch(0, np.arange(examples.num_rows(0)))
    whole = 0
    for row in range(len(batch.ids)):
        ids = batch.ids[row, 1 : batch.lengths[row] - 1]
        cut = int(np.flatnonzero(ids == oracle.SEP)[0])
        a, b = ids[:cut], ids[cut + 1 :]
        parts = (b, a) if batch.is_random[row] else (a, b)
        text = np.concatenate(parts)
        assert (np.diff(text) > 0).all()  # in the order of the text
        if batch.lengths[row] < 64:  # nothing was cut off: the run has no gap
            assert (text == np.arange(text[0], text[-1] + 1)).all()
            whole += 1
        # Of two sides cut alike the first one keeps the odd token, swapped or not.
        assert batch.lengths[row] < 64 or len(a) - len(b) in (0, 1) or min(len(a), len(b)) % 9 == 0
    assert whole > 50
    assert 0.3 < batch.is_random.mean() < 0.7


def test_which_side_is_longer_after_truncation_does_not_tell(tmp_path):
    documents = [[[5 + s] * 90 for s in range(30)] for _ in range(3000)]
    corpus = oracle.FakeCorpus(documents, folder=tmp_path)
    examples = Examples(corpus, ExampleSettings(second_sentence="order", masking=UNCHANGED), length=64, seed=0)
    batch = examples.batch(0, np.arange(20_000))
    a = (batch.segments == 0).sum(1) - (64 - batch.lengths) - 2
    assert (a == 31).all()
    assert ((batch.segments == 1).sum(1) - 1 == 30).all()


def test_documents_of_one_sentence_are_left_out_and_it_is_reported(tmp_path, capsys):
    documents: list[oracle.Document] = [[[5, 6, 7]], [[8, 9], [10, 11], [12]], [[13]]]
    corpus = oracle.FakeCorpus(documents, folder=tmp_path, num_shards=1)
    examples = Examples(corpus, ExampleSettings(second_sentence="order", masking=UNCHANGED), length=16, seed=0)
    assert "2 documents of one sentence" in capsys.readouterr().err
    ids = examples.batch(0, np.arange(examples.num_rows(0))).ids
    assert set(np.unique(ids)) <= {oracle.PAD, oracle.CLS, oracle.SEP, *range(8, 13)}
    with pytest.raises(InputError, match="expected at least one document with two sentences, found none"):
        Examples(oracle.FakeCorpus([[[5, 6]]] * 3, folder=tmp_path, num_shards=1), ORDER, length=16, seed=0)


def test_one_document_is_enough(tmp_path):
    corpus = oracle.FakeCorpus([[[5, 6, 7], [8, 9]]], folder=tmp_path, num_shards=1)
    assert len(Examples(corpus, ORDER, length=16, seed=0).step_batch(0, 3).ids) == 3


def test_without_rows_of_its_own_the_metrics_are_those_of_masked_lm(tmp_path: Path) -> None:
    """As where a run that is given minutes measures how long an evaluation takes."""
    rows = tiny_run.examples(tmp_path, second_sentence="order")
    with torch.inference_mode():
        figures = tiny_run.built("order").metrics([rows.step_batch(0, tiny_run.ROWS)])
    assert figures["rows"] == tiny_run.ROWS
    assert isinstance(figures["rows"], int)
    assert isinstance(figures["predictions"], int)
    assert "sop_loss" not in figures
