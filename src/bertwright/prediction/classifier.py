"""encoder → task: the classifier on C, its batches and its losses (paper §3.2 and 4.1).

Shapes: B batch, T tokens, L outputs, N examples.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.encoder import Encoder, Pooler
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, for_loss
from bertwright.model.sizes import EncoderConfig
from bertwright.prediction.precision import ready
from bertwright.prediction.work import answered_batches
from bertwright.tasks.classify import ClassificationTask, Encoded, with_labels
from bertwright.training.loop import Trainable


@dataclass(frozen=True)
class Rows:
    """A padded batch: `ids`, `segments` [B, T], `mask` [B, T], `targets` [B] or [B, L]; `weights` [B], None: all 1."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None


class Classifier(nn.Module):
    """Encoder, pooler and one linear layer; the last encoder layer is computed at [CLS] alone."""

    def __init__(self, config: EncoderConfig, num_outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)
        self.classifier = ClassificationHead(config.hidden, num_outputs, config.hidden_dropout)

    def forward(self, rows: Rows) -> Tensor:
        """Logits [B, L]."""
        at = torch.zeros(len(rows.ids), 1, dtype=torch.int64)
        last = self.encoder(rows.ids, rows.segments, rows.mask, at=at).last
        logits: Tensor = self.classifier(self.pooler(last))
        return logits


def classifier_task(model: Classifier, task: ClassificationTask) -> Trainable[Rows]:
    """What the loop trains: a sum over rows, each times its weight; their count is the sum of the weights.

    Cross entropy, the squared error of a regression, or the binary cross entropies of all labels, added up.
    """

    def step(rows: Rows) -> dict[str, tuple[Tensor, str]]:
        logits = for_loss(model(rows))
        assert rows.targets is not None
        if rows.weights is None:
            return {"loss": (_loss(task, logits, rows.targets, "sum"), "rows")}
        each = _loss(task, logits, rows.targets, "none").view(len(logits), -1).sum(1)  # [B, L] or [B] → [B]
        return {"loss": ((each * rows.weights).sum(), "rows")}

    return Trainable(
        module=model,
        blocks=tuple(model.encoder.layers),
        step=step,
        counts=lambda rows: {"rows": float(len(rows.ids) if rows.weights is None else rows.weights.sum())},
        flops=lambda rows: classifier_flops(model.encoder.config, rows),
        tokens=lambda rows: int(rows.mask.sum()),
    )


def _loss(task: ClassificationTask, logits: Tensor, targets: Tensor, reduction: Literal["sum", "none"]) -> Tensor:
    if task.kind == "regression":
        return F.mse_loss(logits[:, 0], targets, reduction=reduction)
    if task.kind == "multilabel":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction=reduction)
    return F.cross_entropy(logits, targets, reduction=reduction)


def padded(
    encoded: Encoded,
    rows: Sequence[int] | NDArray[np.int64],
    *,
    pad_id: int,
    targets: NDArray[Any] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> Rows:
    """The given rows of `encoded`, padded to the longest of them; `targets` and `weights` are those of all its rows."""
    lengths = np.array([len(encoded.ids[row]) for row in rows])
    ids = np.full((len(lengths), lengths.max()), pad_id, dtype=np.int32)
    for place, row in enumerate(rows):
        ids[place, : lengths[place]] = encoded.ids[row]
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    segments = ((columns >= encoded.first[np.asarray(rows)][:, None]) & mask).astype(np.int32)
    chosen, weighed = (
        None if given is None else torch.from_numpy(given[np.asarray(rows)]) for given in (targets, weights)
    )
    return Rows(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask), chosen, weighed)


def predict_logits(model: Classifier, encoded: Encoded) -> NDArray[np.float32]:
    """Logits [examples, L] in their order, computed in batches of like length with dropout off.

    Those of an example with several rows are the mean over its rows.
    """
    was_training = model.training
    model.eval()
    lengths = np.array([len(ids) for ids in encoded.ids])
    found = np.zeros((len(lengths), model.classifier.linear.out_features), dtype=np.float32)
    pad_id = model.encoder.config.pad_id
    with torch.inference_mode():
        for rows in answered_batches(lengths):
            found[rows] = model(padded(encoded, rows, pad_id=pad_id)).float().numpy()
    model.train(was_training)
    if encoded.begins is None:
        return found
    sums = np.add.reduceat(found, encoded.begins, axis=0, dtype=np.float64)
    return (sums / encoded.num_rows[:, None]).astype(np.float32)


def in_natural_units(model: Classifier, task: ClassificationTask) -> tuple[Classifier, ClassificationTask]:
    """A regression learned on centred, scaled targets, the scale folded into its head: its outputs are the numbers."""
    if task.kind != "regression" or (task.centre, task.spread) == (0.0, 1.0):
        return model, task
    folded = copy.deepcopy(model)
    with torch.no_grad():
        folded.classifier.linear.weight *= task.spread
        folded.classifier.linear.bias.mul_(task.spread).add_(task.centre)
    return folded, task.model_copy(update={"centre": 0.0, "spread": 1.0})


def open_classifier(saved: SavedModel) -> tuple[Classifier, ClassificationTask, int]:
    """The classifier of a fine-tuned model folder, its task with the folder's labels, and its maximal length."""
    task, max_length = noted_task(saved)
    model = Classifier(saved.config, task.num_outputs)
    load_weights(model, saved)
    return ready(model, saved), task, max_length


def noted_task(saved: SavedModel) -> tuple[ClassificationTask, int]:
    """The task that a model folder notes, with the folder's labels, and its maximal length."""
    if "task" not in saved.extra:
        raise InputError(
            f"{saved.place}: is no fine-tuned classifier; make one with: bertwright finetune TASK --model …"
        )
    task = ClassificationTask.model_validate(saved.extra["task"])
    if task.has_labels:
        task = with_labels(task, saved.labels)
    return task, int(saved.extra["max_length"])


def classifier_flops(config: EncoderConfig, rows: Rows) -> float:
    """Matrix products of forward and backward; the last layer counts keys and values alone."""
    count, length = rows.ids.shape
    width, inner = config.hidden, config.intermediate
    full = 2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    return 3.0 * count * ((config.layers - 1) * full + 4 * length * width**2)
