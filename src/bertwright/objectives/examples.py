"""Shards → batches: rows for masked LM and a second objective about pairs (paper §3.1, §A.1 and §A.2).

A row is a pure function of (corpus, settings, length, seed, epoch, row): which batch or worker it falls to, and how
often it is made, changes nothing. Letters: B rows, T tokens of a row, P predictions of a row.

Static masks are the original's: there the text is gone through `dupe_factor` times, each time with pairs, cuts and
masks of its own, and these versions are repeated for ever. Here too: with K static masks the rows of epoch e are those
of epoch e modulo K. What differs is their order. The original shuffles the rows of all K versions together once, and
in training again within a buffer of records. Here the versions come one after another, each in full, and every epoch
has a shuffled order of its own, also where it repeats a version.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import model_validator

from bertwright.config import Count, Settings, Share, renamed
from bertwright.console import say
from bertwright.errors import InputError
from bertwright.objectives.mlm import MaskingSettings, predictions_by_length

if TYPE_CHECKING:
    from bertwright.corpus.shards import Corpus

Part = Literal["all", "train", "held_out"]
SecondSentence = Literal["next", "order", "none"]

_TRUNCATION, _CHOICE, _REPLACEMENT, _HELD_OUT = 0x7C17, 0xC401, 0x4E91, 0x4E1D  # the purposes in the streams' keys


class ExampleSettings(Settings):
    """How rows are made.

    second_sentence: A and a B that follows it or is random (next), A and B in their order or swapped (order), or single
    segments (none). short_share: of the documents, how many aim at shorter rows. static_masks: after so many epochs
    the first one's rows come again; 0: every epoch has rows of its own.
    """

    second_sentence: SecondSentence = "next"
    short_share: Share = 0.1
    static_masks: Count = 0
    masking: MaskingSettings = MaskingSettings()

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        return renamed(values, "next_sentence", "second_sentence", {True: "next", False: "none"})

    @property
    def pairs(self) -> bool:
        """Whether a row has a B."""
        return self.second_sentence != "none"


@dataclass(frozen=True)
class PretrainingBatch:
    """B rows, padded to T tokens and P predictions. Positions are places in a row; padding has label 0 and weight 0."""

    ids: np.ndarray  # int32 [B, T], after masking
    segments: np.ndarray  # int32 [B, T]: 1 in B and its [SEP]
    lengths: np.ndarray  # int32 [B]: tokens before the padding
    positions: np.ndarray  # int32 [B, P], ascending
    labels: np.ndarray  # int32 [B, P]: the piece that was there
    weights: np.ndarray  # float32 [B, P]: 1 for a prediction
    is_random: np.ndarray  # int32 [B]: 0 where B follows A, 1 where it is random, or comes before A (sentence order)


class Examples:
    """The rows of a corpus, epoch after epoch.

    length: T, tokens of a row. part: all documents, or one side of a split in which `held_out_share` of them, the same
    under any seed, are kept for measuring; a random B comes from the same part. write_plans: whether CORPUS/plans
    may be added to.
    Raises InputError where the corpus is too small for what is asked.
    """

    def __init__(
        self,
        corpus: "Corpus",
        settings: ExampleSettings,
        *,
        length: int,
        seed: int,
        part: Part = "all",
        held_out_share: float = 0.0,
        write_plans: bool = True,
    ) -> None:
        from bertwright.corpus.sampler import Sampler
        from bertwright.objectives.plans import Plans

        self.settings = settings
        self.length = length
        self._corpus = corpus
        self._seed = seed
        first = corpus.document_first()
        documents = held_out_split(first, part=part, held_out_share=held_out_share)
        documents = np.setdiff1d(documents, corpus.duplicates, assume_unique=True)
        if settings.second_sentence == "order":
            documents = _with_order(first, documents, corpus.folder)
        _check_size(corpus, documents.size, settings, part)
        self._plans = Plans(corpus, settings, documents, length=length, seed=seed, write=write_plans)
        self._sampler = Sampler(self.num_rows, seed)
        self._wanted = predictions_by_length(settings.masking, length)
        whole_words = settings.masking.units != "piece"
        pieces = corpus.tokenizer.continuation if whole_words else np.zeros(0, np.bool_)
        self._continuation = np.ascontiguousarray(pieces, dtype=np.bool_)

    @property
    def max_predictions(self) -> int:
        """P, the width of `positions`, `labels` and `weights`."""
        return int(self._wanted[-1])

    def num_rows(self, epoch: int) -> int:
        """The number of rows of an epoch; epochs differ a little."""
        return self._plans.num_rows(self._version(epoch))

    def passes(self, rows: int) -> list[float]:
        """How often the corpus is passed in the first `rows` rows: one figure, as a mixture has one for each corpus."""
        return [rows / self.num_rows(0)]

    def missing_plan_bytes(self, rows: int) -> int:
        """What the plans of the epochs of the first `rows` rows will take in CORPUS/plans beyond those there are."""
        return self._plans.missing_bytes(-(-rows // self.num_rows(0)))

    def rows_of_step(self, step: int, batch_size: int) -> list[tuple[int, np.ndarray]]:
        """The shuffled rows of a step, in groups (epoch, rows int64 [n])."""
        return self._sampler.rows(step * batch_size, (step + 1) * batch_size)

    def step_batch(self, step: int, batch_size: int) -> PretrainingBatch:
        """The batch of a step: the next `batch_size` of the shuffled rows; it may span epochs."""
        return self.stretch(step * batch_size, (step + 1) * batch_size)

    def stretch(self, at: int, end: int) -> PretrainingBatch:
        """Rows `at` … end-1 of the endless sequence of shuffled rows."""
        return joined([self.batch(epoch, rows) for epoch, rows in self._sampler.rows(at, end)])

    def first(self, n: int, batch_size: int = 64) -> Iterator[PretrainingBatch]:
        """The first `n` rows of epoch 0 in walk order, all where there are fewer: the fixed rows of an evaluation."""
        n = min(n, self.num_rows(0))
        for begin in range(0, n, batch_size):
            yield self.batch(0, np.arange(begin, min(begin + batch_size, n), dtype=np.int64))

    def batch(self, epoch: int, rows: np.ndarray) -> PretrainingBatch:
        """The given rows, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""
        epoch = self._version(epoch)
        plan = self._plans.of(epoch)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < plan.size:
            raise IndexError(f"epoch {epoch} has rows 0 to {plan.size - 1}, not {rows.min()} to {rows.max()}")
        planned = plan[rows]
        ids, left = self._filled(epoch, rows, planned)
        return self._masked(epoch, rows, planned, ids, left)

    def _version(self, epoch: int) -> int:
        """The epoch whose rows an epoch has."""
        return epoch % self.settings.static_masks if self.settings.static_masks else epoch

    def _filled(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows with the truncated A and B in place (int32 [B, T]) and the tokens left of each (int64 [B, 2])."""
        from bertwright.corpus.random import stream_key
        from bertwright.objectives.rows import copy_slices, truncate

        pairs = self.settings.pairs
        sides = [self._corpus.locate(planned["a"], planned["a_count"])]
        if pairs:
            sides.append(self._corpus.locate(planned["b"], planned["b_count"]))
        sizes = np.zeros((rows.size, 2), np.int64)
        for side, (_, _, size) in enumerate(sides):
            sizes[:, side] = size
        most = self.length - (3 if pairs else 2)
        fronts, left = truncate(rows, sizes, most, stream_key(self._seed, epoch, _TRUNCATION))
        ids = np.full((rows.size, self.length), self._corpus.tokenizer.pad_id, np.int32)
        columns = np.ones(rows.size, np.int64)
        for side, (shards, starts, _) in enumerate(sides):
            for shard in np.unique(shards):
                chosen = np.flatnonzero(shards == shard)
                copy_slices(self._corpus.views[shard], chosen, starts + fronts[:, side], left[:, side], columns, ids)
            columns = columns + left[:, side] + 1
        return ids, left

    def _masked(
        self, epoch: int, rows: np.ndarray, planned: np.ndarray, ids: np.ndarray, left: np.ndarray
    ) -> PretrainingBatch:
        """Set the special tokens and the masks into `ids`, which is this method's to change."""
        from bertwright.corpus.random import probability, stream_key
        from bertwright.objectives.rows import frame, mask

        tokenizer, masking = self._corpus.tokenizer, self.settings.masking
        segments = np.zeros_like(ids)
        lengths = frame(ids, segments, left, tokenizer.cls_id, tokenizer.sep_id, self.settings.pairs)
        positions = np.zeros((rows.size, self.max_predictions), np.int32)
        labels = np.zeros_like(positions)
        weights = np.zeros(positions.shape, np.float32)
        mask(
            rows,
            ids,
            lengths,
            self._wanted,
            self._continuation,
            masking.units == "span",
            (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id),
            np.uint64(tokenizer.vocab_size),
            (probability(masking.mask), probability(masking.mask + masking.same)),
            (stream_key(self._seed, epoch, _CHOICE), stream_key(self._seed, epoch, _REPLACEMENT)),
            positions,
            labels,
            weights,
        )
        return PretrainingBatch(
            ids, segments, lengths, positions, labels, weights, is_random=planned["random"].astype(np.int32)
        )


def held_out_split(document_first: np.ndarray, *, part: Part, held_out_share: float) -> np.ndarray:
    """The numbers (int64) of the non-empty documents of a part.

    A document is held out by a hash of its number, not of any seed: a run continued under another seed does not train
    on what was kept from it before.
    """
    from bertwright.objectives.nsp import filled_documents
    from bertwright.objectives.rows import held_out

    documents = filled_documents(document_first)
    if part == "all":
        return documents
    from bertwright.corpus.random import probability, stream_key

    is_held_out: np.ndarray = held_out(documents, stream_key(_HELD_OUT), probability(held_out_share))
    chosen: np.ndarray = documents[is_held_out if part == "held_out" else ~is_held_out]
    return chosen


def _with_order(document_first: np.ndarray, documents: np.ndarray, folder: Path) -> np.ndarray:
    """Those of the documents that have two sentences at least: one alone has no order."""
    kept: np.ndarray = documents[np.diff(document_first)[documents] >= 2]
    if kept.size < documents.size:
        say(f"{folder}: {documents.size - kept.size:,} documents of one sentence have no order and are left out")
    return kept


def _check_size(corpus: "Corpus", num_documents: int, settings: ExampleSettings, part: Part) -> None:
    where = f"{corpus.folder}" if part == "all" else f"{corpus.folder}, part '{part}'"
    hint = "; hold out a larger share of the documents" if part == "held_out" else ""
    if num_documents == 0:
        text = "two sentences" if settings.second_sentence == "order" else "text"
        raise InputError(f"{where}: no document with {text}; at least one is needed{hint}")
    if num_documents == 1 and settings.second_sentence == "next":
        raise InputError(
            f"{where}: one document; next-sentence prediction needs at least two documents (or none: off){hint}"
        )


def joined(batches: list[PretrainingBatch]) -> PretrainingBatch:
    """One batch of several, whose rows have the same shape."""
    if len(batches) == 1:
        return batches[0]
    names = PretrainingBatch.__dataclass_fields__
    return PretrainingBatch(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names})
