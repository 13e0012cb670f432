"""rows → states of a frozen encoder, computed once → mix of layers → BiLSTM → logits (paper §5.3, table 7).

The weighted sum of layers is ELMo's (Peters et al. 2018, §3.2): softmax weights and one factor.

Shapes: N rows, R positions of all rows one after another, S states (requested layers), D hidden, B rows of a batch,
P positions of the longest row, W width of the BiLSTM, L outputs.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.model.attention import dropout
from bertwright.model.backbones import Backbone, build_backbone
from bertwright.model.config import WAYS, BackboneConfig, Way
from bertwright.model.heads import ClassificationHead
from bertwright.model.recurrent import run_lstm
from bertwright.tasks.inference import answered_batches, batches_by_length, evaluating, padded_inputs
from bertwright.training.hardware import module_device

_SUMS: tuple[Way, ...] = ("sum-last-four", "sum-all", "elmo")


def states_of(way: Way, layers: int) -> list[int]:
    """Return the states that a way of the feature-based approach needs; 0 is the embeddings.

    An encoder with fewer than four layers uses all its layers as the last four.
    """
    match way:
        case "embeddings":
            return [0]
        case "second-to-last":
            return [layers - 1]
        case "last":
            return [layers]
        case "sum-all":
            return list(range(1, layers + 1))
        case "elmo":
            return list(range(layers + 1))
        case "sum-last-four" | "concat-last-four":
            return list(range(max(1, layers - 3), layers + 1))
    raise InputError(f"unknown way {way!r}; allowed: {', '.join(WAYS)}")


class Recurrent(nn.Module):
    """The mix of layers and the BiLSTM. W is 768 in the paper, half of it in each direction."""

    def __init__(self, way: Way, *, states: int, hidden: int, width: int, dropout: float) -> None:
        """Build the mix of `states` states of width `hidden`, and the BiLSTM."""
        super().__init__()
        if width % 2:
            raise InputError(f"BiLSTM width {width}: expected an even number")
        self.concatenates = way not in _SUMS
        self.dropout = dropout
        self.shares = nn.Parameter(torch.zeros(states), requires_grad=not self.concatenates)
        self.factor = nn.Parameter(torch.ones(1), requires_grad=not self.concatenates)
        inputs = states * hidden if self.concatenates else hidden
        self.lstm = nn.LSTM(inputs, width // 2, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)

    def mix(self, states: Tensor) -> Tensor:
        """Return [B, P, S·D] from [B, P, S, D], or [B, P, D] as a sum."""
        if self.concatenates:
            return states.flatten(2)
        return self.factor * torch.einsum("bpsd,s->bpd", states, self.shares.softmax(0))

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, P, W] from states [B, P, S, D] and the real positions `lengths` [B]; padding gives 0."""
        mixed = dropout(self.mix(states), self.dropout, self.training)
        packed = pack_padded_sequence(mixed, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed = run_lstm(self.lstm, packed)
        out: Tensor = pad_packed_sequence(packed, batch_first=True, total_length=states.shape[1])[0]
        return dropout(out, self.dropout, self.training)


FeatureRow = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
"""A row of ids, the positions in it whose states are needed, and their indices among all R positions."""


@dataclass(frozen=True)
class States:
    """All states [R, S, D], mapped from a file; row i has positions `ends[i]` to `ends[i + 1]` [N+1]."""

    values: NDArray[np.float32]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of positions of each row [N]."""
        return np.diff(self.ends)

    def padded(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return these rows [B, P, S, D] and their lengths [B]."""
        lengths = self.lengths[np.asarray(rows)]
        batch = np.zeros((len(lengths), int(lengths.max()), *self.values.shape[1:]), dtype=np.float32)
        for index, row in enumerate(rows):
            batch[index, : lengths[index]] = self.values[self.ends[row] : self.ends[row + 1]]
        return torch.from_numpy(batch), torch.from_numpy(lengths)


class FrozenHead(nn.Module):
    """The trained part: the mix, the BiLSTM, and one linear layer on each position or on the row."""

    def __init__(self, config: BackboneConfig, way: Way, *, outputs: int, width: int, each: bool) -> None:
        super().__init__()
        self.recurrent = Recurrent(
            way,
            states=len(states_of(way, config.layers)),
            hidden=config.hidden,
            width=width,
            dropout=config.hidden_dropout,
        )
        self.classifier = ClassificationHead(width, outputs, config.hidden_dropout)
        self.each = each

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return logits of each position [B, P, L], or of the row [B, L] from the maximum over its positions."""
        vectors = self.recurrent(states, lengths)
        if not self.each:
            real = torch.arange(vectors.shape[1], device=vectors.device) < lengths.to(vectors.device)[:, None]
            vectors = vectors.masked_fill(~real[:, :, None], -torch.inf).amax(1)
        logits: Tensor = self.classifier(vectors)
        return logits


class FrozenModel(nn.Module):
    """A frozen encoder and the trained head."""

    def __init__(self, config: BackboneConfig, way: Way, *, outputs: int, width: int, each: bool) -> None:
        super().__init__()
        self.encoder = build_backbone(config).requires_grad_(False)
        self.head = FrozenHead(config, way, outputs=outputs, width=width, each=each)


@dataclass(frozen=True)
class FeaturePositions:
    """The rows of ids to encode and the positions whose states are needed.

    ends    [N+1] as in States
    first   [N] number of tokens in segment 0; None: all
    """

    rows: Sequence[FeatureRow]
    ends: NDArray[np.int64]
    first: NDArray[np.int32] | None = None


def every_position(rows: Sequence[NDArray[np.int32]], first: NDArray[np.int32] | None = None) -> FeaturePositions:
    """Return every token of rows of ids, with `first` as in FeaturePositions."""
    ends = np.cumsum([0, *map(len, rows)])
    begins = ends[:-1]
    asks = [
        (row, np.arange(len(row)), np.arange(begin, begin + len(row))) for row, begin in zip(rows, begins, strict=True)
    ]
    return FeaturePositions(asks, ends, first)


def states_for(
    encoder: Backbone,
    positions: FeaturePositions,
    layers: Sequence[int],
    *,
    cache: Path | None = None,
    key: str = "",
    what: str = "",
) -> States:
    """Return the states of all positions; with a `cache` folder they are computed once and then read from it.

    key    digest of the encoder's weights; the file's name is derived from key, layers and ids
    what   end of the progress line; "" shows no progress
    """
    if cache is None:
        values = np.zeros(_shape(encoder, positions, layers), dtype=np.float32)
        _fill(values, encoder, positions, layers, what)
        return States(values, positions.ends)
    digest = hashlib.sha256(f"{key} {list(layers)}".encode())
    digest.update(b"" if positions.first is None else positions.first.tobytes())
    for parts in positions.rows:
        for part in parts:
            digest.update(part.tobytes())
    path = cache / f"{digest.hexdigest()[:32]}.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            _fill(_on_disk(stream, _shape(encoder, positions, layers)), encoder, positions, layers, what)
    return States(np.load(path, mmap_mode="r", allow_pickle=False), positions.ends)


def predicted(model: FrozenHead, states: States) -> NDArray[np.float32]:
    """Return logits of all positions [R, L] or of all rows [N, L], in order, with dropout off."""
    outputs = model.classifier.linear.out_features
    predictions = np.zeros((int(states.ends[-1]) if model.each else len(states), outputs), dtype=np.float32)
    with evaluating(model):
        nonempty = np.flatnonzero(states.lengths)
        for rows in (nonempty[batch] for batch in answered_batches(states.lengths[nonempty])):
            values, lengths = states.padded(rows)
            logits = model(values.to(module_device(model)), lengths).float().cpu().numpy()
            for index, row in enumerate(rows):
                if model.each:
                    predictions[states.ends[row] : states.ends[row + 1]] = logits[index, : lengths[index]]
                else:
                    predictions[row] = logits[index]
    return predictions


def _shape(encoder: Backbone, positions: FeaturePositions, layers: Sequence[int]) -> tuple[int, int, int]:
    return int(positions.ends[-1]), len(layers), encoder.config.hidden


def _on_disk(stream: IO[bytes], shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Return an array that is mapped to a .npy file, because it may be larger than memory.

    Raises OSError before anything is computed where the disk has no room.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    stream.flush()
    begin, size = stream.tell(), 4 * math.prod(shape)
    if hasattr(os, "posix_fallocate"):  # a sparse file without room later would kill the process
        os.posix_fallocate(stream.fileno(), begin, size)
    return np.memmap(stream, dtype=np.float32, mode="r+", offset=begin, shape=shape)


def _fill(
    values: NDArray[np.float32], encoder: Backbone, positions: FeaturePositions, layers: Sequence[int], what: str
) -> None:
    feature_rows = positions.rows
    lengths = np.array([len(ids) for ids, _, _ in feature_rows])
    encoder.eval()
    with torch.inference_mode():
        for rows in answered_batches(lengths, what) if what else batches_by_length(lengths):
            first = None if positions.first is None else positions.first[rows]
            inputs = padded_inputs([feature_rows[row][0] for row in rows], first, pad_id=encoder.config.pad_id)
            hidden = encoder(*(part.to(module_device(encoder)) for part in inputs), all_hidden=True).hidden
            states = torch.stack([hidden[layer] for layer in layers], dim=2).float().cpu().numpy()  # [B, T, S, D]
            for index, row in enumerate(rows):
                _, at, target = feature_rows[row]
                values[target] = states[index, at]
