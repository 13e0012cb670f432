"""encoder → task: the classifier on each word's first piece, its batches and its loss (paper §5.3).

Shapes: B batch, T tokens, Q words asked for in a row, L labels, N rows, W words of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, for_loss
from bertwright.tasks.inference import answered_batches, ready
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import Context
from bertwright.text.base_tokenizer import Pieces
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import module_device, move_to_device

# words → token ids: windows in which every word is asked for once, where most stands around it (paper §5.3).
#
# The first piece of a word answers for it. A sentence that fits is filled up with its document's neighbouring
# sentences, as much on either side as there is room for, and its own words are asked for; a longer one is covered by
# windows that overlap by half. Nothing is cut: what is left out of one window stands in another.


class TaggerPieces(Pieces, Protocol):
    """What `windows_of` asks of a tokenizer."""

    @property
    def unk_id(self) -> int:
        """The id of what no piece stands for."""
        ...


@dataclass(frozen=True)
class Windows:
    """N rows [CLS] … [SEP] that ask for W words, each once.

    at, words    where the pieces stand in a row that answer, and for which words, numbered over all sentences
    vanished     words of which nothing is left (control characters, say); [UNK] stands for them
    """

    ids: tuple[NDArray[np.int32], ...]
    at: tuple[NDArray[np.int64], ...]
    words: tuple[NDArray[np.int64], ...]
    vanished: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


def windows_of(tokenizer: TaggerPieces, sentences: Sentences, *, context: Context, max_length: int) -> Windows:
    """Rows of at most `max_length` tokens.

    context: "documents", or "auto": what the file marks as one; "file": all of a file that marks none; "off": the
    sentence alone.
    """
    room = max_length - 2
    if room < 1:
        raise InputError(f"a maximal length of {max_length} leaves no room for words; at least 3")
    pieces, first, vanished = _pieces(tokenizer, sentences)
    ends = np.cumsum([0, *(len(words) for words in sentences.words)])  # [N + 1] words before each sentence
    rows: dict[tuple[int, int], list[NDArray[np.int64]]] = {}  # (begin, end) in pieces → words
    for group in _groups(sentences, context):
        low, high = int(first[ends[group.start]]), int(first[ends[group.stop]])
        for row in group:
            words = np.arange(ends[row], ends[row + 1])
            span = int(first[ends[row]]), int(first[ends[row + 1]])
            for begin, asked in _cover(span, first[words], (low, high), room):
                rows.setdefault((begin, min(begin + room, high)), []).append(words[asked])
    head, tail = [tokenizer.begin_id], [tokenizer.end_id]
    asked_of = [np.concatenate(words) for words in rows.values()]
    return Windows(
        ids=tuple(np.concatenate([head, pieces[begin:end], tail]).astype(np.int32) for begin, end in rows),
        at=tuple(first[words] - begin + 1 for (begin, _), words in zip(rows, asked_of, strict=True)),
        words=tuple(asked_of),
        vanished=vanished,
    )


def _pieces(
    tokenizer: TaggerPieces, sentences: Sentences
) -> tuple[NDArray[np.int32], NDArray[np.int64], tuple[int, ...]]:
    """All pieces in a row, the place of each word's first one [W + 1], and the words that gave none."""
    words = [word for sentence in sentences.words for word in sentence]
    kinds = list(dict.fromkeys(words))
    known = dict(zip(kinds, tokenizer.ids(kinds), strict=True))
    vanished = tuple(place for place, word in enumerate(words) if not known[word])
    by_word = [known[word] or [tokenizer.unk_id] for word in words]
    first = np.cumsum([0, *map(len, by_word)])
    return np.array([id for ids in by_word for id in ids], dtype=np.int32), first, vanished


def _groups(sentences: Sentences, context: Context) -> list[range]:
    """The sentences that stand around one another."""
    count = len(sentences)
    if context == "off" or (context != "file" and sentences.documents is None):
        return [range(row, row + 1) for row in range(count)]
    marks = sentences.documents or (0,) * count
    cuts = [0, *(row for row in range(1, count) if marks[row] != marks[row - 1]), count]
    return [range(begin, end) for begin, end in pairwise(cuts)]


def _cover(
    span: tuple[int, int], first: NDArray[np.int64], bounds: tuple[int, int], room: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Windows of `room` pieces within `bounds` for a sentence's words: (begin, which of its words) of each.

    span     the sentence's pieces
    first    [W] each word's first piece
    """
    (begin, end), (low, high) = span, bounds
    if not len(first):
        return []
    if end - begin <= room:
        centred = begin - (room - (end - begin)) // 2
        return [(max(low, min(centred, high - room)), np.arange(len(first)))]
    low, high = max(low, begin - room // 2), min(high, end + room // 2)
    starts = np.array([*range(low, high - room, max(1, room // 2)), high - room])
    # The side with less around a piece has most in the window whose middle is nearest to it; the first one on ties.
    best = np.searchsorted((starts[1:] + starts[:-1]) / 2, first - (room - 1) / 2, side="left")
    return [(int(starts[window]), np.flatnonzero(best == window)) for window in np.unique(best)]


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

    def __init__(self, config: BackboneConfig, num_labels: int) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
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
            given = move_to_device(tag_rows(windows, rows, pad_id=model.encoder.config.pad_id), module_device(model))
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
