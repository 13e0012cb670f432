"""heads → loss: the vocabulary projection and its cross entropy, tile by tile in the processor's cache.

The logits of a batch (rows x 30,522) are the largest array of a small BERT's step, and moving it is what costs. Here a
few hundred columns at a time are projected, raised to powers of e and multiplied back onto the word embeddings before
they leave the cache; the powers are kept once, for the gradient of the word embeddings. Softmax divides by a sum over
all columns, which is known only at the end: every row is divided by its own then, before or after its products. The
label's own column is left out of the products and added in fp32: where its probability is near 1, what the others leave
of it would be lost in their rounding. Same numbers as `F.cross_entropy(F.linear(…))`, in the precision of the matrix
products.

A language model predicts at every place, some seven times as many rows as masked LM. There the rows are taken a block
at a time, and each block's part of the gradient is computed with its loss, so that no more than one block is held.

Shapes: M rows, D hidden, V vocabulary, C columns of a tile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.corpus.shards import Corpus
from bertwright.model.heads import for_loss

_COLUMNS: Final = 384
"""Of a tile: with 600 rows, about what the second-level cache of one core holds."""
_BLOCK: Final = 1024
"""Rows of a block, on processors."""
_LARGEST: Final = 1e20
"""A sum of powers above this, or below its inverse, is left to the plain way, which subtracts the largest logit."""


@dataclass(frozen=True)
class _Powers:
    """powers: e^logits tile after tile, [M x C] each, 0 for labels; shares [M]: what makes a row's powers its
    probabilities; missing [M]: 1 less that of the label.

    loss: the sum. to_states [M, D]: the gradient for the rows.
    """

    powers: Tensor
    shares: Tensor
    missing: Tensor
    loss: Tensor
    to_states: Tensor


def block_rows(device: str) -> int:
    """Rows of a block; a GPU wants more work at a time."""
    return _BLOCK if device == "cpu" else 8 * _BLOCK


def projected_loss(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy of `states` [M, D] against word embeddings [V, D] and `bias` [V] for `labels` [M]."""
    is_bf16 = _is_bf16(states.device)
    tiled = states.dtype == torch.float32 and states.device.type == "cpu" and not torch.compiler.is_compiling()
    if tiled and torch.is_grad_enabled():
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            room = torch.empty(states.shape[0] * len(words), dtype=torch.bfloat16 if is_bf16 else torch.float32)
            found = _powers(states, words, bias, labels, room)
        if found:
            loss: Tensor = _ProjectedLoss.apply(states, words, bias, labels, found)  # type: ignore[no-untyped-call]
            return loss
    return F.cross_entropy(for_loss(F.linear(states, words, bias)), labels, reduction="sum")


def running_loss(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """The same for any number of rows: nothing that is held has more than a block of rows times the vocabulary.

    A float64 model's logits are held all the same.
    """
    is_bf16 = _is_bf16(states.device)
    states = for_loss(states)
    if states.dtype != torch.float32:
        return F.cross_entropy(for_loss(F.linear(states, words, bias)), labels, reduction="sum")
    loss: Tensor = _loss_and_gradients(states, words, bias, labels, is_bf16)[0]
    return loss


def judged(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row [M], and whether its label is the likeliest [M]; a block of rows at a time."""
    losses, right = [], []
    size = block_rows(states.device.type)
    for rows, asked in zip(states.split(size), labels.split(size), strict=True):
        logits = for_loss(F.linear(rows, words, bias))
        losses.append(F.cross_entropy(logits, asked, reduction="none"))
        right.append(logits.argmax(1) == asked)
    return torch.cat(losses), torch.cat(right)


def _is_bf16(place: torch.device) -> bool:
    kind = place.type
    if not torch.amp.is_autocast_available(kind):
        return False
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


def _powers(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, powers: Tensor) -> _Powers | None:
    """One walk over the tiles, which are written into `powers` [at least M·V]; None where a float cannot hold them."""
    rows, kind = len(states), powers.dtype
    given = states.to(kind)
    others, to_states = states.new_zeros(rows), torch.zeros_like(states)
    tiles, (ordered, order) = list(_tiles(powers, rows, len(words))), labels.sort()
    edges = torch.searchsorted(ordered, ordered.new_tensor([columns.start for _, columns in tiles] + [len(words)]))
    for (tile, columns), (begin, end) in zip(tiles, pairwise(edges.tolist()), strict=True):
        part = words[columns].to(kind)
        torch.addmm(bias[columns].to(kind), given, part.t(), out=tile)
        tile.exp_()
        if begin < end:
            tile[order[begin:end], ordered[begin:end] - columns.start] = 0.0
        others += tile.sum(1, dtype=torch.float32)
        if kind == torch.float32:
            to_states.addmm_(tile, part)
        else:
            to_states += torch.mm(tile, part)  # a tile's products in bf16, their sum in fp32
    own = words[labels]  # [M, D]
    chosen = (states * own).sum(1) + bias[labels]
    sums = others + chosen.exp()
    if not bool(((sums < _LARGEST) & (sums > 1 / _LARGEST)).all()):
        return None
    against = others.log() - chosen
    shares, missing = sums.reciprocal(), against.sigmoid()
    to_states.mul_(shares[:, None]).addcmul_(own, missing[:, None], value=-1)
    return _Powers(powers, shares, missing, F.softplus(against).sum(), to_states)


def _tiles(powers: Tensor, rows: int, size: int) -> Iterator[tuple[Tensor, slice]]:
    """The tiles [M, C] and the entries of the vocabulary that each stands for."""
    width = _COLUMNS if powers.device.type == "cpu" else size  # a GPU has no such cache, and is slow to begin
    for begin in range(0, size, width):
        end = min(begin + width, size)
        yield powers[rows * begin : rows * end].view(rows, end - begin), slice(begin, end)


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, found: _Powers) -> Tensor:
        ctx.save_for_backward(states, words, labels)
        ctx.found = found
        return found.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        states, words, labels = ctx.saved_tensors
        powers, shares = ctx.found.powers, ctx.found.shares * scale
        scaled, weights = (states * shares[:, None]).to(powers.dtype), shares.to(powers.dtype)
        to_words = torch.empty(words.shape, dtype=powers.dtype)
        to_bias = torch.empty(len(words), dtype=powers.dtype)
        for tile, columns in _tiles(powers, len(states), len(words)):
            torch.mm(tile.t(), scaled, out=to_words[columns])
            torch.mv(tile.t(), weights, out=to_bias[columns])
        to_words, to_bias = to_words.float(), to_bias.float()
        missing = ctx.found.missing * -scale
        to_words.index_add_(0, labels, states * missing[:, None])
        to_bias.index_add_(0, labels, missing)
        to_states = ctx.found.to_states * scale
        ctx.found = None
        return to_states, to_words, to_bias, None, None


# An operation of its own: to torch.compile it is one step, which does not look inside.
@torch.library.custom_op("bertwright::loss_and_gradients", mutates_args=())
def _loss_and_gradients(
    states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, in_bf16: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss, and its gradients for states, words and bias."""
    kind = torch.bfloat16 if in_bf16 else torch.float32
    loss, to_states = states.new_zeros(()), torch.empty_like(states)
    to_words, to_bias = torch.zeros_like(words), torch.zeros_like(bias)
    size = block_rows(states.device.type)
    room = torch.empty(min(size, len(states)) * len(words), dtype=kind, device=states.device)
    with torch.autocast(states.device.type, enabled=False):
        for begin in range(0, len(states), size):
            block = slice(begin, begin + size)
            rows, asked = states[block], labels[block]
            found = _powers(rows, words, bias, asked, room)
            if found is None:
                loss += _plainly(rows, words, bias, asked, (to_states[block], to_words, to_bias))
                continue
            loss += found.loss
            to_states[block] = found.to_states
            scaled, weights = (rows * found.shares[:, None]).to(kind), found.shares.to(kind)
            for tile, columns in _tiles(found.powers, len(rows), len(words)):
                to_words[columns] += torch.mm(tile.t(), scaled)
                to_bias[columns] += torch.mv(tile.t(), weights)
            to_words.index_add_(0, asked, rows * -found.missing[:, None])
            to_bias.index_add_(0, asked, -found.missing)
    return loss, to_states, to_words, to_bias


def _plainly(
    rows: Tensor, words: Tensor, bias: Tensor, labels: Tensor, gradients: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """The summed loss of a block whose powers no float holds; its gradients go into those given (in place)."""
    logits = F.linear(rows, words, bias)
    shares = logits.softmax(1)
    shares[torch.arange(len(labels), device=labels.device), labels] -= 1
    gradients[0].copy_(shares @ words)
    gradients[1].addmm_(shares.t(), rows)
    gradients[2].add_(shares.sum(0))
    return F.cross_entropy(logits, labels, reduction="sum")


@_loss_and_gradients.register_fake
def _(states: Tensor, words: Tensor, bias: Tensor, labels: Tensor, in_bf16: bool) -> tuple[Tensor, ...]:
    return states.new_empty(()), torch.empty_like(states), torch.empty_like(words), torch.empty_like(bias)


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _scaled_gradients(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*(gradient * scale for gradient in ctx.saved_tensors), None, None)


_loss_and_gradients.register_autograd(_scaled_gradients, setup_context=_keep_gradients)


# nats → bits for a character: what makes losses comparable over vocabularies, whose pieces differ in length.

_MARKS = ("##", "</w>")
"""Before a WordPiece that continues a word, and behind a byte pair that ends one; no piece of text looks like that."""


def characters_of(corpus: "Corpus") -> np.ndarray:
    """How many characters of text each piece of the vocabulary stands for: int64 [V], 0 for special tokens.

    White space is not counted, which no piece holds. What the vocabulary has no piece for counts as one.
    """
    tokenizer = corpus.tokenizer
    counts = np.array([len(piece.removeprefix(_MARKS[0]).removesuffix(_MARKS[1])) for piece in tokenizer.pieces])
    counts[list(tokenizer.special_ids)] = 0
    counts[tokenizer.unk_id] = 1
    return counts


def bits_per_character(nats: float, characters: float) -> float:
    """Of a summed loss over so many characters."""
    return nats / math.log(2) / characters
