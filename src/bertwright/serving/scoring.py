"""sentences → rows with masks → log-probabilities → scores: the pipeline of `score` from Python and over HTTP."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.scoring.scorer import ScoredRows, scorer_of
from bertwright.scoring.sentences import SentenceScore, score_of, sentence_scores
from bertwright.scoring.settings import ScoreSettings
from bertwright.serving.pipeline import EncodedInputs, ModelRow, TextPipeline
from bertwright.text.base_tokenizer import BaseTokenizer


@dataclass(frozen=True, eq=False)
class ScoredRow(ModelRow):
    """A row with predicted tokens at the positions `at` [Q]; labels: their ids [Q]."""

    labels: NDArray[np.int32]


@dataclass(frozen=True)
class ScoredInputs(EncodedInputs):
    """The rows of some sentences, a masked LM's one for each piece.

    texts, ids: the sentences and their pieces. sentences: number of the sentence of each row.
    """

    texts: Sequence[str]
    ids: Sequence[Sequence[int]]
    sentences: Sequence[int]

    def input_of(self, row: int) -> int:
        """Return the number of the sentence that a row belongs to."""
        return self.sentences[row]


class ScorePipeline(TextPipeline[ScoredInputs]):
    """The log-likelihood of a sentence."""

    kind = "score"

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.scorer, self.tokenizer = scorer_of(saved, tokenizer), tokenizer
        self.max_length = saved.config.max_positions
        self.settings = self.scorer.resolve(ScoreSettings())
        self.most_tokens: int | None = None

    def with_settings(self, settings: ScoreSettings, *, most_tokens: int | None = None) -> "ScorePipeline":
        """Return the pipeline with other settings. Raises InputError for those that the model does not have.

        most_tokens: largest number of tokens in all rows of `encode`.
        """
        pipeline = copy.copy(self)
        pipeline.settings, pipeline.most_tokens = self.scorer.resolve(settings), most_tokens
        return pipeline

    def parse(self, value: Any) -> str | None:
        """Return a sentence. Raises InputError for one that cannot be scored, as `SentenceScorer.encode`."""
        if not isinstance(value, str):
            return None
        self.scorer.encode([value], self.settings, lambda _: "")
        return value

    def answer(self, items: Sequence[str], **options: Any) -> list[SentenceScore]:
        """Return a score for each sentence. The rows are made in blocks, since a masked LM has one for each piece."""
        return sentence_scores(self.scorer, items, self.settings, location="input {}".format)

    def encode(self, items: Sequence[str]) -> ScoredInputs:
        """Return the rows of each sentence. Raises InputError where they have more than `most_tokens` tokens."""
        all_ids = self.scorer.encode(items, self.settings, "input {}".format)
        tokens = sum(len(self.scorer.frame(ids)) * self.scorer.num_rows(len(ids)) for ids in all_ids)
        if self.most_tokens is not None and tokens > self.most_tokens:
            raise InputError(
                f"the sentences make {tokens:,} tokens, with a row for each masked piece; expected at most "
                f"{self.most_tokens:,} in one request: send fewer or shorter sentences"
            )
        rows: list[ModelRow] = []
        sentences: list[int] = []
        for index, ids in enumerate(all_ids):
            for part in self.scorer.rows(self.scorer.frame(ids)[None], self.settings):
                for row, at, labels in zip(part.ids, part.at, part.labels, strict=True):
                    rows.append(ScoredRow(row, len(row), at, labels))
                    sentences.append(index)
        return ScoredInputs(rows, items, all_ids, sentences)

    def forward(self, rows: Sequence[ModelRow]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities [Q] of each row; rows of one shape are computed together."""
        by_shape: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            by_shape[len(row), len(row.at)].append(index)
        outputs: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for indices in by_shape.values():
            chosen = [row for row in (rows[index] for index in indices) if isinstance(row, ScoredRow)]
            ids, at, labels = (
                np.stack(column) for column in zip(*((r.ids, r.at, r.labels) for r in chosen), strict=True)
            )
            for index, values in zip(indices, self.scorer.of_rows(ScoredRows(ids, at, labels)), strict=True):
                outputs[index] = values
        return outputs

    def decode(self, inputs: ScoredInputs, outputs: Sequence[NDArray[np.float32]]) -> list[SentenceScore]:
        """Return one score for each sentence."""
        sums = np.zeros(len(inputs.texts))
        np.add.at(
            sums, np.array(inputs.sentences, dtype=np.int64), [float(part.sum(dtype=np.float64)) for part in outputs]
        )
        return [
            score_of(self.scorer, text, ids, float(score), self.settings)
            for text, ids, score in zip(inputs.texts, inputs.ids, sums, strict=True)
        ]
