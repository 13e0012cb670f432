"""Settings of sentence scores. This module is read for --help, so it imports no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from bertwright.errors import InputError

Masking = Literal["within-word", "piece"]
"""Pieces that are masked together with the one that is predicted: the later ones of its word, or none."""
FirstToken = Literal["count", "leave-out"]
"""Treatment of the piece that a language model predicts from no other piece of the sentence."""


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of a score; None is the default of the kind of model.

    masking      for masked LM: within-word (Kauf and Ivanova 2023) is the default; piece is that of Salazar et al. 2020
    first_token  for a language model: count is the default where rows begin with [CLS]; GPT-1 has no such token
    """

    masking: Masking | None = None
    first_token: FirstToken | None = None

    def __post_init__(self) -> None:
        for name, value, kind in (("masking", self.masking, Masking), ("first_token", self.first_token, FirstToken)):
            if value is not None and value not in get_args(kind):
                raise InputError(f"{name} {value!r}: allowed are {', '.join(get_args(kind))}")
