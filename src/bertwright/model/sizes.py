"""The shape of an encoder as data; the named sizes of paper §3 and of the 24 small models released in March 2020."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from bertwright.config import Count, Positive, Settings, Share
from bertwright.errors import InputError

Size = Annotated[int, Field(gt=0, lt=2**24)]
"""One side of a matrix; far beyond what is built, and small enough to be multiplied."""


class EncoderConfig(Settings):
    """Every figure that decides an encoder's shape and behaviour (paper §3 and A.2; names follow the field)."""

    vocab_size: Size
    hidden: Size
    layers: Annotated[int, Field(gt=0, lt=10_000)]
    heads: Size
    intermediate: Size
    max_positions: Size = 512
    num_segments: Positive = 2
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    hidden_dropout: Share = 0.1
    attention_dropout: Share = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_id: Count = 0

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self


class GPTConfig(EncoderConfig):
    """The same figures for GPT-1, which has no segments, the tanh form of GELU and another epsilon (GPT paper §4.1)."""

    num_segments: Literal[0] = 0
    activation: Literal["gelu_tanh"] = "gelu_tanh"
    layer_norm_eps: float = 1e-5

    @model_validator(mode="after")
    def _feeds_forward_four_times(self) -> Self:
        if self.intermediate != 4 * self.hidden:  # files of GPT-1 do not say it, so nothing else can be written
            raise ValueError(f"intermediate {self.intermediate} is not 4 times hidden {self.hidden}")
        return self


Way = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"]
"""How a frozen encoder's states are used: the six rows of table 7. A weighted sum learns a share for each layer."""
WAYS: tuple[Way, ...] = get_args(Way)

_NAMED = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

SIZES: dict[str, tuple[int, int]] = _NAMED | {
    f"{layers}x{width}": (layers, width) for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)
}
"""Name → (layers, hidden). Heads are hidden/64 and the feed-forward width is 4·hidden in all of them."""


def size_config(name: str, vocab_size: int, **changes: object) -> EncoderConfig:
    """Return the configuration of a named size; InputError for a name that is not in SIZES."""
    if name not in SIZES:
        raise InputError(f"size {name!r} is not known; sizes are {', '.join(_NAMED)} and LAYERSxHIDDEN such as 4x256")
    layers, hidden = SIZES[name]
    shape = {"layers": layers, "hidden": hidden, "heads": hidden // 64, "intermediate": 4 * hidden}
    return EncoderConfig.model_validate({"vocab_size": vocab_size, **shape, **changes})
