"""task → kind of task. The list of all kinds, in which training, evaluation and prediction look a task up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.model.bert import ARCHITECTURES
from bertwright.model.folder import SavedModel
from bertwright.model.vector_settings import MODULES
from bertwright.tasks.binding import TaskKind
from bertwright.tasks.classification.spec import ClassificationTask, with_columns
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.embedding.spec import EMBED, VectorTask, with_pair_columns
from bertwright.tasks.embedding.task import EMBEDDING
from bertwright.tasks.multiple_choice.task import CHOICE
from bertwright.tasks.question_answering.task import SPAN
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import TaggingTask, with_tag_columns
from bertwright.tasks.tagging.task import TAGGING

TASK_KINDS: tuple[TaskKind, ...] = (CLASSIFICATION, CHOICE, SPAN, TAGGING, EMBEDDING)


def import_hint(saved: SavedModel) -> str | None:
    """Return how to import a task model of another program; None where the folder is no such model."""
    known = ARCHITECTURES.get(saved.architecture)
    if "task" in saved.extra or known is None or not {"classifier", "span"} & {*known.heads}:
        return None
    return (
        f"{saved.source}: was fine-tuned by another program; import it first: "
        f"bertwright import {saved.source} --out MODEL"
    )


def kind_of(task: TaskSpec) -> TaskKind:
    """Return the kind of a task."""
    return next(kind for kind in TASK_KINDS if isinstance(task, kind.spec))


def with_named_columns(task: TaskSpec, *, text: Sequence[str], label: str | None) -> TaskSpec:
    """Return the task with other columns for texts and labels. InputError for a task whose files have none to name."""
    if isinstance(task, ClassificationTask):
        return with_columns(task, text=text, label=label)
    if isinstance(task, TaggingTask):
        return with_tag_columns(task, text=text, label=label)
    if isinstance(task, VectorTask):
        return with_pair_columns(task, text=text, label=label)
    if text or label:
        raise InputError(f"--text-column and --label-column: expected a task with a table, got {task.name}")
    return task


def task_of(saved: SavedModel) -> TaskSpec:
    """Return the task stored in a fine-tuned model folder; `embed` for a folder with settings of vectors.

    Raises InputError where the folder has neither.
    """
    stored: Any = saved.extra.get("task")
    if stored is None and (Path(saved.source) / MODULES).is_file():
        return EMBED
    if stored is None:
        raise InputError(
            import_hint(saved)
            or f"{saved.source}: not a fine-tuned model; run: bertwright finetune TASK --model {saved.source} …"
        )
    mistakes: list[ValidationError] = []
    for kind in TASK_KINDS:
        try:
            return kind.spec.model_validate(stored)
        except ValidationError as error:
            mistakes.append(error)
    first = min(mistakes, key=ValidationError.error_count).errors()[0]  # that of the kind which fits best
    field = ".".join(map(str, first["loc"])) or "task"
    raise InputError(f"{saved.source}: unknown task in config.json: {field}: {first['msg']}, got {first['input']!r}")
