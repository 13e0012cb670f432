"""Sentence tasks: the specs, reading examples, labels by name, encoding, splitting, decoding and scoring."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.metrics import precision_recall_fscore_support

from bertwright.errors import InputError, RunFailed
from bertwright.tables.reader import read_table
from bertwright.tables.writer import write_table
from bertwright.tasks.classification.encoding import (
    add_predictions,
    decode,
    encode,
    loss_targets,
    score_labels,
    score_values,
)
from bertwright.tasks.classification.examples import (
    dev_files,
    learn,
    read_examples,
    read_training,
    train_file,
)
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns, with_labels
from bertwright.tasks.classification.split import split_dev
from tests.support.examples import text_examples
from tests.support.letters import Letters

# One file as GLUE lays each task out: its text, the texts read from it and the names of the labels.
GLUE = {
    "sst2": ("sentence\tlabel\nso good \t1\nso bad\t0\n", ["so good ", "so bad"], ["positive", "negative"]),
    "cola": ("gj04\t1\t\tHe ran.\ncj99\t0\t*\tHim ran.\n", ["He ran.", "Him ran."], ["acceptable", "unacceptable"]),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA\tB\n0\t7\t9\tC\tD\n",
        [("A", "B"), ("C", "D")],
        ["equivalent", "not_equivalent"],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tA?\tB?\t0\n1\t3\t4\tC?\tD?\t1\n",
        [("A?", "B?"), ("C?", "D?")],
        ["not_duplicate", "duplicate"],
    ),
    "mnli": (
        "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tx\tA\tB\tneutral\tneutral\n1\tx\tC\tD\tneutral\tcontradiction\n2\tx\tE\tF\tentailment\tentailment\n",
        [("A", "B"), ("C", "D"), ("E", "F")],
        ["neutral", "contradiction", "entailment"],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tA?\tB\tentailment\n1\tC?\tD\tnot_entailment\n",
        [("A?", "B"), ("C?", "D")],
        ["entailment", "not_entailment"],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n",
        [("A", "B"), ("C", "D")],
        ["not_entailment", "entailment"],
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n1\tC\tD\t0\n",
        [("A", "B"), ("C", "D")],
        ["entailment", "not_entailment"],
    ),
}
# The label of each logit in the models that others publish.
PUBLISHED = {
    "sst2": ("negative", "positive"),
    "cola": ("unacceptable", "acceptable"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
}


def inputs(examples):
    return examples.texts_a if examples.texts_b is None else tuple(zip(examples.texts_a, examples.texts_b, strict=True))


@pytest.mark.parametrize("name", sorted(GLUE))
def test_glue_files_are_read_as_they_are(write, name):
    content, texts, names = GLUE[name]
    task = get_task(name)
    examples = read_examples(task, write("train.tsv", content))
    assert inputs(examples) == tuple(texts)
    assert [task.labels[target] for target in examples.targets] == names
    assert examples.targets.dtype == np.int64
    assert task.labels == PUBLISHED[name]


def test_a_regression_has_numbers(write):
    content = "index\tsentence1\tsentence2\tscore\n0\tA\tB\t5.000\n1\tC\tD\t3.8\n"
    examples = read_examples(get_task("stsb"), write("train.tsv", content))
    assert inputs(examples) == (("A", "B"), ("C", "D"))
    assert examples.targets.dtype == np.float64
    assert examples.targets.tolist() == [5.0, 3.8]


def test_large_numbers_keep_their_digits(write):
    task = get_task("regress")
    rows = write("train.tsv", "text\tlabel\nA\t1700000001\nB\t1700000003\n")
    learned = learn(task, rows)
    assert (learned.centre, learned.spread) == (1700000002.0, 1.0)
    assert loss_targets(learned, read_examples(learned, rows).targets).tolist() == [-1.0, 1.0]


def test_equal_numbers_of_a_regression_are_told(write, capsys):
    rows = write("train.tsv", "text\tlabel\nA\t3\nB\t3\n")
    learn(get_task("regress"), rows)
    printed = " ".join(capsys.readouterr().err.split())
    assert "train.tsv: every row has the number 3 in column 'label', so that there is nothing to learn" in printed


def test_metrics_are_the_papers():
    primary = {name: get_task(name).primary_metric for name in [*GLUE, "stsb"]}
    others = dict.fromkeys(["sst2", "mnli", "qnli", "rte", "wnli"], "accuracy")
    assert primary == {**others, "cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "spearman"}


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'sst2'"):
        get_task("sst-2")


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("sst2", "A\t2", r"a\.tsv:3: unknown label '2' in column 'label'; allowed: negative, positive, 0, 1"),
        ("sst2", "A\t", r"a\.tsv:3: expected a label in column 'label', got ''"),
        ("stsb", "A\thigh", r"a\.tsv:3: expected a finite number in column 'label', got 'high'"),
        ("stsb", "A\tnan", r"a\.tsv:3: .* a finite number"),
        ("stsb", "A\tinf", r"a\.tsv:3: .* a finite number"),
        ("stsb", "A\t1e39", r"a\.tsv:3: .* a finite number"),
        ("stsb", "A\t1_0", r"a\.tsv:3: .* a finite number"),
    ],
)
def test_a_bad_label_is_named_with_its_line(write, task, row, message):
    task = with_columns(get_task(task), text=["sentence"], label="label")
    with pytest.raises(InputError, match=message):
        read_examples(task, write("a.tsv", f"sentence\tlabel\nfine\t1\n{row}\n"))


def test_of_many_labels_an_error_names_a_few(write):
    """Ten thousand of them would be a message of pages."""
    task = with_labels(get_task("classify"), [f"l{n}" for n in range(10_000)])
    with pytest.raises(
        InputError,
        match=r"a\.tsv:2: unknown label 'other' in column 'label'; allowed: l0, l1, l2, .*l19, … \(10,000 in all\)",
    ):
        read_examples(task, write("a.tsv", "text\tlabel\nfine\tother\n"))
    with pytest.raises(InputError, match=r"labels are l0, .*l19, … \(10,000 in all\); sst2 has negative, positive$"):
        with_labels(get_task("sst2"), task.labels)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 5, "label": "a"}', r"a\.jsonl:2: expected a text in 'text', got 5"),
        ('{"label": "a"}', r"a\.jsonl:2: expected a text in 'text', got nothing"),
        ('{"text": "x"}', r"a\.jsonl:2: expected a label in column 'label', got nothing"),
        ('{"text": "x", "label": NaN}', r"a\.jsonl:2: expected a label in column 'label', got nan"),
        ('{"text": "x", "text": "y", "label": "a"}', r"a\.jsonl:2: 'text' is there twice in one object"),
        ('{"text": "x", "label": null}', r"a\.jsonl:2: expected a label in column 'label', got None"),
        ('{"text": "x", "label": ["a"]}', r"a\.jsonl:2: expected a label in column 'label', got \['a'\]"),
    ],
)
def test_a_bad_json_field_is_named_with_its_line(write, line, message):
    task = with_labels(get_task("classify"), ["a", "b"])
    with pytest.raises(InputError, match=message):
        read_examples(task, write("a.jsonl", '{"text": "x", "label": "a"}\n' + line + "\n"))


@pytest.mark.parametrize("cell", ["true", '"1_0"', "[1]", "NaN", "1" + "0" * 400])
def test_a_json_number_must_be_one(write, cell):
    with pytest.raises(InputError, match=r"a\.jsonl:1: expected a finite number in column 'label', got "):
        read_examples(get_task("regress"), write("a.jsonl", f'{{"text": "x", "label": {cell}}}\n'))


def test_missing_columns_are_named(write):
    path = write("a.csv", "id,review\n1,\n2,good\n")
    task = with_columns(get_task("sst2"), text=["review"])
    with pytest.raises(InputError, match=r"there is no column 'label'; the columns are: id, review"):
        read_examples(task, path)
    with pytest.raises(InputError, match="there are no columns 'sentence' and 'label'; the columns are: id, review"):
        read_examples(get_task("sst2"), path)


def test_a_table_with_other_columns_than_those_of_cola_has_a_header(write):
    task = with_columns(get_task("cola"), text=["review"])
    (example,) = read_examples(task, write("a.csv", "review,label\nHe ran.,1\n")).texts_a
    assert example == "He ran."
    assert with_columns(get_task("cola"), text=["sentence"], label="label").columns == get_task("cola").columns


def test_torn_rows_of_qqp_are_left_out_aloud(write, capsys):
    content = GLUE["qqp"][0] + "5\t6\t7\tWho was\nhe?\tWho?\t1\n"
    _, train = read_training(get_task("qqp"), write("train.tsv", content))
    assert len(train) == 2
    assert capsys.readouterr().err.count("left out") == 2
    with pytest.raises(InputError, match=r"dev\.tsv:4: expected a row of 6 columns, got 4"):
        read_examples(get_task("qqp"), write("dev.tsv", content))
    with pytest.raises(InputError, match=r"train\.tsv:4: expected a row of 4 columns, got 2"):
        read_examples(get_task("rte"), write("train.tsv", GLUE["rte"][0] + "5\t6\n"))


def test_labels_are_learned_in_natural_order(write):
    task = with_columns(get_task("classify"), text=["body"], label="stars")
    path = write(
        "a.jsonl", "".join(f'{{"body": "x", "stars": {value}}}\n' for value in [10, 2, '"b10"', 1, '"b9"', -3])
    )
    learned = learn(task, path)
    assert learned.labels == ("-3", "1", "2", "10", "b9", "b10")
    assert learn(learned, Path("never read")) is learned
    assert read_examples(learned, path).targets.tolist() == [3, 2, 5, 1, 4, 0]
    assert learned.num_outputs == 6
    with pytest.raises(ValueError, match=r"classify has no labels yet; call learn\(task, train_file\)"):
        read_examples(task, path)


def test_columns_that_hold_no_labels_are_refused(write):
    with pytest.raises(
        InputError, match=r"a\.tsv: expected at least two labels in column 'label', got only the label 'a'"
    ):
        learn(get_task("classify"), write("a.tsv", "text\tlabel\nx\ta\ny\ta\n"))
    rows = "".join(f"text {row}\tlabel {row}\n" for row in range(20))
    with pytest.raises(
        InputError,
        match=r"a\.tsv: expected labels in column 'label', got 20 different values in 20 rows; set --label-column",
    ):
        learn(get_task("classify"), write("a.tsv", "text\tlabel\n" + rows))


def test_a_regression_learns_the_scale_of_its_targets(write):
    path = write("a.tsv", "text\tlabel\nx\t100\ny\t300\n")
    task = learn(get_task("regress"), path)
    targets = read_examples(task, path).targets
    assert (task.centre, task.spread) == (200.0, 100.0)
    assert loss_targets(task, targets).tolist() == [-1.0, 1.0]
    assert decode(task, loss_targets(task, targets)).values.tolist() == [100.0, 300.0]
    table = write("c.tsv", "sentence1\tsentence2\tscore\na\tb\t1\nc\td\t5\n")
    pairs = learn(get_task("stsb"), table)
    assert (pairs.centre, pairs.spread) == (3.0, 2.0)
    constant = learn(get_task("regress"), write("b.tsv", "text\tlabel\nx\t7\ny\t7\n"))
    assert (constant.centre, constant.spread) == (7.0, 1.0)


def test_a_models_order_of_labels_decides_and_other_labels_are_refused(write):
    task = with_labels(get_task("sst2"), ["positive", "negative"])
    examples = read_examples(task, write("a.tsv", "sentence\tlabel\nA\t1\nB\tnegative\n"))
    assert examples.targets.tolist() == [0, 1]
    with pytest.raises(InputError, match="the model's labels are yes, no; sst2 has positive, negative"):
        with_labels(task, ["yes", "no"])
    with pytest.raises(InputError, match="the model's labels are yes, no; stsb has a number"):
        with_labels(get_task("stsb"), ["yes", "no"])
    assert with_labels(get_task("stsb"), []) == get_task("stsb")
    assert with_labels(get_task("classify"), ["b", "a"]).labels == ("b", "a")


def test_f1_follows_the_positive_label_through_a_change_of_order():
    task = get_task("mrpc")
    logits, targets = np.array([[0.0, 1], [0, 1], [1, 0]]), np.array([1, 0, 0])
    metrics = score_values(task, decode(task, logits).values, targets)
    turned = with_labels(task, task.labels[::-1])
    assert score_values(turned, decode(turned, logits[:, ::-1]).values, 1 - targets) == metrics
    assert metrics == pytest.approx({"f1": 2 / 3, "accuracy": 2 / 3})


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_every_label_has_metrics_of_its_own(kind: str) -> None:
    labels, random = ("red", "green", "blue", "never"), np.random.default_rng(5)
    task = ClassificationTask(
        name="own",
        text=("text",),
        kind=kind,
        labels=labels,
        metrics=("micro_f1" if kind == "multilabel" else "accuracy",),
    )
    logits = random.normal(size=(50, 4))
    logits[:, 3] = -9.0
    targets = random.integers(0, 3, 50)
    if kind == "multilabel":
        targets = np.eye(4, dtype=bool)[targets] | np.eye(4, dtype=bool)[random.integers(0, 3, 50)]
    values = decode(task, logits).values
    metrics = score_labels(task, values, targets)
    expected = precision_recall_fscore_support(targets, values, labels=range(4), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        assert [metrics[f"{label}.{name}"] for label in labels] == pytest.approx(list(values))
    assert metrics["never.examples"] == 0
    assert score_labels(get_task("stsb"), np.zeros(3), np.zeros(3)) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ()},
        {"text": ("a", "b", "c")},
        {"metrics": ("bleu",)},
        {"metrics": ()},
        {"labels": ("a", "b"), "codes": ("0",)},
        {"labels": ("a", "a")},
        {"labels": ("a", "b"), "codes": ("0", "0")},
        {"kind": "regression", "labels": ("a", "b")},
        {"labels": ("a", "b"), "metrics": ("f1",), "positive": "c"},
        {"labels": ("a", "b"), "metrics": ("f1",)},
        {"kind": "regression", "spread": 0.0},
    ],
)
def test_an_inconsistent_spec_is_refused(fields):
    ClassificationTask(name="fine", text=("a",))
    with pytest.raises(ValidationError):
        ClassificationTask(**{"name": "odd", "text": ("a",), **fields})


def test_at_most_two_text_columns():
    with pytest.raises(InputError, match="3 text columns"):
        with_columns(get_task("classify"), text=["a", "b", "c"])


def test_files_of_a_folder(tmp_path, capsys):
    for name in ["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv", "test.tsv"]:
        (tmp_path / name).touch()
    assert train_file(tmp_path) == tmp_path / "train.tsv"
    assert dev_files(get_task("mnli"), tmp_path) == {
        name: tmp_path / f"{name}.tsv" for name in ["dev_matched", "dev_mismatched"]
    }
    assert dev_files(get_task("rte"), tmp_path) == {}
    (tmp_path / "validation.csv").touch()
    assert dev_files(get_task("rte"), tmp_path) == {"dev": tmp_path / "validation.csv"}
    (tmp_path / "val.tsv").touch()
    with pytest.raises(
        InputError,
        match=r"expected one table, found val\.tsv, validation\.csv; keep one",
    ):
        dev_files(get_task("rte"), tmp_path)
    for name in ("val.tsv", "validation.csv"):
        (tmp_path / name).unlink()
    assert "has no dev.tsv: validating on validation.csv" in capsys.readouterr().err
    (tmp_path / "reviews-dev.tsv").touch()
    assert dev_files(get_task("rte"), tmp_path) == {"dev": tmp_path / "reviews-dev.tsv"}
    assert "validating on reviews-dev.tsv" in capsys.readouterr().err
    (tmp_path / "reviews-dev.tsv").rename(tmp_path / "validation-00000-of-00001.parquet")
    assert dev_files(get_task("rte"), tmp_path) == {"dev": tmp_path / "validation-00000-of-00001.parquet"}
    (tmp_path / "validation-00000-of-00001-0123456789abcdef.parquet").touch()
    with pytest.raises(InputError, match="expected one table, found validation-00000-of-00001"):
        dev_files(get_task("rte"), tmp_path)
    (tmp_path / "validation-00000-of-00001-0123456789abcdef.parquet").unlink()
    capsys.readouterr()
    assert train_file(tmp_path / "own.csv") == tmp_path / "own.csv"
    assert dev_files(get_task("rte"), tmp_path / "own.csv") == {"own": tmp_path / "own.csv"}
    assert capsys.readouterr().err == ""


def test_the_only_other_train_table_is_taken_and_said(tmp_path, capsys):
    (tmp_path / "train.derived.tsv").touch()
    (tmp_path / "dev.tsv").touch()
    assert train_file(tmp_path).name == "train.derived.tsv"
    assert "training on train.derived.tsv" in capsys.readouterr().err
    (tmp_path / "train.other.tsv").touch()
    with pytest.raises(
        InputError, match=r"expected train\.tsv, train\.csv, train\.jsonl or train\.parquet, found dev\.tsv,"
    ):
        train_file(tmp_path)


def test_no_train_table_or_two_of_them(tmp_path):
    with pytest.raises(
        InputError, match=r"expected train\.tsv, train\.csv, train\.jsonl or train\.parquet, found no table"
    ):
        train_file(tmp_path)
    for name in ["train.tsv", "train.csv.gz"]:
        (tmp_path / name).touch()
    with pytest.raises(
        InputError, match=r"expected one table, found train\.csv\.gz, train\.tsv; keep one or give the path of the file"
    ):
        train_file(tmp_path)


def test_single_sentences_and_pairs_are_laid_out_as_in_the_paper():
    single = encode(Letters(), ["ab", ""], max_length=8)
    assert [row.tolist() for row in single.ids] == [[1, 97, 98, 2], [1, 2]]
    assert single.first.tolist() == [4, 2]
    pair = encode(Letters(), ["ab"], ["c"], max_length=8)
    assert pair.ids[0].tolist() == [1, 97, 98, 2, 99, 2]
    assert pair.first.tolist() == [4]
    assert pair.ids[0].dtype == pair.first.dtype == np.int32
    assert (pair.num_truncated, len(pair)) == (0, 1)


@settings(max_examples=300)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(4, 16))
def test_the_longer_side_gives_way_token_by_token(num_a, num_b, max_length):
    a, b = "abcdefghijkl"[:num_a], "mnopqrstuvwx"[:num_b]
    encoded = encode(Letters(), [a], [b], max_length=max_length)
    kept_a, kept_b = a, b
    while len(kept_a) + len(kept_b) > max_length - 3:
        if len(kept_a) > len(kept_b):
            kept_a = kept_a[:-1]
        else:
            kept_b = kept_b[:-1]
    assert encoded.ids[0].tolist() == [1, *map(ord, kept_a), 2, *map(ord, kept_b), 2]
    assert encoded.first.tolist() == [len(kept_a) + 2]
    assert encoded.num_truncated == int(len(kept_a + kept_b) < num_a + num_b)


def test_a_length_without_room_for_text_is_refused():
    assert encode(Letters(), ["abc"], max_length=3).ids[0].tolist() == [1, 97, 2]
    for texts_b, length in [(None, 2), (["b"], 3)]:
        with pytest.raises(InputError, match=f"maximal length {length}: expected at least"):
            encode(Letters(), ["a"], texts_b, max_length=length)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "B ", "b", "c d", "C  D", "e", "f", "g"]), st.integers(0, 2)), min_size=2),
    st.integers(0, 3),
    st.sampled_from([0.1, 0.3, 0.5]),
)
def test_no_text_stands_on_both_sides_and_no_row_is_lost(rows, seed, share):
    texts, targets = zip(*rows, strict=True)
    examples = text_examples(texts, targets)
    normal = [" ".join(text.casefold().split()) for text in texts]
    if len(set(normal)) < 2:
        with pytest.raises(
            InputError, match="made up: expected at least two different texts, to split off validation rows"
        ):
            split_dev(examples, fraction=share, seed=seed)
        return
    by_text = {text: {label for other, label in zip(normal, targets, strict=True) if other == text} for text in normal}
    can_go = [
        all(any(label in labels for other, labels in by_text.items() if other != text) for label in of_text)
        for text, of_text in by_text.items()
    ]
    if not any(can_go):
        with pytest.raises(InputError, match="made up: expected a text that can be kept for validation, but each has"):
            split_dev(examples, fraction=share, seed=seed)
        return
    train, dev = split_dev(examples, fraction=share, seed=seed)
    assert sorted(train.lines + dev.lines) == list(range(len(rows)))
    assert train.lines
    assert dev.lines
    assert not {normal[line] for line in train.lines} & {normal[line] for line in dev.lines}
    assert set(train.targets) == set(targets)
    for side in (train, dev):
        assert [(side.texts_a[row], side.targets[row]) for row in range(len(side))] == [
            rows[line] for line in side.lines
        ]


def test_every_label_gives_its_share():
    targets = [0] * 700 + [1] * 200 + [2] * 100
    _, dev = split_dev(text_examples([f"text {row}" for row in range(1000)], targets), seed=3)
    assert len(dev) == 100
    assert np.abs(np.bincount(dev.targets) - [70, 20, 10]).max() <= 1


def test_many_small_labels_still_give_a_dev_set():
    targets = [row // 4 for row in range(400)]
    _, dev = split_dev(text_examples([f"text {row}" for row in range(400)], targets))
    assert len(dev) == 40


def test_the_only_rows_of_a_label_are_there_to_be_learned():
    targets = [0] * 30 + [1] * 33 + list(range(2, 14))
    for seed in range(5):
        train, dev = split_dev(text_examples([f"text {row}" for row in range(75)], targets), seed=seed)
        assert set(train.targets) == set(range(14))
        assert set(dev.targets) == {0, 1}


def test_numbers_are_stratified_by_rank():
    targets = np.linspace(0, 1, 1000, dtype=np.float32) ** 4
    _, dev = split_dev(text_examples([f"text {row}" for row in range(1000)], targets), seed=1)
    ranks = np.array(dev.lines) * 10 // 1000
    assert np.abs(np.bincount(ranks, minlength=10) - 10).max() <= 1


def test_the_split_is_a_function_of_the_seed_and_the_texts():
    texts = [f"text {row}" for row in range(200)]
    examples = text_examples(texts, [row % 2 for row in range(200)])
    first, again, other = (set(split_dev(examples, seed=seed)[1].texts_a) for seed in (0, 0, 1))
    turned = examples.select(range(199, -1, -1))
    assert first == again == set(split_dev(turned, seed=0)[1].texts_a)
    assert first != other


def test_pairs_are_one_text():
    pairs = text_examples(["a", "a", "a b", "a"], [0, 1, 0, 0], texts_b=["b", "c", "", "b"])
    train, dev = split_dev(pairs, fraction=0.5)
    assert not set(inputs(train)) & set(inputs(dev))
    assert len(train) + len(dev) == 4


def test_a_large_group_of_equal_rows_stays_in_train():
    texts = ["the same"] * 500 + [f"text {row}" for row in range(500)]
    train, dev = split_dev(text_examples(texts, [0] * 1000))
    assert "the same" not in dev.texts_a
    assert 50 <= len(dev) <= 100
    assert len(train) + len(dev) == 1000


def test_decoding_gives_labels_with_probabilities():
    task = get_task("mnli")
    answers = decode(task, np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], dtype=np.float32)) + 1000)
    assert answers.labels == ("neutral", "entailment")
    assert answers.values.tolist() == [1, 0]
    assert answers.probabilities == pytest.approx(np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]), abs=1e-4)


def test_a_regression_takes_logits_of_one_or_two_dimensions():
    task = get_task("stsb")
    for logits in (np.array([1.5, 2.5]), np.array([[1.5], [2.5]])):
        assert decode(task, logits).values.tolist() == [1.5, 2.5]
    assert score_values(task, np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0])) == pytest.approx(
        {"spearman": 1.0, "pearson": 1.0}
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_not_finite_is_a_failure(value):
    with pytest.raises(RunFailed, match="input 1: expected finite numbers from the model"):
        decode(get_task("sst2"), np.array([[0.0, 1.0], [0.0, value]]))


def test_the_wrong_number_of_logits_is_refused():
    with pytest.raises(ValueError, match="reshape"):
        decode(get_task("sst2"), np.zeros((2, 3)))


def predictions_as_tsv(task, table, logits):
    stream = io.BytesIO()
    write_table(add_predictions(task, table, decode(task, logits)), stream)
    return stream.getvalue().decode()


def test_predictions_are_added_to_the_fields_in_their_order(write):
    task, logits = get_task("sst2"), np.log([[0.25, 0.75], [0.5, 0.25]])
    table = read_table(write("a.tsv", "id\tsentence\n8\tA\n7\tB\n"))
    assert predictions_as_tsv(task, table, logits) == (
        "id\tsentence\tlabel\tprobability_negative\tprobability_positive\n"
        "8\tA\tpositive\t0.25\t0.75\n7\tB\tnegative\t0.666667\t0.333333\n"
    )
    table = read_table(write("a.jsonl", '{"sentence": "A", "label": 0}\n{"sentence": "B"}\n'))
    assert predictions_as_tsv(task, table, logits) == (
        '{"sentence": "A", "label": 0, "predicted_label": "positive",'
        ' "probabilities": {"negative": 0.25, "positive": 0.75}}\n'
        '{"sentence": "B", "predicted_label": "negative",'
        ' "probabilities": {"negative": 0.666667, "positive": 0.333333}}\n'
    )
    table = read_table(write("b.csv", "sentence1,sentence2\nA,B\n"))
    assert predictions_as_tsv(get_task("stsb"), table, np.array([[3.25]])) == "sentence1,sentence2,score\nA,B,3.25\n"
