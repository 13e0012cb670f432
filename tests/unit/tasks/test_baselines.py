"""Baselines: what they must find in data made for it, and that dev is never looked at."""

import sys

import numpy as np
import pytest

from bertwright.errors import MissingExtra
from bertwright.tasks.baselines import bag_of_words_baseline, majority_baseline
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import get_task, with_labels
from tests.support.examples import text_examples

FILLERS = np.array("the of a tree in some house by our river near that old road with new stones".split())


def filler_sentences(count, seed, length=8):
    picks = np.random.default_rng(seed).integers(0, len(FILLERS), size=(count, length))
    return [" ".join(FILLERS[row]) for row in picks]


def test_majority_answers_the_most_frequent_label_of_train():
    task = get_task("cola")
    train = text_examples("abcd", [0, 0, 0, 1])
    figures = majority_baseline(task, train, text_examples("efgh", [1, 1, 1, 0]))
    assert figures == {"matthews": 0.0, "accuracy": 0.25}


def test_majority_of_numbers_is_their_mean_and_correlates_with_nothing():
    train = text_examples("abc", np.array([1.0, 2.0, 5.0], dtype=np.float32))
    assert majority_baseline(get_task("stsb"), train, train) == {"spearman": 0.0, "pearson": 0.0}


def with_a_word(texts, words):
    return [f"{text} {word}".strip() for text, word in zip(texts, words, strict=True)]


def test_a_word_that_decides_the_label_is_found():
    targets = np.arange(200) % 2
    texts = with_a_word(filler_sentences(200, seed=1), np.array(["Gloomy", "bright"])[targets])
    train, dev = text_examples(texts[:150], targets[:150]), text_examples(texts[150:], targets[150:])
    task = get_task("sst2")
    assert bag_of_words_baseline(task, train, dev)["accuracy"] >= 0.95
    shuffled = text_examples(train.texts_a, np.random.default_rng(0).permutation(train.targets))
    assert bag_of_words_baseline(task, shuffled, dev)["accuracy"] < 0.8


def test_a_pair_of_words_decides_where_no_single_word_does():
    texts = ["not good", "good", "not bad", "bad"] * 40
    targets = [0, 1, 1, 0] * 40
    texts = with_a_word(texts, filler_sentences(160, seed=2, length=3))
    train, dev = text_examples(texts[:120], targets[:120]), text_examples(texts[120:], targets[120:])
    assert bag_of_words_baseline(get_task("sst2"), train, dev)["accuracy"] >= 0.9


def test_three_labels():
    task = with_labels(get_task("classify"), ["a", "b", "c"])
    targets = np.arange(120) % 3
    texts = with_a_word(filler_sentences(120, seed=3), np.array(["one", "two", "three"])[targets])
    examples = text_examples(texts, targets)
    figures = bag_of_words_baseline(task, examples.select(range(90)), examples.select(range(90, 120)))
    assert figures["accuracy"] >= 0.9
    assert figures["macro_f1"] >= 0.9


def test_the_sides_of_a_pair_are_kept_apart():
    # "bright" on the first side means 1, on the second 0: both sides in one bag would be blind.
    targets = np.arange(200) % 2
    words = np.array(["", "bright"])
    texts_a = with_a_word(filler_sentences(200, seed=4), words[targets])
    texts_b = with_a_word(filler_sentences(200, seed=5), words[1 - targets])
    examples = text_examples(texts_a, targets, texts_b)
    figures = bag_of_words_baseline(get_task("rte"), examples.select(range(150)), examples.select(range(150, 200)))
    assert figures["accuracy"] >= 0.9


def test_overlap_decides_and_numbers_are_predicted():
    base = filler_sentences(240, seed=6, length=10)
    other = filler_sentences(240, seed=7, length=10)
    kept = np.arange(240) % 11
    mixed = [" ".join(a.split()[:k] + b.split()[k:]) for a, b, k in zip(base, other, kept, strict=True)]
    examples = text_examples(base, kept.astype(np.float32) / 2, mixed)
    figures = bag_of_words_baseline(get_task("stsb"), examples.select(range(180)), examples.select(range(180, 240)))
    assert figures["pearson"] > 0.7
    assert figures["spearman"] > 0.7


def test_one_label_in_train_and_too_few_rows_for_a_split():
    task = get_task("sst2")
    dev = text_examples(["up", "down"], [1, 0])
    assert bag_of_words_baseline(task, text_examples(["up", "high", "tall"], [1, 1, 1]), dev) == {"accuracy": 0.5}
    assert bag_of_words_baseline(task, text_examples(["up", "up"], [1, 1]), dev) == {"accuracy": 0.5}
    assert bag_of_words_baseline(task, text_examples(["up", "down"], [1, 0]), dev) == {"accuracy": 1.0}


def test_dev_does_not_change_what_is_learned():
    targets = np.arange(100) % 2
    texts = with_a_word(filler_sentences(100, seed=8), np.array(["sad", "glad"])[targets])
    train = text_examples(texts, targets)
    right, wrong = text_examples(["glad", "sad"], [1, 0]), text_examples(["glad", "sad"], [0, 1])
    task = get_task("sst2")
    assert bag_of_words_baseline(task, train, right)["accuracy"] == 1.0
    assert bag_of_words_baseline(task, train, wrong)["accuracy"] == 0.0


def test_without_labels_and_without_the_extra(monkeypatch):
    task, train = get_task("sst2"), text_examples(["up", "down"], [1, 0])
    with pytest.raises(ValueError, match="needs examples with labels"):
        majority_baseline(task, TextExamples(("a",), None, None, "made up", (1,)), train)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtra, match=r"the bag-of-words baseline needs the extra 'tasks'"):
        bag_of_words_baseline(task, train, train)
