"""teacher + labelled data + texts → everything that the seeds of a distillation share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertwright.console import say
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.soft_task import SoftTask
from bertwright.distillation.student import say_larger, student_of
from bertwright.distillation.teacher import Teacher
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.finetuning.prepare import Prepared
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import check_settings
from bertwright.model.folder import SavedModel
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.files import InputFormat, table_ending
from bertwright.tables.reader import Table, read_table, usable_rows
from bertwright.tasks.binding import LabelledData
from bertwright.tasks.classification.examples import TextExamples, examples_of
from bertwright.tasks.classification.spec import ClassificationTask, with_columns
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.spec import with_reading

NOT_SUPPORTED = ("features", "bilstm", "lm_weight", "new_layers", "frozen_layers")
"""Settings of a fine-tuning that a distillation does not have."""
_HEAD = "classifier."


@dataclass(frozen=True)
class TaskRequest:
    """Labelled data and further texts of a distillation, and how they are read; see the command."""

    data: Path
    texts: Path | None = None
    text_column: Sequence[str] = ()
    label_column: str | None = None
    input_format: Any = "auto"
    on_error: Any = "stop"


def prepare_student(
    settings: FinetuneSettings, soft: DistillationSettings, teacher: Teacher, request: TaskRequest, *, cache: Path
) -> Prepared:
    """Read the data and return the student before its first step. `cache` is the file of the teacher's answers.

    Raises InputError for settings that a distillation does not have, and for data whose labels the teacher lacks.
    """
    _refuse_settings(settings)
    if request.texts and not soft.soft_weight and not soft.relations:
        raise InputError(
            f"--texts {request.texts}: texts without labels teach by the teacher's answers, which "
            "--soft-weight 0 leaves out; leave one of the two options out"
        )
    saved = student_of(teacher.saved, soft)
    check_settings(settings, saved.config, teacher.saved.source)
    task = with_columns(teacher.task, text=request.text_column, label=request.label_column)
    task = task.model_copy(update={"max_length": teacher.max_length, "temperature": 1.0})
    task = with_reading(task, input_format=request.input_format, on_error=request.on_error)
    data = _labelled(task, request.data, teacher)
    unlabelled = None if request.texts is None else read_texts(data.task, request.texts)
    joined = replace(data, train=_joined(data.train, unlabelled))
    bound = CLASSIFICATION.bind(joined, teacher.tokenizer, saved.config, settings.max_length)
    labelled = replace(bound, train=(data.train, bound.train[1]))
    soft_task = SoftTask(**vars(labelled), settings=soft, teacher=teacher, texts=unlabelled, cache=cache)
    with torch.device("meta"):
        models = [soft_task.build(config) for config in (saved.config, teacher.saved.config)]
    say_larger(*models)
    digests = {
        **bound.digests,
        "weights": None if saved.weights is None else teacher.digest,
        "tokenizer": teacher.tokenizer.hash,
        "teacher": teacher.digest,
        "texts": None if request.texts is None else file_digest(request.texts),
    }
    return Prepared(soft_task, _without_scaled_head(saved, data.task), teacher.tokenizer, digests)


def read_texts(task: ClassificationTask, path: Path) -> TextExamples:
    """Read texts without labels: a table with the text columns of the task, or a .txt file with a text a line.

    Rows without a text are left out and counted where the task says so. Raises InputError for such a row otherwise, and
    for a file of lines where the task has pairs.
    """
    is_lines = table_ending(path) == ".txt"
    if is_lines and len(task.text) > 1:
        raise InputError(f"--texts {path}: expected a table with the columns {', '.join(task.text)}, got a .txt file")
    names = task.text if is_lines else task.columns
    kind: InputFormat = "lines" if is_lines else "auto"
    with bad_rows_of(path, task.on_error) as bad_rows:
        table = read_table(path, columns=task.text, headerless=names, format=kind, on_error=bad_rows.add)
        table = usable_rows(table, partial(_refuse_blank, task), bad_rows.add)
    return examples_of(task, table, require_label=False)


def _refuse_blank(task: ClassificationTask, table: Table) -> None:
    """Raise BadRow for the first row without a text."""
    examples = examples_of(task, table, require_label=False)
    for row in range(len(examples)):
        for side in (examples.texts_a, examples.texts_b or examples.texts_a):
            if is_blank(side[row]):
                message = f"{examples.location(row)}: expected a text, got {side[row]!r}; take the row out"
                raise BadRow("without a text", message)


def _refuse_settings(settings: FinetuneSettings) -> None:
    """Raise InputError for a setting of fine-tuning that a distillation does not have."""
    for name in NOT_SUPPORTED:
        if getattr(settings, name):
            raise InputError(f"--{name.replace('_', '-')}: distill does not have it; leave it out")


def _labelled(task: ClassificationTask, data: Path, teacher: Teacher) -> LabelledData:
    """Read the labelled data. Raises InputError, which names the teacher, for a label that it does not have."""
    try:
        return CLASSIFICATION.read(task, data)
    except BadRow as error:
        answers = f"the labels {', '.join(task.labels)}" if task.has_labels else "a number"
        raise InputError(f"{error}; the teacher {teacher.saved.source} answers with {answers}") from None


def _joined(labelled: TextExamples, unlabelled: TextExamples | None) -> TextExamples:
    """Return the texts with labels and those without. The labels of the latter have the factor 0 in the loss."""
    if unlabelled is None:
        return labelled
    assert labelled.targets is not None
    say(f"{unlabelled.source}: {len(unlabelled):,} texts without labels, which the teacher answers")
    nothing = np.zeros((len(unlabelled), *labelled.targets.shape[1:]), dtype=labelled.targets.dtype)
    return replace(
        labelled,
        texts_a=labelled.texts_a + unlabelled.texts_a,
        texts_b=None if labelled.texts_b is None else labelled.texts_b + (unlabelled.texts_b or ()),
        targets=np.concatenate([labelled.targets, nothing]),
        source=f"{labelled.source} and {unlabelled.source}",
        lines=labelled.lines + unlabelled.lines,
        factors=np.repeat([1.0, 0.0], [len(labelled), len(unlabelled)]),
    )


def _without_scaled_head(saved: SavedModel, task: ClassificationTask) -> SavedModel:
    """Return the student without the teacher's head where that of a regression has other units than the targets."""
    if saved.weights is None or task.kind != "regression":
        return saved
    kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith(_HEAD)}
    return replace(saved, weights=kept)
