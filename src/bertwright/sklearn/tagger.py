"""words → a tag for each: BertTagger (paper §5.3)."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bertwright.console import redirect_messages
from bertwright.errors import InputError
from bertwright.sklearn.base import Trained, plain, validated
from bertwright.sklearn.inputs import in_python, tags_of, words_of
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import NER, POS, TaggingTask, as_learned, learn, possible, score


class _Given(Sentences):
    """Sentences of lists, whose places are Python's."""

    def place(self, row: int, word: int = 0) -> str:
        """Where a tag or, without tags, a word stands."""
        return f"{self.source}[{row}][{word}]"

    def where(self, row: int, word: int = 0) -> str:
        """The same within a message."""
        return f"at {self.place(row, word)}"


class BertTagger(Trained):
    """A tag for each word of a sentence, by a fine-tuned encoder.

    X is a list of lists of words and y a list of lists of tags. Entities are learned as IOB2, or as IOBES where y is
    so, and predicted in that; `scheme` says how y is written: iob1, iob2, iobes, auto (the tags themselves show it), or
    plain for tags that are names, such as parts of speech. The other parameters are those of BertClassifier.

    `score` is the F1 of whole entities, as conlleval counts; of plain tags, the share of words whose tag is right.
    After `fit` there are `classes_`, the tags in the order of the outputs.
    """

    _noted = (*Trained._noted, "scheme")

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float | None = None,
        max_length: int = 128,
        scheme: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.scheme = scheme
        self.precision = precision
        self.threads = threads
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> "BertTagger":
        """Learn the tags of the words."""
        with in_python(verbose=bool(self.verbose)):
            from bertwright.tasks.tagging.task import bound

            base = POS if self.scheme == "plain" else NER
            task: TaggingTask = validated(TaggingTask, {**base.model_dump(), "scheme": self.scheme})
            sentences = self._learnable(task, X, y)
            task = learn(task, sentences)

            def bind(words: Any, config: Any) -> Any:
                return bound(task, sentences, None, words, config, plain(self.max_length), digests={})

            self.learned_ = self._learn(bind)
            self.classes_ = np.array(task.labels)
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """The tag of each word."""
        check_is_fitted(self)
        with in_python(verbose=bool(self.verbose)):
            return [list(tags) for tags in self._tagged(_given(X))]

    def score(self, X: Any, y: Any) -> float:
        """F1 of entities, or the share of right tags where they are plain; a type that was not learned is missed."""
        check_is_fitted(self)
        with in_python(verbose=bool(self.verbose)):
            from bertwright.tasks.tagging.task import task_of_model

            task = task_of_model(self.learned_.saved)
            sentences = self._learnable(task, X, y)
            return next(iter(score(task, self._tagged(sentences), sentences).values()))

    def _learnable(self, task: TaggingTask, X: Any, y: Any) -> Sentences:
        """The sentences as they are learned; that the tags were found to be of a scheme is no warning."""
        given = _given(X, y)
        with nullcontext() if self.verbose else redirect_messages(lambda _: None):
            return as_learned(task, given)

    def _tagged(self, sentences: Sentences) -> tuple[tuple[str, ...], ...]:
        from bertwright.tasks.tagging.task import open_tagging

        words = self.learned_.words
        task, tagged = self.learned_.ready(lambda saved: open_tagging(saved, words))
        return tuple(possible(task, tags) for tags in tagged(replace(sentences, tags=None), "off").tags)

    def _take(self, learned: Any) -> None:
        from bertwright.tasks.kinds import task_of

        task = task_of(learned.saved)
        if not isinstance(task, TaggingTask):
            raise InputError(f"{learned.saved.place}: is a model for {task.name}, and BertTagger is not")
        self.learned_, self.classes_ = learned, np.array(learned.saved.labels)
        self.max_length, self.scheme = learned.saved.max_length, task.scheme


def _given(X: Any, y: Any = None) -> Sentences:
    words = words_of(X)
    tags = None if y is None else tags_of(y, words)
    return _Given(
        "X" if y is None else "y", words, tags, tuple((row,) * max(1, len(of_row)) for row, of_row in enumerate(words))
    )
