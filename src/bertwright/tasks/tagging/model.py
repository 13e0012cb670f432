"""words → windows of token ids → a tag logit for each word's first piece (paper §5.3).

Each word is predicted once, from its first piece, in the window where it has the most context. A sentence that fits is
filled up with neighbouring sentences of its document, equally on both sides. A longer sentence is covered by windows
that overlap by half. Nothing is cut.

Shapes: B batch, T tokens, Q words to predict in a row, L labels, N rows, W words of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, token_transform
from bertwright.tasks.inference import answered_batches, evaluating, padded_inputs, ready
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import Context
from bertwright.text.base_tokenizer import Pieces
from bertwright.training.hardware import module_device, move_to_device


class TaggerPieces(Pieces, Protocol):
    """The tokenizer's interface that `windows_of` uses."""

    def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word as it is written within a text."""
        ...


@dataclass(frozen=True)
class TaggingWindows:
    """N rows [CLS] … [SEP] in which W words are predicted, each once.

    at          positions in each row of the words' first pieces
    words       numbers of these words, counted over all sentences
    vanished    numbers of the words without pieces, such as control characters; they are read as [UNK]
    """

    ids: tuple[NDArray[np.int32], ...]
    at: tuple[NDArray[np.int64], ...]
    words: tuple[NDArray[np.int64], ...]
    vanished: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


def windows_of(tokenizer: TaggerPieces, sentences: Sentences, *, context: Context, max_length: int) -> TaggingWindows:
    """Return rows of at most `max_length` tokens.

    context: "documents" and "auto" use the neighbours in the marked document; "file" the whole of a file without marks;
    "off" the sentence alone.
    """
    head, _, tail = tokenizer.row_frame
    num_special = len(head) + len(tail)
    room = max_length - num_special
    if room < 1:
        raise InputError(f"maximal length {max_length}: expected at least {num_special + 1}, to have room for words")
    pieces, first, vanished = _pieces(tokenizer, sentences)
    ends = np.cumsum([0, *(len(words) for words in sentences.words)])  # [N + 1] words before each sentence
    rows: dict[tuple[int, int], list[NDArray[np.int64]]] = {}  # (begin, end) in pieces → words
    for group in _groups(sentences, context):
        low, high = int(first[ends[group.start]]), int(first[ends[group.stop]])
        for row in group:
            words = np.arange(ends[row], ends[row + 1])
            span = int(first[ends[row]]), int(first[ends[row + 1]])
            for begin, chosen in _cover(span, first[words], (low, high), room):
                rows.setdefault((begin, min(begin + room, high)), []).append(words[chosen])
    words_of_row = [np.concatenate(words) for words in rows.values()]
    return TaggingWindows(
        ids=tuple(np.concatenate([head, pieces[begin:end], tail]).astype(np.int32) for begin, end in rows),
        at=tuple(first[words] - begin + len(head) for (begin, _), words in zip(rows, words_of_row, strict=True)),
        words=tuple(words_of_row),
        vanished=vanished,
    )


def _pieces(
    tokenizer: TaggerPieces, sentences: Sentences
) -> tuple[NDArray[np.int32], NDArray[np.int64], tuple[int, ...]]:
    """Return the pieces of all words, the index of each word's first piece [W + 1], and the words without pieces."""
    words = [word for sentence in sentences.words for word in sentence]
    distinct = list(dict.fromkeys(words))
    ids_of = dict(zip(distinct, tokenizer.word_ids(distinct), strict=True))
    vanished = tuple(index for index, word in enumerate(words) if not ids_of[word])
    by_word = [ids_of[word] or [tokenizer.unk_id] for word in words]
    first = np.cumsum([0, *map(len, by_word)])
    return np.array([id for ids in by_word for id in ids], dtype=np.int32), first, vanished


def _groups(sentences: Sentences, context: Context) -> list[range]:
    """Return the groups of neighbouring sentences that are read as context of one another."""
    count = len(sentences)
    if context == "off" or (context != "file" and sentences.documents is None):
        return [range(row, row + 1) for row in range(count)]
    marks = sentences.documents or (0,) * count
    cuts = [0, *(row for row in range(1, count) if marks[row] != marks[row - 1]), count]
    return [range(begin, end) for begin, end in pairwise(cuts)]


def _cover(
    span: tuple[int, int], first: NDArray[np.int64], bounds: tuple[int, int], room: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Return windows of `room` pieces within `bounds` for a sentence's words: (begin, indices of its words).

    span     the sentence's pieces
    first    [W] first piece of each word
    """
    (begin, end), (low, high) = span, bounds
    if not len(first):
        return []
    if end - begin <= room:
        centred = begin - (room - (end - begin)) // 2
        return [(max(low, min(centred, high - room)), np.arange(len(first)))]
    low, high = max(low, begin - room // 2), min(high, end + room // 2)
    starts = np.array([*range(low, high - room, max(1, room // 2)), high - room])
    # A piece has the most context in the window whose middle is nearest to it; on ties in the first of these windows.
    best = np.searchsorted((starts[1:] + starts[:-1]) / 2, first - (room - 1) / 2, side="left")
    return [(int(starts[window]), np.flatnonzero(best == window)) for window in np.unique(best)]


NO_WORD = -100
"""Target where a row has fewer words than the batch's fullest row."""


@dataclass(frozen=True)
class TagRows:
    """A padded batch: `ids`, `mask` [B, T], `at` [B, Q] (0 where there is no word), `targets` [B, Q] or None."""

    ids: Tensor
    mask: Tensor
    at: Tensor
    targets: Tensor | None = None


class Tagger(nn.Module):
    """Encoder and one linear layer on each token; the last encoder layer is computed for first pieces only."""

    def __init__(self, config: BackboneConfig, num_labels: int) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.pooler = token_transform(config)
        self.classifier = ClassificationHead(config.hidden, num_labels, config.head_dropout)

    def forward(self, rows: TagRows) -> Tensor:
        """Return logits [B, Q, L]."""
        last = self.encoder(rows.ids, torch.zeros_like(rows.ids), rows.mask, at=rows.at).last
        logits: Tensor = self.classifier(self.pooler(last))
        return logits


def tag_rows(
    windows: TaggingWindows,
    rows: Sequence[int] | NDArray[np.int64],
    *,
    pad_id: int,
    labels: NDArray[np.int64] | None = None,
) -> TagRows:
    """Return these rows, padded to the longest; `labels` [W] by word."""
    ids, _, mask = padded_inputs([windows.ids[row] for row in rows], pad_id=pad_id)
    counts = np.array([len(windows.at[row]) for row in rows])
    at = np.zeros((len(counts), counts.max()), dtype=np.int64)
    targets = np.full(at.shape, NO_WORD, dtype=np.int64)
    for index, row in enumerate(rows):
        at[index, : counts[index]] = windows.at[row]
        if labels is not None:
            targets[index, : counts[index]] = labels[windows.words[row]]
    return TagRows(ids, mask, torch.from_numpy(at), None if labels is None else torch.from_numpy(targets))


def predict_tags(model: Tagger, windows: TaggingWindows, num_words: int) -> NDArray[np.float32]:
    """Return logits [W, L] in the order of the words, computed in batches of similar length with dropout off."""
    predicted = np.zeros((num_words, model.classifier.linear.out_features), dtype=np.float32)
    with evaluating(model):
        for rows in answered_batches(np.array([len(ids) for ids in windows.ids])):
            batch = move_to_device(tag_rows(windows, rows, pad_id=model.encoder.config.pad_id), module_device(model))
            logits = model(batch).float().cpu().numpy()
            for index, row in enumerate(rows):
                predicted[windows.words[row]] = logits[index, : len(windows.words[row])]
    return predicted


def open_tagger(saved: SavedModel, num_labels: int) -> Tagger:
    """Return the tagger of a fine-tuned model folder, ready for inference."""
    model = Tagger(saved.config, num_labels)
    load_weights(model, saved)
    return ready(model, saved)
