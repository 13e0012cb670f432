"""task name → task. Base class of the task specifications; each kind of task adds its own fields. Imports no torch."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Self, TypeVar

from pydantic import Field, ValidationError

from bertwright.config import Positive, Settings
from bertwright.console import say
from bertwright.errors import InputError
from bertwright.registry import find, get
from bertwright.tables.bad_rows import BadRowPolicy
from bertwright.tables.files import InputFormat

LABELS_SHOWN: Final = 20
"""Number of labels that an error message lists at most."""


class TaskSpec(Settings):
    """Name of a task on the command line, and the default of `--max-length`. Base class of all task specifications."""

    settable: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that a user may change for one run with `--task-setting NAME=VALUE`."""

    formats: ClassVar[tuple[InputFormat, ...]] = ("csv", "tsv", "jsonl", "parquet")
    """Formats of labelled files that `--input-format` may name."""

    name: str
    max_length: Positive = Field(default=128, exclude=True)  # the run's settings hold the one that was used

    # How the labelled files of a run are read; no part of the task of a model.
    input_format: InputFormat = Field(default="auto", exclude=True)
    on_error: BadRowPolicy = Field(default="stop", exclude=True)

    def refuse_change(self, changed: Self) -> None:
        """Raise ValueError where the settings of `changed` make it another kind of task."""


TaskT = TypeVar("TaskT", bound=TaskSpec)


def get_spec(name: str) -> TaskSpec:
    """Return the task with this name. Raises InputError, which lists all tasks, for an unknown name."""
    return get("bertwright.tasks", name, TaskSpec)


def listed_tasks() -> str:
    """Return the names of all registered tasks, those of other distributions included, for a help text."""
    groups: dict[type[TaskSpec], list[str]] = {}
    for name, spec in find("bertwright.tasks", TaskSpec).items():
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


def with_reading(task: TaskT, *, input_format: InputFormat, on_error: BadRowPolicy) -> TaskT:
    """Return the task with the format of its labelled files, and the treatment of rows that cannot be used."""
    if input_format not in ("auto", *task.formats):
        raise InputError(f"--input-format {input_format}: for {task.name} it is one of auto, {', '.join(task.formats)}")
    return task.model_copy(update={"input_format": input_format, "on_error": on_error})


def alike_labels(counts: Mapping[str, int]) -> list[str]:
    """Return groups of labels that differ only in case or blanks, such as "'Pos' (3 rows), 'pos' (1 row)".

    counts   number of rows by label, as the file writes it
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    stripped = Counter[str]()  # blanks at the ends of a label are not read
    for label, count in counts.items():
        stripped[label.strip()] += count
    for label, count in stripped.items():
        groups[" ".join(label.casefold().split())].append(f"'{label}' ({count:,} {'row' if count == 1 else 'rows'})")
    return [", ".join(group) for group in groups.values() if len(group) > 1]


def say_alike_labels(source: str, counts: Mapping[str, int]) -> None:
    """Print the labels of a training file that differ only in case or blanks."""
    if alike := alike_labels(counts):
        say(
            f"{source}: labels differ only in case or blanks: {'; '.join(alike[:LABELS_SHOWN])}; they are different "
            "labels; correct the file where one label is meant"
        )


def listed_labels(labels: Sequence[str]) -> str:
    """Return the labels as text for an error message; of a long list only the first."""
    more = f", … ({len(labels):,} in all)" if len(labels) > LABELS_SHOWN else ""
    return ", ".join(labels[:LABELS_SHOWN]) + more
