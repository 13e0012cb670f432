"""Model folder → initial weights of a pre-training run on text of another domain (not in the paper).

The model decides the shape. The corpus was built with its tokenizer, or with an extension of it: the embedding and the
output bias of a new piece are then the mean of those of its old pieces.
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
from bertwright.model.config import SIZES, BackboneConfig, EncoderConfig, SingleBackboneConfig, written_size
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.folder import (
    TRAINED_POSITIONS,
    SavedModel,
    load_weights,
    model_within,
    open_model,
    weights_digest,
)
from bertwright.model.hf_config import read_description
from bertwright.model.system import NAMES, SPAN_SYSTEMS, system_config, system_of
from bertwright.objectives.masked_lm import second_objective
from bertwright.objectives.replaced_tokens import generator_hidden
from bertwright.objectives.settings import SecondSentence
from bertwright.objectives.system_model import SystemModel
from bertwright.pretraining.settings import PretrainSettings
from bertwright.shipped import folder_of
from bertwright.tasks.binding import open_tokenizer
from bertwright.text.extend_vocabulary import new_pieces
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.run_files import run_record

_ROWS = ("encoder.embeddings.word.weight", "masked_lm.bias", "lm.bias", "generator.masked_lm.bias")
"""Parameters with a row for each piece. The decoder uses the first one too."""
_SHAPE = ("layers", "hidden", "heads", "intermediate", "cells")
_HEADS = ("pooler", "masked_lm", "next_sentence", "lm", "replaced_token", "generator")
"""Modules that a published encoder may lack; they get new random weights."""
SEGMENTS = "encoder.embeddings.segment.weight"


def trained_positions(saved: SavedModel) -> int:
    """Return the number of first positions that rows of an initial model had; 0 where an earlier version noted none."""
    is_unnoted = "second_sentence" in saved.extra and TRAINED_POSITIONS not in saved.extra
    return 0 if is_unnoted else saved.trained_positions


def has_one_segment(model: SystemModel) -> bool:
    """Return whether all segment embeddings are the same, as a run without pairs writes them."""
    table = model.state_dict().get(SEGMENTS)
    return table is not None and bool((table == table[0]).all())


def adopt_shape(settings: PretrainSettings, saved: SavedModel | None) -> PretrainSettings:
    """Return the settings with size, activation and initialiser range of the initial model where they are not set."""
    if saved is None:
        return settings
    names = ("activation", "initializer_range")  # new heads are drawn with the initialiser range
    adopted: dict[str, Any] = {name: getattr(saved.config, name, None) for name in names}
    adopted["size"] = size_name(saved.config)
    is_set = settings.model_fields_set
    if hidden := generator_hidden(saved):
        if "generator_width" in is_set and round(settings.generator_width * saved.config.hidden) != hidden:
            raise InputError(
                f"--generator-width {settings.generator_width:g}: the generator beside {saved.source} is {hidden} "
                "wide; leave the option out"
            )
        adopted["generator_width"] = hidden / saved.config.hidden
    update = {name: value for name, value in adopted.items() if value is not None and name not in is_set}
    return settings.model_copy(update=update)


def with_system_of(source: str, typed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the typed settings, with the system of the model `source` where none was typed.

    The activation of a GPT is added too: these systems have the tanh form of GELU by default, and a GPT-2 may have
    another one.
    """
    description = model_within(folder_of(source)) / "config.json"
    if not description.is_file():  # opening the model refuses a folder without one
        return typed
    config = read_description(description).config
    system = system_of(config)
    if system is None or typed.get("system", system) != system:
        return typed
    activation = {"activation": getattr(config, "activation", "gelu_tanh")} if system in SPAN_SYSTEMS else {}
    return {"system": system, **activation, **typed}


def refuse_other_model(run: Path, source: str | None) -> None:
    """Raise InputError where the pre-training in the folder `run` did not start from the model `source`.

    source: value of --init-from; None for random weights. A resumed run keeps the settings of its run.json, also those
    of the shape of its model, so this comes before they are compared with another model's.
    """
    record = run_record(run)
    if not isinstance(data := record.get("data"), dict) or "init_from" not in data:
        return
    recorded, places = data["init_from"], record.get("places")
    model = places.get("init_from") if isinstance(places, dict) else None
    if source is None:
        if recorded is not None:
            raise InputError(f"{run}: was started with --init-from {model or 'MODEL'}; give it with --resume, too")
    elif recorded is None:
        raise InputError(
            f"--init-from {source}: {run} was started without a model; leave --init-from out to continue it, or choose "
            "another --out"
        )
    elif recorded != f"sha256:{weights_digest(open_model(source))}":
        raise InputError(
            f"--init-from {source}: {run} was started from other weights, of {model or 'another model'}; name that "
            "model to continue it, or choose another --out"
        )


def size_name(config: BackboneConfig) -> str:
    """Return the size of a shape as --size takes it; a shape that --size cannot express is described in words."""
    written = f"{config.layers}x{config.hidden}"
    if isinstance(config, LSTMConfig):
        if config.cells != 4 * config.hidden:
            return f"{written} of {config.cells} cells"
    elif not isinstance(config, EncoderConfig):
        return written
    elif config.intermediate != config.usual_intermediate:
        return f"{written} of {config.heads} heads, {config.intermediate} inside"
    else:
        written = written_size(config.layers, config.hidden, config.heads)
    return next((name for name, (layers, hidden) in SIZES.items() if written == f"{layers}x{hidden}"), written)


def adapted_config(saved: SavedModel, settings: PretrainSettings, *, longest: int) -> SingleBackboneConfig:
    """Return the configuration of the initial model.

    Raises InputError where its system, size or activation differ from the settings, or `longest` rows are too long.
    """
    config, system, size = saved.config, settings.system, settings.size
    saved_system = system_of(config)
    if saved_system != system or not isinstance(config, SingleBackboneConfig):
        kind = f"a {NAMES[saved_system]} (--system {saved_system})" if saved_system else "a composition of models"
        raise InputError(f"{saved.source}: expected a {NAMES[system]} (--system {system}), got {kind}")
    if size != size_name(config):
        wanted = system_config(system, size, config.vocab_size)
        if any(getattr(wanted, part, None) != getattr(config, part, None) for part in _SHAPE):
            raise InputError(
                f"{saved.source}: expected the size {size_name(wanted)} (--size {size}), got {size_name(config)}; "
                "leave --size out"
            )
    activation = getattr(config, "activation", settings.activation)
    if activation != settings.activation:
        raise InputError(
            f"{saved.source}: expected the activation {settings.activation} (--activation), got {activation}"
        )
    width = getattr(config, "embedding_size", settings.embedding_size)
    if settings.embedding_size not in (None, width):
        raise InputError(
            f"{saved.source}: expected embeddings of {settings.embedding_size} (--embedding-size), got {width}; leave "
            "the option out"
        )
    if longest > config.max_positions:
        raise InputError(
            f"{saved.source}: has {config.max_positions} positions, and rows are {longest} tokens long; give --lengths"
        )
    return config


def load_adapted(model: SystemModel, saved: SavedModel, data: Corpus) -> None:
    """Load the saved weights into `model`, with a row for each piece of the corpus' tokenizer.

    Raises InputError where that tokenizer is neither the saved model's nor an extension of it.
    """
    assert saved.weights is not None
    old, new = open_tokenizer(saved), data.tokenizer
    added: list[list[int]] | None = [] if old.hash == new.hash else None
    if added is None and isinstance(new, Tokenizer):
        added = new_pieces(new, base_hash=old.hash)
    if added is None:
        raise InputError(
            f"{saved.source}: its tokenizer is neither the one that {data.folder} was built with nor the one that was "
            "extended to it (bertwright tokenizer extend)"
        )
    rows = {name: extend_rows(saved.weights[name], old.vocab_size, added) for name in _ROWS if name in saved.weights}
    load_weights(model, replace(saved, weights={**saved.weights, **rows}), fresh=_HEADS)
    _say_new_heads(model.state_dict(), saved)
    if added:
        say(f"{saved.source}: {len(added):,} new pieces start with the mean of their old pieces")


def extend_rows(old: Tensor, num_old: int, added: list[list[int]]) -> Tensor:
    """Return the first `num_old` rows [V, …], and for each new piece the mean of the rows of its old pieces."""
    new = [old[torch.tensor(pieces)].mean(dim=0) for pieces in added]
    return torch.cat([old[:num_old], torch.stack(new)]) if new else old[:num_old]


def without_unused_rows(saved: SavedModel, num_pieces: int) -> SavedModel:
    """Return the model with `num_pieces` rows of embeddings and output bias; a padded table has more.

    A row without a piece is no candidate for a mask. A composition of models, and a table without such rows, stay.
    """
    config = saved.config
    if saved.weights is None or not isinstance(config, SingleBackboneConfig) or config.vocab_size <= num_pieces:
        return saved
    rows = {name: saved.weights[name][:num_pieces] for name in _ROWS if name in saved.weights}
    config = config.model_copy(update={"vocab_size": num_pieces})
    return replace(saved, config=config, weights={**saved.weights, **rows})


def _say_new_heads(state: Mapping[str, Tensor], saved: SavedModel) -> None:
    """Say which heads of the model have no saved weights."""
    assert saved.weights is not None
    modules = {name.partition(".")[0] for name in saved.weights}
    missing = [head for head in _HEADS if head not in modules and any(name.startswith(f"{head}.") for name in state)]
    if missing:
        say(f"{saved.source}: has no weights for {', '.join(missing)}; they start with random weights")


def with_pair_head(saved: SavedModel, wanted: SecondSentence) -> SavedModel:
    """Return the model without its head for pairs of sentences where that has another objective; say so."""
    if (learned := second_objective(saved)) == wanted:
        return saved
    weights = saved.weights or {}
    kept = {name: weights[name] for name in weights if "next_sentence" not in name}
    if len(kept) < len(weights):
        say(
            f"{saved.source}: its head for pairs of sentences learned {learned!r} and is left out; wanted is {wanted!r}"
        )
    return replace(saved, weights=kept)
