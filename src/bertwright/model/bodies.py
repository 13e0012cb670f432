"""bodies → bodies: two language models side by side (ELMo's way), and a BiLSTM on top of another body (paper §5.1).

Shapes: B batch, T tokens, Q rows asked for, D hidden, W width of the BiLSTM.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertwright.errors import InputError
from bertwright.model.dropout import dropout
from bertwright.model.encoder import Encoder, EncoderOutput, gather_rows
from bertwright.model.gpt import GPT
from bertwright.model.lstm import RecurrentBody, through
from bertwright.model.sizes import BodyConfig, EncoderConfig, GPTConfig, LSTMConfig, PairConfig, TopConfig


class Pair(nn.Module):
    """The states of a left-to-right and a right-to-left model next to each other; neither sees the other's."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__()
        self.config = config
        self.left = _one(config.left)
        self.right = _one(config.right)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """As Encoder's, D being both widths."""
        left, right = (half(ids, segments, mask, all_hidden=all_hidden, at=at) for half in (self.left, self.right))
        both = zip(left.hidden, right.hidden, strict=True)
        return EncoderOutput(torch.cat((left.last, right.last), -1), tuple(torch.cat(pair, -1) for pair in both))

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """The last token's state of the one and the first token's of the other [B, D]: each knows the whole row."""
        return torch.cat([half.summary(ids, segments, mask) for half in (self.left, self.right)], -1)

    def words(self) -> list[nn.Embedding]:
        """The tables of word embeddings."""
        return self.left.words() + self.right.words()

    def blocks(self) -> tuple[nn.Module, ...]:
        """What is sharded and recomputed as a unit, in the order of computing."""
        return self.left.blocks() + self.right.blocks()

    def flops(self, length: int, asked: int) -> float:
        """Matrix products of a row's forward."""
        return self.left.flops(length, asked) + self.right.flops(length, asked)


class Topped(nn.Module):
    """A body and a BiLSTM of one layer on its last states."""

    def __init__(self, config: TopConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = body_of(config.inner)
        self.lstm = nn.LSTM(config.inner.hidden, config.width // 2, batch_first=True, bidirectional=True)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, *, all_hidden: bool = False, at: Tensor | None = None
    ) -> EncoderOutput:
        """As Encoder's; the states of the layers below are of another width and are not given."""
        if all_hidden:
            raise InputError("a BiLSTM on top is fine-tuned with its body; frozen features are those of the body alone")
        states = self._states(ids, segments, mask)
        return EncoderOutput(states if at is None else gather_rows(states, at))

    def summary(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Where each direction ends: the one at the last token, the other at the first [B, W]."""
        states, half = self._states(ids, segments, mask), self.config.width // 2
        last = states[torch.arange(len(states), device=mask.device), mask.sum(1) - 1, :half]
        return torch.cat((last, states[:, 0, half:]), -1)

    def _states(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        below = dropout(self.inner(ids, segments, mask).last, self.config.hidden_dropout, self.training)
        packed = pack_padded_sequence(below, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        found: Tensor = pad_packed_sequence(through(self.lstm, packed), batch_first=True, total_length=ids.shape[1])[0]
        return found  # [B, T, W]

    def words(self) -> list[nn.Embedding]:
        """The tables of word embeddings."""
        return self.inner.words()

    def blocks(self) -> tuple[nn.Module, ...]:
        """What is sharded and recomputed as a unit, in the order of computing."""
        return (*self.inner.blocks(), self.lstm)

    def flops(self, length: int, asked: int) -> float:
        """Matrix products of a row's forward."""
        half = self.config.width // 2
        return self.inner.flops(length, length) + 2.0 * length * 2 * 4 * half * (self.config.inner.hidden + half)


Body = Encoder | RecurrentBody | Pair | Topped
"""Whatever turns token ids into states; all are called alike."""


def body_of(config: BodyConfig) -> Body:
    """A body of that shape, with the weights that torch begins with."""
    if isinstance(config, TopConfig):
        return Topped(config)
    return Pair(config) if isinstance(config, PairConfig) else _one(config)


def places(config: BodyConfig) -> tuple[str, ...]:
    """Where the bodies that a body is made of stand: what their parameters' names begin with."""
    if isinstance(config, TopConfig):
        return tuple(f"inner.{place}" for place in places(config.inner))
    return ("left.", "right.") if isinstance(config, PairConfig) else ("",)


def _one(config: EncoderConfig | LSTMConfig) -> Encoder | RecurrentBody:
    if isinstance(config, LSTMConfig):
        return RecurrentBody(config)
    return GPT(config) if isinstance(config, GPTConfig) else Encoder(config)
