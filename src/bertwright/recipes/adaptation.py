"""checkpoint → encoder: pre-training that goes on from another model, on text of a domain of its own (beside §3.1).

The model brings its shape, and its tokenizer made the corpus, or is the one that the corpus' tokenizer extends: then
the embedding and the output bias of a new piece begin as the mean of those of its old pieces.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.sizes import SIZES, EncoderConfig, size_config
from bertwright.objectives.pretraining import PretrainingModel
from bertwright.prediction.work import open_tokenizer
from bertwright.text.extension import new_pieces

_ROWS = ("encoder.embeddings.word.weight", "masked_lm.bias")
"""The parameters that have a row for each piece; the decoder is the first one."""
_SHAPE = ("layers", "hidden", "heads", "intermediate")
_HEADS = ("pooler", "masked_lm", "next_sentence")
"""What a published encoder may lack; it starts anew."""


def size_name(config: EncoderConfig) -> str:
    """The name of a shape; one that has none is spelled out as LAYERSxHIDDEN, heads and inner width."""
    for name in SIZES:
        named = size_config(name, 1)
        if all(getattr(named, part) == getattr(config, part) for part in _SHAPE):
            return name
    return f"{config.layers}x{config.hidden} of {config.heads} heads, {config.intermediate} inside"


def adapted_config(saved: SavedModel, size: str, activation: str, *, longest: int) -> EncoderConfig:
    """The shape of the saved model; InputError where size or activation are others, or rows are too long for it."""
    config = saved.config
    if size != size_name(config):
        wanted = size_config(size, config.vocab_size)
        found = f"layers is {config.layers} and hidden {config.hidden}"
        raise InputError(f"{saved.place}: {found}, and {wanted.layers} and {wanted.hidden} in this run (--size {size})")
    if activation != config.activation:
        raise InputError(f"{saved.place}: activation is {config.activation}, and {activation} in this run")
    if longest > config.max_positions:
        raise InputError(
            f"{saved.place}: has {config.max_positions} positions, and rows are {longest} tokens long (--lengths)"
        )
    return config


def load_adapted(model: PretrainingModel, saved: SavedModel, data: Corpus) -> None:
    """Put the saved weights into `model`, with a row for each piece of the corpus' tokenizer.

    InputError where that tokenizer is neither the saved model's nor an extension of it.
    """
    assert saved.weights is not None
    theirs = open_tokenizer(saved)
    if theirs.hash == data.tokenizer_hash:
        added: list[list[int]] | None = []
    else:
        added = new_pieces(data.tokenizer, base_hash=theirs.hash)
    if added is None:
        raise InputError(
            f"{saved.place}: its tokenizer is neither the one that {data.folder} was built with nor the one that was "
            "extended to it (bertwright tokenizer extend)"
        )
    rows = {name: with_means(saved.weights[name], theirs.vocab_size, added) for name in _ROWS if name in saved.weights}
    load_weights(model, replace(saved, weights={**saved.weights, **rows}), fresh=_HEADS)
    _say_fresh(model.state_dict(), saved)
    if added:
        say(f"{saved.place}: {len(added):,} new pieces begin as the mean of their old ones")


def with_means(old: Tensor, num_old: int, added: list[list[int]]) -> Tensor:
    """The first `num_old` rows [V, …], then for each new piece the mean of the rows of its old pieces."""
    new = [old[torch.tensor(pieces)].mean(dim=0) for pieces in added]
    return torch.cat([old[:num_old], torch.stack(new)]) if new else old[:num_old]


def _say_fresh(own: Mapping[str, Tensor], saved: SavedModel) -> None:
    assert saved.weights is not None
    given = {name.partition(".")[0] for name in saved.weights}
    missing = [part for part in _HEADS if part not in given and any(name.startswith(f"{part}.") for name in own)]
    if missing:
        say(f"{saved.place}: has no weights for {', '.join(missing)}, which start anew")
