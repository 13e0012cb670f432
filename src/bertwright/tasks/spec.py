"""… → task: what every task says of itself; each kind of task adds what it needs, in one file without torch."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.registry import get


class TaskSpec(Settings):
    """The base of every task: its name on the command line, and how many tokens a row of it has by default."""

    settable: ClassVar[tuple[str, ...]] = ()
    """The settings of this kind that a person may change for a run: `--task-setting NAME=VALUE`."""

    name: str
    max_length: Positive = Field(default=128, exclude=True)  # the run's settings hold the one that was used


Spec = TypeVar("Spec", bound=TaskSpec)


def get_spec(name: str) -> TaskSpec:
    """The task of that name, of whatever kind; InputError lists what there is."""
    return get("bertwright.tasks", name, TaskSpec)


def with_settings(task: Spec, given: Sequence[str]) -> Spec:
    """The task with settings written NAME=VALUE; InputError lists those it has, or what one may be."""
    for text in given:
        name, _, value = text.partition("=")
        if name not in task.settable:
            allowed = ", ".join(f"{known}=…" for known in task.settable) or "none"
            raise InputError(f"--task-setting {text}: {task.name} has no setting '{name}'; there are: {allowed}")
        try:
            task = type(task).model_validate({**dict(task), name: value})
        except ValidationError as error:
            raise InputError(f"--task-setting {text}: {error.errors()[0]['msg']}") from None
    return task
