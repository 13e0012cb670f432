"""frozen encoder → features, once → what a BiLSTM learns from them: the feature-based way (paper §5.3).

Shapes: N rows, R places of all rows one after another, S states, D hidden, B rows of a batch, P places of the longest.
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
from bertwright.model.backbones import Backbone, build_backbone
from bertwright.model.config import WAYS, BackboneConfig, Way
from bertwright.model.encoder import dropout
from bertwright.model.heads import ClassificationHead
from bertwright.model.recurrent import run_lstm
from bertwright.tasks.inference import answered_batches, batches_by_length
from bertwright.training.hardware import module_device

# states of a frozen encoder → vectors for a task: a mix of layers, then a BiLSTM of two layers (paper §5.3, table 7).
#
# A weighted sum is ELMo's (Peters et al. 2018, §3.2): shares that add up to 1, and one factor for all.
#
# Shapes: B batch, P places of a row, S states (layers asked for), D hidden, W width of the BiLSTM.

_SUMS: tuple[Way, ...] = ("sum-last-four", "sum-all", "elmo")


def states_of(way: Way, layers: int) -> list[int]:
    """Which states a way needs of an encoder with so many layers, 0 being the embeddings.

    An encoder with fewer than four layers has its own layers as the last four.
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
    raise InputError(f"{way!r} is no way to use features; there are {', '.join(WAYS)}")


class Recurrent(nn.Module):
    """The mix and the BiLSTM: W is 768 in the paper, half of it in each direction."""

    def __init__(self, way: Way, *, states: int, hidden: int, width: int, dropout: float) -> None:
        """states: how many the way needs; hidden: their width."""
        super().__init__()
        if width % 2:
            raise InputError(f"a BiLSTM of width {width}: must be even, half of it in each direction")
        self.concatenates = way not in _SUMS
        self.dropout = dropout
        self.shares = nn.Parameter(torch.zeros(states), requires_grad=not self.concatenates)
        self.factor = nn.Parameter(torch.ones(1), requires_grad=not self.concatenates)
        inputs = states * hidden if self.concatenates else hidden
        self.lstm = nn.LSTM(inputs, width // 2, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)

    def mix(self, states: Tensor) -> Tensor:
        """[B, P, S, D] → [B, P, S·D], or [B, P, D] as a sum."""
        if self.concatenates:
            return states.flatten(2)
        return self.factor * torch.einsum("bpsd,s->bpd", states, self.shares.softmax(0))

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """[B, P, S, D] states of rows with `lengths` [B] real places → [B, P, W]; places beyond are 0."""
        mixed = dropout(self.mix(states), self.dropout, self.training)
        packed = pack_padded_sequence(mixed, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out: Tensor = pad_packed_sequence(run_lstm(self.lstm, packed), batch_first=True, total_length=states.shape[1])[
            0
        ]
        return dropout(out, self.dropout, self.training)


Ask = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
"""A row of ids, the places in it whose states are wanted, and where among all R they belong."""


@dataclass(frozen=True)
class States:
    """All states [R, S, D], mapped from a file, and where each of N rows begins and ends among them, `ends` [N+1]."""

    values: NDArray[np.float32]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] places of each row."""
        return np.diff(self.ends)

    def padded(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The given rows [B, P, S, D] and their lengths [B]."""
        lengths = self.lengths[np.asarray(rows)]
        found = np.zeros((len(lengths), int(lengths.max()), *self.values.shape[1:]), dtype=np.float32)
        for place, row in enumerate(rows):
            found[place, : lengths[place]] = self.values[self.ends[row] : self.ends[row + 1]]
        return torch.from_numpy(found), torch.from_numpy(lengths)


class FrozenHead(nn.Module):
    """What learns: the mix and BiLSTM on an encoder's states, and one linear layer on each place or on the row."""

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
        """[B, P, S, D] → logits of each place [B, P, L], or of the row [B, L], from the maximum over its places."""
        found = self.recurrent(states, lengths)
        if not self.each:
            real = torch.arange(found.shape[1], device=found.device) < lengths.to(found.device)[:, None]
            found = found.masked_fill(~real[:, :, None], -torch.inf).amax(1)
        logits: Tensor = self.classifier(found)
        return logits


class FrozenModel(nn.Module):
    """An encoder that does not learn and the head that does."""

    def __init__(self, config: BackboneConfig, way: Way, *, outputs: int, width: int, each: bool) -> None:
        super().__init__()
        self.encoder = build_backbone(config).requires_grad_(False)
        self.head = FrozenHead(config, way, outputs=outputs, width=width, each=each)


@dataclass(frozen=True)
class Places:
    """What is asked of an encoder: rows of ids and which of their places are wanted; `ends` [N+1] as in States."""

    asks: Sequence[Ask]
    ends: NDArray[np.int64]
    first: NDArray[np.int32] | None = None
    """[rows] tokens of segment 0; None: all of them."""


def states_for(
    encoder: Backbone,
    wanted: Places,
    layers: Sequence[int],
    *,
    cache: Path | None = None,
    key: str = "",
    what: str = "",
) -> States:
    """The states of all places; with a `cache` folder computed once, and read from there again under the same `key`.

    The key and the ids decide the file's name: the key names the weights. `what` is done to the rows, where it is to be
    said how far it came.
    """
    if cache is None:
        values = np.zeros(_shape(encoder, wanted, layers), dtype=np.float32)
        _fill(values, encoder, wanted, layers, what)
        return States(values, wanted.ends)
    digest = hashlib.sha256(f"{key} {list(layers)}".encode())
    digest.update(b"" if wanted.first is None else wanted.first.tobytes())
    for parts in wanted.asks:
        for part in parts:
            digest.update(part.tobytes())
    path = cache / f"{digest.hexdigest()[:32]}.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            _fill(_on_disk(stream, _shape(encoder, wanted, layers)), encoder, wanted, layers, what)
    return States(np.load(path, mmap_mode="r", allow_pickle=False), wanted.ends)


def predicted(model: FrozenHead, states: States) -> NDArray[np.float32]:
    """Logits of all places [R, L], or of all rows [N, L], in their order; dropout off."""
    was_training = model.training
    model.eval()
    outputs = model.classifier.linear.out_features
    found = np.zeros((int(states.ends[-1]) if model.each else len(states), outputs), dtype=np.float32)
    with torch.inference_mode():
        there = np.flatnonzero(states.lengths)
        for rows in (there[batch] for batch in answered_batches(states.lengths[there])):
            values, lengths = states.padded(rows)
            logits = model(values.to(module_device(model)), lengths).float().cpu().numpy()
            for place, row in enumerate(rows):
                if model.each:
                    found[states.ends[row] : states.ends[row + 1]] = logits[place, : lengths[place]]
                else:
                    found[row] = logits[place]
    model.train(was_training)
    return found


def _shape(encoder: Backbone, wanted: Places, layers: Sequence[int]) -> tuple[int, int, int]:
    return int(wanted.ends[-1]), len(layers), encoder.config.hidden


def _on_disk(stream: IO[bytes], shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """An array of .npy's format whose values are the file's: there may be more of them than there is memory.

    OSError, before anything is computed, where the disk has no room for them.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    stream.flush()
    begin, size = stream.tell(), 4 * math.prod(shape)
    if hasattr(os, "posix_fallocate"):  # a hole that finds no room later would kill the process
        os.posix_fallocate(stream.fileno(), begin, size)
    return np.memmap(stream, dtype=np.float32, mode="r+", offset=begin, shape=shape)


def _fill(values: NDArray[np.float32], encoder: Backbone, wanted: Places, layers: Sequence[int], what: str) -> None:
    asks = wanted.asks
    lengths = np.array([len(ids) for ids, _, _ in asks])
    encoder.eval()
    with torch.inference_mode():
        for rows in answered_batches(lengths, what) if what else batches_by_length(lengths):
            width = int(lengths[rows].max())
            ids = np.full((len(rows), width), encoder.config.pad_id, dtype=np.int64)
            for place, row in enumerate(rows):
                ids[place, : lengths[row]] = asks[row][0]
            mask = np.arange(width) < lengths[rows][:, None]
            first = lengths if wanted.first is None else wanted.first
            segments = ((np.arange(width) >= first[rows][:, None]) & mask).astype(np.int64)
            given = (torch.from_numpy(part).to(module_device(encoder)) for part in (ids, segments, mask))
            hidden = encoder(*given, all_hidden=True).hidden
            states = torch.stack([hidden[layer] for layer in layers], dim=2).float().cpu().numpy()  # [B, T, S, D]
            for place, row in enumerate(rows):
                _, at, target = asks[row]
                values[target] = states[place, at]
