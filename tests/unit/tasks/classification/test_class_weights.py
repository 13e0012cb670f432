"""Class weights: what they are, that the loss is torch's weighted one, where they are noted and where refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.examples import TextExamples, row_weights, weigh
from bertwright.tasks.classification.model import padded
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns, with_labels, with_options
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Plan, train
from bertwright.training.run_folder import start_run
from bertwright.training.settings import OptimizerSettings
from tests.support.encoders import classifier_config, small_classifier
from tests.support.examples import text_examples
from tests.support.letters import Letters

NUMERICS = Numerics(precision="fp32", compiled=False, threads=1, peak_flops=1e9)
SHAPE = classifier_config()
BALANCED = with_labels(with_options(get_task("classify"), class_weights="balanced"), ["a", "b", "c"])
LABELS = np.array([0, 0, 0, 1, 0, 2, 0, 1, 0, 1])  # six, three and one


def letter_examples(targets: Any) -> TextExamples:
    return text_examples(("abcdefghij"[: number % 7 + 1] for number in range(len(targets))), targets)


def weighed_rows(task: ClassificationTask) -> tuple[Any, Any, Any]:
    labelled = letter_examples(LABELS)
    encoded = encode(Letters(), labelled.texts_a, max_length=12)
    return encoded, labelled.targets, row_weights(task, LABELS, encoded)


def test_a_label_weighs_the_inverse_of_its_share() -> None:
    task = weigh(BALANCED, letter_examples(LABELS))
    assert task.weights == pytest.approx((10 / (3 * 6), 10 / (3 * 3), 10 / (3 * 1)), rel=1e-12)
    of_labels = [sum(task.weights[label] for label in LABELS if label == wanted) for wanted in range(3)]
    assert of_labels == pytest.approx([10 / 3] * 3)
    plain = with_labels(get_task("classify"), ["a", "b", "c"])
    assert weigh(plain, letter_examples(LABELS)) is plain
    assert weighed_rows(plain)[2] is None
    assert weighed_rows(task)[2].tolist() == pytest.approx([task.weights[label] for label in LABELS], rel=1e-6)


def test_weights_are_those_of_scikit_learn() -> None:
    chosen = pytest.importorskip("sklearn.utils.class_weight", reason="the oracle; it is in the tasks extra")
    theirs = chosen.compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    assert weigh(BALANCED, letter_examples(LABELS)).weights == pytest.approx(theirs.tolist(), rel=1e-12)


def test_loss_and_gradient_are_those_of_torchs_weighted_cross_entropy() -> None:
    task = weigh(BALANCED, letter_examples(LABELS))
    encoded, targets, weights = weighed_rows(task)
    model = small_classifier(SHAPE, 3)
    of_task = CLASSIFICATION.trainable(task, model)
    whole = padded(encoded, range(10), pad_id=0, targets=targets, weights=weights)
    expected = F.cross_entropy(model(whole), torch.from_numpy(LABELS), weight=torch.tensor(task.weights))
    expected.backward()
    theirs = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    batches = [
        padded(encoded, rows, pad_id=0, targets=targets, weights=weights)
        for rows in (range(3), range(3, 4), range(4, 10))
    ]
    count = sum(of_task.counts(batch)["rows"] for batch in batches)
    assert count == pytest.approx(10.0)
    total = sum((of_task.step(batch)["loss"][0] for batch in batches), torch.zeros(()))
    loss = total / count
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    plain = F.cross_entropy(model(whole), torch.from_numpy(LABELS))
    assert abs(loss.item() - plain.item()) > 1e-3  # so that the comparison tells something
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, theirs[name], rtol=1e-4, atol=1e-6)


def test_the_loop_divides_by_weights_below_one(tmp_path: Path) -> None:
    """A row of the commonest label: its weight is 10/18, and the logged mean is the plain loss of that row."""
    task = weigh(BALANCED, letter_examples(LABELS))
    encoded, targets, weights = weighed_rows(task)
    model = small_classifier(SHAPE, 3)
    batch = padded(encoded, [0], pad_id=0, targets=targets, weights=weights)
    assert CLASSIFICATION.trainable(task, model).counts(batch)["rows"] == pytest.approx(10 / 18)
    expected = F.cross_entropy(model(batch), torch.tensor([0])).item()
    plan = Plan(steps=1, seed=0, optimizer=OptimizerSettings(learning_rate=1e-6))
    run = start_run(tmp_path / "run", kind="test", settings={}, data={}, resume=False)
    train(CLASSIFICATION.trainable(task, model), lambda step: [batch], plan=plan, numerics=NUMERICS, run=run)
    assert next(line["loss"] for line in run.metrics() if "loss" in line) == pytest.approx(expected, rel=1e-6)


def test_labels_keep_their_weights_in_another_order() -> None:
    task = weigh(BALANCED, letter_examples(LABELS))
    turned = with_labels(task, ["c", "a", "b"])
    assert turned.weights == (task.weights[2], task.weights[0], task.weights[1])
    assert ClassificationTask.model_validate(json.loads(json.dumps(turned.model_dump(mode="json")))) == turned


def test_what_no_weight_can_be_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        InputError,
        match="made up: --class-weights balanced needs a training row of every label; there is none with 'b'",
    ):
        weigh(BALANCED, letter_examples([0, 0, 2]))
    with pytest.raises(
        InputError, match="--class-weights balanced: needs a task with one label per text; regress has a number"
    ):
        with_options(get_task("regress"), class_weights="balanced")
    with pytest.raises(
        InputError,
        match="--class-weights balanced: needs a task with one label per text; multilabel has any number of labels",
    ):
        with_options(get_task("multilabel"), class_weights="balanced")
    for fields in ({"kind": "regression", "class_weights": "balanced"}, {"labels": ("a", "b"), "weights": (1.0,)}):
        with pytest.raises(ValidationError):
            ClassificationTask(name="odd", text=("a",), **fields)
    where = ["--model", "random:tiny", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(["finetune", "stsb", *where, "--class-weights", "balanced"]) == 2
    assert "stsb has a number" in capsys.readouterr().err
    assert main(["finetune", "swag", *where, "--class-weights", "balanced"]) == 2
    assert "expected a task of sentences or pairs, got swag" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_model_folder_notes_weights_and_nothing_where_there_are_none(tmp_path: Path, own_tokenizer: Path) -> None:
    rows = [("good" if n % 4 else "bad", n) for n in range(24)]
    for name in ("train", "dev"):
        lines = "".join(f"{word} number {n}\t{word}\n" for word, n in rows)
        (tmp_path / f"{name}.tsv").write_text(f"words\tverdict\n{lines}")
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=16, threads=1)
    arguments: dict[str, Any] = {"model": "random:tiny", "data": tmp_path, "tokenizer": own_tokenizer}
    task = with_columns(get_task("classify"), text=["words"], label="verdict")
    balanced = with_options(task, class_weights="balanced")
    words = Tokenizer.load(own_tokenizer)
    work = CLASSIFICATION.prepare(balanced, tmp_path, words, SHAPE, 16)
    batch = work.batch(np.arange(24))
    assert batch.weights.tolist() == pytest.approx([24 / 36 if n % 4 else 24 / 12 for n in range(24)])
    assert CLASSIFICATION.prepare(task, tmp_path, words, SHAPE, 16).batch(np.arange(24)).weights is None
    finetune(settings, balanced, out=tmp_path / "weighed", **arguments)
    finetune(settings, task, out=tmp_path / "plain", **arguments)
    weighed, plain = (
        json.loads((tmp_path / run / "model" / "config.json").read_text())["bertwright"]["task"]
        for run in ("weighed", "plain")
    )
    assert weighed["labels"] == ["bad", "good"]
    assert weighed["class_weights"] == "balanced"
    assert weighed["weights"] == pytest.approx([24 / (2 * 6), 24 / (2 * 18)])
    assert not {"class_weights", "weights", "long"} & set(plain)  # as folders and runs of before have it
    assert {name: value for name, value in weighed.items() if name in plain} == plain
    with pytest.raises(InputError, match=r"data\.task\.class_weights is None there and 'balanced' here"):
        finetune(settings, balanced, out=tmp_path / "plain", resume=True, **arguments)
    with pytest.raises(InputError, match=r"data\.task\.class_weights is 'balanced' there and None here"):
        finetune(settings, task, out=tmp_path / "weighed", resume=True, **arguments)
