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
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig
from bertwright.model.encoder import Pooler
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.gpt import GPTConfig
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, for_loss
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.spec import ClassificationTask, with_labels
from bertwright.tasks.inference import answered_batches, ready
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import module_device, move_to_device


@dataclass(frozen=True)
class Rows:
    """A padded batch: `ids`, `segments` [B, T], `mask` [B, T], `targets` [B] or [B, L]; `weights` [B], None: all 1.

    Where `orders` is 2, ids, segments and mask are [2·B, T]: behind all pairs they stand again, the second text first.
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None
    orders: Literal[1, 2] = 1

    def __len__(self) -> int:
        """B."""
        return len(self.ids) // self.orders


class Classifier(nn.Module):
    """Encoder, pooler and one linear layer on the state that knows the whole row.

    GPT-1 has no pooler (GPT §3.2), and a new BiLSTM on top is read as it is. `both_orders`: pairs are read in both, and
    their two states are added (GPT §3.3).
    """

    def __init__(self, config: BackboneConfig, num_outputs: int, *, both_orders: bool = False) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.pooler = nn.Identity() if isinstance(config, GPTConfig | TopConfig) else Pooler(config)
        self.classifier = ClassificationHead(config.hidden, num_outputs, config.hidden_dropout)
        self.both_orders = both_orders

    def forward(self, rows: Rows) -> Tensor:
        """Logits [B, L]."""
        state = self.encoder.summary(rows.ids, rows.segments, rows.mask)
        state = state.unflatten(0, (rows.orders, -1)).sum(0)  # [O·B, D] → [B, D]
        logits: Tensor = self.classifier(self.pooler(state))
        return logits


def reads_both_orders(task: ClassificationTask, config: BackboneConfig) -> bool:
    """Whether pairs are read in both orders: by GPT-1, for which the first text cannot know the second (GPT §3.3)."""
    return task.symmetric and len(task.text) == 2 and isinstance(config, GPTConfig)


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
        blocks=model.encoder.blocks(),
        step=step,
        counts=lambda rows: {"rows": float(len(rows) if rows.weights is None else rows.weights.sum())},
        flops=lambda rows: 3.0 * len(rows.ids) * model.encoder.flops(rows.ids.shape[1], 1),
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
    both_orders: bool = False,
) -> Rows:
    """The given rows of `encoded`, padded to the longest of them; `targets` and `weights` are those of all its rows."""
    given, first = [encoded.ids[row] for row in rows], encoded.first[np.asarray(rows)]
    if both_orders:
        turned = [_turned(ids, begin) for ids, begin in zip(given, first, strict=True)]
        given, first = [*given, *turned], np.concatenate((first, [len(ids) for ids in given] - first + 1))
    lengths = np.array([len(ids) for ids in given])
    filled = np.full((len(lengths), lengths.max()), pad_id, dtype=np.int32)
    for place, ids in enumerate(given):
        filled[place, : lengths[place]] = ids
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    segments = ((columns >= first[:, None]) & mask).astype(np.int32)
    of_rows = [None if part is None else torch.from_numpy(part[np.asarray(rows)]) for part in (targets, weights)]
    inputs = [torch.from_numpy(part) for part in (filled, segments, mask)]
    return Rows(inputs[0], inputs[1], inputs[2], of_rows[0], of_rows[1], 2 if both_orders else 1)


def _turned(ids: NDArray[np.int32], first: int) -> NDArray[np.int32]:
    """begin A between B end → begin B between A end; `first` is where B begins."""
    return np.concatenate((ids[:1], ids[first:-1], ids[first - 1 : first], ids[1 : first - 1], ids[-1:]))


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
            given = padded(encoded, rows, pad_id=pad_id, both_orders=model.both_orders)
            found[rows] = model(move_to_device(given, module_device(model))).float().cpu().numpy()
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
    model = Classifier(saved.config, task.num_outputs, both_orders=reads_both_orders(task, saved.config))
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
    return task, saved.max_length
