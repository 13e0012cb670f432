"""… → task: what every task says of itself; each kind of task adds what it needs, in one file without torch."""

from pydantic import Field

from bertwright.config import Positive, Settings
from bertwright.registry import get


class TaskSpec(Settings):
    """The base of every task: its name on the command line, and how many tokens a row of it has by default."""

    name: str
    max_length: Positive = Field(default=128, exclude=True)  # the run's settings hold the one that was used


def get_spec(name: str) -> TaskSpec:
    """The task of that name, of whatever kind; InputError lists what there is."""
    return get("bertwright.tasks", name, TaskSpec)
