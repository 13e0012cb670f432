"""task name → task. Base class of the task specifications; each kind of task adds its own fields. Imports no torch."""

from collections.abc import Sequence
from typing import ClassVar, Final, Self, TypeVar

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.errors import InputError
from bertwright.registry import find, get

LABELS_SHOWN: Final = 20
"""Number of labels that an error message lists at most."""


class TaskSpec(Settings):
    """Name of a task on the command line, and the default of `--max-length`. Base class of all task specifications."""

    settable: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that a user may change for one run with `--task-setting NAME=VALUE`."""

    name: str
    max_length: Positive = Field(default=128, exclude=True)  # the run's settings hold the one that was used

    def refuse_change(self, changed: Self) -> None:
        """Raise ValueError where the settings of `changed` make it another kind of task."""


TaskT = TypeVar("TaskT", bound=TaskSpec)


def get_spec(name: str) -> TaskSpec:
    """Return the task with this name. Raises InputError, which lists all tasks, for an unknown name."""
    return get("bertwright.tasks", name, TaskSpec)


def listed_tasks(kind: type[TaskSpec] = TaskSpec) -> str:
    """Return the names of all registered tasks of a kind, those of other distributions included, for a help text."""
    groups: dict[type[TaskSpec], list[str]] = {}
    for name, spec in find("bertwright.tasks", kind).items():
        groups.setdefault(type(spec), []).append(name)
    return "; ".join(", ".join(names) for names in groups.values())


def with_settings(task: TaskT, assignments: Sequence[str]) -> TaskT:
    """Return the task with settings written as NAME=VALUE. Raises InputError for an unknown setting or value."""
    names: set[str] = set()
    for text in assignments:
        name, _, value = text.partition("=")
        if name in names:
            raise InputError(f"--task-setting {text}: {name} is set twice; give it once")
        names.add(name)
        if name not in task.settable:
            allowed = ", ".join(f"{known}=…" for known in task.settable) or "none"
            raise InputError(f"--task-setting {text}: {task.name} has no setting '{name}'; allowed: {allowed}")
        try:
            changed = type(task).model_validate({**dict(task), name: value})
            task.refuse_change(changed)
        except ValidationError as error:
            raise InputError(f"--task-setting {text}: {error.errors()[0]['msg']}") from None
        except ValueError as error:
            raise InputError(f"--task-setting {text}: {error}") from None
        task = changed
    return task


def listed_labels(labels: Sequence[str]) -> str:
    """Return the labels as text for an error message; of a long list only the first."""
    more = f", … ({len(labels):,} in all)" if len(labels) > LABELS_SHOWN else ""
    return ", ".join(labels[:LABELS_SHOWN]) + more
