"""Baselines of multiple choice: the commonest label, and a bag of words of context and ending."""

import sys

import numpy as np
import pytest

from bertwright.finetuning.choice_baselines import choice_baselines
from bertwright.tasks.multiple_choice.spec import Choices

WORDS = tuple("stone river house garden bridge tower wagon candle mirror basket".split())


def choices(contexts: list[str], endings: list[tuple[str, ...]], targets: list[int]) -> Choices:
    return Choices(tuple(contexts), tuple(endings), np.array(targets), "made up", tuple(range(2, 2 + len(targets))))


def with_a_shared_word(count: int, seed: int) -> Choices:
    """Rows whose right ending alone has the word of the context; its number and the words are drawn."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = random.permutation(WORDS)[: random.integers(2, 5)]
        target = int(random.integers(len(words)))
        rows.append((f"a {words[target]} here", tuple(f"the {word}" for word in words), target))
    contexts, endings, targets = zip(*rows, strict=True)
    return choices(list(contexts), list(endings), list(targets))


def test_a_word_of_the_ending_that_decides_is_found() -> None:
    random = np.random.default_rng(0)
    targets = random.integers(0, 3, 60).tolist()
    endings = [tuple("sensible" if number == target else "odd" for number in range(3)) for target in targets]
    rows = choices(["it rains"] * 60, endings, targets)
    metrics = choice_baselines(rows.select(range(40)), rows.select(range(40, 60))).metrics
    assert metrics["bag of words"] == {"accuracy": 1.0}
    commonest = np.bincount(targets[:40]).argmax()
    assert metrics["commonest answer"] == {"accuracy": np.mean(np.array(targets[40:]) == commonest)}


def test_a_word_that_context_and_ending_share_decides_where_no_word_alone_does() -> None:
    metrics = choice_baselines(with_a_shared_word(300, seed=1), with_a_shared_word(100, seed=2)).metrics
    assert metrics["bag of words"]["accuracy"] >= 0.9
    assert metrics["commonest answer"]["accuracy"] < 0.6


def test_of_large_data_the_bag_of_words_learns_from_a_sample_with_a_note() -> None:
    rows = choices(["it rains"] * 6_000, [("odd", "sensible")] * 6_000, [1] * 6_000)
    baselines = choice_baselines(rows, rows.select(range(50)))
    assert baselines.notes == ("the bag of words learned from a sample of 5,000 of 6,000 rows",)
    assert baselines.metrics["bag of words"] == {"accuracy": 1.0}


def test_texts_without_words_get_the_first_ending() -> None:
    rows = choices(["\u200b"] * 4, [(" ", "  ")] * 4, [0, 0, 1, 1])
    assert choice_baselines(rows, rows).metrics["bag of words"] == {"accuracy": 0.5}


def test_without_scikit_learn_a_note_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    rows = with_a_shared_word(10, seed=3)
    baselines = choice_baselines(rows, rows)
    assert list(baselines.metrics) == ["commonest answer"]
    assert baselines.notes == ("the bag-of-words baseline needs the extra 'tasks': pip install 'bertwright[tasks]'",)
