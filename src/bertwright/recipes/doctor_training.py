"""batch → findings: can one batch be learned by heart, and does learning begin where an untrained head stands?

A pipeline that cannot do the first has a mistake somewhere between text and loss, whatever the curves look like.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertwright.corpus.shards import Corpus
from bertwright.model.encoder import init_weights
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.sizes import EncoderConfig, with_dropout
from bertwright.objectives.examples import Examples as Pretraining
from bertwright.objectives.examples import ExampleSettings
from bertwright.objectives.pretraining import PretrainingModel, pretraining_task, to_inputs
from bertwright.prediction.classifier import Classifier, classifier_task, padded
from bertwright.recipes.doctor_findings import Finding
from bertwright.tasks.classify import ClassificationTask, Encoded, encode, loss_targets
from bertwright.tasks.examples import Examples
from bertwright.text.any_tokenizer import AnyTokenizer
from bertwright.training.optimizer import OptimizerSettings, build_optimizer, clip_gradients, set_rate
from bertwright.training.trainable import Trainable

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
    saved: SavedModel, tokenizer: AnyTokenizer, task: ClassificationTask, examples: Examples, *, max_length: int
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
    course = learn_by_heart(classifier_task(model, task), batch, term="loss", rate=rate, goal=GOAL * scale)
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
