"""Batches → loss: masked LM, its settings and counts (paper §3.1 and §A.1). The masking itself is in `rows`.

This module stays light (neither numba nor torch), so that settings can be read quickly.
"""

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from bertwright.config import Count, Positive, Settings, Share, renamed

MaskUnits = Literal["piece", "word", "span"]


class MaskingSettings(Settings):
    """How pieces are chosen for prediction and what the encoder sees in their place.

    share: of a row's tokens, special ones counted. mask, same, random: of the chosen pieces, shown as [MASK], as they
    are, as a random entry of the vocabulary; they sum to 1. units: what is chosen at a time, a piece, all pieces of a
    word, or a span of whole words (SpanBERT; see `spans`), which is shown in one of the three ways as a whole.
    max_predictions: at most so many per row (None: the share of a full row).
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
    """How many pieces are chosen in a row of 0 … `length` tokens, special tokens counted: int64 [length + 1].

    The share is rounded as Python rounds, halves to the even number; it is one piece at least, which units of several
    pieces may leave unchosen, and `max_predictions` at most. The last entry is the largest: the width of a batch's
    `positions`.
    """
    counts = [max(1, round(settings.share * tokens)) for tokens in range(length + 1)]
    most = settings.max_predictions or counts[length]
    return np.minimum(np.array(counts, np.int64), most)


Part = Literal["all", "train", "held_out"]
SecondSentence = Literal["next", "order", "none"]


class ExampleSettings(Settings):
    """How rows are made.

    second_sentence: A and a B that follows it or is random (next), A and B in their order or swapped (order), or single
    segments (none). short_share: of the documents, how many aim at shorter rows. static_masks: after so many epochs
    the first one's rows come again; 0: every epoch has rows of its own.
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
        """Whether a row has a B."""
        return self.second_sentence != "none"
