"""query and documents → relevance of each document and their order: a reranker, the model of a task of pairs."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import redirect_messages
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.search.exact import DECIMALS
from bertwright.tables.bad_rows import is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import decode, encode
from bertwright.tasks.classification.model import noted_task
from bertwright.tasks.classification.relevance import relevant_label
from bertwright.tasks.classification.task import open_logits
from bertwright.tasks.inference import open_answering
from bertwright.tasks.kinds import task_of
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device

_TEXTS: Final = 1024
"""Number of documents that are tokenised at a time."""
_CANDIDATES: Final = 50
"""Number of rows that a search reranks by default."""


def default_candidates(top_k: int) -> int:
    """Return the number of rows to rerank for `top_k` results, where a search names none."""
    return max(top_k, _CANDIDATES)


def most_relevant(scores: Sequence[float], top_k: int | None = None) -> list[tuple[int, float]]:
    """Return index and score of the `top_k` most relevant documents, the best first; None: all.

    Of equal scores the earlier document comes first. Scores are rounded to six decimals after they are ordered, since
    probabilities near 1 differ in later decimals.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [(index, round(float(scores[index]), DECIMALS)) for index in order[:top_k]]


class Reranker:
    """A model of pairs in use: it reads query and document together, and scores the document.

    source     the model folder
    relevant   the label whose probability is the score (`relevant_label`); None where the score is the number of a
               regression, which may have any size
    """

    def __init__(self, saved: SavedModel, *, relevant: str | None = None) -> None:
        self.source = saved.source
        self.relevant = relevant_label(task_of(saved), saved.source, relevant=relevant)
        self._task, self._max_length = noted_task(saved)
        self._tokenizer = open_tokenizer(saved)
        self._logits = open_logits(saved)
        self.num_read, self.num_cut = 0, 0
        """Number of pairs of query and document so far, and of those that are longer than the model reads."""

    @classmethod
    def open(
        cls, model: str, *, precision: str | None = "auto", device: Device = "cpu", relevant: str | None = None
    ) -> "Reranker":
        """Open a model folder, or a run folder, that was fine-tuned on pairs: a regression, or two labels.

        precision: as `bertwright.load`; None computes as in training. relevant: the label whose probability is the
        score; None finds it by its words (`relevant_label`). Raises InputError for a folder of another task, for labels
        whose words do not tell, and for a folder that is no fine-tuned model.
        """
        prepare_processor()
        return cls(open_answering(model, precision, device), relevant=relevant)

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the relevance [N] of N documents for a query; more is better. The query is the first of the two texts.

        A pair that is too long is read as in training. Raises InputError for an empty query, and RunFailed for a score
        that is not finite, with the number of the document.
        """
        if is_blank(query):
            raise InputError("the query is empty; expected a text")
        refuse_halves([query], "the query ")
        for number, text in enumerate(texts):
            refuse_halves([text], f"document {number} ")
        blocks = (texts[first : first + _TEXTS] for first in range(0, len(texts), _TEXTS))
        parts = [self._scores(query, block, number * _TEXTS) for number, block in enumerate(blocks)]
        return np.concatenate([np.zeros(0), *parts])

    def _scores(self, query: str, texts: Sequence[str], first: int) -> NDArray[np.float64]:
        queries = [query] * len(texts)
        encoded = encode(self._tokenizer, queries, texts, max_length=self._max_length, long=self._task.long)
        self.num_read, self.num_cut = self.num_read + len(texts), self.num_cut + int(encoded.cut.sum())
        with redirect_messages(lambda _: None):  # callers show the progress of their queries
            logits = self._logits(encoded)
        predictions = decode(self._task, logits, lambda index: f"{self.source}: document {first + index}")
        values, probabilities = predictions.values, predictions.probabilities
        if self.relevant is not None and probabilities is not None:
            values = probabilities[:, self._task.labels.index(self.relevant)]
        return values
