"""Exact search: the same documents as a full sort, whatever the blocks are."""

import numpy as np
import pytest

from bertwright.search.exact import BestDocuments
from bertwright.tasks.embedding.metrics import unit


@pytest.mark.parametrize("block", [1, 7, 50])
@pytest.mark.parametrize("most", [1, 5, 60])
def test_the_best_documents_are_those_of_a_full_sort(block: int, most: int) -> None:
    draw = np.random.default_rng(2)
    queries, documents = (unit(draw.normal(size=(rows, 4)).astype(np.float32)) for rows in (9, 50))
    documents[20:30] = documents[3]  # ties
    best = BestDocuments(9, most)
    left_out = np.array([3, *[-1] * 8])
    order = draw.permutation(50)  # documents come in another order than that of their numbers
    for first in range(0, 50, block):
        numbers = order[first : first + block]
        best.add_vectors(queries, documents[numbers], numbers, left_out)
    for row, (numbers, scores) in enumerate(best.best()):
        products = np.round(queries[row].astype(np.float64) @ documents.T.astype(np.float64), 6)
        products[left_out[row]] = -2.0 if left_out[row] >= 0 else products[-1]
        expected = sorted(range(50), key=lambda number: (-products[number], number))[: min(most, 50 - (row == 0))]
        assert numbers.tolist() == expected
        np.testing.assert_allclose(scores, products[expected], atol=2e-6)


def test_scores_of_both_signs_and_of_any_size_are_ordered() -> None:
    scores = np.array([[-3e4, -1.0, -0.0, 0.0, 2.5e-5, 7e6]], dtype=np.float32)
    best = BestDocuments(1, 6)
    best.add(0, scores, np.arange(6), np.array([-1]))
    [(numbers, values)] = best.best()
    assert numbers.tolist() == [5, 4, 2, 3, 1, 0]  # -0.0 and 0.0 are a tie
    np.testing.assert_allclose(values, scores[0, numbers], atol=1e-6)


@pytest.mark.parametrize("most", [1, 3, 10])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 300.0])
def test_of_many_documents_the_best_are_those_of_a_full_sort(most: int, scale: float) -> None:
    draw = np.random.default_rng(7)
    queries = draw.normal(size=(3, 16)).astype(np.float32)
    # Many documents are equal, and many differ by less than the rounding of a product in fp32.
    documents = np.repeat(draw.normal(size=(50, 16)), 10, axis=0) * (1 + 1e-8 * draw.integers(-9, 9, size=(500, 1)))
    documents = (scale * documents).astype(np.float32)
    best, numbers = BestDocuments(3, most), draw.permutation(1000)[:500]
    exact = np.round(queries.astype(np.float64) @ documents.T.astype(np.float64), 6).astype(np.float32)
    left_out = np.array([numbers[np.argmax(exact[0])], -1, -1])
    for part in (slice(0, 200), slice(200, 500)):  # both are large enough that candidates are chosen
        best.add_vectors(queries, documents[part], numbers[part], left_out)
    for row, (kept, values) in enumerate(best.best()):
        scores = {int(number): value for number, value in zip(numbers, exact[row], strict=True)}
        scores.pop(int(left_out[row]), None)
        expected = sorted(scores, key=lambda number: (-scores[number], number))[:most]
        assert kept.tolist() == expected
        assert values.tolist() == [scores[number] for number in expected]


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_order_of_ties_is_the_same_for_every_size_of_the_blocks(scale: float) -> None:
    draw = np.random.default_rng(3)
    queries = scale * draw.normal(size=(8, 100)).astype(np.float32)
    documents = scale * np.repeat(draw.normal(size=(40, 100)), 10, axis=0).astype(np.float32)  # each one ten times
    order = draw.permutation(400)
    rankings = []
    for block in (1, 3, 64, 400):
        best = BestDocuments(8, 400)
        for first in range(0, 400, block):
            numbers = order[first : first + block]
            best.add_vectors(queries, documents[numbers], numbers, np.full(8, -1))
        rankings.append([numbers.tolist() for numbers, _ in best.best()])
    assert all(ranking == rankings[0] for ranking in rankings)
    for ranked in rankings[0]:
        assert all(ranked[first : first + 10] == sorted(ranked[first : first + 10]) for first in range(0, 400, 10))


@pytest.mark.parametrize("most", [1, 5, 60])
def test_documents_that_do_not_count_are_left_out(most: int) -> None:
    draw = np.random.default_rng(4)
    queries, documents = (unit(draw.normal(size=(rows, 4)).astype(np.float32)) for rows in (3, 200))
    documents[20:90] = documents[3]  # ties
    kept = draw.random(200) < 0.5
    kept[100:150] = False
    best, other = BestDocuments(3, most), BestDocuments(2, most)
    for first in (0, 100, 120, 150):
        rows = slice(first, {0: 100, 100: 120, 120: 150, 150: 200}[first])
        best.add_vectors(queries, documents[rows], np.arange(200)[rows], np.full(3, -1), kept=kept[rows])
    other.add_vectors(queries[1:], documents, np.arange(200), np.full(2, -1), kept=kept)
    merged = BestDocuments(3, most)
    merged.merge(np.array([2, 1]), BestDocuments(2, most))
    merged.merge(np.array([1, 2]), other)
    products = np.round(queries.astype(np.float64) @ documents.T.astype(np.float64), 6)
    for query, ((numbers, _), (together, _)) in enumerate(zip(best.best(), merged.best(), strict=True)):
        expected = sorted(np.flatnonzero(kept), key=lambda number: (-products[query, number], number))[:most]
        assert numbers.tolist() == expected
        assert together.tolist() == (expected if query else [])
