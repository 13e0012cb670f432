"""states of a frozen encoder → vectors for a task: a mix of layers, then a BiLSTM of two layers (paper §5.3, table 7).

A weighted sum is ELMo's (Peters et al. 2018, §3.2): shares that add up to 1, and one factor for all.

Shapes: B batch, P places of a row, S states (layers asked for), D hidden, W width of the BiLSTM.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertwright.errors import InputError
from bertwright.model.dropout import dropout
from bertwright.model.lstm import through
from bertwright.model.sizes import WAYS, Way

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
        out: Tensor = pad_packed_sequence(through(self.lstm, packed), batch_first=True, total_length=states.shape[1])[0]
        return dropout(out, self.dropout, self.training)
