"""Tables of pairs: the layouts, and rows that are refused with their line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.read import read_vector_data
from bertwright.tasks.embedding.spec import EMBED, VectorTask, with_pair_columns
from bertwright.tasks.embedding.tables import read_pairs
from bertwright.tasks.spec import with_reading, with_settings

SKIPPING = with_reading(EMBED, input_format="auto", on_error="skip")
NLI = [
    "entailment\tA dog runs.\tAn animal runs.",
    "contradiction\tA dog runs.\tA dog sleeps.",
    "neutral\tA dog runs.\tA dog is hungry.",
    "entailment\ta dog runs.\tSomething moves.",
    "contradiction\tA cat sits.\tA cat flies.",
]


def pairs_in(pairs: TextPairs) -> list[tuple[str, str, list[str]]]:
    """Return (first text, second text, hard negatives) of each pair."""
    return [
        (
            pairs.firsts[pairs.anchors[row]],
            pairs.seconds[pairs.positives[row]],
            [pairs.seconds[number] for number in pairs.negatives[row]],
        )
        for row in range(len(pairs))
    ]


def table(write: Callable[[str, Any], Path], header: str, *rows: str) -> Path:
    return write("train.tsv", "\n".join([header.replace(" ", "\t"), *rows]) + "\n")


def test_pairs_with_any_number_of_negatives(write: Callable[[str, Any], Path], capsys: Any) -> None:
    rows = "a\tone\tx\ty", "b\ttwo\t\tz", "c\tthree\t\t"
    path = table(write, "anchor positive negative negative_2", *rows)
    pairs = read_pairs(EMBED, path)
    assert pairs_in(pairs) == [("a", "one", ["x", "y"]), ("b", "two", ["z"]), ("c", "three", [])]
    assert not pairs.alike
    said = f"{path}: pairs: 3 with 3 different first texts and 3 hard negatives\n"
    assert capsys.readouterr().err == said


def test_negatives_of_json_lines_may_be_a_list(write: Callable[[str, Any], Path]) -> None:
    path = write(
        "train.jsonl",
        '{"anchor": "a", "positive": "one", "negative": ["x", "y"]}\n{"anchor": "b", "positive": "two"}\n',
    )
    assert pairs_in(read_pairs(EMBED, path)) == [("a", "one", ["x", "y"]), ("b", "two", [])]


def test_scores_and_texts_alone(write: Callable[[str, Any], Path]) -> None:
    scored = read_pairs(EMBED, table(write, "genre score sentence1 sentence2", "g\t2.5\ta\tb", "g\t5\tc\tc"))
    assert scored.scores is not None
    assert scored.scores.tolist() == [2.5, 5.0]
    assert scored.alike
    twins = read_pairs(EMBED, table(write, "text", "one", "two"))
    assert (twins.twins, pairs_in(twins)) == (True, [("one", "one", []), ("two", "two", [])])


def test_entailments_are_pairs_and_contradictions_of_their_first_text_are_negatives(
    write: Callable[[str, Any], Path], capsys: Any
) -> None:
    pairs = read_pairs(EMBED, table(write, "label sentence1 sentence2", *NLI))
    assert pairs_in(pairs) == [
        ("A dog runs.", "An animal runs.", ["A dog sleeps."]),
        ("a dog runs.", "Something moves.", ["A dog sleeps."]),
    ]
    assert (
        "1 neutral pairs, and 1 contradictions of a text without an entailment, are not used" in capsys.readouterr().err
    )


def test_columns_and_layout_may_be_named(write: Callable[[str, Any], Path]) -> None:
    path = table(write, "question answer points", "a\tb\t1", "c\td\t2")
    named = with_pair_columns(EMBED, text=("question", "answer"), label=None)
    assert pairs_in(read_pairs(named, path)) == [("a", "b", []), ("c", "d", [])]
    assert read_pairs(with_pair_columns(EMBED, text=named.text, label="points"), path).scores is not None
    both = table(write, "label score sentence1 sentence2", "entailment\t1\ta\tb")
    with pytest.raises(InputError, match="is scored or nli by its columns; add --task-setting layout=scored"):
        read_pairs(EMBED, both)
    assert read_pairs(with_settings(EMBED, ["layout=nli"]), both).scores is None
    with pytest.raises(InputError, match="name two columns of texts"):
        with_pair_columns(EMBED, text=("question",), label=None)


@pytest.mark.parametrize(
    ("header", "row", "message", "reason"),
    [
        ("anchor positive", "a\t ", "expected a text in 'positive', got ' '", "without a text"),
        ("anchor positive", "A  dog\ta dog", "expected two different texts, got A  dog twice", "with equal texts"),
        ("anchor positive negative", "a\tb\tB", "a negative that is a positive", "with a negative that is a positive"),
        ("anchor positive negative", "a\tb\tA", "got the anchor itself", "with a negative that is a positive"),
        ("anchor positive negative", "a\tb\tgood 2", "in .*train.tsv:2", "with a negative that is a positive"),
        ("sentence1 sentence2 score", "a\tb\tnan", "expected a finite number in column 'score'", "without a number"),
        ("sentence1 sentence2 score", "a\tb\t5.1", "from 0 to 5 in 'score', got 5.1", "with a score out of range"),
        ("sentence1 sentence2 label", "a\tb\t1", "expected one of entailment", "with an unknown label"),
        ("sentence1 sentence2 label", "a\tA\tcontradiction", "two different texts", "with equal texts"),
        ("sentence1 sentence2 label", "a\tGood 2\tcontradiction", "train.tsv:2", "with a negative that is a positive"),
    ],
)
def test_a_bad_row_is_named_or_left_out(
    write: Callable[[str, Any], Path], header: str, row: str, message: str, reason: str
) -> None:
    last = {"score": "\t3", "label": "\tentailment", "negative": "\tother"}.get(header.split(" ")[-1], "")
    path = table(write, header, f"a\tgood 2{last}", row, f"c\tgood 4{last}")
    scores = ["scores=0,5"]
    with pytest.raises(InputError, match=rf"train\.tsv:3: .*{message}"):
        read_pairs(with_settings(EMBED, scores), path)
    pairs = read_pairs(with_settings(SKIPPING, scores), path)
    assert [pairs.seconds[number] for number in pairs.positives] == ["good 2", "good 4"]
    assert pairs.left_out == {reason: 1}


@pytest.mark.parametrize("header", ["anchor", "first second", "sentence1 sentence2"])
def test_other_columns_are_refused_with_the_layouts(write: Callable[[str, Any], Path], header: str) -> None:
    path = table(write, header, "\t".join("ab"[: len(header.split())]))
    with pytest.raises(InputError, match=r"expected the columns of pairs \(anchor, positive.*--text-column FIRST"):
        read_pairs(EMBED, path)


def test_a_tenth_of_the_first_texts_is_kept_for_validation(write: Callable[[str, Any], Path]) -> None:
    rows = [f"anchor {row // 2}\tpositive {row}" for row in range(40)]
    data = read_vector_data(EMBED, table(write, "anchor positive", *rows))
    validation = data.validation["dev"]
    assert (len(data.train), len(validation)) == (36, 4)
    assert not set(data.train.firsts) & set(validation.firsts)


def test_the_validation_file_may_have_another_layout(write: Callable[[str, Any], Path]) -> None:
    train = write("data/train.tsv", "text\none\ntwo\n")
    task: VectorTask = with_settings(EMBED, ["layout=texts"])
    with pytest.raises(InputError, match="expected pairs for validation"):
        read_vector_data(task, train.parent)
    write("data/dev.tsv", "sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    data = read_vector_data(task, train.parent)
    assert data.train.twins
    assert data.validation["dev"].scores is not None
