"""Settings → model, rows, Trainable and validation metrics of each pre-training system.

BERT learns masked LM and a second objective (paper §3.1). The other systems are language models: BERT's blocks with
attention to one side (the ablation of §5.1), GPT-1, and the two halves of ELMo.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import SingleBackboneConfig, attends_both_ways
from bertwright.model.folder import SavedModel
from bertwright.model.system import MASKED_LM_SYSTEMS, SPAN_SYSTEMS, System
from bertwright.objectives.batches import Mixture, ShuffledRows, TokenBatch, mixture_of
from bertwright.objectives.dataset import Examples, Spans, Unmasked
from bertwright.objectives.language_model import (
    LanguageModel,
    language_architecture,
    language_inputs,
    language_metrics,
    language_task,
    open_language_model,
)
from bertwright.objectives.masked_lm import (
    PretrainingModel,
    masked_lm_metrics,
    open_pretrained,
    pretraining_task,
    second_objective,
    to_inputs,
)
from bertwright.objectives.settings import ExampleSettings, SecondSentence
from bertwright.text.base_tokenizer import MaskTokenizer
from bertwright.text.published_tokenizer import PublishedTokenizer
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable

SystemModel = PretrainingModel | LanguageModel
"""The model that a system trains: a backbone with its heads."""
ExampleRows = ShuffledRows[Any] | Mixture[Any]
"""The rows that a system is trained on, from one corpus or from several."""


def new_model(config: SingleBackboneConfig, *, second_sentence: SecondSentence) -> SystemModel:
    """Return a model with torch's own random weights."""
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
            kind = Examples if system in MASKED_LM_SYSTEMS else Unmasked
            parts.append(kind(corpus, settings, write_plans=write_plans, **options))
    return mixture_of(parts, [weight for _, weight in corpora])


def model_inputs(model: SystemModel, batch: Any) -> Any:
    """Return the model's inputs for a batch of its rows."""
    return language_inputs(batch, model.config) if isinstance(model, LanguageModel) else to_inputs(batch)


def trainable_of(model: SystemModel) -> Trainable[Any]:
    """Return the model with the functions by which the loop trains it."""
    return language_task(model) if isinstance(model, LanguageModel) else pretraining_task(model)


def validation_metrics(
    model: SystemModel,
    batches: Iterable[TokenBatch],
    ordered: Iterable[TokenBatch] = (),
    characters: np.ndarray | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict[str, float]:
    """Return validation metrics over batches.

    ordered: batches for sentence order, where the model was trained for it. characters [V]: number of characters of
    each piece.
    """
    if isinstance(model, LanguageModel):
        return language_metrics(model, batches, characters, ranks=ranks)
    return masked_lm_metrics(model, batches, ordered, characters, ranks=ranks)  # type: ignore[arg-type]


def second_sentence_of(model: SystemModel) -> SecondSentence:
    """Return the model's objective for pairs of sentences."""
    return "none" if isinstance(model, LanguageModel) else model.second_sentence


def architecture_name(model: SystemModel) -> str:
    """Return the class that config.json names."""
    if isinstance(model, LanguageModel):
        return language_architecture(model.config)
    return "BertForPreTraining" if model.next_sentence else "BertForMaskedLM"


def open_system_model(saved: SavedModel) -> SystemModel:
    """Return the pre-trained model of a folder, of any system. InputError for other models."""
    if isinstance(saved.config, SingleBackboneConfig) and saved.config.attends != "both":
        return open_language_model(saved)
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
