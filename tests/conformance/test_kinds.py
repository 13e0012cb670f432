"""Every registered task: records → encode → finite loss → all eight right → saved → reloaded → the same answers.

A wrong file is refused with its name and the line of the record.

A kind of task is added by its example in tests/support/task_examples.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.errors import InputError
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.registry import find
from bertwright.serving.predictor import load
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.kinds import TASK_KINDS, kind_of, task_of
from bertwright.tasks.spec import TaskSpec
from tests.support.encoders import write_encoder
from tests.support.task_examples import EXAMPLES, example_data

TASKS = find("bertwright.tasks", TaskSpec)
LENGTH = 40
SETTINGS = FinetuneSettings(
    epochs=30, batch_size=4, learning_rate=3e-3, max_length=LENGTH, threads=1, precision="fp32", warmup=0.05
)
pytestmark = pytest.mark.usefixtures("measured_once")


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    """A model folder with a small random encoder."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", places_tokenizer)


def test_every_kind_has_its_example() -> None:
    assert {kind.spec for kind in TASK_KINDS} == set(EXAMPLES)
    assert {kind_of(task).spec for task in TASKS.values()} <= set(EXAMPLES)


ALIKE = ("classify", "qnli", "qqp", "regress", "rte", "wnli")
"""Tasks whose files and code are those of another one here."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in sorted(TASKS)]
)
def test_a_task_learns_saves_and_reloads_its_eight_records(name: str, small_encoder: str, tmp_path: Path) -> None:
    task = TASKS[name]
    example = example_data(task, tmp_path)
    result = finetune(SETTINGS, task, model=small_encoder, data=example.data, out=tmp_path / "run")
    assert result["task"] == name
    # what was learned from eight records answers them all
    assert result["mean"] == pytest.approx(example.perfect)
    # the folder gives the figures that were measured before it was written
    figures = evaluate_task(task, model=str(tmp_path / "run"), data=example.data)
    scores = result["seeds"][0]["scores"]
    assert next(iter(figures)) == result["metric"] == next(iter(scores))
    assert {key: figures[key] for key in scores if key in figures} == pytest.approx(
        {key: value for key, value in scores.items() if key in figures}
    )
    # and the answers, twice the same
    for folder in ("once", "again"):
        (tmp_path / folder).mkdir()
        if example.predicts:
            predict_file(str(tmp_path / "run"), str(example.input_file), str(tmp_path / folder / example.output))
            assert example.answers(tmp_path / folder / example.output) == example.right
        else:
            with pytest.raises(InputError, match="gives vectors and predicts no labels"):
                predict_file(str(tmp_path / "run"), str(example.input_file), str(tmp_path / folder / example.output))
    first, second = (sorted((tmp_path / folder).rglob("*.*")) for folder in ("once", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    # and a model in use, all at once and one by one
    model = load(tmp_path / "run", precision="fp32")
    assert example.answers_of(model(example.inputs)) == example.right
    assert example.answers_of([model(one) for one in example.inputs]) == example.right
    assert example.answers_of(list(model(iter(example.inputs)))) == example.right
    assert type(task_of(open_model(str(tmp_path / "run")))) is type(task)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_loss_is_finite_and_counted_by_rows(name: str, small_encoder: str, tmp_path: Path) -> None:
    saved = open_model(small_encoder)
    example = example_data(TASKS[name], tmp_path)
    kind = kind_of(TASKS[name])
    work = kind.prepare(TASKS[name], example.data, open_tokenizer(saved), saved.config, LENGTH)
    model = work.build(saved.config)
    has_head = any(parameter.startswith(f"{work.head}.") for parameter, _ in model.named_parameters())
    assert has_head == example.predicts
    trainable = work.trainable(model)
    batch = work.batch(np.arange(len(work.lengths)))
    counts = trainable.counts(batch)
    for total, counted in trainable.step(batch).values():
        assert torch.isfinite(total)
        assert counts[counted] > 0
    assert trainable.tokens(batch) >= work.lengths.max()
    assert trainable.flops(batch) > 0
    assert all(np.isfinite(value) for value in work.evaluate(model).values())
    assert kind.spec.model_validate(json.loads(json.dumps(work.task.model_dump(mode="json")))) == work.task


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_wrong_record_is_named_with_its_file_and_place(name: str, small_encoder: str, tmp_path: Path) -> None:
    example = example_data(TASKS[name], tmp_path)
    with pytest.raises(InputError, match=example.trouble):
        finetune(SETTINGS, TASKS[name], model=small_encoder, data=example.broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
