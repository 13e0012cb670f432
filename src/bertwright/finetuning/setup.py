"""encoder + a task bound to its data → what one seed begins from, and what it does (paper §4.1)."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.backbones import Backbone, part_prefixes
from bertwright.model.config import BackboneConfig, attends_both_ways
from bertwright.model.encoder import init_weights
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.gpt import GPTConfig
from bertwright.model.folder import SavedModel, load_weights, open_model
from bertwright.tasks.auxiliary_lm import predicts_next, with_language
from bertwright.tasks.binding import Work, open_tokenizer
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.training.loop import Plan, checkpoint_activations
from bertwright.training.optimizer import OptimizerSettings

# model and vocabulary → both with the three tokens that rows of tasks are made of (GPT paper §3.3 and 4.1).
#
# The vocabulary that GPT-1 was published with has none of them: they come behind its pieces, and their embeddings,
# the only new ones beside the head, begin as all weights of a GPT-1 did.

_TABLE = "encoder.embeddings.word.weight"


def with_task_tokens(saved: SavedModel, words: BaseTokenizer) -> tuple[SavedModel, BaseTokenizer]:
    """A GPT-1 and its vocabulary with the tokens that this one lacks; all else as it is.

    The new rows of the table are the same whenever they are drawn.
    """
    config = saved.config
    if not isinstance(words, BPETokenizer) or not isinstance(config, GPTConfig):
        return saved, words
    grown = words.with_special()
    if grown is words:
        return saved, words
    config = config.model_copy(update={"vocab_size": max(config.vocab_size, grown.vocab_size)})
    if saved.weights is None:
        return replace(saved, config=config), grown
    before = saved.weights[_TABLE]
    table = before.new_zeros(config.vocab_size, config.hidden)
    table[: len(before)] = before
    new = table[words.vocab_size : grown.vocab_size]
    new.normal_(0.0, config.initializer_range, generator=torch.Generator().manual_seed(0))
    return replace(saved, config=config, weights={**saved.weights, _TABLE: table}), grown


def with_files(saved: SavedModel, words: BaseTokenizer, folder: Path) -> SavedModel:
    """The model with its vocabulary's files where they say all of it: in `folder`, if its own lack tokens."""
    if open_tokenizer(saved).hash == words.hash:
        return saved
    words.save(folder)
    return replace(saved, tokenizer=folder)


_BILSTM = "encoder.lstm."
"""Where the weights of a BiLSTM on top are."""


def opened(source: str, tokenizer: Path | None) -> tuple[SavedModel, BaseTokenizer]:
    """The model to start from and its tokenizer, which for random weights is the one that is named.

    A GPT-1 gets the tokens that rows of tasks are made of, where it has none.
    """
    vocabulary = open_tokenizer_folder(tokenizer) if tokenizer else None
    saved = open_model(source, tokenizer=tokenizer, vocab_size=vocabulary.vocab_size if vocabulary else None)
    words = open_tokenizer(saved)
    if vocabulary and vocabulary.hash != words.hash:
        raise InputError(f"{tokenizer}: is another tokenizer than the one of {source}, which brings its own")
    return with_task_tokens(saved, words)


def refuse_unfit(settings: FinetuneSettings, config: BackboneConfig, source: str) -> None:
    """InputError where a model of that shape, as it was opened, cannot be trained with the settings."""
    if settings.max_length > config.max_positions:
        raise InputError(f"--max-length {settings.max_length}: {source} takes at most {config.max_positions} tokens")
    if settings.features and (settings.new_layers or settings.frozen_layers):
        raise InputError("--features leaves every layer as it is: --new-layers and --frozen-layers do not go with it")
    if settings.features and (settings.layer_decay < 1.0 or settings.activation_checkpointing):
        raise InputError(
            "--features leaves every layer as it is: --layer-decay and --activation-checkpointing do not go with it"
        )
    if settings.features and (settings.bilstm or settings.lm_weight):
        raise InputError("--features has a BiLSTM of its own and no model that learns: no --bilstm, no --lm-weight")
    if isinstance(config, TopConfig) and (settings.features or settings.bilstm):
        asked = "--features" if settings.features else f"--bilstm {settings.bilstm}"
        raise InputError(f"{asked}: {source} has a BiLSTM on top already; name the model that it was put on")
    if settings.lm_weight and (settings.bilstm or not predicts_next(config)):
        raise InputError(
            f"--lm-weight {settings.lm_weight:g}: {source}{' with a BiLSTM on top' * bool(settings.bilstm)} has states "
            "that know the tokens behind them; the next one is asked of those that attend to the left alone"
        )
    if settings.new_layers + settings.frozen_layers > config.layers:
        raise InputError(
            f"--new-layers {settings.new_layers} and --frozen-layers {settings.frozen_layers}: "
            f"{source} has {config.layers} layers in all"
        )


def topped(settings: FinetuneSettings, saved: SavedModel) -> SavedModel:
    """The model with the BiLSTM on top that the settings ask for, which has no weights yet; else as it is."""
    if settings.bilstm is None or isinstance(saved.config, TopConfig):
        return saved
    inside = None
    if saved.weights is not None:
        of_body = {name: tensor for name, tensor in saved.weights.items() if name.startswith("encoder.")}
        inside = {f"encoder.inner.{name.removeprefix('encoder.')}": tensor for name, tensor in of_body.items()}
    return replace(saved, config=TopConfig(inner=saved.config, width=settings.bilstm), weights=inside)


def completed(settings: FinetuneSettings, work: Work[Any], saved: SavedModel) -> Work[Any]:
    """The task with the next-token loss that the settings and the model ask for; else as it is."""
    weight = settings.language_weight(saved.config)
    return with_language(work, saved, weight) if weight else work


def starting(settings: FinetuneSettings, work: Work[Any], saved: SavedModel) -> SavedModel:
    """The model to start from without what begins anew; InputError where it lacks anything else."""
    if saved.weights is None:
        return saved
    anew = _anew(settings, work.head, saved)
    # an earlier task's head has other labels, or the same in another order
    kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith(anew)}
    start = replace(saved, weights=kept)
    model = work.build(start.config)
    load_weights(model, start, fresh=anew)
    missed = attends_both_ways(saved.config) and "pooler.dense.weight" in model.state_dict()  # others never had one
    if missed and not settings.new_layers and "pooler." in anew:
        say(f"{saved.place}: has no pooler, which this task uses; it begins anew")
    return start


def begun(settings: FinetuneSettings, work: Work[Any], saved: SavedModel, seed: int) -> nn.Module:
    """The model before the first step: what it starts from, and what the seed draws."""
    model = work.build(saved.config)
    init_weights(model, saved.config.initializer_range, torch.Generator().manual_seed(seed))
    load_weights(model, saved, fresh=_anew(settings, work.head, saved))
    _freeze(model, saved.config, settings.frozen_layers)
    if not settings.features:
        encoder = model.get_submodule("encoder")
        assert isinstance(encoder, Backbone)
        for words in encoder.words():
            # a batch reads few of its rows, unless the next token is predicted with all of them
            words.sparse = not settings.language_weight(saved.config)
        if settings.activation_checkpointing:
            checkpoint_activations(work.trainable(model).blocks)
    return model


def planned(settings: FinetuneSettings, work: Work[Any], config: BackboneConfig, seed: int) -> Plan:
    """The steps of a seed and their rates; nothing is measured on the way."""
    rate = settings.rate(config)
    return Plan(
        steps=settings.epochs * -(-len(work.lengths) // settings.batch_size),
        seed=seed,
        optimizer=OptimizerSettings(
            learning_rate=rate,
            warmup=settings.warmup_of(config),
            weight_decay=settings.weight_decay,
            bias_correction=settings.bias_correction,
        ),
        scale=lambda parameter: _scale(parameter, work.head, settings, config.layers, rate),
    )


def _anew(settings: FinetuneSettings, head: str, saved: SavedModel) -> tuple[str, ...]:
    """The prefixes of what begins anew: the head, a BiLSTM and the top layers asked for, a pooler that is not there."""
    layers = saved.config.layers
    new = range(layers - settings.new_layers, layers)
    top = [f"encoder.{place}layers.{layer}." for place in part_prefixes(saved.config) for layer in new]
    has_pooler = saved.weights is None or "pooler.dense.weight" in saved.weights
    top += [_BILSTM] * bool(settings.bilstm)
    return (f"{head}.", *top, *([] if has_pooler and not top else ["pooler."]))


def _freeze(model: nn.Module, config: BackboneConfig, layers: int) -> None:
    """Keep the embeddings and so many layers as they are."""
    frozen = ("embeddings.", *(f"layers.{layer}." for layer in range(layers)))
    still = tuple(f"encoder.{place}{part}" for place in part_prefixes(config) for part in frozen)
    for name, parameter in model.named_parameters():
        if layers and name.startswith(still):
            parameter.requires_grad_(False)


def _scale(name: str, head: str, settings: FinetuneSettings, layers: int, rate: float) -> float:
    """What a parameter's rate is multiplied by: that of the head and of a BiLSTM on top, or the decay of its depth."""
    if name.startswith((f"{head}.", _BILSTM)):
        return (settings.head_learning_rate or rate) / rate
    if not name.startswith("encoder."):
        return 1.0
    inside = re.search(r"\blayers\.(\d+)\.", name)
    depth = int(inside[1]) if inside else -1 if ".embeddings." in name else layers - 1
    return settings.layer_decay ** (layers - depth)
