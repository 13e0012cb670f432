"""fine-tuned model → metrics and predictions: the commands evaluate and predict."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.errors import InputError
from bertwright.finetuning.kept_rows import kept_rows
from bertwright.model.folder import model_within, notes_of, open_model
from bertwright.model.vector_settings import MODULES
from bertwright.output_paths import refuse_target, refuse_unwritable
from bertwright.shipped import folder_of
from bertwright.stores.cache import url_of_copy
from bertwright.tables.files import ALLOWED, FORMATS, InputFormat
from bertwright.tables.writer import OutputFormat, PredictRequest
from bertwright.tasks.binding import TaskKind, open_tokenizer
from bertwright.tasks.classification.spec import ClassificationTask, as_trained, with_texts_of
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.errors import EvaluateRequest
from bertwright.tasks.inference import open_answering
from bertwright.tasks.kinds import kind_of, task_of, with_named_columns
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device
from bertwright.training.trial import CPU_ADVICE, advise_on_full_gpu


def task_name_of(model: str) -> str:
    """Return the name of the task that MODEL was fine-tuned for; `embed` for a folder that describes vectors.

    Raises InputError where the folder notes no task.
    """
    folder, stored = model_within(folder_of(model)), notes_of(model).get("task")
    if isinstance(stored, Mapping) and isinstance(stored.get("name"), str):
        return str(stored["name"])
    if (folder / MODULES).is_file():
        return EMBED.name
    if not model.startswith("random:") and not (folder / "config.json").is_file():
        open_model(model)  # raises the message for a folder that holds no model
    raise InputError(
        f"evaluate: expected TASK, since {model} notes no task; write bertwright evaluate TASK --model {model} … with "
        "the task, pretraining (for --corpus) or blimp"
    )


def evaluate_task(
    task: TaskSpec,
    *,
    model: str,
    data: Path,
    text: tuple[str, ...] = (),
    label: str | None = None,
    errors: str | None = None,
    calibrate: bool = False,
    precision: str | None = None,
    device: Device = "cpu",
) -> dict[str, Any]:
    """Return the task's metrics of a fine-tuned model on the validation files of a folder, or on one file.

    `text` and `label` name columns that differ from training. `errors` names a table for the answers, the worst first.
    `calibrate` fits a temperature on the data and stores it in the model folder. `precision` is one of PRECISIONS; None
    computes as in training. Raises InputError without the device.
    """
    prepare_processor()
    kind = kind_of(task)
    request = _request(kind, data, errors, calibrate=calibrate)
    if not os.path.exists(data):  # before a model is opened; false for an impossible name too
        raise InputError(f"--data {data}: there is no such file or folder")
    saved = open_answering(model, precision, device)
    trained = task_of(saved)
    if calibrate:
        if url := url_of_copy(model):
            raise InputError(
                f"--calibrate: writes the temperature to the model folder, and {url} is in a store; copy the folder to "
                "this machine, and give its path as --model"
            )
        refuse_unwritable(Path(saved.source) / "config.json", "--model", is_folder=False)
    if not isinstance(trained, kind.spec):
        raise InputError(
            f"{model}: expected a model for {task.name}, got one for {trained.name}, another kind of task; to measure "
            f"what it is made for: bertwright evaluate {trained.name} --model {model} …"
        )
    if isinstance(trained, ClassificationTask) and isinstance(task, ClassificationTask):
        task = as_trained(task, trained)
    task = with_named_columns(task, text=text, label=label)
    if isinstance(trained, ClassificationTask) and isinstance(task, ClassificationTask):
        task = with_texts_of(task, trained, saved.source)  # before the rows are read
    reading = with_named_columns(trained, text=text, label=label)
    reading = reading.model_copy(update={"input_format": task.input_format, "on_error": task.on_error})
    request = replace(request, rows=kept_rows(kind, reading, saved.extra, data, calibrate=calibrate))
    tokenizer = open_tokenizer(saved)
    return advise_on_full_gpu(lambda: kind.evaluate(task, saved, tokenizer, request), lambda: CPU_ADVICE)


def _request(kind: TaskKind, data: Path, errors: str | None, *, calibrate: bool) -> EvaluateRequest:
    """Return the request; InputError where the kind of task has no such output, or the file cannot be written."""
    if calibrate and not kind.calibrates:
        raise InputError("--calibrate: expected a task of sentences or pairs with labels; leave the option out")
    if errors is None:
        return EvaluateRequest(data, calibrate=calibrate)
    target = PredictRequest(str(data), errors, option="--errors")
    if not target.is_file or target.ending not in FORMATS or target.table_format is None:
        raise InputError(f"--errors {errors}: expected the name of a table; allowed endings: {ALLOWED}")
    for path in data.iterdir() if data.is_dir() else (data,):
        refuse_target(errors, source=str(path), option="--errors", read="--data")
    return EvaluateRequest(data, target, calibrate)


def predict_file(
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
    explain: Callable[[Sequence[object]], list[object]] | None = None,
) -> dict[str, Any]:
    """Predict for everything in a file; return a summary. `raw` is the same as `input_format` "lines".

    `precision` and `device` as in `evaluate_task`, `explain` as in `PredictRequest`.
    """
    prepare_processor()
    refuse_target(target, source=source)
    if raw and input_format not in ("auto", "lines"):
        raise InputError(f"--raw means --input-format lines; it contradicts --input-format {input_format}")
    request = PredictRequest(source, target, text, "lines" if raw else input_format, output_format, explain=explain)
    if source != "-" and not os.path.exists(source):
        raise InputError(f"--input {source}: there is no such file")
    saved = open_answering(model, precision, device)
    task = task_of(saved)
    if request.input_format == "lines" and text:
        way = "--raw" if raw else "--input-format lines"
        raise InputError(f"{way} reads plain text without columns; leave --text-column out")
    kind, tokenizer = kind_of(task), open_tokenizer(saved)
    if Path(target).is_dir() and not isinstance(task, SpanTask):
        raise InputError(f"--output {target}: expected a file or - for standard output, got a folder")
    summary = advise_on_full_gpu(lambda: kind.predict(saved, tokenizer, request), lambda: CPU_ADVICE)
    return {**summary, "output": target, "task": task.name, **({"text": None} if target == "-" else {})}
