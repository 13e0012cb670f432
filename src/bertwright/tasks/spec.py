"""… → task: what every task says of itself; each kind of task adds what it needs, in one file without torch."""

from collections.abc import Sequence
from typing import ClassVar, Final, Self, TypeVar

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.registry import get

LABELS_SHOWN: Final = 20
"""Of those known, in an error: there may be thousands."""


class TaskSpec(Settings):
    """The base of every task: its name on the command line, and how many tokens a row of it has by default."""

    settable: ClassVar[tuple[str, ...]] = ()
    """The settings of this kind that a person may change for a run: `--task-setting NAME=VALUE`."""

    name: str
    max_length: Positive = Field(default=128, exclude=True)  # the run's settings hold the one that was used

    def refuse_change(self, changed: Self) -> None:
        """ValueError where `changed`, the same with other settings, is no longer this kind of task."""


Spec = TypeVar("Spec", bound=TaskSpec)


def get_spec(name: str) -> TaskSpec:
    """The task of that name, of whatever kind; InputError lists what there is."""
    return get("bertwright.tasks", name, TaskSpec)


def with_settings(task: Spec, given: Sequence[str]) -> Spec:
    """The task with settings written NAME=VALUE; InputError lists those it has, or what one may be."""
    names: set[str] = set()
    for text in given:
        name, _, value = text.partition("=")
        if name in names:
            raise InputError(f"--task-setting {text}: {name} is set twice")
        names.add(name)
        if name not in task.settable:
            allowed = ", ".join(f"{known}=…" for known in task.settable) or "none"
            raise InputError(f"--task-setting {text}: {task.name} has no setting '{name}'; there are: {allowed}")
        try:
            changed = type(task).model_validate({**dict(task), name: value})
            task.refuse_change(changed)
        except ValidationError as error:
            raise InputError(f"--task-setting {text}: {error.errors()[0]['msg']}") from None
        except ValueError as error:
            raise InputError(f"--task-setting {text}: {error}") from None
        task = changed
    return task


def shown(labels: Sequence[str]) -> str:
    """Labels as an error names them: all of a few, the first of many."""
    more = f", … ({len(labels):,} in all)" if len(labels) > LABELS_SHOWN else ""
    return ", ".join(labels[:LABELS_SHOWN]) + more
