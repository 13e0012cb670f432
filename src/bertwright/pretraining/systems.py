"""Settings → model and rows of each pre-training system.

BERT learns masked LM and a second objective (paper §3.1). ELECTRA learns to find replaced tokens. GPT-BERT learns
masked LM and the next token. The other systems are language models: BERT's blocks with attention to one side (the
ablation of §5.1), GPT-1, and the two halves of ELMo.
"""

from collections.abc import Sequence
from typing import Any

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import SingleBackboneConfig, attends_both_ways, finds_replaced, predicts_ahead
from bertwright.model.folder import SavedModel
from bertwright.model.system import (
    CAUSAL_SHARE_SYSTEMS,
    MASKED_LM_SYSTEMS,
    REPLACED_TOKEN_SYSTEMS,
    SPAN_SYSTEMS,
    System,
)
from bertwright.objectives.batches import Mixture, ShuffledRows, mixture_of
from bertwright.objectives.dataset import Examples, PlannedRows, Spans, Unmasked
from bertwright.objectives.language_model import (
    LanguageModel,
    open_language_model,
)
from bertwright.objectives.masked_lm import (
    PretrainingModel,
    open_pretrained,
    second_objective,
)
from bertwright.objectives.masked_next_token import (
    MixedModel,
    MixedRows,
    open_mixed,
)
from bertwright.objectives.replaced_tokens import (
    ReplacedTokenModel,
    SampledRows,
    open_replaced_tokens,
)
from bertwright.objectives.settings import CAUSAL_SHARE, GENERATOR_WIDTH, ExampleSettings, SecondSentence
from bertwright.objectives.system_model import SystemModel
from bertwright.text.base_tokenizer import MaskTokenizer
from bertwright.text.published_tokenizer import PublishedTokenizer

ExampleRows = ShuffledRows[Any] | Mixture[Any]
"""The rows that a system is trained on, from one corpus or from several."""


def new_model(
    config: SingleBackboneConfig,
    *,
    second_sentence: SecondSentence,
    generator_width: float = GENERATOR_WIDTH,
    causal_share: float = CAUSAL_SHARE,
) -> SystemModel:
    """Return a model with torch's own random weights."""
    if predicts_ahead(config):
        return MixedModel(config, causal_share=causal_share)
    if finds_replaced(config):
        return ReplacedTokenModel(config, generator_width=generator_width)
    if attends_both_ways(config):
        return PretrainingModel(config, second_sentence=second_sentence)
    return LanguageModel(config)


def example_rows(
    system: System,
    corpora: Sequence[tuple[Corpus, float]],
    settings: ExampleSettings,
    *,
    write_plans: bool = True,
    **options: Any,
) -> ExampleRows:
    """Return the rows of a system from corpora and their weights; `options` are those of `Spans`."""
    parts: list[ShuffledRows[Any]] = []
    for corpus, _ in corpora:
        if system in SPAN_SYSTEMS:
            parts.append(Spans(corpus, end_id=corpus.tokenizer.end_of_text_id, **options))
        else:
            parts.append(_kind_of_rows(system)(corpus, settings, write_plans=write_plans, **options))
    return mixture_of(parts, [weight for _, weight in corpora])


def _kind_of_rows(system: System) -> type[PlannedRows[Any]]:
    """Return the class of the rows of a system that is not trained on spans."""
    if system in REPLACED_TOKEN_SYSTEMS:
        return SampledRows
    if system in CAUSAL_SHARE_SYSTEMS:
        return MixedRows
    return Examples if system in MASKED_LM_SYSTEMS else Unmasked


def open_system_model(saved: SavedModel) -> SystemModel:
    """Return the pre-trained model of a folder, of any system. InputError for other models."""
    if isinstance(saved.config, SingleBackboneConfig) and saved.config.attends != "both":
        return open_language_model(saved)
    if finds_replaced(saved.config):
        return open_replaced_tokens(saved)
    if predicts_ahead(saved.config):
        return open_mixed(saved)
    return open_pretrained(saved, second_sentence=second_objective(saved))


def refuse_vocabulary(system: System, corpus: Corpus) -> None:
    """Raise InputError where the corpus has another kind of vocabulary than the system's definition."""
    has_special = isinstance(corpus.tokenizer, MaskTokenizer)
    if system == "gpt" and has_special:
        kind = "byte-level pairs" if isinstance(corpus.tokenizer, PublishedTokenizer) else "WordPiece"
        raise InputError(
            f"{corpus.folder}: its vocabulary is {kind}, and GPT-1 is defined with byte pairs; make the corpus with "
            "such a vocabulary: bertwright tokenizer train TEXT --kind bpe --out TOK, then corpus build --tokenizer TOK"
        )
    if system == "gpt2" and not isinstance(corpus.tokenizer, PublishedTokenizer):
        raise InputError(
            f"{corpus.folder}: its vocabulary is no byte-level one, with which GPT-2 is defined; make the corpus with "
            "such a vocabulary: bertwright tokenizer train TEXT --kind byte-bpe --out TOK, then corpus build "
            "--tokenizer TOK"
        )
    if system not in SPAN_SYSTEMS and not has_special:
        raise InputError(
            f"{corpus.folder}: its vocabulary is GPT-1's byte pairs, without [CLS] and [SEP]; {system} needs WordPiece "
            "(bertwright tokenizer train, then corpus build with that), or train --system gpt on this corpus"
        )


def refuse_corpora(system: System, corpora: Sequence[tuple[Corpus, float]], validation_corpus: Corpus | None) -> None:
    """Raise InputError for corpora of several tokenizers, or of a vocabulary that the system cannot use."""
    first = corpora[0][0]
    for other in [*(corpus for corpus, _ in corpora), *([validation_corpus] if validation_corpus else [])]:
        if other.tokenizer_hash != first.tokenizer_hash:
            raise InputError(f"{other.folder}: was built with another tokenizer than {first.folder}")
        rules = other.manifest.text_rules, first.manifest.text_rules
        if rules[0] != rules[1]:
            say(
                f"{other.folder}: was built by version {rules[0]} of the rules for text, {first.folder} by version "
                f"{rules[1]}; to compare their metrics, build the older one again"
            )
    refuse_vocabulary(system, first)
    if validation_corpus and validation_corpus.fingerprint in [corpus.fingerprint for corpus, _ in corpora]:
        say(
            f"{validation_corpus.folder}: is used for training too; the validation metrics are of text seen in training"
        )
