"""Which kind a task is of: what training, evaluation and prediction look up, so that none of them knows the kinds."""

from typing import Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.model.bert import ARCHITECTURES
from bertwright.model.folder import SavedModel
from bertwright.tasks.binding import Kind
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.multiple_choice.task import CHOICE
from bertwright.tasks.question_answering.task import SPAN
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.task import TAGGING

KINDS: tuple[Kind, ...] = (CLASSIFICATION, CHOICE, SPAN, TAGGING)


def made_elsewhere(saved: SavedModel) -> str | None:
    """What to do about a folder that has a task's head and no note of the task; None for any other folder."""
    known = ARCHITECTURES.get(saved.architecture)
    if "task" in saved.extra or known is None or not {"classifier", "span"} & {*known.heads}:
        return None
    return (
        f"{saved.place}: is a model of a task, made elsewhere; import it to answer with it: "
        f"bertwright import {saved.place} --out MODEL"
    )


def kind_of(task: TaskSpec) -> Kind:
    """The kind of a task."""
    return next(kind for kind in KINDS if isinstance(task, kind.spec))


def task_of(saved: SavedModel) -> TaskSpec:
    """The task that a fine-tuned model folder notes; InputError where it was not fine-tuned here."""
    noted: Any = saved.extra.get("task")
    if noted is None:
        raise InputError(
            made_elsewhere(saved)
            or f"{saved.place}: is no fine-tuned model; make one with: bertwright finetune TASK --model {saved.place} …"
        )
    for kind in KINDS:
        try:
            return kind.spec.model_validate(noted)
        except ValidationError:
            continue
    raise InputError(f"{saved.place}: config.json notes a task that is not known here: {noted!r}")
