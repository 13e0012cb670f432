"""bodies → bodies: two language models side by side (ELMo's way), and a BiLSTM on top of another body (paper §5.1).

Shapes: B batch, T tokens, Q rows asked for, D hidden, W width of the BiLSTM.
"""

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig, EncoderConfig, GPTConfig, LSTMConfig, PairConfig, TopConfig
from bertwright.model.encoder import GPT, Encoder, EncoderOutput, SingleBackbone, dropout, gather_rows

# batches → body of an LSTM language model in one direction: each half of ELMo (Peters et al. 2018), over word pieces.
#
# ELMo reads words as letters through convolutions; here the pieces have embeddings, so that all systems read the
# same. As there, each layer's cells are projected to the width of the states, and from the second layer on what goes
# into a layer is added to what comes out.
#
# Shapes: B batch, T tokens, D hidden.

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


class RecurrentBackbone(SingleBackbone):
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
        self.inner = build_backbone(config.inner)
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


Backbone = Encoder | RecurrentBackbone | Pair | Topped
"""Whatever turns token ids into states; all are called alike."""


def build_backbone(config: BackboneConfig) -> Backbone:
    """A body of that shape, with the weights that torch begins with."""
    if isinstance(config, TopConfig):
        return Topped(config)
    return Pair(config) if isinstance(config, PairConfig) else _one(config)


def places(config: BackboneConfig) -> tuple[str, ...]:
    """Where the bodies that a body is made of stand: what their parameters' names begin with."""
    if isinstance(config, TopConfig):
        return tuple(f"inner.{place}" for place in places(config.inner))
    return ("left.", "right.") if isinstance(config, PairConfig) else ("",)


def _one(config: EncoderConfig | LSTMConfig) -> Encoder | RecurrentBackbone:
    if isinstance(config, LSTMConfig):
        return RecurrentBackbone(config)
    return GPT(config) if isinstance(config, GPTConfig) else Encoder(config)
