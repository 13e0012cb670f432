"""batch → findings: can one batch be learned by heart, and does learning begin where an untrained head stands?

A pipeline that cannot do the first has a mistake somewhere between text and loss, whatever the curves look like.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertwright.corpus.shards import Corpus
from bertwright.doctor.findings import Finding
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig, with_dropout
from bertwright.model.encoder import init_weights
from bertwright.model.folder import SavedModel, load_weights
from bertwright.objectives.dataset import Examples as Pretraining
from bertwright.objectives.masked_lm import PretrainingModel, pretraining_task, to_inputs
from bertwright.objectives.settings import ExampleSettings
from bertwright.tasks.classification.encoding import Encoded, encode, loss_targets
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.model import Classifier, padded
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.distributed import Trainable
from bertwright.training.optimizer import OptimizerSettings, build_optimizer, clip_gradients, set_rate

ROWS: Final = 32
"""Of the batch that is learned by heart; masked LM takes a quarter, each row has several places."""
GOAL: Final = 0.05
"""Nats (where any number of labels apply: share of what guessing costs; for numbers: share of their variance) under
which a batch counts as learned by heart."""
_STEPS: Final = 400
_SECONDS: Final = 60.0
_WARMUP: Final = 20
_NEAR: Final = 0.5
"""A fresh head's first loss lies within this share of ln(labels); a fresh masked LM's within a tenth."""
_NEAR_MASKED: Final = 0.1
_LENGTH: Final = 64
_SEED: Final = 0xD0C70125
"""Of the fresh head, not one that a person would take: an encoder that was tuned from the same head would know it."""
_finding = partial(Finding, "training")
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Course:
    """How the loss of one batch went: before the first step, the least after it, and what that took."""

    first: Mapping[str, float]
    last: Mapping[str, float]
    steps: int
    seconds: float
    in_time: bool


def learn_by_heart(
    trainable: Trainable[Batch], batch: Batch, *, term: str, rate: float, goal: float, seconds: float = _SECONDS
) -> Course:
    """Train on one batch until the loss `term` is under `goal`, 400 steps or `seconds` at most; dropout must be 0."""
    settings = OptimizerSettings(learning_rate=rate, weight_decay=0.0, bias_correction=True)
    optimizer = build_optimizer(trainable.module, settings)
    counts = trainable.counts(batch)
    trainable.module.train()
    start = time.perf_counter()
    first: Mapping[str, float] = {}
    for step in range(_STEPS + 1):
        terms = {name: total / counts[count] for name, (total, count) in trainable.step(batch).items()}
        found = {name: float(value.detach()) for name, value in terms.items()}
        first = first or found
        late = time.perf_counter() - start > seconds
        if found[term] < goal or not math.isfinite(found[term]) or late or step == _STEPS:
            break
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        clip_gradients(trainable.module.parameters(), settings.clip)
        set_rate(optimizer, rate * min(1.0, (step + 1) / _WARMUP))
        optimizer.step()
    return Course(first, found, step, time.perf_counter() - start, not late)


def classifier_findings(
    saved: SavedModel, tokenizer: BaseTokenizer, task: ClassificationTask, examples: TextExamples, *, max_length: int
) -> Iterator[Finding]:
    """A fresh head on the model, on 32 rows of train."""
    assert examples.targets is not None
    some = examples.select(chosen_rows(examples.targets, task))
    assert some.targets is not None
    encoded = encode(tokenizer, some.texts_a, some.texts_b, max_length=min(max_length, saved.config.max_positions))
    model = _classifier(saved, task)
    batch = padded(encoded, range(len(some)), pad_id=saved.config.pad_id, targets=loss_targets(task, some.targets))
    scale, unit = 1.0, "nats"
    if task.kind == "regression":
        assert batch.targets is not None
        scale, unit = max(float(batch.targets.var()), 1e-6), "of the variance"
    elif task.kind == "multilabel":
        scale, unit = max(_guessing(some.targets), 0.5), "of what guessing costs"
    rate = 1e-4 if saved.config.hidden >= 768 else 1e-3
    course = learn_by_heart(CLASSIFICATION.trainable(task, model), batch, term="loss", rate=rate, goal=GOAL * scale)
    if task.kind == "classification":
        yield first_loss(course.first["loss"], task.num_outputs)
    hint = _contradiction(encoded, some.targets)
    yield by_heart(course, "loss", scale=scale, unit=unit, rows=len(some), hint=hint)


def pretraining_findings(config: EncoderConfig, corpus: Corpus) -> Iterator[Finding]:
    """Masked LM from random weights, on 8 rows of the corpus."""
    config = with_dropout(config, 0.0)
    model = PretrainingModel(config, second_sentence="none")
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    settings = ExampleSettings(second_sentence="none")
    rows = Pretraining(corpus, settings, length=min(_LENGTH, config.max_positions), seed=0, write_plans=False)
    batch = to_inputs(rows.step_batch(0, ROWS // 4))
    rate = 2e-4 if config.hidden >= 768 else 2e-3
    course = learn_by_heart(pretraining_task(model), batch, term="mlm", rate=rate, goal=GOAL)
    yield first_masked_loss(course.first["mlm"], config.vocab_size)
    yield by_heart(course, "mlm", rows=ROWS // 4)


def first_loss(found: float, num_labels: int) -> Finding:
    """A fresh head knows nothing: its loss is that of guessing among the labels."""
    guess = math.log(num_labels)
    value = {"loss": found, "guessing": guess}
    text = f"{found:.3f} nats with a fresh head, {guess:.3f} by guessing among {num_labels} labels"
    if abs(found - guess) <= _NEAR * guess:
        return _finding("first loss", "ok", value, text)
    advice = (
        "the initial weights of the head are too large (initializer_range in config.json; 0.02 is usual), or the "
        "encoder's are not those of config.json"
    )
    return _finding("first loss", "warning", value, f"{text}: it begins far from guessing", advice)


def first_masked_loss(found: float, vocabulary: int) -> Finding:
    """A fresh encoder knows nothing: its loss is that of guessing among the pieces."""
    guess = math.log(vocabulary)
    value = {"loss": found, "guessing": guess}
    text = f"{found:.2f} nats with random weights, {guess:.2f} by guessing among {vocabulary:,} pieces"
    if abs(found - guess) <= _NEAR_MASKED * guess:
        return _finding("first loss", "ok", value, text)
    advice = "the initial weights are too large: --initializer-range 0.02 to 0.05"
    return _finding("first loss", "warning", value, f"{text}: it begins far from guessing", advice)


def by_heart(
    course: Course, term: str, *, rows: int, scale: float = 1.0, unit: str = "nats", hint: str = ""
) -> Finding:
    """Whether the batch was learned; the loss by `scale` is what is compared with GOAL, `hint` says why not."""
    first, last = course.first[term] / scale, course.last[term] / scale
    value = {"first": first, "last": last, "steps": course.steps, "seconds": course.seconds}
    text = f"{first:.3f} to {last:.3f} {unit} on {rows} rows, {course.steps} steps, {course.seconds:.0f} s"
    if last < GOAL:
        return _finding("one batch", "ok", value, text)
    if not course.in_time and last < first:
        advice = "nothing is known to be wrong; a larger machine settles it, or the same with a smaller model"
        return _finding("one batch", "note", value, f"{text}: falling, but time was up", advice)
    advice = hint or (
        "look at the rows as the model sees them: texts cut to the same beginning (--max-length), all [UNK], or labels "
        "that have nothing to do with them; then at the weights, which must be finite"
    )
    return _finding("one batch", "error", value, f"{text}: cannot be learned by heart", advice)


def chosen_rows(targets: NDArray[Any], task: ClassificationTask) -> NDArray[np.int64]:
    """32 rows: the first ones of every label (of every set of labels) in turn, or numbers from the whole range."""
    if task.kind == "multilabel":
        targets = np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(targets, kind="stable")
    if task.kind == "regression":
        return np.unique(order[np.linspace(0, len(order) - 1, min(ROWS, len(order))).astype(np.int64)])
    ranks = np.empty(len(order), np.int64)
    starts = np.searchsorted(targets[order], targets[order])
    ranks[order] = np.arange(len(order)) - starts
    return np.sort(np.lexsort((np.arange(len(targets)), ranks))[:ROWS])


def _classifier(saved: SavedModel, task: ClassificationTask) -> Classifier:
    """As fine-tuning begins: the model's encoder and pooler, a head of its own; but without dropout."""
    config = with_dropout(saved.config, 0.0)
    model = Classifier(config, task.num_outputs)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(_SEED))
    if saved.weights is not None:
        kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith("classifier.")}
        load_weights(model, replace(saved, weights=kept), fresh=("classifier.", *_lacking(kept)))
    return model


def _lacking(weights: Mapping[str, Any]) -> tuple[str, ...]:
    """The pooler, where a model has none: fine-tuning begins it anew as well."""
    return () if "pooler.dense.weight" in weights else ("pooler.",)


def _guessing(applies: NDArray[np.bool_]) -> float:
    """Nats a row where each label is answered with its share of the rows [N, L], whatever the text."""
    shares = applies.mean(axis=0)
    shares = shares[(shares > 0) & (shares < 1)]
    return float(-np.sum(shares * np.log(shares) + (1 - shares) * np.log(1 - shares)))


def _contradiction(encoded: Encoded, targets: NDArray[Any]) -> str:
    """What to say about rows that look the same to the model and have different labels; empty where there are none."""
    seen: dict[bytes, set[bytes]] = {}
    for ids, target in zip(encoded.ids, targets, strict=True):
        seen.setdefault(ids.tobytes(), set()).add(target.tobytes())
    both = sum(len(some) > 1 for some in seen.values())
    if not both:
        return ""
    return (
        f"{both} texts of the batch are the same pieces with different labels: see 'contradictions' above, or give a "
        "larger --max-length where they are cut"
    )


# model + text → findings: is masked LM better than guessing, and does it use the context (paper §3.1, task 1)?

SENTENCES: Final = (
    "The old bridge over the river was closed in winter, and people had to walk around the hill.",
    "She opened the letter, read it twice, and put it back on the table without a word.",
    "The number of students at the school has doubled since the new building was opened.",
    "A good knife is sharp, light and easy to clean after use.",
    "He was born in a small town near the coast and moved to the capital when he was twenty.",
    "If the water is too cold, the plants will grow slowly and may not flower in the first year.",
    "The train from the north arrived late because of heavy snow on the line.",
    "Most of the houses in this street were built between the two wars.",
    "The first part of the book describes the journey, the second the life of the people there.",
    "They won the game by three points and will play again on Sunday.",
    "The city has a large market, two museums and one of the oldest libraries in the country.",
    "When the function is called with a negative value, it returns an error instead of a result.",
)
"""Plain English, for a model that is not measured on a corpus of its own."""

_EVERY: Final = 7
"""One place in so many is masked at a time, and each of them once: about the share of training."""
_NEAR_GUESSING: Final = 0.05
"""A loss within this share of ln(vocabulary) is that of guessing."""
_USE: Final = 0.1
"""Nats that the context must be worth."""
_MOST_UNKNOWN: Final = 0.1


@dataclass(frozen=True)
class MaskedLoss:
    """Mean nats of the masked pieces: as answered, and had every place been given the mean of all the answers."""

    loss: float
    without_context: float
    predictions: int
    unknown_share: float


def judge_masked_lm(model: Bert, tokenizer: Tokenizer, rows: Sequence[Sequence[int]] | None = None) -> Finding:
    """The loss on `rows` of ids from the model's own corpus, or on the sentences above, against ln(vocabulary).

    What the sentences alone tell is a warning at most: they may be in a language that the model never met.
    """
    measured = masked_loss(model, tokenizer, rows or tokenizer.ids(SENTENCES))
    size = model.encoder.config.vocab_size
    return verdict(measured, vocabulary=size, own_text=bool(rows))


def verdict(measured: MaskedLoss, *, vocabulary: int, own_text: bool) -> Finding:
    """What a loss says; `own_text` tells that it was measured on a corpus that the tokenizer belongs to."""
    loss, guess = measured.loss, math.log(vocabulary)
    value = {"loss": loss, "guessing": guess, "without_context": measured.without_context}
    where = "the corpus" if own_text else "built-in English sentences"
    text = f"{loss:.2f} nats on {where}, {guess:.2f} by guessing, {measured.without_context:.2f} without the context"
    elsewhere = "" if own_text else "; if the model is of another language or field, measure on its own with --corpus"
    if not own_text and measured.unknown_share > _MOST_UNKNOWN:
        text = f"not judged: {measured.unknown_share:.0%} of the built-in English sentences is [UNK]"
        return Finding("model", "masked LM", "note", value, text, "give --corpus, a corpus in the model's own language")
    if not math.isfinite(loss):
        advice = "see the weights above; a model whose answers are no numbers is of no use"
        return Finding("model", "masked LM", "error", value, f"the loss on {where} is {loss}", advice)
    if loss > (1 + _NEAR_GUESSING) * guess:
        return Finding(
            "model",
            "masked LM",
            "error" if own_text else "warning",
            value,
            f"{text}: worse than guessing",
            "most often the tokenizer is another model's, or weights were mapped to the wrong places; a small text "
            f"that was learned by heart looks the same{elsewhere}",
        )
    if loss > (1 - _NEAR_GUESSING) * guess:
        return Finding(
            "model",
            "masked LM",
            "warning",
            value,
            f"{text}: nothing was learned",
            f"train it, or find out why the weights that were trained are not these{elsewhere}",
        )
    if loss > measured.without_context - _USE:
        return Finding(
            "model",
            "masked LM",
            "warning" if own_text else "note",
            value,
            f"{text}: it knows which pieces are frequent, but makes no use of what stands around a mask",
            f"train on: small models stay at this plateau for long (--start local ends it sooner){elsewhere}",
        )
    return Finding("model", "masked LM", "ok", value, f"{text}: it has learned from context")


def masked_loss(model: Bert, tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> MaskedLoss:
    """Mask every place of the rows once, a seventh of them at a time, and answer. Rows are ids without [CLS], [SEP]."""
    limit = model.encoder.config.max_positions - 2
    ids = [list(row[:limit]) for row in rows if len(row)]
    total = torch.zeros(model.encoder.config.vocab_size, dtype=torch.float64)
    loss, labels = 0.0, []
    with torch.inference_mode():
        for row in ids:
            logits, asked = _answers(model, tokenizer, row)
            loss += float(F.cross_entropy(logits, asked, reduction="sum"))
            total += logits.softmax(-1).sum(0)
            labels.append(asked)
    asked = torch.cat(labels)
    alone = -(total / len(asked))[asked].log().mean()
    unknown = float((asked == tokenizer.unk_id).double().mean())
    return MaskedLoss(loss / len(asked), float(alone), len(asked), unknown)


def _answers(model: Bert, tokenizer: Tokenizer, row: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits [T, V], float64, for the T places of a row in some order, and the pieces that were there [T]."""
    plain = torch.tensor([tokenizer.cls_id, *row, tokenizer.sep_id])
    shifts = range(min(_EVERY, len(row)))
    places = [list(range(1 + shift, 1 + len(row), _EVERY)) for shift in shifts]
    ids = plain.repeat(len(places), 1)
    for index, masked in enumerate(places):
        ids[index, masked] = tokenizer.mask_id
    last = model.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
    picked = torch.cat([last[index, masked] for index, masked in enumerate(places)])
    logits: Tensor = model.masked_lm(picked, model.encoder.embeddings.word.weight)
    return logits.double(), torch.cat([plain[masked] for masked in places])
