"""Specifications of SQuAD 1.1 and 2.0: the answer is a span of the passage, or none (paper §4.2 and §4.3)."""

from typing import ClassVar, Literal

from bertwright.config import Positive
from bertwright.tables.files import InputFormat
from bertwright.tasks.spec import TaskSpec

Version = Literal["1.1", "2.0"]


class SpanTask(TaskSpec):
    """A task whose answers are spans of a passage."""

    formats: ClassVar[tuple[InputFormat, ...]] = ("jsonl", "parquet")

    max_length: Positive = 384
    stride: Positive = 128  # pieces from one window of a long passage to the next
    question: Positive = 64  # maximal number of question pieces
    longest_answer: Positive = 30  # pieces
    n_best: Positive = 20
    null: bool = False  # True where "no answer" is a possible answer

    @property
    def version(self) -> Version:
        """Return the SQuAD version of the task's files."""
        return "2.0" if self.null else "1.1"


SQUAD1 = SpanTask(name="squad1")
SQUAD2 = SpanTask(name="squad2", null=True)
