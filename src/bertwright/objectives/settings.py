"""Settings of the pre-training rows, and the number of predictions in a row (paper §3.1 and §A.1).

The masking itself is in `masking`. This module imports neither numba nor torch, because `--help` reads it.
"""

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from bertwright.config import Count, Positive, Settings, Share, renamed

MaskUnits = Literal["piece", "word", "span"]


class MaskingSettings(Settings):
    """Settings of masked LM: which pieces are predicted, and what the encoder sees in their place.

    share: fraction of a row's tokens that is predicted; special tokens are counted.
    mask, same, random: probabilities that a chosen piece is shown as [MASK], as itself, or as a random entry of the
    vocabulary. They sum to 1.
    units: unit that is chosen at a time: a piece, all pieces of a word, or a span of whole words (SpanBERT). The pieces
    of a span are all shown in the same one of the three ways.
    max_predictions: largest number of predictions in a row. None: `share` of a full row.
    """

    share: float = Field(default=0.15, gt=0.0, le=1.0)
    mask: Share = 0.8
    same: Share = 0.1
    random: Share = 0.1
    units: MaskUnits = "piece"
    max_predictions: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        return renamed(values, "whole_word", "units", {True: "word", False: "piece"})

    @model_validator(mode="after")
    def _sum_to_one(self) -> "MaskingSettings":
        if not math.isclose(self.mask + self.same + self.random, 1.0, abs_tol=1e-6):
            raise ValueError(f"mask {self.mask} + same {self.same} + random {self.random} must sum to 1")
        return self


def predictions_by_length(settings: MaskingSettings, length: int) -> np.ndarray:
    """Return the number of predictions in a row of 0, 1, … `length` tokens: int64 [length + 1].

    Special tokens are counted. `share` of the tokens is rounded as Python rounds: halves go to the even number. The
    number is at least 1 and at most `max_predictions`. Units of several pieces may use less of it. The last entry is
    the largest; it is the width of a batch's `positions`.
    """
    counts = [max(1, round(settings.share * tokens)) for tokens in range(length + 1)]
    most = settings.max_predictions or counts[length]
    return np.minimum(np.array(counts, np.int64), most)


Part = Literal["all", "train", "held_out"]
SecondSentence = Literal["next", "order", "none"]


class ExampleSettings(Settings):
    """Settings of the pre-training rows.

    second_sentence: `next`: A and a B that follows it or is random. `order`: A and B in their order or swapped.
    `none`: single segments.
    short_share: fraction of the documents whose rows aim at a shorter length.
    static_masks: number of epochs after which the rows of the first epoch are repeated. 0: every epoch has new rows.
    """

    second_sentence: SecondSentence = "next"
    short_share: Share = 0.1
    static_masks: Count = 0
    masking: MaskingSettings = MaskingSettings()

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        return renamed(values, "next_sentence", "second_sentence", {True: "next", False: "none"})

    @property
    def pairs(self) -> bool:
        """Return whether a row has a B."""
        return self.second_sentence != "none"
