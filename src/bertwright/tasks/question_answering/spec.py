"""SQuAD 1.1 and 2.0: a question about a passage is answered by a span of it or not at all (paper §4.2 and §4.3)."""

from typing import Literal

from bertwright.config import Positive
from bertwright.tasks.spec import TaskSpec

Version = Literal["1.1", "2.0"]


class SpanTask(TaskSpec):
    """A task whose answers are pieces of a passage."""

    max_length: Positive = 384
    stride: Positive = 128  # pieces from one window of a long passage to the next
    question: Positive = 64  # pieces of a question that are read
    longest_answer: Positive = 30  # pieces
    n_best: Positive = 20
    null: bool = False  # whether "no answer" is an answer

    @property
    def version(self) -> Version:
        """The SQuAD that the task's files are of."""
        return "2.0" if self.null else "1.1"


SQUAD1 = SpanTask(name="squad1")
SQUAD2 = SpanTask(name="squad2", null=True)
