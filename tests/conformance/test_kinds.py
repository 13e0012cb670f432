"""What every registered task must do, of whatever kind: records → encode → finite loss → all eight right → saved →
reloaded → the same answers; and a file that is wrong is refused with its name and the record's place.

A kind of task is added by its example in tests/support/task_examples.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.errors import InputError
from bertwright.finetuning.evaluate import evaluate_task, predict
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.registry import find
from bertwright.serving.predictor import load
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.kinds import KINDS, kind_of, task_of
from bertwright.tasks.spec import TaskSpec
from bertwright.text.wordpiece import train_tokenizer
from bertwright.training.hardware import Numerics, resolve_numerics
from tests.support.task_examples import EXAMPLES, PLACES, example_data

TASKS = find("bertwright.tasks", TaskSpec)
LENGTH = 40
SETTINGS = FinetuneSettings(
    epochs=30, batch_size=4, learning_rate=3e-3, max_length=LENGTH, threads=1, precision="fp32", warmup=0.05
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> str:
    """A model folder with a small random encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    words = train_tokenizer([own_text.read_text("utf-8"), *PLACES * 3], vocab_size=500)
    words.save(folder / "tok")
    config = EncoderConfig(
        vocab_size=words.vocab_size,
        hidden=48,
        layers=2,
        heads=4,
        intermediate=96,
        max_positions=64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    torch.manual_seed(4)
    model = PretrainingModel(config, second_sentence="none")
    save_model(folder / "m", model, config=config, tokenizer=folder / "tok", architecture="BertForMaskedLM")
    return str(folder / "m")


@pytest.fixture(scope="module")
def numerics() -> Numerics:
    return resolve_numerics("fp32", threads=1)


@pytest.fixture(autouse=True)
def measured_once(numerics: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes longer than learning eight records does."""
    monkeypatch.setattr("bertwright.finetuning.run.resolve_numerics", lambda *_, **__: numerics)


def test_every_kind_has_its_example() -> None:
    assert {kind.spec for kind in KINDS} == set(EXAMPLES)
    assert {kind_of(task).spec for task in TASKS.values()} <= set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_does_what_every_task_must(name: str, encoder: str, tmp_path: Path) -> None:
    task = TASKS[name]
    example = example_data(task, tmp_path)
    found = finetune(SETTINGS, task, model=encoder, data=example.data, out=tmp_path / "run")
    assert found["task"] == name
    # what was learned from eight records answers them all
    assert found["mean"] == pytest.approx(example.perfect)
    # the folder gives the figures that were measured before it was written
    figures = evaluate_task(task, model=str(tmp_path / "run"), data=example.data)
    scores = found["seeds"][0]["scores"]
    assert next(iter(figures)) == found["metric"] == next(iter(scores))
    assert {key: figures[key] for key in scores if key in figures} == pytest.approx(
        {key: value for key, value in scores.items() if key in figures}
    )
    # and the answers, twice the same
    for folder in ("once", "again"):
        (tmp_path / folder).mkdir()
        predict(str(tmp_path / "run"), str(example.asked), str(tmp_path / folder / example.output))
        assert example.answers(tmp_path / folder / example.output) == example.right
    first, second = (sorted((tmp_path / folder).rglob("*.*")) for folder in ("once", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    # and a model in use, all at once and one by one
    model = load(tmp_path / "run", precision="fp32")
    assert example.told(model(example.inputs)) == example.right
    assert example.told([model(one) for one in example.inputs]) == example.right
    assert example.told(list(model(iter(example.inputs)))) == example.right
    assert type(task_of(open_model(str(tmp_path / "run")))) is type(task)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_loss_is_finite_and_counted_by_rows(name: str, encoder: str, tmp_path: Path) -> None:
    saved = open_model(encoder)
    example = example_data(TASKS[name], tmp_path)
    kind = kind_of(TASKS[name])
    work = kind.prepare(TASKS[name], example.data, open_tokenizer(saved), saved.config, LENGTH)
    model = work.build(saved.config)
    assert any(parameter.startswith(f"{work.head}.") for parameter, _ in model.named_parameters())
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
def test_a_wrong_record_is_named_with_its_file_and_place(name: str, encoder: str, tmp_path: Path) -> None:
    example = example_data(TASKS[name], tmp_path)
    with pytest.raises(InputError, match=example.trouble):
        finetune(SETTINGS, TASKS[name], model=encoder, data=example.broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
