"""settings → model, rows, task and figures of what is pre-trained: the one place that tells systems apart.

BERT learns masked LM and a second objective (paper §3.1); the others are language models: BERT's blocks looking to one
side (the ablation of §5.1), GPT-1, and the two halves of ELMo.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import SingleBackboneConfig, attends_both_ways
from bertwright.model.folder import SavedModel
from bertwright.model.system import System, system_of
from bertwright.objectives.batches import Mixture, ShuffledRows, TokenBatch, blended
from bertwright.objectives.dataset import Examples, Spans, Unmasked
from bertwright.objectives.language_model import (
    LanguageModel,
    language_architecture,
    language_metrics,
    language_task,
    open_language_model,
    to_tokens,
)
from bertwright.objectives.masked_lm import (
    PretrainingModel,
    open_pretrained,
    pretraining_task,
    second_objective,
    to_inputs,
    validation_metrics,
)
from bertwright.objectives.settings import ExampleSettings, SecondSentence
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.distributed import SINGLE_PROCESS, Ranks, Trainable

Model = PretrainingModel | LanguageModel
Rows = ShuffledRows[Any] | Mixture[Any]


def new_model(config: SingleBackboneConfig, *, second_sentence: SecondSentence) -> Model:
    """The model that learns, with the weights that torch begins with."""
    if attends_both_ways(config):
        return PretrainingModel(config, second_sentence=second_sentence)
    return LanguageModel(config)


def rows_of(
    system: System,
    corpora: Sequence[tuple[Corpus, float]],
    settings: ExampleSettings,
    *,
    write_plans: bool = True,
    **more: Any,
) -> Rows:
    """The rows that a system learns from: of one corpus, or of several in shares; `more` as Spans takes it."""
    parts: list[ShuffledRows[Any]] = []
    for corpus, _ in corpora:
        if system == "gpt":
            parts.append(Spans(corpus, **more))
        else:
            kind = Examples if system == "bert" else Unmasked
            parts.append(kind(corpus, settings, write_plans=write_plans, **more))
    return blended(parts, [weight for _, weight in corpora])


def inputs_of(model: Model, batch: Any) -> Any:
    """What the model's task computes, of a batch of its rows."""
    return to_tokens(batch, model.config) if isinstance(model, LanguageModel) else to_inputs(batch)


def task_of(model: Model) -> Trainable[Any]:
    """What the loop trains."""
    return language_task(model) if isinstance(model, LanguageModel) else pretraining_task(model)


def figures_of(
    model: Model,
    batches: Iterable[TokenBatch],
    ordered: Iterable[TokenBatch] = (),
    characters: np.ndarray | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict[str, float]:
    """Held-out figures; `ordered`: rows for sentence order, where the model learned that."""
    if isinstance(model, LanguageModel):
        return language_metrics(model, batches, characters, ranks=ranks)
    return validation_metrics(model, batches, ordered, characters, ranks=ranks)  # type: ignore[arg-type]


def second_of(model: Model) -> SecondSentence:
    """What a model learns about pairs."""
    return "none" if isinstance(model, LanguageModel) else model.second_sentence


def architecture_of(model: Model) -> str:
    """The class that config.json names."""
    if isinstance(model, LanguageModel):
        return language_architecture(model.config)
    return "BertForPreTraining" if model.next_sentence else "BertForMaskedLM"


def open_learned(saved: SavedModel) -> Model:
    """The pre-trained model of a folder, whatever its system; InputError for what is none."""
    if system_of(saved.config) in (None, "bert"):
        return open_pretrained(saved, second_sentence=second_objective(saved))
    return open_language_model(saved)


def refuse_vocabulary(system: System, corpus: Corpus) -> None:
    """InputError where a system is defined with another kind of vocabulary than the corpus has."""
    is_wordpiece = isinstance(corpus.tokenizer, Tokenizer)
    if system == "gpt" and is_wordpiece:
        raise InputError(
            f"{corpus.folder}: its vocabulary is WordPiece, and GPT-1 is defined with byte pairs; make the corpus with "
            "such a vocabulary: bertwright tokenizer train TEXT --kind bpe --out TOK, then corpus build --tokenizer TOK"
        )
    if system != "gpt" and not is_wordpiece:
        raise InputError(
            f"{corpus.folder}: its vocabulary is GPT-1's byte pairs, without [CLS] and [SEP]; {system} needs WordPiece "
            "(bertwright tokenizer train, then corpus build with that), or train --system gpt on this corpus"
        )
