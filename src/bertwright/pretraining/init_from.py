"""checkpoint → encoder: pre-training that goes on from another model, on text of a domain of its own (beside §3.1).

The model brings its shape, and its tokenizer made the corpus, or is the one that the corpus' tokenizer extends: then
the embedding and the output bias of a new piece begin as the mean of those of its old pieces.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.model.config import SIZES, BackboneConfig, EncoderConfig, SingleBackboneConfig, written_size
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.system import NAMES, system_config, system_of
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.systems import Model
from bertwright.tasks.binding import open_tokenizer
from bertwright.text.extend_vocabulary import new_pieces
from bertwright.text.wordpiece import Tokenizer

_ROWS = ("encoder.embeddings.word.weight", "masked_lm.bias", "lm.bias")
"""The parameters that have a row for each piece; the decoder is the first one."""
_SHAPE = ("layers", "hidden", "heads", "intermediate", "cells")
_SHA256 = "sha256:"
_HEADS = ("pooler", "masked_lm", "next_sentence", "lm")
"""What a published encoder may lack; it starts anew."""


def with_shape_of(settings: "PretrainSettings", saved: SavedModel | None) -> "PretrainSettings":
    """The settings with size, activation and initial deviation of the model that the run starts from, where they were
    not given."""
    if saved is None:
        return settings
    kept = ("activation", "initializer_range")  # the last is what a head that begins anew is drawn by
    theirs = {"size": size_name(saved.config), **{name: getattr(saved.config, name, None) for name in kept}}
    theirs = {name: value for name, value in theirs.items() if value is not None}
    return settings.model_copy(
        update={name: value for name, value in theirs.items() if name not in settings.model_fields_set}
    )


def began_from(out: Path, init_from: str | None, began: tuple[str, str | None] | None) -> str | None:
    """The model that a run begins from by what is in it; by its path where the run says it so, as earlier ones do."""
    if began is None:
        return None
    there = _noted(out, "data").get("init_from")
    is_path = isinstance(there, str) and not there.startswith(_SHA256)
    return init_from if is_path else f"{_SHA256}{began[1]}"


def as_begun(settings: "PretrainSettings", out: Path) -> "PretrainSettings":
    """Earlier runs that began from a model had the default deviation of new weights, whatever the model's was."""
    deviation = _noted(out, "settings").get("initializer_range")
    if not isinstance(deviation, float) or "initializer_range" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"initializer_range": deviation})


def _noted(out: Path, part: str) -> Mapping[str, Any]:
    """A part of what the run in `out` says of itself; empty where there is none."""
    noted = read_json(out / "run.json") if (out / "run.json").exists() else None
    found = noted.get(part) if isinstance(noted, dict) else None
    return found if isinstance(found, dict) else {}


def size_name(config: BackboneConfig) -> str:
    """The size of a shape as `size_config` takes it; one that no size has is spelled out with its inner width."""
    written = f"{config.layers}x{config.hidden}"
    if isinstance(config, LSTMConfig):
        if config.cells != 4 * config.hidden:
            return f"{written} of {config.cells} cells"
    elif not isinstance(config, EncoderConfig):
        return written
    elif config.intermediate != 4 * config.hidden:
        return f"{written} of {config.heads} heads, {config.intermediate} inside"
    else:
        written = written_size(config.layers, config.hidden, config.heads)
    return next((name for name, (layers, hidden) in SIZES.items() if written == f"{layers}x{hidden}"), written)


def _same_shape(one: BackboneConfig, other: BackboneConfig) -> bool:
    return all(getattr(one, part, None) == getattr(other, part, None) for part in _SHAPE)


def adapted_config(saved: SavedModel, settings: "PretrainSettings", *, longest: int) -> SingleBackboneConfig:
    """The shape of the saved model; InputError where it is another system's, size or activation are others, or rows
    are too long for it."""
    config, system, size = saved.config, settings.system, settings.size
    found = system_of(config)
    if found != system or not isinstance(config, SingleBackboneConfig):
        what = f"a {NAMES[found]} (--system {found})" if found else "a composition of models, which is not pre-trained"
        raise InputError(f"{saved.place}: is {what}, and this run trains a {NAMES[system]} (--system {system})")
    if size != size_name(config):
        wanted = system_config(system, size, config.vocab_size)
        if not _same_shape(wanted, config):
            own, asked = size_name(config), size_name(wanted)
            raise InputError(f"{saved.place}: its size is {own}, and {asked} in this run (--size {size})")
    if (theirs := getattr(config, "activation", settings.activation)) != settings.activation:
        raise InputError(f"{saved.place}: activation is {theirs}, and {settings.activation} in this run")
    if longest > config.max_positions:
        raise InputError(
            f"{saved.place}: has {config.max_positions} positions, and rows are {longest} tokens long (--lengths)"
        )
    return config


def load_adapted(model: Model, saved: SavedModel, data: Corpus) -> None:
    """Put the saved weights into `model`, with a row for each piece of the corpus' tokenizer.

    InputError where that tokenizer is neither the saved model's nor an extension of it.
    """
    assert saved.weights is not None
    theirs, own = open_tokenizer(saved), data.tokenizer
    added: list[list[int]] | None = [] if theirs.hash == own.hash else None
    if added is None and isinstance(own, Tokenizer):
        added = new_pieces(own, base_hash=theirs.hash)
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
