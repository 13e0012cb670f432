"""encoder → task: the classifier on each word's first piece, its batches and its loss (paper §5.3).

Shapes: B batch, T tokens, Q words asked for in a row, L labels, N rows, W words of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.model.bodies import body_of
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, for_loss
from bertwright.model.sizes import BodyConfig
from bertwright.prediction.precision import ready
from bertwright.prediction.work import answered_batches
from bertwright.tasks.tag_windows import Windows
from bertwright.training.device import moved, place_of
from bertwright.training.trainable import Trainable

_NO_WORD = -100
"""The target where a row has fewer words than the batch's fullest."""


@dataclass(frozen=True)
class TagRows:
    """A padded batch: `ids`, `mask` [B, T], `at` [B, Q] (0 where there is no word), `targets` [B, Q] or None."""

    ids: Tensor
    mask: Tensor
    at: Tensor
    targets: Tensor | None = None


class Tagger(nn.Module):
    """Encoder and one linear layer on each token; the last encoder layer is computed at the first pieces alone."""

    def __init__(self, config: BodyConfig, num_labels: int) -> None:
        super().__init__()
        self.encoder = body_of(config)
        self.classifier = ClassificationHead(config.hidden, num_labels, config.hidden_dropout)

    def forward(self, rows: TagRows) -> Tensor:
        """Logits [B, Q, L]."""
        last = self.encoder(rows.ids, torch.zeros_like(rows.ids), rows.mask, at=rows.at).last
        logits: Tensor = self.classifier(last)
        return logits


def tagger_task(model: Tagger) -> Trainable[TagRows]:
    """What the loop trains: cross entropy, summed over words."""

    def step(rows: TagRows) -> dict[str, tuple[Tensor, str]]:
        logits = for_loss(model(rows))
        assert rows.targets is not None
        loss = F.cross_entropy(
            logits.flatten(0, 1), rows.targets.flatten(), ignore_index=_NO_WORD, reduction="sum"
        )  # [B·Q, L] against [B·Q]
        return {"loss": (loss, "words")}

    return Trainable(
        module=model,
        blocks=model.encoder.blocks(),
        step=step,
        counts=lambda rows: {"words": float((_targets(rows) != _NO_WORD).sum())},
        flops=lambda rows: 3.0 * len(rows.ids) * model.encoder.flops(rows.ids.shape[1], rows.at.shape[1]),
        tokens=lambda rows: int(rows.mask.sum()),
    )


def tag_rows(
    windows: Windows, rows: Sequence[int] | NDArray[np.int64], *, pad_id: int, labels: NDArray[np.int64] | None = None
) -> TagRows:
    """The given rows, padded to the longest of them; `labels` [W] by word."""
    lengths = np.array([len(windows.ids[row]) for row in rows])
    asked = np.array([len(windows.at[row]) for row in rows])
    ids = np.full((len(lengths), lengths.max()), pad_id, dtype=np.int32)
    at = np.zeros((len(lengths), asked.max()), dtype=np.int64)
    targets = np.full(at.shape, _NO_WORD, dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : lengths[place]] = windows.ids[row]
        at[place, : asked[place]] = windows.at[row]
        if labels is not None:
            targets[place, : asked[place]] = labels[windows.words[row]]
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    given = torch.from_numpy(targets) if labels is not None else None
    return TagRows(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(at), given)


def predict_tags(model: Tagger, windows: Windows, num_words: int) -> NDArray[np.float32]:
    """Logits [W, L] in the order of the words, computed in batches of rows of like length with dropout off."""
    was_training = model.training
    model.eval()
    found = np.zeros((num_words, model.classifier.linear.out_features), dtype=np.float32)
    with torch.inference_mode():
        for rows in answered_batches(np.array([len(ids) for ids in windows.ids])):
            given = moved(tag_rows(windows, rows, pad_id=model.encoder.config.pad_id), place_of(model))
            logits = model(given).float().cpu().numpy()
            for place, row in enumerate(rows):
                found[windows.words[row]] = logits[place, : len(windows.words[row])]
    model.train(was_training)
    return found


def open_tagger(saved: SavedModel, num_labels: int) -> Tagger:
    """The tagger of a fine-tuned model folder, ready to answer."""
    model = Tagger(saved.config, num_labels)
    load_weights(model, saved)
    return ready(model, saved)


def _targets(rows: TagRows) -> Any:
    assert rows.targets is not None
    return rows.targets
