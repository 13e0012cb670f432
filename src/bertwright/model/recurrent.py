"""batches → states of recurrent backbones: LSTM language models, two models side by side, a BiLSTM on top (paper §5.1).

ELMo (Peters et al. 2018) reads words as characters through convolutions. Here the pieces have embeddings, so that all
systems read the same input. As in ELMo, each layer's cells are projected to the width of the states, and from the
second layer on the input of a layer is added to its output.

Shapes: B batch, T tokens, Q positions that are returned, D hidden, W width of the BiLSTM.
"""

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from bertwright.errors import InputError
from bertwright.model.attention import dropout
from bertwright.model.backbones import Backbone, EncoderOutput
from bertwright.model.config import BackboneConfig, SingleBackboneConfig
from bertwright.model.encoder import SingleBackbone, gather_rows

AnyRows = TypeVar("AnyRows", Tensor, PackedSequence)
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # torch uses its own kernel


def run_lstm(lstm: nn.LSTM, rows: AnyRows) -> AnyRows:
    """Return the states of an LSTM for rows, packed or not.

    On a GPU it runs in the precision of its weights: autocast always chooses fp16 there, and the loss is not scaled for
    fp16.
    """
    weights = next(lstm.parameters())
    states: AnyRows
    if weights.device.type != "cuda":
        states = lstm(rows)[0]
    else:
        with torch.autocast("cuda", enabled=False):
            states = lstm(rows.to(weights.dtype))[0]
    return states


class TokenEmbeddings(nn.Module):
    """Word embeddings, then dropout."""

    def __init__(self, config: SingleBackboneConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden)
        self.dropout = config.hidden_dropout

    def forward(self, ids: Tensor) -> Tensor:
        """Return embeddings [B, T, D] for ids [B, T]."""
        return dropout(self.word(ids), self.dropout, self.training)


class LSTMLayer(nn.Module):
    """An LSTM with a projection, then dropout."""

    def __init__(self, config: SingleBackboneConfig, cells: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.hidden, cells, batch_first=True, proj_size=config.hidden)
        self.dropout = config.hidden_dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states [B, T, D] for `hidden` [B, T, D], computed from the first position on."""
        return dropout(run_lstm(self.lstm, hidden), self.dropout, self.training)


class RecurrentBackbone(SingleBackbone):
    """LSTM layers; a state has seen its own token and the tokens before it, or with `right` the tokens after it."""

    def __init__(self, config: SingleBackboneConfig, *, cells: int) -> None:
        super().__init__()
        self.config = config
        self.cells = cells
        self.embeddings = TokenEmbeddings(config)
        self.layers = nn.ModuleList(LSTMLayer(config, cells) for _ in range(config.layers))

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; segments have no effect."""
        order = reading_order(mask, self.config.attends)
        hidden = self.embeddings(ids.gather(1, order))
        states = [hidden]
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden) + (hidden if index else 0)
            states.append(hidden)
        if self.config.attends == "left":  # the tokens were read in the order of the row
            last = hidden if at is None else gather_rows(hidden, at)
            return EncoderOutput(last, tuple(states) if all_hidden else ())
        # The order is its own inverse: gathering by it again puts each state at the position of its token.
        last = gather_rows(hidden, order if at is None else order.gather(1, at))
        return EncoderOutput(last, tuple(gather_rows(state, order) for state in states) if all_hidden else ())

    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of a row's forward pass; all positions are computed."""
        width, cells = self.config.hidden, self.cells
        return float(self.config.layers * 2 * length * (8 * cells * width + cells * width))


def reading_order(mask: Tensor, attends: str) -> Tensor:
    """Return the positions of `mask` [B, T] in the order of reading: for `right` the real ones from last to first."""
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    if attends == "left":
        return positions
    lengths = mask.sum(1, keepdim=True)
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


class SideBySide(Backbone):
    """The concatenated states of a left-to-right and a right-to-left model; neither model reads the other's states."""

    def __init__(self, config: BackboneConfig, left: Backbone, right: Backbone) -> None:
        super().__init__()
        self.config = config
        self.left = left
        self.right = right

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; D is the sum of both widths."""
        left, right = (half(ids, segments, mask, all_hidden=all_hidden, at=at) for half in (self.left, self.right))
        both = zip(left.hidden, right.hidden, strict=True)
        return EncoderOutput(torch.cat((left.last, right.last), -1), tuple(torch.cat(pair, -1) for pair in both))

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return the last token's state of the left model and the first token's state of the right model [B, D]."""
        return torch.cat([half.summary(ids, segments, mask) for half in (self.left, self.right)], -1)

    def word_embeddings(self) -> list[nn.Embedding]:
        """Return the tables of word embeddings of both models."""
        return self.left.word_embeddings() + self.right.word_embeddings()

    def blocks(self) -> tuple[nn.Module, ...]:
        """Return the blocks of both models."""
        return self.left.blocks() + self.right.blocks()

    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of both models."""
        return self.left.flops(length, num_last) + self.right.flops(length, num_last)


class WithBiLSTM(Backbone):
    """A backbone with a BiLSTM of one layer on its last states."""

    def __init__(self, config: BackboneConfig, inner: Backbone) -> None:
        super().__init__()
        self.config = config
        self.inner = inner
        self.lstm = nn.LSTM(inner.config.hidden, config.hidden // 2, batch_first=True, bidirectional=True)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch, see `Backbone.forward`; InputError with `all_hidden`, because widths differ."""
        if all_hidden:
            raise InputError(
                "a BiLSTM on top is fine-tuned with its backbone; frozen features need a backbone without it"
            )
        states = self._states(ids, segments, mask)
        return EncoderOutput(states if at is None else gather_rows(states, at))

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return the final state of each direction, at the last and at the first token, as one vector [B, W]."""
        states, half = self._states(ids, segments, mask), self.config.hidden // 2
        last = states[torch.arange(len(states), device=mask.device), mask.sum(1) - 1, :half]
        return torch.cat((last, states[:, 0, half:]), -1)

    def _states(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        below = dropout(self.inner(ids, segments, mask).last, self.config.hidden_dropout, self.training)
        packed = pack_padded_sequence(below, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states: Tensor
        states, _ = pad_packed_sequence(run_lstm(self.lstm, packed), batch_first=True, total_length=ids.shape[1])
        return states  # [B, T, W]

    def word_embeddings(self) -> list[nn.Embedding]:
        """Return the tables of word embeddings of the backbone below."""
        return self.inner.word_embeddings()

    def blocks(self) -> tuple[nn.Module, ...]:
        """Return the blocks of the backbone below, and the BiLSTM."""
        return (*self.inner.blocks(), self.lstm)

    def flops(self, length: int, num_last: int) -> float:
        """Return the FLOPs of the backbone below, at all positions, and of the BiLSTM."""
        half = self.config.hidden // 2
        return self.inner.flops(length, length) + 2.0 * length * 2 * 4 * half * (self.inner.config.hidden + half)
