"""What every registered task must do, of whatever kind: records → encode → finite loss → all eight right → saved →
reloaded → the same answers; and a file that is wrong is refused with its name and the record's place.

A kind of task is added here by one function that writes its example, named in EXAMPLES.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.errors import InputError
from bertwright.model.folder import open_model, save_model
from bertwright.model.sizes import EncoderConfig
from bertwright.objectives.pretraining import PretrainingModel
from bertwright.prediction.kinds import KINDS, kind_of, task_of
from bertwright.prediction.work import open_tokenizer
from bertwright.recipes.evaluate import evaluate_task, predict
from bertwright.recipes.finetune import finetune
from bertwright.recipes.settings import FinetuneSettings
from bertwright.registry import find
from bertwright.tasks.choice import ChoiceTask
from bertwright.tasks.classify import ClassificationTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.squad import SpanTask
from bertwright.tasks.squad_score import normalised
from bertwright.tasks.tagging import TaggingTask
from bertwright.text.tokenizer import train_tokenizer
from bertwright.training.machine import Numerics, resolve_numerics
from tests import eight_sentences

TASKS = find("bertwright.tasks", TaskSpec)
PLACES = ("harbour", "garden", "library", "kitchen", "station", "meadow", "tower", "bridge")
LENGTH = 40


@dataclass(frozen=True)
class Example:
    """Eight records of a task, in files of its layout.

    data      a folder with train and dev files, both of the eight
    asked     the file that `predict` is given, and `output` what its answers' file is called
    answers   what was written → an answer for each record
    right     what these must be
    broken    a folder like `data` with one record that cannot be, and `trouble`, what is then said (a pattern)
    perfect   the primary metric where all is right
    """

    data: Path
    asked: Path
    output: str
    answers: Callable[[Path], list[Any]]
    right: list[Any]
    broken: Path
    trouble: str
    perfect: float = 1.0


def example_data(task: TaskSpec, folder: Path) -> Example:
    """The example of a task's kind."""
    (kind,) = [kind for kind in EXAMPLES if isinstance(task, kind)]
    return EXAMPLES[kind](task, folder)


def sentences(task: Any, folder: Path) -> Example:
    """One text or two with a label, or with a number, as tab-separated tables."""
    labels = list(task.labels) or ["no", "yes"]
    right = (
        [(row - 3.5) / 4 for row in range(8)]
        if task.kind == "regression"
        else [labels[row % len(labels)] for row in range(8)]
    )
    rows = [
        {**{column: f"The {PLACES[row]} of {column}" for column in task.text}, task.label: str(right[row])}
        for row in range(8)
    ]
    names = task.columns or tuple(rows[0])
    header = [] if task.columns else ["\t".join(names)]

    def write(place: Path, changed: dict[str, str]) -> Path:
        place.mkdir(parents=True)
        for stem in ("train", *task.dev):
            table = [*rows[:7], {**rows[7], **changed}] if stem == "train" else rows
            lines = ["\t".join(row.get(name, "-") for name in names) for row in table]
            (place / f"{stem}.tsv").write_text("\n".join([*header, *lines]) + "\n", "utf-8")
        return place

    def answers(path: Path) -> list[Any]:
        lines = path.read_text("utf-8").splitlines()[len(header) :]
        if task.kind == "regression":
            return np.argsort([float(line.split("\t")[-1]) for line in lines]).tolist()
        return [line.split("\t")[len(names)] for line in lines]

    data = write(folder / "data", {})
    if not task.labels and task.kind == "classification":  # every label that is text is one: leave it out
        broken, said = write(folder / "broken", {task.label: ""}), "is ''"
    elif task.kind == "multilabel":  # none at all is allowed, one twice is not
        broken, said = write(folder / "broken", {task.label: "yes|yes"}), "holds the label 'yes' twice"
    else:
        broken, said = write(folder / "broken", {task.label: "what"}), "what"
    return Example(
        data=data,
        asked=data / f"{task.dev[0]}.tsv",
        output="answers.tsv",
        answers=answers,
        right=list(range(8)) if task.kind == "regression" else right,
        broken=broken,
        trouble=rf"train\.tsv:{8 + len(header)}: .*{said}",
    )


def choices(task: Any, folder: Path) -> Example:
    """A context and four endings, of which one always goes on rightly, as SWAG's table."""
    endings = ("asks the ferryman", "eats a stone", "paints the moon", "sells the river")
    right = [(3 * row) % 4 for row in range(8)]
    rows = [
        {
            task.context: f"Someone waits at the {PLACES[row]}.",
            task.begin: "She",
            **{f"{task.ending}{k}": endings[(k - right[row]) % 4] for k in range(4)},
            task.label: right[row],
        }
        for row in range(8)
    ]

    def write(place: Path, changed: dict[str, Any]) -> Path:
        place.mkdir(parents=True)
        for name, table in (("train.csv", [*rows[:7], {**rows[7], **changed}]), ("dev.csv", rows)):
            with (place / name).open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(table)
        return place

    def answers(path: Path) -> list[Any]:
        with path.open(encoding="utf-8", newline="") as stream:
            return [int(row["predicted_label"]) for row in csv.DictReader(stream)]

    data = write(folder / "data", {})
    broken = write(folder / "broken", {task.label: 4})
    return Example(data, data / "dev.csv", "answers.csv", answers, right, broken, r"train\.csv:9: .*0 to 3")


def spans(task: Any, folder: Path) -> Example:
    """A question and a passage that holds the answer, or, in 2.0, sometimes does not."""
    unanswered = (2, 5) if task.null else ()
    right = ["" if row in unanswered else f"the {place}" for row, place in enumerate(PLACES)]

    def write(place: Path, start: int) -> Path:
        place.mkdir(parents=True)
        for name in ("train.json", "dev.json"):
            articles = []
            for row, answer in enumerate(right):
                context = f"In the evening they all met near {answer or 'something'}, as they had said."
                first = start if (row, name) == (7, "train.json") else context.find(answer)
                given = [{"text": answer, "answer_start": first}] if answer else []
                entry = {"id": f"q{row}", "question": "Where did they meet?", "answers": given}
                entry |= {"is_impossible": not answer} if task.null else {}
                articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [entry]}]})
            (place / name).write_text(json.dumps({"version": task.version, "data": articles}), "utf-8")
        return place

    def answers(path: Path) -> list[Any]:
        texts = json.loads((path / "predictions.json").read_text("utf-8"))
        return [normalised(texts[f"q{row}"]) for row in range(8)]  # as they are compared

    plain = [normalised(answer) for answer in right]
    data, broken = write(folder / "data", 33), write(folder / "broken", 2)
    trouble = r"train\.json: question q7: .* is not at character 2"
    return Example(data, data / "dev.json", "answers", answers, plain, broken, trouble, perfect=100.0)


def tags(task: Any, folder: Path) -> Example:
    """Eight sentences in columns, with entities or with plain tags."""
    return Example(**eight_sentences.example_data(task, folder))


EXAMPLES: dict[type[TaskSpec], Callable[[Any, Path], Example]] = {
    ClassificationTask: sentences,
    ChoiceTask: choices,
    SpanTask: spans,
    TaggingTask: tags,
}
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
    monkeypatch.setattr("bertwright.recipes.finetune.resolve_numerics", lambda *_, **__: numerics)


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
