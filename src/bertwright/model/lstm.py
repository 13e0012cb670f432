"""batches → body of an LSTM language model in one direction: each half of ELMo (Peters et al. 2018), over word pieces.

ELMo reads words as letters through convolutions; here the pieces have embeddings, so that all systems read the same.
As there, each layer's cells are projected to the width of the states, and from the second layer on what goes into a
layer is added to what comes out.

Shapes: B batch, T tokens, D hidden.
"""

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertwright.model.dropout import dropout
from bertwright.model.encoder import EncoderOutput, SingleBody, gather_rows
from bertwright.model.sizes import LSTMConfig

Rows = TypeVar("Rows", Tensor, PackedSequence)
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # torch's plain one is taken


def through(lstm: nn.LSTM, rows: Rows) -> Rows:
    """What an LSTM makes of rows, packed or not. On a GPU in the precision of its weights: autocast takes fp16 there,
    whatever it was asked for, and nothing scales the loss for that.
    """
    weights = next(lstm.parameters())
    if weights.device.type != "cuda":
        found: Rows = lstm(rows)[0]
        return found
    with torch.autocast("cuda", enabled=False):
        found = lstm(rows.to(weights.dtype))[0]
        return found


class Tokens(nn.Module):
    """Token embeddings, then dropout."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden)
        self.dropout = config.hidden_dropout

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] ids → [B, T, D]."""
        return dropout(self.word(ids), self.dropout, self.training)


class LSTMLayer(nn.Module):
    """One LSTM with a projection, dropout behind it."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.hidden, config.cells, batch_first=True, proj_size=config.hidden)
        self.dropout = config.hidden_dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, D] → [B, T, D], from the first place on."""
        return dropout(through(self.lstm, hidden), self.dropout, self.training)


class RecurrentBody(SingleBody):
    """Token ids to vectors that know their own token and those before it, or for `right` those behind it."""

    config: LSTMConfig

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Tokens(config)
        self.layers = nn.ModuleList(LSTMLayer(config) for _ in range(config.layers))

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """As Encoder's; there are no segments, and real tokens stand before padding."""
        order = reading_order(mask, self.config.attends)
        hidden = self.embeddings(ids.gather(1, order))
        states = [hidden]
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden) + (hidden if index else 0)
            states.append(hidden)
        if self.config.attends == "left":  # as they stand
            last = hidden if at is None else gather_rows(hidden, at)
            return EncoderOutput(last, tuple(states) if all_hidden else ())
        # an order that is its own inverse: reading it again puts every state at its token's place
        last = gather_rows(hidden, order if at is None else order.gather(1, at))
        return EncoderOutput(last, tuple(gather_rows(state, order) for state in states) if all_hidden else ())

    def flops(self, length: int, asked: int) -> float:
        """Matrix products of a row's forward: every place is computed, whichever are asked for."""
        width, cells = self.config.hidden, self.config.cells
        return float(self.config.layers * 2 * length * (8 * cells * width + cells * width))


def reading_order(mask: Tensor, attends: str) -> Tensor:
    """The places of `mask` [B, T] as they are read: as they stand, or the real ones from the last to the first."""
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    if attends == "left":
        return places
    lengths = mask.sum(1, keepdim=True)
    return torch.where(places < lengths, lengths - 1 - places, places)
