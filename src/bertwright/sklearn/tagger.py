"""words → a tag for each word: BertTagger (paper §5.3)."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bertwright.console import redirect_messages
from bertwright.sklearn.base import Trained, validated
from bertwright.sklearn.inputs import EstimatorError, check_tags, check_words
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import NER, POS, TaggingTask, as_learned, learn_tags, possible, score_tags


class _ListedSentences(Sentences):
    """Sentences from Python lists, with positions as Python writes them."""

    def location(self, row: int, word: int = 0) -> str:
        """Return the position of a tag or, without tags, of a word."""
        return f"{self.source}[{row}][{word}]"

    def line_of_word(self, row: int, word: int = 0) -> str:
        """Return the position for a message."""
        return f"at {self.location(row, word)}"


@dataclass(kw_only=True, eq=False, repr=False)
class BertTagger(Trained):
    """Tag each word of a sentence with a fine-tuned encoder.

    X is a list of lists of words and y a list of lists of tags. Entities are learned and predicted as IOB2, or as IOBES
    where y has it. `scheme` is the scheme of y: iob1, iob2, iobes, auto (detected in the tags), or plain for tags that
    are names, such as parts of speech. The other parameters are those of BertClassifier.

    `score` is the F1 of whole entities, as conlleval; for plain tags, the fraction of words with the right tag. `fit`
    sets `classes_`, the tags in the order of the outputs.
    """

    _noted = (*Trained._noted, "scheme")

    scheme: str = "auto"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> "BertTagger":
        """Fine-tune on the tags of the words."""
        with self._in_python():
            base = POS if self.scheme == "plain" else NER
            task: TaggingTask = validated(TaggingTask, {**base.model_dump(), "scheme": self.scheme})
            sentences = self._learnable(task, X, y)
            task = learn_tags(task, sentences)
            self.learned_ = self._learn(task, sentences)
            self.classes_ = np.array(task.labels)
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """Return the tag of each word."""
        check_is_fitted(self)
        with self._in_python():
            return [list(tags) for tags in self._tagged(_listed_sentences(X))]

    def score(self, X: Any, y: Any) -> float:
        """Return the F1 of entities, or the accuracy of plain tags; a type without training rows counts as missed."""
        check_is_fitted(self)
        with self._in_python():
            from bertwright.tasks.tagging.task import task_of_model

            task = task_of_model(self.learned_.saved)
            sentences = self._learnable(task, X, y)
            return next(iter(score_tags(task, self._tagged(sentences), sentences).values()))

    def _learnable(self, task: TaggingTask, X: Any, y: Any) -> Sentences:
        """Return the sentences as they are learned; the detected scheme is not a warning."""
        if y is None:
            raise EstimatorError("y: expected a list of tags for each text, got None")
        sentences = _listed_sentences(X, y)
        with nullcontext() if self.verbose else redirect_messages(lambda _: None):
            return as_learned(task, sentences)

    def _tagged(self, sentences: Sentences) -> tuple[tuple[str, ...], ...]:
        from bertwright.tasks.tagging.task import open_tagging

        tokenizer = self.learned_.tokenizer
        task, tagged = self.learned_.ready(lambda saved: open_tagging(saved, tokenizer))
        return tuple(possible(task, tags) for tags in tagged(replace(sentences, tags=None), "off").tags)

    def _can_predict(self, task: TaskSpec) -> bool:
        return isinstance(task, TaggingTask)

    def _set_fitted(self, learned: Any, task: Any) -> None:
        super()._set_fitted(learned, task)
        self.classes_, self.scheme = np.array(learned.saved.labels), task.scheme


def _listed_sentences(X: Any, y: Any = None) -> Sentences:
    words = check_words(X)
    tags = None if y is None else check_tags(y, words)
    return _ListedSentences(
        "X" if y is None else "y", words, tags, tuple((row,) * max(1, len(of_row)) for row, of_row in enumerate(words))
    )
