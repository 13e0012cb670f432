"""Corpus, machine and time → the settings of a pre-training that names no recipe.

The rule was measured with English Wikipedia on two cores and with models of 128 and 256 hidden (docs/log.md, "The
settings of pretrain"). For wider models it takes the paper's lengths and batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.model.attention_init import NARROWEST_HEAD
from bertwright.model.config import BackboneConfig, Start, has_bert_blocks, initializer_range_for
from bertwright.model.folder import open_model
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.rotary_init import ROTARY_LAYERS, has_heads_for
from bertwright.model.system import MASKED_LM_SYSTEMS, RATE_FACTORS, system_config, system_of
from bertwright.pretraining.exposure import refuse_uncounted
from bertwright.pretraining.init_from import size_name
from bertwright.pretraining.settings import (
    BUDGETS,
    PLAIN,
    RECIPES,
    TUNED_DROPOUT,
    PretrainSettings,
    merged,
    resolve_settings,
)
from bertwright.text.word_counts import words_text
from bertwright.training.distributed import SINGLE_PROCESS, Ranks
from bertwright.training.hardware import Numerics, resolve_numerics
from bertwright.training.run_files import run_record

CANDIDATES: Final = ("tiny", "4x128", "mini", "medium", "base", "large")
"""Sizes to choose from, the smallest first."""
TOKENS_PER_WEIGHT: Final = 20
"""Number of tokens that a run reads for each weight of the layers. A run that reads fewer gets a smaller model."""
MOST_PASSES: Final = 40
"""Number of times that a text is read at most where --minutes is not given; the paper read its text 40 times (§A.2)."""
FEW_PASSES: Final = 20
"""Number of times that a text is read up to which there is no dropout."""
EVALUATION_TOKENS: Final = 1_000_000
"""Number of tokens that a run reads between two evaluations, so that these take about a tenth of a short run."""
SHORT_TOKENS: Final = 6_000_000
"""Number of tokens below which a new model that trains for a time has the settings of a short run. Measured: they are
better at about 4 M tokens by this estimate, and worse at 12 M."""
UTILISATION: Final = 0.4
"""MFU that a run is expected to have."""
_PAPER: Final = RECIPES["paper-base"]
MEASURED_WIDTH: Final = 128
"""Width of the models with which the learning rate of PLAIN was measured."""
WIDE: Final = 512
"""Width from which a model gets the paper's lengths and number of rows."""


@dataclass(frozen=True)
class Budget:
    """Text and computation of a run."""

    text_tokens: int
    """Number of tokens that are read once when the corpus that is read most often is read once."""
    vocab_size: int
    flops: float
    """FLOP/s of the machine at the expected utilisation."""
    words_per_token: float | None = None
    """Number of words of a token of text; None where the words of the text were not counted."""

    def tokens(self, settings: PretrainSettings, weights: int, hidden: int) -> float:
        """Return the number of tokens that a run reads, for a model with `weights` in its layers."""
        if settings.steps:
            return settings.steps * settings.tokens_per_step
        if settings.words:
            assert self.words_per_token
            return settings.words / self.words_per_token
        if settings.epochs:
            return settings.epochs * self.text_tokens
        assert settings.minutes
        predicted, causal = settings.examples.masking.share, settings.examples.causal_share
        predicted = causal + (1 - causal) * predicted if settings.system in MASKED_LM_SYSTEMS else 1.0
        flops_per_token = 6.0 * (weights + predicted * self.vocab_size * hidden)
        return 60.0 * settings.minutes * self.flops / flops_per_token


def plain_settings(
    typed: Mapping[str, Any],
    *,
    corpus: Mapping[Path, float],
    out: Path,
    init_from: str | None = None,
    initial: BackboneConfig | None = None,
    has_weights: bool = True,
    resume: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
) -> tuple[PretrainSettings, Numerics | None]:
    """Return the settings of a run without a recipe, and the numerics by which they were chosen; say which and why.

    typed: settings that a person set, which stay. initial: configuration of the model from which the run starts, where
    it is no model of --init-from; has_weights: False where it is a shape alone. A run that is resumed keeps the
    settings of its run.json, but for those that may change; nothing is measured then, and the numerics are None.
    Raises InputError for a corpus or a model that cannot be opened.
    """
    noted = _noted_settings(out) if resume else None
    if noted is not None:
        left_out = (
            PretrainSettings.numeric | PretrainSettings.changeable | (set(noted) - {*PretrainSettings.model_fields})
        )
        if BUDGETS & set(typed):
            left_out |= BUDGETS
        kept = {name: value for name, value in noted.items() if name not in left_out}
        return PretrainSettings.model_validate(merged(kept, typed)), None
    initial = open_model(init_from).config if init_from else initial
    unadapted = resolve_settings(None, typed, from_model=initial is not None and has_weights)
    corpora = [Corpus.open(folder) for folder in corpus]
    if unadapted.words:
        refuse_uncounted(corpora, "--words")
    numerics = resolve_numerics(unadapted.precision, threads=unadapted.threads, device=unadapted.device)
    total = sum(corpus.values())
    most_read = min(opened.num_tokens * total / weight for opened, weight in zip(corpora, corpus.values(), strict=True))
    budget = Budget(
        text_tokens=max(1, round(most_read * (1.0 - unadapted.held_out_share))),
        vocab_size=corpora[0].tokenizer.vocab_size,
        flops=UTILISATION * numerics.peak_flops * ranks.world_size,
        words_per_token=sum(opened.manifest.words or 0 for opened in corpora)
        / sum(opened.num_tokens for opened in corpora),
    )
    settings, reason = choose_for_budget(typed, budget, initial=initial, has_weights=has_weights)
    settings, reason = ranks.broadcast([settings.model_dump(mode="json", exclude_unset=True), reason])
    if ranks.is_main:
        say(reason)
    return PretrainSettings.model_validate(settings), numerics


def with_noted_rows(settings: PretrainSettings, out: Path, requested: Mapping[str, Any]) -> PretrainSettings:
    """Return the settings with the fraction of short rows of the run in a folder, where nothing requests one.

    A RoBERTa that an earlier version began has short rows.
    """
    noted = _noted_settings(out) or {}
    if "short_share" in requested.get("examples", {}) or "short_share" not in noted.get("examples", {}):
        return settings
    rows = {"short_share": noted["examples"]["short_share"]}
    return PretrainSettings.model_validate(merged(settings.model_dump(exclude_unset=True), {"examples": rows}))


def choose_for_budget(
    typed: Mapping[str, Any], budget: Budget, *, initial: BackboneConfig | None = None, has_weights: bool = True
) -> tuple[PretrainSettings, str]:
    """Return the settings for a budget, and a line that names the chosen ones with their reason.

    initial: configuration of the model from which the run starts; has_weights: False where it is a shape alone.
    """
    if initial is not None:
        named = typed if has_weights else {**typed, "size": size_name(initial)}
        return _for_shape(named, budget, initial, from_model=has_weights)
    system = typed.get("system", PretrainSettings.model_fields["system"].default)
    names = [str(typed["size"])] if "size" in typed else list(reversed(CANDIDATES))
    for name in names:
        config = system_config(system, name, budget.vocab_size, embedding_size=typed.get("embedding_size"))
        settings, reason = _for_shape({"size": name, **typed}, budget, config, from_model=False)
        weights = layer_weights(config)
        tokens = budget.tokens(settings, weights, config.hidden)
        if min(tokens, MOST_PASSES * budget.text_tokens) >= TOKENS_PER_WEIGHT * weights:
            break
    return settings, reason


def _for_shape(
    typed: Mapping[str, Any], budget: Budget, config: BackboneConfig, *, from_model: bool
) -> tuple[PretrainSettings, str]:
    """Return the settings of a model of that shape, and the line that names them."""
    weights = layer_weights(config)

    def settings_with(chosen: Mapping[str, Any]) -> PretrainSettings:
        if typed.get("batch_schedule"):
            chosen = {name: value for name, value in chosen.items() if name != "batch_size"}
        return resolve_settings(None, merged(chosen, typed), from_model=from_model)

    chosen = _values_of_shape(config, settings_with({}), from_model=from_model)
    settings = settings_with(chosen)
    is_open = not BUDGETS & set(typed)
    most = MOST_PASSES * budget.text_tokens if is_open else math.inf
    tokens = min(most, budget.tokens(settings, weights, config.hidden))
    if settings.minutes and not from_model and tokens < SHORT_TOKENS:
        chosen |= _values_of_short_run(settings, config.max_positions)
        settings = settings_with(chosen)
    passes = budget.tokens(settings, weights, config.hidden) / budget.text_tokens
    if is_open and passes > MOST_PASSES:
        assert settings.minutes
        chosen["minutes"] = float(f"{settings.minutes * MOST_PASSES / passes:.2g}")
        passes = MOST_PASSES
    if passes > FEW_PASSES:
        chosen["dropout"] = TUNED_DROPOUT
    evaluations = round(passes * budget.text_tokens / EVALUATION_TOKENS)
    chosen["evaluations"] = min(PretrainSettings.model_fields["evaluations"].default, max(1, evaluations))
    settings = settings_with(chosen)
    name = size_name(config) if from_model else settings.size
    return settings, _line(settings, budget, passes * budget.text_tokens, weights, name)


def _values_of_shape(config: BackboneConfig, typed: PretrainSettings, *, from_model: bool) -> dict[str, Any]:
    """Return the settings that depend on the system, on the width of the model, its layers and its positions.

    The learning rate falls with the width. Weights that were trained before get a quarter of it.
    """
    is_wide = config.hidden >= WIDE
    phases = _PAPER.phases if is_wide else PLAIN.phases
    longest = config.max_positions
    rate = PLAIN.optimizer.learning_rate * MEASURED_WIDTH / config.hidden / (4 if from_model else 1)
    with_muon = typed.optimizer.method == "muon" and not from_model
    factor = RATE_FACTORS.get(system_of(config) or "", 1.0) if with_muon else 1.0
    values: dict[str, Any] = {
        "phases": [{"length": min(phase.length, longest), "share": phase.share} for phase in phases],
        "batch_size": _PAPER.batch_size if is_wide else PLAIN.batch_size,
        "optimizer": {"learning_rate": factor * float(f"{rate:.1g}")},
    }
    if not from_model:
        values["initializer_range"] = initializer_range_for(config.hidden)
        if with_muon:
            values["optimizer"]["muon_rate"] = factor * PLAIN.optimizer.muon_rate
        if not typed.system.startswith("lstm"):
            values["start"] = _start(config)
    return values


def _values_of_short_run(settings: PretrainSettings, positions: int) -> dict[str, Any]:
    """Return settings with more steps for the same time, at the cost of long rows and of the head for pairs."""
    values: dict[str, Any] = {"phases": [{"length": min(64, positions), "share": 1.0}], "batch_size": 32}
    if settings.start == "matching":
        values["start"] = "local"
    return values


def _start(config: BackboneConfig) -> Start:
    """Return the attention initialisation that covers most layers; random for heads that are too narrow for one.

    The first layer can be initialised where a LayerNorm stands before it, as in BERT. Layers that share their weights,
    and layers behind narrow embeddings, keep random weights. In a ModernBERT a layer follows those of `matching`.
    """
    if isinstance(config, ModernBertConfig):
        if config.layers > ROTARY_LAYERS["matching"] and has_heads_for("matching", config):
            return "matching"
        return "local" if has_heads_for("local", config) else "random"
    if not has_bert_blocks(config) or config.hidden % 2 or config.hidden < NARROWEST_HEAD * config.heads:
        return "random"
    if config.projects_embeddings or config.distinct_layers != config.layers:
        return "random"
    layers = config.layers - config.first_normed_layer
    return "matching" if layers >= 2 else "local" if layers == 1 else "random"


def layer_weights(config: BackboneConfig) -> int:
    """Return the number of weights of a Transformer's matrices; for LSTMs about that of a Transformer of that size."""
    return 12 * config.layers * config.hidden**2


def _line(settings: PretrainSettings, budget: Budget, tokens: float, weights: int, name: str) -> str:
    """Return the chosen settings and their reason as one line."""
    lengths = " then ".join(str(phase.length) for phase in settings.phases)
    optimizer = settings.optimizer
    matrices = f" (matrices: {optimizer.muon_rate:g})" if optimizer.method == "muon" else ""
    masked = f"{settings.examples.masking.share:.0%} masked, " if settings.system in MASKED_LM_SYSTEMS else ""
    return (
        f"settings: {name}, rows of {lengths} tokens, {settings.batch_text} rows a step, "
        f"{optimizer.method} with learning rate {optimizer.learning_rate:g}{matrices}, "
        f"dropout {settings.dropout:g}, {masked}start {settings.start}; "
        f"about {tokens / 1e6:.3g} M tokens in {_length(settings)} at {budget.flops / 1e9:.3g} GFLOP/s, "
        f"{tokens / weights:.0f} for each weight and {tokens / budget.text_tokens:.3g} for each token of the text"
    )


def _length(settings: PretrainSettings) -> str:
    """Return the length of a run as text."""
    if settings.steps:
        return f"{settings.steps:,} steps"
    if settings.words:
        return f"{words_text(settings.words)} words"
    return f"{settings.epochs:g} epochs" if settings.epochs else f"{settings.minutes:g} minutes"


def _noted_settings(out: Path) -> dict[str, Any] | None:
    """Return the settings of the pre-training run in a folder; None where there is none."""
    record = run_record(out)
    settings = record.get("settings") if record.get("kind") == "pretrain" else None
    return settings if isinstance(settings, dict) else None
