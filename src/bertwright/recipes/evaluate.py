"""model → figures and predictions: the commands evaluate and predict."""

from pathlib import Path
from typing import Any

import torch

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.files import refuse_target
from bertwright.model.folder import SavedModel, open_model
from bertwright.model.sizes import system_of
from bertwright.prediction.asked import Asked, OutputFormat
from bertwright.prediction.kinds import kind_of, task_of
from bertwright.prediction.precision import Answerable, choose
from bertwright.prediction.work import open_tokenizer
from bertwright.recipes.foresee import ON_PROCESSORS, unless_full
from bertwright.recipes.held_out import HeldOut
from bertwright.recipes.settings import HELD_OUT_ROWS
from bertwright.recipes.systems import open_learned, second_of
from bertwright.tasks.classify import ClassificationTask, with_columns
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.squad import SpanTask
from bertwright.tasks.table_files import InputFormat
from bertwright.tasks.tagging import TaggingTask, with_tag_columns
from bertwright.training.device import Device, own_device
from bertwright.training.machine import keep_memory


def evaluate_pretraining(
    model: str, corpus: Path, *, rows: int = HELD_OUT_ROWS, length: int = 128, device: Device = "cpu"
) -> dict[str, Any]:
    """Held-out figures: the first `rows` rows of `length` tokens of the next-sentence walk with seed 0, 80/10/10.

    Where the model learned sentence order, that is measured on as many rows of its own walk. A language model is
    measured on the first rows of the kind that it learned from. InputError without the device.
    """
    keep_memory()
    saved = open_model(model)
    data = Corpus.open(corpus)
    if rows < 1 or not 8 <= length <= saved.config.max_positions:
        raise InputError(f"rows {rows}, length {length}: at least 1 row of 8 to {saved.config.max_positions} tokens")
    if open_tokenizer(saved).hash != data.tokenizer_hash:
        raise InputError(f"{corpus}: was built with another tokenizer than the one of {model}")
    loaded = open_learned(saved)
    loaded.to(own_device(device))
    system = system_of(saved.config) or "bert"
    held_out = HeldOut.of([(data, 1.0)], second_of(loaded), rows=rows, length=length, system=system)
    with torch.inference_mode():
        return unless_full(lambda: held_out.figures(loaded), lambda: ON_PROCESSORS)


def evaluate_task(
    task: TaskSpec,
    *,
    model: str,
    data: Path,
    text: tuple[str, ...] = (),
    label: str | None = None,
    precision: str | None = None,
    device: Device = "cpu",
) -> dict[str, Any]:
    """The task's metrics of a fine-tuned model on the dev files of a folder, or on one file.

    `text` and `label` name columns that are called otherwise than in training; `precision` is one of PRECISIONS (None:
    the model as it is trained, as do others who measure it). InputError without the device.
    """
    keep_memory()
    saved = _opened(model, precision, device)
    trained = task_of(saved)
    kind = kind_of(task)
    if not isinstance(trained, kind.spec):
        raise InputError(f"{model}: was fine-tuned for {trained.name}, which is another kind of task than {task.name}")
    if isinstance(task, ClassificationTask) and isinstance(trained, ClassificationTask):
        if task.name == trained.name:
            task = task.model_copy(update={"text": trained.text, "label": trained.label})
        task = with_columns(task, text=text, label=label)
    elif isinstance(task, TaggingTask):
        task = with_tag_columns(task, text=text, label=label)
    elif text or label:
        raise InputError(f"--text-column and --label-column are for tables; {task.name} has none")
    words = open_tokenizer(saved)
    return unless_full(lambda: kind.evaluate(task, saved, words, data), lambda: ON_PROCESSORS)


def predict(
    model: str,
    source: str,
    target: str,
    *,
    text: tuple[str, ...] = (),
    raw: bool = False,
    precision: str | None = None,
    input_format: InputFormat = "auto",
    output_format: OutputFormat = "auto",
    device: Device = "cpu",
) -> dict[str, Any]:
    """Answer everything in a file; what was written and how much. `raw`: the same as `input_format` "lines".

    `precision` and `device` as `evaluate_task`'s.
    """
    keep_memory()
    refuse_target(target, source=source)
    if raw and input_format not in ("auto", "lines"):
        raise InputError(f"--raw is --input-format lines; --input-format {input_format} says otherwise")
    asked = Asked(source, target, text, "lines" if raw else input_format, output_format)
    saved = _opened(model, precision, device)
    task = task_of(saved)
    if asked.input_format == "lines" and text:
        way = "--raw" if raw else "--input-format lines"
        raise InputError(f"{way} is for plain text, without columns; leave --text-column out")
    kind, words = kind_of(task), open_tokenizer(saved)
    if Path(target).is_dir() and not isinstance(task, SpanTask):
        raise InputError(f"--output {target}: is a folder; answers of {task.name} are a file, or - for standard output")
    found = unless_full(lambda: kind.predict(saved, words, asked), lambda: ON_PROCESSORS)
    return {**found, "output": target, "task": task.name, **({"text": None} if target == "-" else {})}


def _opened(model: str, precision: str | None, device: Device) -> SavedModel:
    saved = open_model(model)
    if precision is None and device == "cpu":
        return saved
    answering = choose(precision, device=device) if precision else "plain"
    return Answerable(**vars(saved), answering=answering, device=device)
