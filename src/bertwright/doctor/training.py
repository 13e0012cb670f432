"""batch, model → findings: the first loss, whether training overfits one batch, and masked LM (paper §3.1, task 1).

A pipeline that cannot overfit one batch has a mistake between text and loss, even where its loss falls on other data.
The first loss must be that of guessing: an untrained head has no information. A trained masked LM must beat guessing,
and it must use the context.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

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
from bertwright.objectives.masked_lm import PretrainingModel, to_inputs
from bertwright.objectives.settings import ExampleSettings
from bertwright.tasks.classification.encoding import Encoded, encode, loss_targets
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.model import Classifier, padded
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer
from bertwright.training.distributed import Batch, Trainable
from bertwright.training.optimizer import build_optimizer, clip_gradients, set_rate
from bertwright.training.settings import OptimizerSettings

BATCH_ROWS: Final = 32
"""Number of rows in the batch to overfit. Masked LM takes a quarter: each row has several masks."""
GOAL: Final = 0.05
"""Loss in nats below which a batch counts as overfitted.

For `multilabel` as a fraction of the loss of guessing, for numbers as a fraction of their variance.
"""
_STEPS: Final = 400
_SECONDS: Final = 60.0
_WARMUP: Final = 20
_FIRST_LOSS_TOLERANCE: Final = 0.5
"""Largest relative difference between the first loss of a new head and ln(labels)."""
_FIRST_MASKED_LOSS_TOLERANCE: Final = 0.1
"""Largest relative difference between the first loss of random weights and ln(vocabulary)."""
_LENGTH: Final = 64
_SEED: Final = 0xD0C70125
"""Seed of the new head. A fine-tuned encoder fits the head that it was tuned with, so its seed must be another one."""
ENGLISH_SENTENCES: Final = (
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
"""Text for measuring a model whose corpus was not named."""
_MASK_DISTANCE: Final = 7
"""Distance between masks. Each position is masked once; a seventh at a time is close to the fraction of training."""
_NEAR_GUESSING: Final = 0.05
"""Relative difference to ln(vocabulary) within which a loss counts as that of guessing."""
_LEAST_GAIN: Final = 0.1
"""Least gain in nats by which the context must lower the loss."""
_MOST_UNKNOWN: Final = 0.1
_finding = partial(Finding, "training")


@dataclass(frozen=True)
class BatchTraining:
    """Training on one batch: losses by name before the first step and at the end, steps, seconds.

    in_time: False where the time limit ended it.
    """

    first: Mapping[str, float]
    last: Mapping[str, float]
    steps: int
    seconds: float
    in_time: bool


@dataclass(frozen=True)
class MaskedLoss:
    """Mean loss of the masked pieces in nats, and the same with the mean of all predictions at every position.

    unknown_fraction: fraction of the masked pieces that are [UNK].
    """

    loss: float
    without_context: float
    unknown_fraction: float


def overfit_batch(trainable: Trainable[Batch], batch: Batch, *, term: str, rate: float, goal: float) -> BatchTraining:
    """Train on one batch until the loss `term` is under `goal`, at most 400 steps or 60 seconds; needs dropout 0."""
    settings = OptimizerSettings(learning_rate=rate, weight_decay=0.0, bias_correction=True)
    optimizer = build_optimizer(trainable.module, settings)
    counts = trainable.counts(batch)
    trainable.module.train()
    start = time.perf_counter()
    first: Mapping[str, float] = {}
    for step in range(_STEPS + 1):
        terms = {name: total / counts[count] for name, (total, count) in trainable.step(batch).items()}
        losses = {name: float(value.detach()) for name, value in terms.items()}
        first = first or losses
        late = time.perf_counter() - start > _SECONDS
        if losses[term] < goal or not math.isfinite(losses[term]) or late or step == _STEPS:
            break
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        clip_gradients(trainable.module.parameters(), settings.clip)
        set_rate(optimizer, rate * min(1.0, (step + 1) / _WARMUP))
        optimizer.step()
    return BatchTraining(first, losses, step, time.perf_counter() - start, not late)


def classifier_findings(
    saved: SavedModel, tokenizer: BaseTokenizer, task: ClassificationTask, examples: TextExamples, *, max_length: int
) -> Iterator[Finding]:
    """Train the model with a new head on 32 rows of train."""
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
        scale, unit = max(_guessing(some.targets), 0.5), "of the loss of guessing"
    rate = 1e-4 if saved.config.hidden >= 768 else 1e-3
    course = overfit_batch(CLASSIFICATION.trainable(task, model), batch, term="loss", rate=rate, goal=GOAL * scale)
    if task.kind == "classification":
        advice = (
            "the initial weights of the head are too large (initializer_range in config.json; 0.02 is usual), or the "
            "encoder's are not those of config.json"
        )
        words = {"weights": "a new head", "noun": "labels", "advice": advice}
        yield first_loss(course.first["loss"], task.num_outputs, allowed=_FIRST_LOSS_TOLERANCE, **words)
    hint = _contradiction(encoded, some.targets)
    yield overfit_finding(course, "loss", scale=scale, unit=unit, rows=len(some), hint=hint)


def pretraining_findings(config: EncoderConfig, corpus: Corpus) -> Iterator[Finding]:
    """Train masked LM from random weights on 8 rows of the corpus."""
    config = with_dropout(config, 0.0)
    model = PretrainingModel(config, second_sentence="none")
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    settings = ExampleSettings(second_sentence="none")
    rows = Pretraining(corpus, settings, length=min(_LENGTH, config.max_positions), seed=0, write_plans=False)
    batch = to_inputs(rows.step_batch(0, BATCH_ROWS // 4))
    rate = 2e-4 if config.hidden >= 768 else 2e-3
    course = overfit_batch(model.trainable(), batch, term="mlm", rate=rate, goal=GOAL)
    advice = "the initial weights are too large: --initializer-range 0.02 to 0.05"
    words = {"weights": "random weights", "noun": "pieces", "advice": advice}
    yield first_loss(course.first["mlm"], config.vocab_size, allowed=_FIRST_MASKED_LOSS_TOLERANCE, **words)
    yield overfit_finding(course, "mlm", rows=BATCH_ROWS // 4)


def first_loss(loss: float, choices: int, *, weights: str, noun: str, allowed: float, advice: str) -> Finding:
    """Compare the first loss, in nats, with that of guessing among the choices.

    weights, noun: the untrained weights and the choices, in words. allowed: largest relative difference.
    """
    guess = math.log(choices)
    value = {"loss": loss, "guessing": guess}
    text = f"{loss:.3f} nats with {weights}, {guess:.3f} by guessing among {choices:,} {noun}"
    if abs(loss - guess) <= allowed * guess:
        return _finding("first loss", "ok", value, text)
    return _finding("first loss", "warning", value, f"{text}: it starts far from guessing", advice)


def overfit_finding(
    course: BatchTraining, term: str, *, rows: int, scale: float = 1.0, unit: str = "nats", hint: str = ""
) -> Finding:
    """Return whether training overfitted the batch: an error where the loss stays above GOAL.

    scale: the loss is divided by it before it is compared with GOAL. hint: advice for the error, if a cause is known.
    """
    first, last = course.first[term] / scale, course.last[term] / scale
    value = {"first": first, "last": last, "steps": course.steps, "seconds": course.seconds}
    text = f"{first:.3f} to {last:.3f} {unit} on {rows} rows, {course.steps} steps, {course.seconds:.0f} s"
    if last < GOAL:
        return _finding("one batch", "ok", value, text)
    if not course.in_time and last < first:
        advice = "nothing; to be certain, repeat it on a faster machine or with a smaller model"
        return _finding("one batch", "note", value, f"{text}: falling, but the time limit ended it", advice)
    advice = hint or (
        "look at the rows as the model sees them: texts truncated to the same beginning (--max-length), only [UNK], or "
        "labels that have nothing to do with the texts; then check that the weights are finite"
    )
    return _finding("one batch", "error", value, f"{text}: training cannot overfit one batch", advice)


def chosen_rows(targets: NDArray[Any], task: ClassificationTask) -> NDArray[np.int64]:
    """Return 32 rows: the first ones of each label or set of labels in turn, or rows over the range of numbers."""
    if task.kind == "multilabel":
        targets = np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(targets, kind="stable")
    if task.kind == "regression":
        return np.unique(order[np.linspace(0, len(order) - 1, min(BATCH_ROWS, len(order))).astype(np.int64)])
    ranks = np.empty(len(order), np.int64)
    starts = np.searchsorted(targets[order], targets[order])
    ranks[order] = np.arange(len(order)) - starts
    return np.sort(np.lexsort((np.arange(len(targets)), ranks))[:BATCH_ROWS])


def _classifier(saved: SavedModel, task: ClassificationTask) -> Classifier:
    """Return the model as fine-tuning starts it, with the saved encoder and pooler and a new head, but dropout 0."""
    config = with_dropout(saved.config, 0.0)
    model = Classifier(config, task.num_outputs)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(_SEED))
    if saved.weights is not None:
        kept = {name: tensor for name, tensor in saved.weights.items() if not name.startswith("classifier.")}
        fresh = ("classifier.",) if "pooler.dense.weight" in kept else ("classifier.", "pooler.")
        load_weights(model, replace(saved, weights=kept), fresh=fresh)
    return model


def _guessing(applies: NDArray[np.bool_]) -> float:
    """Return the loss of predicting each label with its fraction of the rows, in nats a row; applies: bool [N, L]."""
    fractions = applies.mean(axis=0)
    fractions = fractions[(fractions > 0) & (fractions < 1)]
    return float(-np.sum(fractions * np.log(fractions) + (1 - fractions) * np.log(1 - fractions)))


def _contradiction(encoded: Encoded, targets: NDArray[Any]) -> str:
    """Return advice about rows with the same token ids and different labels; empty where there are none."""
    seen: dict[bytes, set[bytes]] = {}
    for ids, target in zip(encoded.ids, targets, strict=True):
        seen.setdefault(ids.tobytes(), set()).add(target.tobytes())
    both = sum(len(some) > 1 for some in seen.values())
    if not both:
        return ""
    return (
        f"{both} texts of the batch are the same pieces with different labels: see 'contradictions' above, or give a "
        "larger --max-length if they are truncated"
    )


def masked_lm_finding(model: Bert, tokenizer: MaskTokenizer, rows: Sequence[Sequence[int]] | None = None) -> Finding:
    """Compare the masked-LM loss with ln(vocabulary), on `rows` of ids from the model's corpus or on English sentences.

    On the English sentences a finite loss is a warning at most: the model may be of another language.
    """
    measured = masked_loss(model, tokenizer, rows or tokenizer.ids(ENGLISH_SENTENCES))
    return verdict(measured, vocabulary=tokenizer.vocab_size, own_text=bool(rows))


def verdict(measured: MaskedLoss, *, vocabulary: int, own_text: bool) -> Finding:
    """Judge a masked-LM loss; own_text: True where it was measured on the corpus that has the model's tokenizer."""
    finding = partial(Finding, "model", "masked LM")
    loss, guess = measured.loss, math.log(vocabulary)
    value = {"loss": loss, "guessing": guess, "without_context": measured.without_context}
    where = "the corpus" if own_text else "built-in English sentences"
    text = f"{loss:.2f} nats on {where}, {guess:.2f} by guessing, {measured.without_context:.2f} without the context"
    elsewhere = "" if own_text else "; for a model of another language or domain, give --corpus with text of its own"
    if not own_text and measured.unknown_fraction > _MOST_UNKNOWN:
        text = f"not judged: {measured.unknown_fraction:.0%} of the built-in English sentences is [UNK]"
        return finding("note", value, text, "give --corpus, a corpus in the model's own language")
    if not math.isfinite(loss):
        advice = "see the weights above; this model cannot be used"
        return finding("error", value, f"the loss on {where} is {loss}", advice)
    if loss > (1 + _NEAR_GUESSING) * guess:
        advice = (
            "most often the tokenizer is another model's, or weights were loaded into the wrong layers; a model that "
            f"overfitted a small text looks the same{elsewhere}"
        )
        return finding("error" if own_text else "warning", value, f"{text}: worse than guessing", advice)
    if loss > (1 - _NEAR_GUESSING) * guess:
        advice = f"train it, or find out why these are not the trained weights{elsewhere}"
        return finding("warning", value, f"{text}: nothing was learned", advice)
    if loss > measured.without_context - _LEAST_GAIN:
        text += ": the model predicts frequent pieces, and does not use the context of a mask"
        advice = f"train longer: small models stay at this plateau for long (--start local shortens it){elsewhere}"
        return finding("warning" if own_text else "note", value, text, advice)
    return finding("ok", value, f"{text}: the model uses the context")


def masked_loss(model: Bert, tokenizer: MaskTokenizer, rows: Iterable[Sequence[int]]) -> MaskedLoss:
    """Mask every position of the rows once, a seventh at a time; return the loss. rows: ids without [CLS] and [SEP]."""
    limit = model.encoder.config.max_positions - 2
    ids = [list(row[:limit]) for row in rows if len(row)]
    total = torch.zeros(tokenizer.vocab_size, dtype=torch.float64)
    loss, labels = 0.0, []
    with torch.inference_mode():
        for row in ids:
            logits, targets = _masked_logits(model, tokenizer, row)
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
            total += logits.softmax(-1).sum(0)
            labels.append(targets)
    targets = torch.cat(labels)
    without_context = -(total / len(targets))[targets].log().mean()
    unknown = float((targets == tokenizer.unk_id).double().mean())
    return MaskedLoss(loss / len(targets), float(without_context), unknown)


def _masked_logits(model: Bert, tokenizer: MaskTokenizer, row: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return logits float64 [T, V] for the T positions of a row, in some order, and the pieces behind the masks [T].

    A model may have more embeddings than the vocabulary has pieces; these rows are no candidates.
    """
    unmasked = torch.tensor([tokenizer.cls_id, *row, tokenizer.sep_id])
    shifts = range(min(_MASK_DISTANCE, len(row)))
    positions = [list(range(1 + shift, 1 + len(row), _MASK_DISTANCE)) for shift in shifts]
    ids = unmasked.repeat(len(positions), 1)
    for index, masked in enumerate(positions):
        ids[index, masked] = tokenizer.mask_id
    last = model.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
    ahead = int(model.encoder.config.predicts_ahead)  # a GPT-BERT predicts a piece from the state before it
    hidden = torch.cat([last[index, [at - ahead for at in masked]] for index, masked in enumerate(positions)])
    logits: Tensor = model.masked_lm(hidden, model.encoder.embeddings.word.weight)[:, : tokenizer.vocab_size]
    return logits.double(), torch.cat([unmasked[masked] for masked in positions])
