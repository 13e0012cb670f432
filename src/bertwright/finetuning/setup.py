"""encoder + bound task → the model and the plan with which a seed starts (paper §4.1).

GPT-1's published vocabulary lacks the three special tokens of task rows. They are appended to it, and their embeddings
are drawn like all weights of GPT-1 (GPT paper §3.3 and 4.1). GPT-2's lacks a token for padding, which is appended too.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.finetuning.auxiliary_lm import with_language
from bertwright.finetuning.batches import tokens_left
from bertwright.finetuning.schedule import ScheduledSettings
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.backbones import Backbone, part_prefixes
from bertwright.model.config import BackboneConfig, EncoderConfig, attends_both_ways, predicts_next
from bertwright.model.encoder import init_weights
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.electra import GENERATOR, ElectraConfig
from bertwright.model.folder import SavedModel, load_weights, open_model
from bertwright.tasks.binding import BoundTask, open_tokenizer
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.published_tokenizer import PublishedTokenizer
from bertwright.training.activation_checkpointing import checkpoint_activations
from bertwright.training.loop import Plan
from bertwright.training.settings import OptimizerSettings

_EMBEDDINGS = "encoder.embeddings.word.weight"


def with_row_tokens(tokenizer: BaseTokenizer, location: str) -> BaseTokenizer:
    """Return the vocabulary of a GPT-1 or GPT-2 with the special tokens of a task's rows; any other one unchanged.

    Raises InputError, with `location`, for a vocabulary without a token for the end of a text.
    """
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.with_special()
    if not isinstance(tokenizer, PublishedTokenizer):
        return tokenizer
    framed = tokenizer.with_frame()
    if not framed.has_frame:
        raise InputError(
            f"{location}: expected a token for the end of a text, which stands around the texts of a row; name it as "
            "eos_token in tokenizer_config.json"
        )
    return framed


def with_task_tokens(saved: SavedModel, tokenizer: BaseTokenizer) -> tuple[SavedModel, BaseTokenizer]:
    """Return a GPT-1 or GPT-2 and its vocabulary with the special tokens that it lacks; any other model unchanged.

    The new embeddings do not depend on the seed of the run.
    """
    config = saved.config
    if not isinstance(config, EncoderConfig) or config.output_has_transform:
        return saved, tokenizer
    extended = with_row_tokens(tokenizer, str(saved.tokenizer))
    if extended is tokenizer:
        return saved, tokenizer
    size = max(config.vocab_size, extended.vocab_size)
    config = config.model_copy(update={"vocab_size": size, "pad_id": extended.pad_id})
    if saved.weights is None:
        return replace(saved, config=config), extended
    before = saved.weights[_EMBEDDINGS]
    table = before.new_zeros(config.vocab_size, config.hidden)
    table[: len(before)] = before
    new = table[tokenizer.vocab_size : extended.vocab_size]
    new.normal_(0.0, config.initializer_range, generator=torch.Generator().manual_seed(0))
    return replace(saved, config=config, weights={**saved.weights, _EMBEDDINGS: table}), extended


def with_files(saved: SavedModel, tokenizer: BaseTokenizer, folder: Path) -> SavedModel:
    """Return the model with its extended tokenizer, which is written to `folder`; unchanged where it lacks no token."""
    if open_tokenizer(saved).hash == tokenizer.hash:
        return saved
    tokenizer.save(folder)
    return replace(saved, tokenizer=folder)


_BILSTM = "encoder.lstm."
"""Prefix of the weights of a BiLSTM on top."""


def open_initial_model(source: str, tokenizer: Path | None) -> tuple[SavedModel, BaseTokenizer]:
    """Return the model to start from and its tokenizer; random weights take the tokenizer that is passed.

    A GPT-1 gets the special tokens of task rows where it lacks them.
    """
    vocabulary = open_tokenizer_folder(tokenizer) if tokenizer else None
    saved = open_model(source, tokenizer=tokenizer, vocab_size=vocabulary.vocab_size if vocabulary else None)
    if isinstance(saved.config, ElectraConfig) and saved.architecture == GENERATOR:
        raise InputError(
            f"{source}: expected ELECTRA's discriminator (ElectraForPreTraining), which is the model that is "
            "fine-tuned, got its generator (ElectraForMaskedLM); name the folder of the discriminator"
        )
    model_tokenizer = open_tokenizer(saved)
    if vocabulary and vocabulary.hash != model_tokenizer.hash:
        raise InputError(f"{tokenizer}: differs from the tokenizer of {source}; leave --tokenizer out")
    return with_task_tokens(saved, model_tokenizer)


def check_settings(settings: FinetuneSettings, config: BackboneConfig, source: str) -> None:
    """Raise InputError where a model of that shape cannot be trained with the settings."""
    if settings.max_length > config.max_positions:
        raise InputError(f"--max-length {settings.max_length}: {source} takes at most {config.max_positions} tokens")
    if settings.features and (settings.new_layers or settings.frozen_layers):
        raise InputError("--features freezes every layer; leave --new-layers and --frozen-layers out")
    if settings.features and (settings.layer_decay < 1.0 or settings.activation_checkpointing):
        raise InputError("--features freezes every layer; leave --layer-decay and --activation-checkpointing out")
    if settings.features and (settings.bilstm or settings.lm_weight):
        raise InputError("--features has its own BiLSTM and a frozen encoder; leave --bilstm and --lm-weight out")
    if isinstance(config, TopConfig) and (settings.features or settings.bilstm):
        option = "--features" if settings.features else f"--bilstm {settings.bilstm}"
        raise InputError(f"{option}: {source} already has a BiLSTM on top; name the model below it")
    if settings.lm_weight and (settings.bilstm or not predicts_next(config)):
        raise InputError(
            f"--lm-weight {settings.lm_weight:g}: {source}{' with a BiLSTM on top' * bool(settings.bilstm)} has "
            "states that depend on later tokens; the next-token loss needs a model that attends to the left"
        )
    if config.shares_layers and (settings.new_layers or settings.frozen_layers or settings.layer_decay < 1.0):
        raise InputError(
            f"--new-layers, --frozen-layers and --layer-decay: expected layers with weights of their own, and those of "
            f"{source} share theirs; leave the options out"
        )
    if settings.new_layers + settings.frozen_layers > config.layers:
        raise InputError(
            f"--new-layers {settings.new_layers} and --frozen-layers {settings.frozen_layers}: "
            f"{source} has {config.layers} layers in all"
        )


def add_bilstm(settings: FinetuneSettings, saved: SavedModel) -> SavedModel:
    """Return the model with a new BiLSTM on top, still without weights, where the settings have one; else unchanged."""
    if settings.bilstm is None or isinstance(saved.config, TopConfig):
        return saved
    weights = saved.weights
    if weights is not None:
        backbone = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
        weights = {f"encoder.inner.{name.removeprefix('encoder.')}": tensor for name, tensor in backbone.items()}
    return replace(saved, config=TopConfig(inner=saved.config, width=settings.bilstm), weights=weights)


def add_auxiliary_loss(
    settings: FinetuneSettings, bound: BoundTask, *, saved: SavedModel, tokenizer: BaseTokenizer
) -> BoundTask:
    """Return the bound task with the next-token loss where settings and model have one; else unchanged."""
    weight = settings.language_weight(saved.config)
    return with_language(bound, saved, weight=weight, num_pieces=tokenizer.vocab_size) if weight else bound


def initial_weights(settings: FinetuneSettings, bound: BoundTask, saved: SavedModel) -> SavedModel:
    """Return the model without the weights that are trained from scratch. Raises InputError for missing weights."""
    if saved.weights is None:
        return saved
    fresh = _fresh(settings, bound.head, saved)
    # The head of an earlier task has other labels, or the same labels in another order.
    kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith(fresh)}
    start = replace(saved, weights=kept)
    with torch.device("meta"):  # only names and shapes are checked, so no memory is needed
        model = bound.build(start.config)
    load_weights(model, start, fresh=fresh)
    # Other models are not pre-trained with a pooler.
    has_pooler = attends_both_ways(saved.config) and saved.config.has_pooler
    needs_pooler = has_pooler and "pooler.dense.weight" in model.state_dict()
    if needs_pooler and not settings.new_layers and "pooler." in fresh:
        say(f"{saved.source}: has no pooler, which this task needs; a new one is trained")
    return start


def initial_model(settings: FinetuneSettings, bound: BoundTask, saved: SavedModel, seed: int) -> nn.Module:
    """Return the model before the first step: the saved weights, and new ones drawn with the seed."""
    model = bound.build(saved.config)
    init_weights(model, saved.config.initializer_range, torch.Generator().manual_seed(seed))
    load_weights(model, saved, fresh=_fresh(settings, bound.head, saved))
    _freeze(model, saved.config, settings.frozen_layers)
    if not settings.features:
        encoder = model.get_submodule("encoder")
        assert isinstance(encoder, Backbone)
        for embedding in encoder.word_embeddings():
            # A batch reads few rows of the table. The next-token loss reads all of them.
            embedding.sparse = not settings.language_weight(saved.config)
        if settings.activation_checkpointing:
            checkpoint_activations(bound.trainable(model).blocks)
    return model


def train_plan(settings: ScheduledSettings, bound: BoundTask, config: BackboneConfig, seed: int) -> Plan:
    """Return the steps of a seed and their learning rates, without validation."""
    rate = settings.learning_rate
    return Plan(
        steps=settings.epochs * -(-len(bound.lengths) // settings.batch_size),
        seed=seed,
        optimizer=OptimizerSettings(
            learning_rate=rate,
            warmup=settings.warmup,
            weight_decay=settings.weight_decay,
            bias_correction=settings.bias_correction,
        ),
        scale=lambda parameter: _scale(parameter, bound.head, settings, config.layers, rate),
        work_left=tokens_left(bound, settings.batch_size, seed=seed, epochs=settings.epochs),
    )


def _fresh(settings: FinetuneSettings, head: str, saved: SavedModel) -> tuple[str, ...]:
    """Return the prefixes of the parameters that are trained from scratch.

    They are the head, new top layers and a BiLSTM, and the pooler where it is missing or reads new layers.
    """
    layers = saved.config.layers
    new = range(layers - settings.new_layers, layers)
    top = [f"encoder.{prefix}layers.{layer}." for prefix in part_prefixes(saved.config) for layer in new]
    top += [_BILSTM] * bool(settings.bilstm)
    has_pooler = saved.weights is None or "pooler.dense.weight" in saved.weights
    return (f"{head}.", *top, *([] if has_pooler and not top else ["pooler."]))


def _freeze(model: nn.Module, config: BackboneConfig, layers: int) -> None:
    """Freeze the embeddings and the lowest `layers` layers."""
    frozen = ("embeddings.", *(f"layers.{layer}." for layer in range(layers)))
    prefixes = tuple(f"encoder.{prefix}{part}" for prefix in part_prefixes(config) for part in frozen)
    for name, parameter in model.named_parameters():
        if layers and name.startswith(prefixes):
            parameter.requires_grad_(False)


def _scale(name: str, head: str, settings: FinetuneSettings, layers: int, rate: float) -> float:
    """Return the factor of the learning rate of the parameter `name`.

    The head and a BiLSTM on top have the head's rate. In the encoder the rate decays from layer to layer downwards.
    """
    if name.startswith((f"{head}.", _BILSTM)):
        return (settings.head_learning_rate or rate) / rate
    if not name.startswith("encoder."):
        return 1.0
    match = re.search(r"\blayers\.(\d+)\.", name)
    depth = int(match[1]) if match else -1 if ".embeddings." in name else layers - 1
    return settings.layer_decay ** (layers - depth)
