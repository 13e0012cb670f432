"""Pairs of texts as numbers: which texts match, and the rows of a selection."""

import numpy as np
import pytest

from bertwright.tasks.embedding.pairs import PairOfTable, TextPairs, pairs_of


@pytest.fixture
def pairs() -> TextPairs:
    rows = [
        PairOfTable("A", "one", ("nine",), line=2),
        PairOfTable("B", "two", line=3),
        PairOfTable("A", "three", ("nine", "ten", "nine"), line=4),
        PairOfTable("C", "b", line=5),
    ]
    return pairs_of(rows, "train.tsv")


def test_each_text_has_one_number(pairs: TextPairs) -> None:
    assert pairs.firsts == ("A", "B", "C")
    assert sorted(pairs.seconds) == ["b", "nine", "one", "ten", "three", "two"]
    assert [pairs.firsts[number] for number in pairs.anchors] == ["A", "B", "A", "C"]
    assert [pairs.seconds[number] for number in pairs.positives] == ["one", "two", "three", "b"]
    assert [[pairs.seconds[number] for number in row] for row in pairs.negatives] == [["nine"], [], ["nine", "ten"], []]
    assert pairs.location(2) == "train.tsv:4"


def test_texts_match_where_they_are_a_pair_or_equal_up_to_case(pairs: TextPairs) -> None:
    matching = pairs.match(np.arange(3), np.arange(len(pairs.seconds)))
    expected = {("A", "one"), ("A", "three"), ("B", "two"), ("C", "b"), ("B", "b")}
    assert {(pairs.firsts[a], pairs.seconds[p]) for a, p in np.argwhere(matching)} == expected


def test_a_selection_has_the_texts_of_its_pairs_alone(pairs: TextPairs) -> None:
    chosen = pairs.select([2, 1])
    assert (sorted(chosen.firsts), sorted(chosen.seconds)) == (["A", "B"], ["nine", "ten", "three", "two"])
    assert [chosen.firsts[number] for number in chosen.anchors] == ["A", "B"]
    assert [chosen.seconds[number] for number in chosen.positives] == ["three", "two"]
    assert [[chosen.seconds[number] for number in row] for row in chosen.negatives] == [["nine", "ten"], []]
    assert chosen.lines == (4, 3)
