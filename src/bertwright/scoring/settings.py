"""Settings of sentence scores and of continuations. This module is read for --help, so it imports no torch."""

import math
import operator
from dataclasses import dataclass
from numbers import Real
from typing import Literal, SupportsIndex, get_args

from bertwright.errors import InputError, shown

Masking = Literal["within-word", "piece"]
"""Pieces that are masked together with the one that is predicted: the later ones of its word, or none."""
FirstToken = Literal["count", "leave-out"]
"""Treatment of the piece that a language model predicts from no other piece of the sentence."""
Direction = Literal["both", "left"]
"""Sides from which a GPT-BERT predicts pieces: both as a masked LM, the left as a language model."""


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of a score; None is the default of the kind of model.

    masking      for masked LM: within-word (Kauf and Ivanova 2023) is the default; piece is that of Salazar et al. 2020
    first_token  for a language model: count is the default where rows begin with [CLS]; GPT-1 has no such token
    direction    for GPT-BERT: both is the default
    """

    masking: Masking | None = None
    first_token: FirstToken | None = None
    direction: Direction | None = None

    def __post_init__(self) -> None:
        allowed = {"masking": Masking, "first_token": FirstToken, "direction": Direction}
        for name, kind in allowed.items():
            value = getattr(self, name)
            if value is not None and value not in get_args(kind):
                raise InputError(f"{name} {value!r}: allowed are {', '.join(get_args(kind))}")


def is_count(number: object, *, least: int = 1) -> bool:
    """Return True for a whole number from `least` on, of Python or NumPy; True and False are none."""
    return isinstance(number, SupportsIndex) and not isinstance(number, bool) and operator.index(number) >= least


@dataclass(frozen=True)
class GenerateSettings:
    """Settings of continuations. Without temperature, top_k and top_p the most probable token is taken each time.

    tokens       largest number of tokens
    temperature  divides the logits before a token is drawn; 1 where only top_k or top_p is set
    top_k        number of most probable tokens to draw from
    top_p        the fewest most probable tokens are drawn from whose probabilities reach this number
    seed         decides what is drawn
    """

    tokens: int = 50
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, number in (("tokens", self.tokens), ("top_k", self.top_k)):
            if number is not None and not is_count(number):
                raise InputError(f"{name} {number!r}: expected a whole number, 1 or more")
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if not isinstance(value, Real | None) or isinstance(value, bool):
                raise InputError(f"{name} {shown(repr(value))}: expected a number")
        if self.temperature is not None and not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(
                f"temperature {self.temperature:g}: expected a number above 0; leave it out to take the most probable "
                "token each time"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p:g}: expected a probability above 0 and at most 1")
        if not is_count(self.seed, least=0) or self.seed >= 2**40:
            raise InputError(f"seed {shown(repr(self.seed))}: expected a whole number from 0 to 2**40 - 1")

    @property
    def is_greedy(self) -> bool:
        """Return True where nothing is drawn."""
        return self.temperature is None and self.top_k is None and self.top_p is None
