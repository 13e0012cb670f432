"""Settings of the HTTP service (its address and its limits) and of explanations. Read for --help, without torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from bertwright.config import Option, Positive, PositiveNumber, Settings
from bertwright.errors import InputError
from bertwright.scoring.settings import is_count

AnswerPrecision = Literal["auto", "fp32", "bf16", "int8"]
"""Number format in which a model answers: auto is bf16 where that is faster on this machine, else fp32."""

ExplainMethod = Literal["gradients", "occlusion"]
"""Integrated gradients (Sundararajan et al. 2017), or the drop of the score where a piece is replaced."""
ExplainBaseline = Literal["auto", "mask", "pad", "zero"]
"""Replacement of a piece: the embedding of [MASK] or [PAD], or zeros; auto is mask where the vocabulary has one."""


@dataclass(frozen=True)
class ExplainSettings:
    """Settings of an explanation.

    method    gradients or occlusion
    baseline  replacement of the pieces: auto, mask, pad or zero
    word      number of the word whose tag is explained, from 0 on; None is the first word of the first name
    seconds   seconds after which the explanation of an input is given up; None is never
    """

    method: ExplainMethod = "gradients"
    baseline: ExplainBaseline = "auto"
    word: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("method", self.method, ExplainMethod),
            ("baseline", self.baseline, ExplainBaseline),
        ):
            if value not in get_args(kind):
                raise InputError(f"{name} {value!r}: allowed are {', '.join(get_args(kind))}")
        if self.word is not None and (type(self.word) is not int or self.word < 0):
            raise InputError(f"word {self.word!r}: expected the number of a word, from 0 on")


def check_top_k(top_k: object) -> None:
    """Raise InputError where a number of results is no whole number from 1 on."""
    if not is_count(top_k):
        raise InputError(f"top_k {top_k!r}: expected a whole number from 1 on")


class ServeSettings(Settings):
    """Address and limits of one service; times are in seconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    host: Annotated[str, Option("service")] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all addresses of this machine."""
    port: Annotated[int, Field(ge=0, le=65535), Option("service")] = 8000
    """Port to listen on; 0 takes a free one."""
    token: Annotated[str | None, Option("service")] = None
    """Bearer token that requests for answers must carry; the page, /docs and /health stay open. The environment
    variable BERTWRIGHT_TOKEN hides it from `ps`."""
    max_body: Annotated[Positive, Option("limits")] = 1_000_000
    """Largest request, in bytes."""
    max_inputs: Annotated[Positive, Option("limits")] = 256
    """Largest number of inputs in a request."""
    max_characters: Annotated[Positive, Option("limits")] = 100_000
    """Longest text, in characters."""
    max_waiting_tokens: Annotated[Positive, Option("limits")] = 8_192
    """Number of queued tokens above which requests are refused with 503. A BERT-base answers the default's in about 15
    seconds on two cores, half of the timeout."""
    timeout: Annotated[PositiveNumber, Option("limits")] = 30.0
    """Longest time in seconds from the end of a request to its answer."""
    read_timeout: PositiveNumber = 10.0
    """Longest time in seconds that a client may take to send a request."""
    max_connections: Positive = 512
    batch_tokens: Annotated[Positive, Option("machine")] = 4096
    """Tokens of a batch, padding included. Longer batches make later requests wait."""
