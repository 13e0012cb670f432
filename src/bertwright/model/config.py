"""The shape of an encoder as data; the named sizes of paper §3 and of the 24 small models released in March 2020."""

import re
from typing import Annotated, Any, Literal, Self, TypeGuard, TypeVar, get_args

from pydantic import Field, model_validator

from bertwright.config import Count, Number, PositiveNumber, Settings
from bertwright.errors import InputError

Size = Annotated[int, Field(gt=0, lt=2**24)]
"""One side of a matrix; far beyond what is built, and small enough to be multiplied."""


Dropout = Annotated[float, Field(ge=0, lt=1)]
"""The share that is dropped; what is kept is divided by the rest."""
Attends = Literal["both", "left", "right"]
"""Which tokens a token attends to beside itself: all, those before it, or those behind it."""
Start = Literal["random", "local", "matching"]
"""Attention initialisation: none, attention to neighbouring positions, or to equal pieces as well."""


def _refuse_pad(pad_id: int, vocab_size: int) -> None:
    if pad_id >= vocab_size:
        raise ValueError(f"pad_id {pad_id} is none of the {vocab_size} pieces")


class EncoderConfig(Settings):
    """Every figure that decides an encoder's shape and behaviour (paper §3 and A.2; names follow the field)."""

    vocab_size: Size
    hidden: Size
    layers: Annotated[int, Field(gt=0, lt=10_000)]
    heads: Size
    intermediate: Size
    max_positions: Size = 512
    num_segments: Size = 2
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    hidden_dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    initializer_range: Number = 0.02
    layer_norm_eps: PositiveNumber = 1e-12
    pad_id: Count = 0
    attends: Attends = "both"

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self

    @model_validator(mode="after")
    def _pads_with_a_piece(self) -> Self:
        _refuse_pad(self.pad_id, self.vocab_size)
        return self


class GPTConfig(EncoderConfig):
    """The same figures for GPT-1, which has no segments, the tanh form of GELU and another epsilon (GPT paper §4.1)."""

    num_segments: Literal[0] = 0
    activation: Literal["gelu_tanh"] = "gelu_tanh"
    layer_norm_eps: PositiveNumber = 1e-5
    attends: Literal["left"] = "left"

    @model_validator(mode="after")
    def _feeds_forward_four_times(self) -> Self:
        if self.intermediate != 4 * self.hidden:  # files of GPT-1 do not say it, so nothing else can be written
            raise ValueError(f"intermediate {self.intermediate} is not 4 times hidden {self.hidden}")
        return self


class LSTMConfig(Settings):
    """An LSTM language model's body (ELMo's): layers of so many cells, each projected to the width of the states."""

    vocab_size: Size
    hidden: Size
    layers: Annotated[int, Field(gt=0, lt=10_000)]
    cells: Size
    attends: Literal["left", "right"] = "left"
    """What a state knows beside its own token."""
    max_positions: Size = 512
    """Rows are as long as a Transformer's at most: what is compared gets the same."""
    num_segments: Literal[0] = 0
    hidden_dropout: Dropout = 0.1
    initializer_range: Number = 0.02
    pad_id: Count = 0

    @model_validator(mode="after")
    def _projects(self) -> Self:
        if self.hidden >= self.cells:
            raise ValueError(f"hidden {self.hidden} is not below cells {self.cells}, which are projected to it")
        _refuse_pad(self.pad_id, self.vocab_size)
        return self


SingleBackboneConfig = EncoderConfig | LSTMConfig


class _Around(Settings):
    """A composition's figures, as far as they are those of one of its parts."""

    @property
    def _part(self) -> SingleBackboneConfig:
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """Pieces that the part has embeddings for; as for all of these."""
        return self._part.vocab_size

    @property
    def max_positions(self) -> int:
        """Tokens of a row at most."""
        return self._part.max_positions

    @property
    def num_segments(self) -> int:
        """Segments that are told apart."""
        return self._part.num_segments

    @property
    def pad_id(self) -> int:
        """What fills a batch's shorter rows."""
        return self._part.pad_id

    @property
    def hidden_dropout(self) -> float:
        """The share of states that is dropped in training."""
        return self._part.hidden_dropout

    @property
    def initializer_range(self) -> float:
        """The deviation that new matrices are drawn with."""
        return self._part.initializer_range


class PairConfig(_Around):
    """ELMo's way: the states of two models, trained independently to the left and to the right, side by side."""

    left: SingleBackboneConfig
    right: SingleBackboneConfig

    @model_validator(mode="after")
    def _alike(self) -> Self:
        for name in ("vocab_size", "layers", "num_segments", "pad_id"):
            ours, theirs = getattr(self.left, name), getattr(self.right, name)
            if ours != theirs:
                raise ValueError(f"{name} is {ours} in one of the two models and {theirs} in the other")
        found = self.left.attends, self.right.attends
        if found != ("left", "right"):
            raise ValueError(f"the two models attend to '{found[0]}' and '{found[1]}'; due are left and right")
        return self

    @property
    def _part(self) -> SingleBackboneConfig:
        return self.left if self.left.max_positions <= self.right.max_positions else self.right

    @property
    def hidden(self) -> int:
        """Both widths together."""
        return self.left.hidden + self.right.hidden

    @property
    def layers(self) -> int:
        """Of each of the two."""
        return self.left.layers


class TopConfig(_Around):
    """A randomly initialised BiLSTM on top of a body (paper §5.1, the last row of table 5)."""

    inner: SingleBackboneConfig | PairConfig
    width: Annotated[int, Field(ge=2, lt=2**24, multiple_of=2)]
    """Of the BiLSTM, half in each direction."""

    @property
    def _part(self) -> SingleBackboneConfig:
        return self.inner._part if isinstance(self.inner, PairConfig) else self.inner

    @property
    def hidden(self) -> int:
        """The BiLSTM's width."""
        return self.width

    @property
    def layers(self) -> int:
        """Of the body below."""
        return self.inner.layers


BackboneConfig = EncoderConfig | LSTMConfig | PairConfig | TopConfig
"""The shape of whatever turns token ids into states."""
AnyConfig = TypeVar("AnyConfig", bound=Settings)


def need_segments(config: BackboneConfig, what: str) -> None:
    """InputError where `what` reads two texts and a BERT has one segment; other systems have none, and need none."""
    if config.num_segments == 1:
        raise InputError(f"{what}: reads two texts, and the model has one segment (type_vocab_size is 1)")


def encoder_shape(config: BackboneConfig, place: str) -> EncoderConfig:
    """The shape of a BERT; InputError for another body, where only a BERT will do."""
    if not attends_both_ways(config):
        raise InputError(f"{place}: is no BERT, whose tokens attend to both sides; this needs one")
    return config


def with_dropout(config: AnyConfig, share: float) -> AnyConfig:
    """The same shape, of which such a share of the states, and of the attention, is dropped in training."""
    named = type(config).model_fields
    changes: dict[str, Any] = {name: share for name in ("hidden_dropout", "attention_dropout") if name in named}
    for name in ("left", "right", "inner"):
        if name in named:
            changes[name] = with_dropout(getattr(config, name), share)
    return config.model_copy(update=changes)


def attends_both_ways(config: BackboneConfig) -> TypeGuard[EncoderConfig]:
    """Whether it is the shape of a BERT as the paper builds it."""
    return type(config) is EncoderConfig and config.attends == "both"


System = Literal["bert", "bert-left", "bert-right", "gpt", "lstm-left", "lstm-right"]
"""What is pre-trained: a BERT, BERT's blocks looking to one side, GPT-1, or one of ELMo's two LSTMs."""
SYSTEMS: tuple[System, ...] = get_args(System)

NAMES: dict[System, str] = {
    "bert": "BERT",
    "bert-left": "left-to-right BERT",
    "bert-right": "right-to-left BERT",
    "gpt": "GPT-1",
    "lstm-left": "left-to-right LSTM",
    "lstm-right": "right-to-left LSTM",
}
"""What people call them."""

Way = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all", "elmo"]
"""How a frozen encoder's states are used: the six rows of table 7, and ELMo's sum, which takes the embeddings in.

A weighted sum learns a share for each layer.
"""
WAYS: tuple[Way, ...] = get_args(Way)

SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Name → (layers, hidden). Heads are 64 wide, the feed-forward width is 4·hidden."""
HEAD_WIDTH = 64
"""Of every size of the paper but one of table 6."""
_WRITTEN = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", re.ASCII)


def size_config(name: str, vocab_size: int, **changes: object) -> EncoderConfig:
    """The configuration of a size: one of SIZES, LAYERSxHIDDEN or LAYERSxHIDDENxHEADS; InputError for another name."""
    layers, hidden, heads = _shape(name)
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": 4 * hidden}
    return EncoderConfig.model_validate({"vocab_size": vocab_size, **shape, **changes})


def written_size(layers: int, hidden: int, heads: int) -> str:
    """A shape of four times as wide feed-forward layers as `size_config` takes it."""
    return f"{layers}x{hidden}" if heads * HEAD_WIDTH == hidden else f"{layers}x{hidden}x{heads}"


def _shape(name: str) -> tuple[int, int, int]:
    """Layers, hidden and heads of a size."""
    if name in SIZES:
        layers, hidden = SIZES[name]
        return layers, hidden, hidden // HEAD_WIDTH
    written = _WRITTEN.fullmatch(name)
    if written is None:
        raise InputError(
            f"size {name!r} is not known; sizes are {', '.join(SIZES)}, LAYERSxHIDDEN such as 4x256, "
            "and LAYERSxHIDDENxHEADS such as 12x384x12"
        )
    layers, hidden = int(written[1]), int(written[2])
    if written[3] is None and hidden % HEAD_WIDTH:
        raise InputError(
            f"size {name}: a head is {HEAD_WIDTH} wide, and {hidden} is no multiple of that; "
            f"name the heads as well: {name}xHEADS"
        )
    heads = int(written[3] or hidden // HEAD_WIDTH)
    if hidden % heads:
        raise InputError(f"size {name}: hidden {hidden} is not a multiple of {heads} heads")
    return layers, hidden, heads


def system_of(config: BackboneConfig) -> System | None:
    """The system that a body belongs to; None for a composition, which is not pre-trained."""
    if isinstance(config, GPTConfig):
        return "gpt"
    if isinstance(config, LSTMConfig):
        return "lstm-left" if config.attends == "left" else "lstm-right"
    if not isinstance(config, EncoderConfig):
        return None
    return "bert" if config.attends == "both" else "bert-left" if config.attends == "left" else "bert-right"


def system_config(system: System, size: str, vocab_size: int, **changes: object) -> SingleBackboneConfig:
    """The shape of a system's body in a named size; `changes` are an encoder's, of which each body takes its own.

    The cells of an LSTM are as many as the feed-forward width of a Transformer of that size. InputError for a size that
    is not known, and for heads of an LSTM.
    """
    like = size_config(size, vocab_size, **changes)
    if system.startswith("lstm") and like.heads * HEAD_WIDTH != like.hidden:
        raise InputError(f"size {size}: an LSTM has no heads; its size is LAYERSxHIDDEN, a multiple of {HEAD_WIDTH}")
    given = like.model_dump(exclude_defaults=True)
    if system == "gpt":
        return GPTConfig.model_validate({name: value for name, value in given.items() if name != "activation"})
    side = system.partition("-")[2] or "both"
    if not system.startswith("lstm"):
        return like.model_copy(update={"attends": side})
    own = {name: value for name, value in given.items() if name in LSTMConfig.model_fields}
    return LSTMConfig.model_validate({**own, "cells": like.intermediate, "attends": side})
