"""bound task + teacher → a task that a student learns from the teacher's answers and the labels (Hinton et al. 2015).

A row has its label, its answer of the teacher, or both: texts without labels have the answer alone.

Shapes: B batch, T tokens, L outputs, N texts, R rows.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.distillation.compare import (
    TIMED_TEXTS,
    card_numbers,
    comparison_result,
    milliseconds_per_text,
)
from bertwright.distillation.relations import relation_heads, relation_loss
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.soft_labels import soft_label_loss
from bertwright.distillation.teacher import Teacher, TeacherAnswers, open_on_device
from bertwright.model.card import origin
from bertwright.model.config import encoder_shape
from bertwright.model.encoder import TransformerBackbone
from bertwright.model.folder import open_model
from bertwright.tasks.binding import BoundTask, ModelComparison
from bertwright.tasks.classification.encoding import decode, encode
from bertwright.tasks.classification.examples import TextExamples, row_weights
from bertwright.tasks.classification.model import Classifier, TextBatch, predict_logits
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.training.distributed import Terms, Trainable
from bertwright.training.hardware import module_device

_TRAIN, _TEXTS = "train", "texts"
"""Names of the training texts with and without labels among the teacher's answers."""


@dataclass(frozen=True)
class SoftBatch:
    """A padded batch, the teacher's answers [B, L], and the weights of the answers [B], None where all are 1."""

    rows: TextBatch
    answers: Tensor
    weights: Tensor | None


@dataclass(frozen=True)
class SoftTask(BoundTask):
    """A bound task whose training rows have the teacher's answers.

    settings   the parts of the loss
    teacher    the teacher
    texts      the training texts without labels, whose rows come after those of `train`; None where there are none
    cache      file of the teacher's answers
    """

    settings: DistillationSettings
    teacher: Teacher
    texts: TextExamples | None
    cache: Path

    def prepare(self) -> None:
        """Compute the teacher's answers, or read them where an earlier start of the run has computed them."""
        _ = self._answers

    def batch(self, chosen: NDArray[np.int64]) -> SoftBatch:
        """Return a padded batch of the chosen training rows."""
        weights = self._row_weights
        return SoftBatch(
            rows=CLASSIFICATION.collate(self, chosen),
            answers=torch.from_numpy(self._row_answers[chosen]),
            weights=None if weights is None else torch.from_numpy(weights[chosen]),
        )

    def trainable(self, model: nn.Module) -> Trainable[SoftBatch]:
        """Return what the training loop trains: the student, without the teacher."""
        assert isinstance(model, Classifier)
        plain: Trainable[TextBatch] = CLASSIFICATION.trainable(self.task, model)

        def flops(batch: SoftBatch) -> float:
            of_teacher = self.teacher.model.encoder.flops(batch.rows.ids.shape[1], 1) if self.settings.relations else 0
            return plain.flops(batch.rows) + len(batch.rows) * of_teacher

        return Trainable(
            module=model,
            blocks=plain.blocks,
            step=lambda batch: self.losses(model, batch),
            counts=self._counts,
            flops=flops,
            tokens=lambda batch: plain.tokens(batch.rows),
        )

    def losses(self, model: Classifier, batch: SoftBatch) -> Terms:
        """Return the parts of the loss, each with its weight: of the labels, of the teacher, of the relations."""
        settings, rows = self.settings, batch.rows
        parts: dict[str, tuple[Tensor, str]] = {}
        if settings.relations:
            logits, learned = _with_projections(model, rows)
            with torch.no_grad():
                wanted = _with_projections(self.teacher.model.to(module_device(model)), rows)[1]
            heads = self._relation_heads(model)
            parts["relations"] = (settings.relations * relation_loss(learned, wanted, rows.mask, heads=heads), "tokens")
        else:
            logits = model(rows)
        if settings.soft_weight < 1.0:
            loss = CLASSIFICATION.loss_of_logits(self.task, logits, rows)
            parts["labels"] = ((1.0 - settings.soft_weight) * loss, "labels")
        if settings.soft_weight > 0.0:
            shape: Any = {"kind": self.task.kind, "temperature": settings.temperature, "weights": batch.weights}
            loss = soft_label_loss(logits, batch.answers, **shape)
            parts["teacher"] = (settings.soft_weight * loss, "rows")
        return parts

    def compare(self, folder: Path) -> ModelComparison:
        """Return sizes, times and metrics of the trained student in `folder` beside those of the teacher."""
        teacher = self.teacher
        student, task = open_on_device(open_model(str(folder)), teacher.device)
        logits = {name: predict_logits(student, inputs) for name, (_, inputs) in self.validation.items()}
        answers = {name: self._answers[_validation(name)] for name in self.validation}
        learned = {name: self._in_units(values, task) for name, values in logits.items()}
        wanted = {name: self._in_units(values, teacher.task) for name, values in answers.items()}
        times = self._times(student)
        metrics = [self.metrics(values) for values in (wanted, learned)]
        source = Path(teacher.saved.source)
        entries = comparison_result(
            (source, folder),
            (teacher.model, student),
            times,
            metrics,
            metric=next(iter(metrics[0])),
            agreement=self._agreement(learned, wanted) if self.task.has_labels else None,
            texts=sum(len(rows) for rows, _ in self.validation.values()),
        )
        data = [origin(str(source), teacher.digest, verb="learned from")]
        if self.texts:
            data.append(f"{len(self.texts):,} texts without labels, which the teacher answered")
        return ModelComparison({"distillation": entries}, tuple(data), card_numbers(entries))

    def _times(self, student: Classifier) -> list[float]:
        """Return the milliseconds of a text of teacher and student, on the first rows of the first validation file."""
        rows = next(iter(self.validation.values()))[0]
        first = rows.select(range(min(TIMED_TEXTS, len(rows))))
        reads = self.teacher.encode(first)
        sides = first.texts_a, first.texts_b
        inputs = encode(self.teacher.tokenizer, *sides, max_length=self.max_length, long=self.task.long)
        calls = [partial(predict_logits, self.teacher.model, reads), partial(predict_logits, student, inputs)]
        return milliseconds_per_text(calls, len(first))

    def _agreement(self, learned: TeacherAnswers, wanted: TeacherAnswers) -> float:
        """Return the fraction of the validation rows with the same labels of student and teacher."""
        same = []
        for name in self.validation:
            sides = [decode(self.task, values[name]).values for values in (learned, wanted)]
            same.append((sides[0] == sides[1]).reshape(len(sides[0]), -1).all(axis=1))
        return float(np.concatenate(same).mean())

    @cached_property
    def _answers(self) -> TeacherAnswers:
        texts = {_TRAIN: self.train[0], **({_TEXTS: self.texts} if self.texts else {})}
        texts |= {_validation(name): rows for name, (rows, _) in self.validation.items()}
        return self.teacher.answers(texts, self.cache)

    @cached_property
    def _row_answers(self) -> NDArray[np.float32]:
        """Return the teacher's answers by training row [R, L]: a text in windows has several rows."""
        parts = [self._answers[name] for name in (_TRAIN, _TEXTS) if name in self._answers]
        answers = self._in_units(np.concatenate(parts), self.teacher.task)
        return np.repeat(answers, self.train[1].num_rows, axis=0)

    @cached_property
    def _row_weights(self) -> NDArray[np.float32] | None:
        """Return the weight of the answer of each row [R]: the rows of a text have 1 together; None where all are 1."""
        unweighted, inputs = self.task.model_copy(update={"weights": ()}), self.train[1]
        return row_weights(unweighted, np.zeros(len(inputs.num_rows)), inputs)

    def _in_units(self, answers: NDArray[np.float32], task: ClassificationTask) -> NDArray[np.float32]:
        """Return the answers of a model of `task` in units of the targets, which a regression scales."""
        if self.task.kind != "regression":
            return answers
        numbers = answers * task.spread + task.centre
        return np.asarray((numbers - self.task.centre) / self.task.spread, dtype=np.float32)

    def _counts(self, batch: SoftBatch) -> dict[str, float]:
        return {
            "labels": CLASSIFICATION.count(batch.rows),
            "rows": float(len(batch.rows) if batch.weights is None else batch.weights.sum()),
            "tokens": float(batch.rows.mask.sum()),
        }

    def _relation_heads(self, model: Classifier) -> int:
        shape = encoder_shape(self.teacher.saved.config, self.teacher.saved.source)
        return relation_heads(model.encoder.config.hidden, shape.hidden, most=shape.heads)


def _validation(name: str) -> str:
    """Return the name of a validation file among the teacher's answers."""
    return f"validation.{name}"


def _with_projections(model: Classifier, rows: TextBatch) -> tuple[Tensor, Tensor]:
    """Return logits [B, L], and the queries, keys and values of the last layer [B, T, 3·D]."""
    encoder = model.encoder
    assert isinstance(encoder, TransformerBackbone)
    first = None if encoder.config.pools_all else rows.ids.new_zeros(len(rows), 1).long()
    out = encoder(rows.ids, rows.segments, rows.mask, all_hidden=True, at=first)
    logits: Tensor = model.classifier(model.pooler(encoder.pooled(out.last, rows.mask)))
    return logits, encoder.last_projections(out.hidden[-2])
