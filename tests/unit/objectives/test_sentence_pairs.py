"""The walk that makes pairs of segments, against the same walk in plain Python and against the shares it promises."""

from pathlib import Path

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.objectives.sentence_pairs import PLAN, plan_rows
from tests.support import example_oracle as oracle
from tests.support.example_oracle import even_corpus


def sizes(documents: list[oracle.Document]) -> tuple[np.ndarray, np.ndarray]:
    corpus = oracle.FakeCorpus(documents, folder=Path())
    return corpus.sentence_lengths(), corpus.document_first()


def as_records(rows: list[oracle.Row]) -> list[tuple[int, int, int, int, int]]:
    return [(row.a_first, len(row.a), row.b_first, len(row.b), int(row.is_random)) for row in rows]


def within_three_standard_errors(share: float, expected: float, num: int) -> bool:
    return abs(share - expected) <= 3 * (expected * (1 - expected) / num) ** 0.5


def document_of(sentences: np.ndarray, first: np.ndarray) -> np.ndarray:
    return np.searchsorted(first, sentences, side="right") - 1


@pytest.mark.parametrize("short_share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("length", [5, 16, 128])
def test_pairs_are_those_of_the_plain_walk(length, short_share):
    for seed, num_documents in [(0, 60), (1, 2), (2**63 + 9, 1)]:  # with one document, even the same one is taken
        documents = oracle.random_documents(seed, num_documents=num_documents)
        plan = plan_rows(*sizes(documents), length=length, seed=seed, epoch=3, short_share=short_share)
        assert plan.dtype == PLAN
        assert plan.tolist() == as_records(oracle.pair_rows(documents, length, seed, 3, short_share))


@pytest.mark.parametrize("short_share", [0.0, 0.5])
def test_segments_are_those_of_the_plain_walk(short_share):
    documents = oracle.random_documents(4, num_documents=60)
    plan = plan_rows(*sizes(documents), length=64, seed=4, epoch=1, second_sentence="none", short_share=short_share)
    assert plan.tolist() == as_records(oracle.segment_rows(documents, 64, 4, 1, short_share))
    lengths, _ = sizes(documents)
    assert plan["a_count"].sum() == lengths.size  # every sentence once
    assert not plan["b_count"].any()
    assert not plan["random"].any()


def test_a_plan_depends_on_seed_and_epoch_alone():
    corpus = sizes(oracle.random_documents(0, num_documents=30))
    plans = [plan_rows(*corpus, length=64, seed=seed, epoch=epoch) for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]]
    assert plans[0].tolist() == plans[1].tolist()
    assert plans[0].tolist() != plans[2].tolist()
    assert plans[0].tolist() != plans[3].tolist()


def test_half_of_the_chunks_that_can_be_split_get_a_random_b():
    lengths, first = even_corpus(30_000, 40, tokens=10)
    plan = plan_rows(lengths, first, length=128, seed=0, epoch=0, short_share=0.0)
    # A chunk is 13 sentences of 10 tokens, or what is left of the document: with two sentences left it can be split.
    left = first[document_of(plan["a"], first) + 1] - plan["a"]
    can_be_split = plan["random"][left >= 2]
    assert can_be_split.size > 100_000
    assert within_three_standard_errors(can_be_split.mean(), 0.5, can_be_split.size)
    assert plan["random"][left == 1].all()
    assert plan["random"].mean() > 0.5


def test_the_cut_between_a_and_b_is_uniform():
    lengths, first = even_corpus(50_000, 13, tokens=10)
    plan = plan_rows(lengths, first, length=128, seed=1, epoch=0, short_share=0.0)
    cuts = plan["a_count"][plan["a"] % 13 == 0]  # the first chunk of each document: 13 sentences
    counts = np.bincount(cuts, minlength=13)[1:]
    assert counts.size == 12
    assert cuts.size == counts.sum() == 50_000
    assert ((counts - 50_000 / 12) ** 2 / (50_000 / 12)).sum() < 31.3  # chi-square, 11 degrees of freedom, p = 0.001


def test_short_targets_are_drawn_once_for_each_document():
    lengths, first = even_corpus(20_000, 300)
    plan = plan_rows(lengths, first, length=128, seed=2, epoch=0, short_share=0.1)
    documents = document_of(plan["a"], first)
    # Where B follows A, and the document goes on after it, the two are exactly as long as the target.
    is_whole = (plan["random"] == 0) & (plan["b"] + plan["b_count"] < first[documents + 1])
    target = (plan["a_count"] + plan["b_count"])[is_whole]
    documents = documents[is_whole]
    changes = (documents[1:] == documents[:-1]) & (target[1:] != target[:-1])
    assert not changes.any()
    # Documents without any such row (mostly those with long rows) have a target too: the plain walk's.
    targets = np.array([oracle.target_tokens(document, 125, 2, 0, 0.1) for document in range(20_000)])
    assert (target == targets[documents]).all()
    is_short = targets < 125
    assert within_three_standard_errors(is_short.mean(), 0.1 * 123 / 124, 20_000)
    counts = np.bincount(targets[is_short], minlength=125)[2:125]
    expected = is_short.sum() / 123
    assert ((counts - expected) ** 2 / expected).sum() < 176  # chi-square, 122 degrees of freedom, p = 0.001


def test_a_random_b_comes_from_all_other_documents_evenly():
    lengths, first = even_corpus(40, 2000, tokens=60)
    plan = plan_rows(lengths, first, length=128, seed=3, epoch=0, short_share=0.0)
    is_random = plan["random"] == 1
    a, b = document_of(plan["a"][is_random], first), document_of(plan["b"][is_random], first)
    assert not (a == b).any()  # ten tries: the same document has a chance of 40**-10
    counts = np.bincount((b - a) % 40, minlength=40)[1:]
    expected = a.size / 39
    assert ((counts - expected) ** 2 / expected).sum() < 70.7  # chi-square, 38 degrees of freedom, p = 0.001
    starts = (plan["b"][is_random] - first[b]) / 2000
    assert abs(starts.mean() - 0.5) < 3 * (1 / 12 / starts.size) ** 0.5


def test_ten_tries_for_another_document_then_even_the_same_one_is_taken():
    documents: list[oracle.Document] = [[[5] * 30] * 20_000] * 2
    plan = plan_rows(*sizes(documents), length=64, seed=5, epoch=0)
    assert plan.tolist() == as_records(oracle.pair_rows(documents, 64, 5, 0, 0.1))
    random = plan[plan["random"] == 1]
    is_same = (random["a"] < 20_000) == (random["b"] < 20_000)
    assert random.size > 8_000
    assert within_three_standard_errors(is_same.mean(), 0.5**10, random.size)


def test_what_a_random_b_displaced_starts_the_next_row():
    lengths, first = even_corpus(50, 60, tokens=9)
    plan = plan_rows(lengths, first, length=64, seed=0, epoch=0)
    used = np.where(plan["random"] == 1, plan["a_count"], plan["a_count"] + plan["b_count"])
    assert (plan["a"][1:] == (plan["a"] + used)[:-1]).all()
    assert plan["a"][0] == 0
    assert (plan["a"] + used)[-1] == lengths.size
    follows = plan["random"] == 0
    assert (plan["b"] == plan["a"] + plan["a_count"])[follows].all()


def test_only_the_chosen_documents_are_used():
    lengths, first = even_corpus(30, 20, tokens=11)
    chosen = np.array([3, 7, 8, 21])
    plan = plan_rows(lengths, first, length=64, seed=0, epoch=0, documents=chosen)
    assert set(document_of(plan["a"], first)) == set(chosen)
    assert set(document_of(plan["b"], first)) <= set(chosen)


def test_empty_documents_are_passed_over():
    lengths = np.full(6, 5, np.int32)
    plan = plan_rows(lengths, np.array([0, 0, 3, 3, 3, 6, 6]), length=32, seed=0, epoch=0)
    assert plan.size >= 2
    assert (plan["b_count"] >= 1).all()
    assert plan_rows(lengths[:0], np.array([0, 0]), length=32, seed=0, epoch=0).size == 0


@pytest.mark.parametrize(("second_sentence", "length"), [("next", 4), ("order", 4), ("none", 3)])
def test_a_row_without_room_is_refused(second_sentence, length):
    with pytest.raises(InputError, match=f"length {length}"):
        plan_rows(*even_corpus(2, 2), length=length, seed=0, epoch=0, second_sentence=second_sentence)
    assert plan_rows(*even_corpus(2, 2), length=length + 1, seed=0, epoch=0, second_sentence=second_sentence).size


def test_a_sentence_without_tokens_is_refused():
    with pytest.raises(InputError, match="sentence 2 "):
        plan_rows(np.array([3, 1, 0, 4], np.int32), np.array([0, 2, 4]), length=32, seed=0, epoch=0)
