"""rows → logits: the classifier on the state of [CLS], and its batches (paper §3.2 and 4.1).

Shapes: B batch, T tokens, L outputs, N examples.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig
from bertwright.model.encoder import Pooler
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.spec import ClassificationTask, with_labels
from bertwright.tasks.inference import answered_batches, evaluating, padded_inputs, ready
from bertwright.training.hardware import module_device, move_to_device


@dataclass(frozen=True)
class TextBatch:
    """A padded batch: `ids`, `segments`, `mask` [B, T]; `targets` [B] or [B, L]; `weights` [B], None where all are 1.

    Where `orders` is 2, ids, segments and mask are [2·B, T]: all pairs, then all pairs with the texts exchanged.
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None
    orders: Literal[1, 2] = 1

    def __len__(self) -> int:
        """Return B."""
        return len(self.ids) // self.orders


class Classifier(nn.Module):
    """Encoder, pooler and one linear layer on the state that summarises the row.

    GPT-1 has no pooler (GPT paper §3.2). GPT-2 and a new BiLSTM on top have none either. With `both_orders`, pairs are
    read in both orders and the two states are added (GPT paper §3.3).
    """

    def __init__(self, config: BackboneConfig, num_outputs: int, *, both_orders: bool = False) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.pooler = Pooler(config) if config.classifier_has_pooler else nn.Identity()
        bias = config.classifier_has_bias
        self.classifier = ClassificationHead(config.hidden, num_outputs, config.head_dropout, bias=bias)
        self.both_orders = both_orders

    def forward(self, rows: TextBatch) -> Tensor:
        """Return logits [B, L]."""
        state = self.encoder.summary(rows.ids, rows.segments, rows.mask)
        state = state.unflatten(0, (rows.orders, -1)).sum(0)  # [O·B, D] → [B, D]
        logits: Tensor = self.classifier(self.pooler(state))
        return logits


def reads_both_orders(task: ClassificationTask, config: BackboneConfig) -> bool:
    """Return whether pairs are read in both orders: only by GPT-1, which attends to the left (GPT paper §3.3)."""
    return task.symmetric and len(task.text) == 2 and config.is_tuned_as_gpt


def padded(
    encoded: Encoded,
    rows: Sequence[int] | NDArray[np.int64],
    *,
    pad_id: int,
    targets: NDArray[Any] | None = None,
    weights: NDArray[np.float32] | None = None,
    both_orders: bool = False,
) -> TextBatch:
    """Return these rows of `encoded`, padded to the longest, with their part of `targets` and `weights` of all rows."""
    sequences, first = [encoded.ids[row] for row in rows], encoded.first[np.asarray(rows)]
    if both_orders:
        exchanged = [_exchanged(ids, begin) for ids, begin in zip(sequences, first, strict=True)]
        first = np.concatenate((first, [len(ids) for ids in sequences] - first + 1))
        sequences = [*sequences, *exchanged]
    of_rows = [None if part is None else torch.from_numpy(part[np.asarray(rows)]) for part in (targets, weights)]
    inputs = padded_inputs(sequences, first, pad_id=pad_id)
    return TextBatch(*inputs, targets=of_rows[0], weights=of_rows[1], orders=2 if both_orders else 1)


def _exchanged(ids: NDArray[np.int32], first: int) -> NDArray[np.int32]:
    """Return the pair with its texts exchanged: begin A between B end → begin B between A end; B starts at `first`."""
    return np.concatenate((ids[:1], ids[first:-1], ids[first - 1 : first], ids[1 : first - 1], ids[-1:]))


def predict_logits(model: Classifier, encoded: Encoded) -> NDArray[np.float32]:
    """Return logits [examples, L] in order, computed in batches of similar length with dropout off.

    An example with several rows gets the mean of its rows' logits.
    """
    lengths = np.array([len(ids) for ids in encoded.ids])
    logits = np.zeros((len(lengths), model.classifier.linear.out_features), dtype=np.float32)
    pad_id = model.encoder.config.pad_id
    with evaluating(model):
        for rows in answered_batches(lengths):
            batch = padded(encoded, rows, pad_id=pad_id, both_orders=model.both_orders)
            logits[rows] = model(move_to_device(batch, module_device(model))).float().cpu().numpy()
    return encoded.mean_of_rows(logits)


_LARGEST_CENTRE: Final = 1000
"""Largest centre of a regression, in units of its spread, that is multiplied into the head."""


def in_natural_units(model: Classifier, task: ClassificationTask) -> tuple[Classifier, ClassificationTask]:
    """Return the model and its task with centre and spread of a regression multiplied into the head.

    The head then predicts the numbers in the unit of the data. A head without a bias has no number to hold the centre,
    and fp32 has too few digits for a centre that is much larger than the spread, such as times in seconds: the task
    keeps both then.
    """
    has_bias = model.encoder.config.classifier_has_bias
    if not has_bias or task.kind != "regression" or (task.centre, task.spread) == (0.0, 1.0):
        return model, task
    if abs(task.centre) > _LARGEST_CENTRE * task.spread:
        return model, task
    folded = copy.deepcopy(model)
    with torch.no_grad():
        folded.classifier.linear.weight *= task.spread
        folded.classifier.linear.bias.mul_(task.spread).add_(task.centre)
    return folded, task.model_copy(update={"centre": 0.0, "spread": 1.0})


def open_classifier(saved: SavedModel) -> tuple[Classifier, ClassificationTask, int]:
    """Return the classifier of a fine-tuned model folder, its task with the folder's labels, and its maximal length."""
    task, max_length = noted_task(saved)
    model = Classifier(saved.config, task.num_outputs, both_orders=reads_both_orders(task, saved.config))
    load_weights(model, saved)
    return ready(model, saved), task, max_length


def noted_task(saved: SavedModel) -> tuple[ClassificationTask, int]:
    """Return the task stored in a model folder, with the folder's labels, and its maximal length."""
    if "task" not in saved.extra:
        raise InputError(
            f"{saved.source}: not a fine-tuned classifier; fine-tune one with: bertwright finetune TASK --model …"
        )
    task = ClassificationTask.model_validate(saved.extra["task"])
    if task.has_labels:
        task = with_labels(task, saved.labels)
    return task, saved.max_length
