"""Any number of labels a text: how they are read, learned, measured and written; that transformers agrees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from bertwright.cli import main
from bertwright.errors import InputError, RunFailed
from bertwright.finetuning.baselines import bag_of_words_baseline, majority_baseline
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.import_model import import_model
from bertwright.model.folder import open_model
from bertwright.tables.reader import read_table
from bertwright.tasks.classification.encoding import add_predictions, decode, encode, score_values
from bertwright.tasks.classification.examples import learn, read_examples
from bertwright.tasks.classification.model import padded
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_labels, with_options
from bertwright.tasks.classification.split import split_dev
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.metrics import collapsed, measure
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.support.examples import text_examples
from tests.support.folders import read_jsonl

TASK = get_task("multilabel")
COLOURS = with_labels(TASK, ["blue", "green", "red"])
SETTINGS = FinetuneSettings(epochs=12, batch_size=8, learning_rate=1e-3, max_length=16, threads=1)


def write_labelled(path: Path, rows: list[tuple[str, list[str]]]) -> Path:
    """A table of texts and their labels, in the format of its ending."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in rows))
        return path
    mark = "," if path.suffix == ".csv" else "\t"
    path.write_text(f"text{mark}label\n" + "".join(f"{text}{mark}{'|'.join(labels)}\n" for text, labels in rows))
    return path


ROWS = [("a sky", ["blue"]), ("a plain text", []), ("a flag", ["red", "blue"]), ("a leaf", ["green"])]


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_labels_are_learned_and_read_in_every_format(tmp_path: Path, ending: str) -> None:
    path = write_labelled(tmp_path / f"a.{ending}", ROWS)
    task = learn(TASK, path)
    assert task.labels == ("blue", "green", "red")
    targets = read_examples(task, path).targets
    assert targets is not None
    assert targets.tolist() == [[True, False, False], [False] * 3, [True, False, True], [False, True, False]]
    with pytest.raises(ValueError, match=r"multilabel has no labels yet; call learn\(task, train_file\)"):
        read_examples(TASK, path)


def test_blanks_around_labels_and_numbers_as_labels(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\nx\t 10 | 2 \ny\t  \n")
    task = learn(TASK, tmp_path / "a.tsv")
    assert task.labels == ("2", "10")
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": [10, "2"]}\n{"text": "y", "label": []}\n')
    assert learn(TASK, tmp_path / "a.jsonl").labels == ("2", "10")
    for ending in ("tsv", "jsonl"):
        targets = read_examples(task, tmp_path / f"a.{ending}").targets
        assert targets is not None
        assert targets.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.tsv",
            "text\tlabel\nx\tred\ny\tred|pink\n",
            "a.tsv:3: unknown label 'pink' in column 'label'; allowed: blue, green",
        ),
        (
            "a.tsv",
            "text\tlabel\nx\tred\ny\tred||blue\n",
            "a.tsv:3: expected labels in column 'label', got an empty one beside",
        ),
        ("a.tsv", "text\tlabel\nx\tred|\n", "a.tsv:2: expected labels in column 'label', got an empty one beside"),
        ("a.csv", "text,label\nx,red\ny,red|blue|red\n", "a.csv:3: column 'label' has the label 'red' twice"),
        (
            "a.csv",
            "text\tlabel\nx,y\ta\n",
            "a.csv:2: expected a row of 1 columns, got 2 (columns: text\tlabel) (with tabs between them? ",
        ),
        ("a.csv", "text,label\nx\n", "a.csv:2: expected a row of 2 columns, got 1"),
        (
            "a.jsonl",
            '{"text": "x", "label": "red"}',
            "a.jsonl:1: expected a list of labels in column 'label' ([] for none), got 'red'",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": []}\n{"text": "y"}',
            "a.jsonl:2: expected a list of labels in column 'label' ([] for none), got nothing",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": []}\n{"text": "y", "label": null}',
            "a.jsonl:2: expected a list of labels in column 'label' ([] for none), got None",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": ["red", ["blue"]]}',
            "a.jsonl:1: expected a label in column 'label', got ['blue']",
        ),
        ("a.jsonl", '{"text": "x", "label": ["red", " red"]}', "a.jsonl:1: column 'label' has the label 'red' twice"),
        ("a.jsonl", '{"text": 3, "label": ["red"]}', "a.jsonl:1: expected a text in 'text', got 3"),
    ],
)
def test_what_are_no_labels_is_named_with_its_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_examples(COLOURS, tmp_path / name)
    assert f"{tmp_path}/{words}" in str(caught.value)


def test_columns_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.tsv: expected labels in column 'label', got no label"):
        learn(TASK, write_labelled(tmp_path / "a.tsv", [("x", []), ("y", [])]))
    alone = learn(TASK, write_labelled(tmp_path / "a.tsv", [("x", ["only"]), ("y", [])]))
    assert (alone.labels, alone.num_outputs) == (("only",), 1)
    with pytest.raises(
        InputError,
        match=r"a\.tsv: expected labels in column 'label', got 40 different values in 40 places; set --label-column",
    ):
        learn(TASK, write_labelled(tmp_path / "a.tsv", [("x", [f"word {n}", f"text {n}"]) for n in range(20)]))


def test_metrics_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the oracle; it is in the tasks extra")
    random = np.random.default_rng(0)
    for case in range(40):
        targets, predicted = random.random((2, int(random.integers(1, 9)), int(random.integers(2, 5)))) < case / 40
        expected = {
            "micro_f1": metrics.f1_score(targets, predicted, average="micro", zero_division=0.0),
            "macro_f1": metrics.f1_score(targets, predicted, average="macro", zero_division=0.0),
            "exact_match": metrics.accuracy_score(targets, predicted),
        }
        assert measure(list(expected), predicted, targets) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(
        ValueError, match=r"predictions \(3, 2\) and targets \(3, 2\) must have the same shape, \[N\] or \[N, labels\],"
    ):
        measure(["accuracy"], targets, targets)


def test_metrics_worked_by_hand() -> None:
    targets = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=bool)
    logits = np.array([[2.0, -1, -1], [-1, -1, 0.5], [1, 3, -2]])
    # right: 1 + 0 + 2 = 3, wrong: 1 more and 1 too few; by label F1 is 1, 1 and 0; the last row alone is exact
    expected = {"micro_f1": 6 / 8, "macro_f1": 2 / 3, "exact_match": 1 / 3}
    assert score_values(COLOURS, decode(COLOURS, logits).values, targets) == pytest.approx(expected)
    assert COLOURS.primary_metric == "micro_f1"


def test_decoding_gives_the_labels_over_a_half_and_all_probabilities() -> None:
    answers = decode(COLOURS, np.array([[0.1, -0.1, 900.0], [-900.0, 0.0, -1e-9]], dtype=np.float64))
    assert answers.labels == (("blue", "red"), ())
    assert answers.values.tolist() == [[True, False, True], [False, False, False]]
    sigmoid = [[1 / (1 + np.exp(-0.1)), 1 / (1 + np.exp(0.1)), 1.0], [0.0, 0.5, 0.5]]
    assert answers.probabilities == pytest.approx(np.array(sigmoid), abs=1e-9)
    with pytest.raises(RunFailed, match="input 0: expected finite numbers from the model"):
        decode(COLOURS, np.array([[0.0, np.nan, 0.0]]))


def test_the_same_answer_to_everything_is_named() -> None:
    targets = np.array([[1, 0, 1], [0, 0, 0]], dtype=bool)
    same = np.array([[1, 0, 1], [1, 0, 1]], dtype=bool)
    assert collapsed(same, targets, COLOURS.labels) == "collapsed: all 2 predictions are 'blue', 'red'"
    assert collapsed(same & False, targets, COLOURS.labels) == "collapsed: all 2 predictions are no label"
    assert collapsed(targets, targets, COLOURS.labels) is None
    assert collapsed(same, same, COLOURS.labels) is None


def test_transformers_has_the_same_problem_logits_and_loss(tmp_path: Path, own_tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    words = Tokenizer.load(own_tokenizer)
    config = classifier_config(words.vocab_size, max_positions=40, initializer_range=0.3)
    model = small_classifier(config, 3)
    save_classifier(tmp_path / "m", model, COLOURS, own_tokenizer, 40)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    assert theirs.config.problem_type == "multi_label_classification"
    assert theirs.config.id2label == {0: "blue", 1: "green", 2: "red"}
    encoded = encode(words, ["the sky over the river", "a leaf", ""], max_length=40)
    targets = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], dtype=np.float32)
    rows = padded(encoded, range(3), pad_id=0, targets=targets)
    of_task = CLASSIFICATION.trainable(COLOURS, model.eval())
    total, name = of_task.step(rows)["loss"]
    loss = total / of_task.counts(rows)[name]
    expected = theirs(input_ids=rows.ids.long(), attention_mask=rows.mask.long(), labels=torch.from_numpy(targets))
    torch.testing.assert_close(model(rows), expected.logits, rtol=1e-5, atol=1e-5)
    assert loss.item() == pytest.approx(3 * expected.loss.item(), rel=1e-5)  # a sum over labels there is a mean
    by_hand = F.binary_cross_entropy(torch.sigmoid(model(rows)), torch.from_numpy(targets), reduction="sum") / 3
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_a_classifier_of_several_labels_is_imported_and_answers(tmp_path: Path, own_tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    words = Tokenizer.load(own_tokenizer)
    torch.manual_seed(3)
    shape = transformers.BertConfig(
        vocab_size=words.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        initializer_range=0.5,
        id2label={0: "blue", 1: "green", 2: "red"},
        label2id={"blue": 0, "green": 1, "red": 2},
        problem_type="multi_label_classification",
    )
    theirs = transformers.BertForSequenceClassification(shape).eval()
    theirs.save_pretrained(tmp_path / "m")
    words.save(tmp_path / "t")
    for file in (tmp_path / "t").iterdir():
        (tmp_path / "m" / file.name).write_bytes(file.read_bytes())
    import_model(str(tmp_path / "m"), tmp_path / "own")
    noted = open_model(str(tmp_path / "own")).extra["task"]
    assert (noted["kind"], noted["labels"]) == ("multilabel", ["blue", "green", "red"])
    assert json.loads((tmp_path / "own" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    import_model(str(tmp_path / "own"), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    texts = ["the sky over the river", "a leaf", "the end of the road"]
    write_labelled(tmp_path / "in.jsonl", [(text, []) for text in texts])
    predict_file(str(tmp_path / "own"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    answers = read_jsonl(tmp_path / "out.jsonl")
    for text, answer in zip(texts, answers, strict=True):
        with torch.inference_mode():
            ids = [words.cls_id, *words.ids([text])[0], words.sep_id]
            logits = theirs(input_ids=torch.tensor([ids])).logits[0]
        expected = dict(zip(("blue", "green", "red"), torch.sigmoid(logits).tolist(), strict=True))
        assert answer["probabilities"] == pytest.approx(expected, abs=2e-6)
        assert answer["predicted_label"] == [name for name, value in expected.items() if value > 0.5]


def test_answers_are_written_as_labels_are_read(tmp_path: Path) -> None:
    logits = np.array([[1.0, -1, 1], [-1, -1, -1]])
    rows = [("a flag", []), ("a text", [])]
    for ending, wanted in (("tsv", ["blue|red", ""]), ("csv", ["blue|red", ""]), ("jsonl", [["blue", "red"], []])):
        read = read_table(write_labelled(tmp_path / f"a.{ending}", rows))
        answered = add_predictions(COLOURS, read, decode(COLOURS, logits))
        assert list(answered.column("predicted_label")) == wanted
        assert answered.columns[2:] == (
            ("predicted_label", "probabilities")
            if ending == "jsonl"
            else ("predicted_label", "probability_blue", "probability_green", "probability_red")
        )
    torn = with_labels(TASK, ["a|b", "c"])
    with pytest.raises(
        InputError,
        match=r"a\.tsv: the label 'a\|b' contains '\|', which separates labels in this format; use JSON lines",
    ):
        add_predictions(torn, read_table(tmp_path / "a.tsv"), decode(torn, logits[:, :2]))
    columns = add_predictions(torn, read_table(tmp_path / "a.jsonl"), decode(torn, logits[:, [0, 1]]))
    assert list(columns.column("predicted_label")) == [["a|b"], []]


def test_every_label_has_its_share_of_dev_and_equal_texts_stay_together() -> None:
    random = np.random.default_rng(0)
    shares = np.array([0.6, 0.3, 0.03])
    targets = random.random((1000, 3)) < shares
    texts = [f"text {number % 900}" for number in range(1000)]
    targets[900:] = targets[:100]
    examples_given = text_examples(texts, targets)
    train, dev = split_dev(examples_given)
    assert dev.targets is not None
    assert len(train) + len(dev) == 1000
    assert not set(train.texts_a) & set(dev.texts_a)
    assert abs(len(dev) - 100) <= 3
    assert np.abs(dev.targets.sum(axis=0) - 0.1 * targets.sum(axis=0)).max() <= 8
    assert abs(dev.targets[:, 2].sum() - 0.1 * targets[:, 2].sum()) <= 1  # the rarest is cut to within a group
    turned = examples_given.select(random.permutation(1000))
    assert set(split_dev(turned)[1].texts_a) == set(dev.texts_a)
    none = text_examples(texts, targets & False)
    assert abs(len(split_dev(none)[1]) - 100) <= 3


def test_baselines_refuse_several_labels() -> None:
    labelled = text_examples("ab", np.eye(3, dtype=bool)[:2])
    for baseline in (majority_baseline, bag_of_words_baseline):
        with pytest.raises(InputError, match="made up: the baselines need one label or one number per row"):
            baseline(COLOURS, labelled, labelled)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "multilabel", "metrics": ("accuracy",)},
        {"kind": "multilabel", "metrics": ("f1",), "labels": ("a", "b"), "positive": "a"},
        {"kind": "classification", "metrics": ("micro_f1",)},
        {"kind": "multilabel", "metrics": ("micro_f1",), "class_weights": "balanced"},
    ],
)
def test_an_inconsistent_spec_is_refused(fields: dict[str, Any]) -> None:
    ClassificationTask(name="fine", text=("a",), kind="multilabel", metrics=("exact_match",))
    with pytest.raises(ValidationError):
        ClassificationTask(**{"name": "odd", "text": ("a",), **fields})


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_a_few_rows_are_learned_saved_and_answered_again(
    tmp_path: Path, own_tokenizer: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    colours = [["red"], [], ["green", "red"], ["green"]]
    rows = [(f"{' and '.join(labels) or 'nothing'} here", labels) for labels in colours] * 4
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev"):
        write_labelled(data / f"{name}.{ending}", rows)
    result = finetune(SETTINGS, TASK, model="random:tiny", data=data, out=tmp_path / "run", tokenizer=own_tokenizer)
    assert (result["metric"], result["mean"], result["collapsed"]) == ("micro_f1", 1.0, [])
    figures = evaluate_task(TASK, model=str(tmp_path / "run"), data=data)
    labels = {name: value for name, value in figures.items() if "." in name}
    perfect = {"micro_f1": 1.0, "macro_f1": 1.0, "exact_match": 1.0, "examples": 16}
    assert {name: figures[name] for name in perfect} == perfect
    assert figures.keys() - labels - perfect.keys() == {"calibration_error", "reliability", "text"}
    assert (labels["red.f1"], labels["red.examples"], labels["green.examples"]) == (1.0, 8, 8)
    predict_file(str(tmp_path / "run"), str(data / f"dev.{ending}"), str(tmp_path / f"out.{ending}"))
    answered = read_table(tmp_path / f"out.{ending}")
    assert answered.column("predicted_label") == answered.column("label")
    with pytest.raises(
        InputError,
        match=r"model: expected a model for classification \(classify\), got one for multilabel \(multilabel\)",
    ):
        evaluate_task(get_task("classify"), model=str(tmp_path / "run"), data=data / f"dev.{ending}")
    with pytest.raises(InputError, match="the model's labels are green, red; sst2 has negative, positive"):
        evaluate_task(get_task("sst2"), model=str(tmp_path / "run"), data=data)
    other = write_labelled(tmp_path / "other.tsv", [("x", ["green"]), ("y", ["pink"])])
    assert main(["evaluate", "multilabel", "--model", str(tmp_path / "run"), "--data", str(other)]) == 2
    assert "other.tsv:3: unknown label 'pink' in column 'label'; allowed: green, red" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TASK, "has multilabel, class weights none, long truncate"),
        (with_options(get_task("classify"), class_weights="balanced"), "classification, class weights balanced"),
        (with_options(get_task("classify"), long="windows"), "class weights none, long windows"),
    ],
)
def test_what_features_do_not_learn_is_refused(
    tmp_path: Path, own_tokenizer: Path, task: ClassificationTask, words: str
) -> None:
    path = write_labelled(tmp_path / "train.tsv", [(f"text {n}", ["red"] if n % 2 else ["green"]) for n in range(20)])
    settings = SETTINGS.model_copy(update={"features": "last"})
    with pytest.raises(InputError, match=f"--features: .*{task.name} .*{words}"):
        finetune(settings, task, model="random:tiny", data=path, out=tmp_path / "run", tokenizer=own_tokenizer)
    assert not (tmp_path / "run").exists()


def test_a_table_alone_is_split_and_learned(tmp_path: Path, own_tokenizer: Path) -> None:
    labels = [["red"], [], ["green", "red"], ["green"]]
    path = write_labelled(tmp_path / "all.csv", [(f"text {n} of {n % 4}", labels[n % 4]) for n in range(40)])
    settings = SETTINGS.model_copy(update={"epochs": 1})
    result = finetune(settings, TASK, model="random:tiny", data=path, out=tmp_path / "run", tokenizer=own_tokenizer)
    assert set(result["seeds"][0]["scores"]) == {"micro_f1", "macro_f1", "exact_match"}
