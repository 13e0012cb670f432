"""Settings of the examples of pre-training: sentence pairs and masking (paper §3.1 and §A.1).

This module is read for --help, so it imports neither numpy nor torch.
"""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from bertwright.config import Count, Option, Positive, Settings, Share

if TYPE_CHECKING:
    import numpy as np

MaskUnits = Literal["piece", "word", "span", "ngram"]


class MaskingSettings(Settings):
    """Choice of the tokens that are predicted, and their replacements in the input (paper §3.1).

    Of the chosen tokens, the fraction `mask` is shown as [MASK], `same` unchanged, and `random` as a random entry of
    the vocabulary; the three sum to 1. A unit of several tokens is replaced in one of the three ways as a whole.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)
    share: Annotated[float, Field(gt=0.0, le=1.0), Option("examples", name="mask-share")] = 0.15
    """Fraction of a row's tokens that is predicted; special tokens are counted."""
    mask: Annotated[Share, Option("examples", name="mask-same-random", together=("mask", "same", "random"))] = 0.8
    """Fractions of the chosen tokens that are replaced by [MASK], kept, and replaced by a random token."""
    same: Share = 0.1
    random: Share = 0.1
    units: Annotated[MaskUnits, Option("examples", name="mask-units")] = "piece"
    """Units that are chosen: pieces, whole words, spans of whole words as in SpanBERT, or 1 to 3 words as in ALBERT."""
    max_predictions: Positive | None = None
    """Largest number of predicted tokens in a row; None: the fraction `share` of a full row."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> "MaskingSettings":
        if not math.isclose(self.mask + self.same + self.random, 1.0, abs_tol=1e-6):
            raise ValueError(f"mask {self.mask} + same {self.same} + random {self.random} must sum to 1")
        return self


def predictions_by_length(settings: MaskingSettings, length: int) -> "np.ndarray":
    """Return the number of predictions in a row of 0, 1, … `length` tokens: int64 [length + 1].

    Special tokens are counted. `share` of the tokens is rounded as Python rounds: halves go to the even number. The
    number is at least 1 and at most `max_predictions`. With words or spans a row may get fewer predictions. The last
    entry is the largest; it is the width of a batch's `positions`.
    """
    import numpy as np  # here, since --help reads this module and numpy takes longer than the rest

    counts = [max(1, round(settings.share * tokens)) for tokens in range(length + 1)]
    most = settings.max_predictions or counts[length]
    return np.minimum(np.array(counts, np.int64), most)


Part = Literal["all", "train", "held_out"]
GENERATOR_WIDTH = 0.25
"""Default width of a generator's states, as a fraction of those of its discriminator (ELECTRA, §3.2)."""
CAUSAL_SHARE = 0.0625
"""Default fraction of causal rows of GPT-BERT: 1 to 15 masked ones, the ratio of its paper."""
SecondSentence = Literal["next", "order", "none"]


class ExampleSettings(Settings):
    """Construction of the rows of pre-training."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    second_sentence: Annotated[SecondSentence, Option("examples")] = "next"
    """Second sentence: next (it follows the first or is random), order (the two may be swapped), or none."""
    short_share: Annotated[Share, Option("examples")] = 0.1
    """Fraction of the documents that are cut into rows shorter than the maximum; 0 by default for RoBERTa."""
    static_masks: Annotated[Count, Option("examples")] = 0
    """Number of epochs after which pairs and masks repeat; 0: new ones in every epoch."""
    causal_share: Annotated[Share, Option("examples")] = 0.0
    """Fraction of the rows of --system gpt-bert that are those of a left-to-right language model, above 0 and below 1
    (0.0625: 1 to 15 masked rows). The others are masked."""
    masking: MaskingSettings = MaskingSettings()

    @property
    def pairs(self) -> bool:
        """Return whether rows have a second sentence."""
        return self.second_sentence != "none"
