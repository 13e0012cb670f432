"""Shards → batches: rows for masked LM and a second objective about pairs (paper §3.1, §A.1 and §A.2).

A row is a pure function of (corpus, settings, length, seed, epoch, row): which batch or worker it falls to, and how
often it is made, changes nothing. Letters: B rows, T tokens of a row, P predictions of a row.

Static masks are the original's: there the text is gone through `dupe_factor` times, each time with pairs, cuts and
masks of its own, and these versions are repeated for ever. Here too: with K static masks the rows of epoch e are those
of epoch e modulo K. What differs is their order. The original shuffles the rows of all K versions together once, and
in training again within a buffer of records. Here the versions come one after another, each in full, and every epoch
has a shuffled order of its own, also where it repeats a version.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.batches import AnyBatch, ShuffledRows, TokenBatch, refuse_outside
from bertwright.objectives.settings import ExampleSettings, Part, predictions_by_length

_TRUNCATION, _CHOICE, _REPLACEMENT, _HELD_OUT = 0x7C17, 0xC401, 0x4E91, 0x4E1D  # the purposes in the streams' keys
_NEEDS_MASK = (
    "masked LM needs a WordPiece one (bertwright tokenizer train, then corpus build); for a GPT-1 say --system gpt"
)


@dataclass(frozen=True)
class PretrainingBatch(TokenBatch):
    """Rows with masks, and P predictions each. Positions are places in a row; padding has label 0 and weight 0."""

    positions: np.ndarray  # int32 [B, P], ascending
    labels: np.ndarray  # int32 [B, P]: the piece that was there
    weights: np.ndarray  # float32 [B, P]: 1 for a prediction
    is_random: np.ndarray  # int32 [B]: 0 where B follows A, 1 where it is random, or comes before A (sentence order)


class PlannedRows(ShuffledRows[AnyBatch]):
    """Rows of whole sentences between special tokens, as a walk over the corpus plans them.

    length: T, tokens of a row. part: all documents, or one side of a split in which `held_out_share` of them, the same
    under any seed, are kept for measuring; a random B comes from the same part. write_plans: whether CORPUS/plans
    may be added to.
    Raises InputError where the corpus is too small for what is asked, and where its vocabulary has no [MASK].
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
        from bertwright.objectives.pair_index import Plans
        from bertwright.text.open_tokenizer import wordpiece

        super().__init__(length, seed)
        self.settings = settings
        self._corpus = corpus
        self._tokenizer = wordpiece(corpus.tokenizer, place=corpus.folder, advice=_NEEDS_MASK)
        self._seed = seed
        documents = used_documents(corpus, part=part, held_out_share=held_out_share)
        if settings.second_sentence == "order":
            documents = _with_order(corpus.document_first(), documents, corpus.folder)
        _check_size(corpus, documents.size, settings, part)
        self._plans = Plans(corpus, settings, documents, length=length, seed=seed, write=write_plans)

    def num_rows(self, epoch: int) -> int:
        """The number of rows of an epoch; epochs differ a little."""
        return self._plans.num_rows(self._version(epoch))

    def missing_plan_bytes(self, rows: int) -> int:
        """What the plans of the epochs of the first `rows` rows will take in CORPUS/plans beyond those there are."""
        return self._plans.missing_bytes(-(-rows // self.num_rows(0)))

    def batch(self, epoch: int, rows: np.ndarray) -> AnyBatch:
        """The given rows, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""
        epoch = self._version(epoch)
        plan = self._plans.of(epoch)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        refuse_outside(rows, epoch, plan.size)
        return self._made(epoch, rows, plan[rows])

    @abstractmethod
    def _made(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> AnyBatch:
        """The rows of which a PLAN array says what stands in them."""

    def _version(self, epoch: int) -> int:
        """The epoch whose rows an epoch has."""
        return epoch % self.settings.static_masks if self.settings.static_masks else epoch

    def _framed(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> TokenBatch:
        """The text of the rows, truncated, with its special tokens round it."""
        from bertwright.objectives.masking import frame

        tokenizer = self._tokenizer
        ids, left = self._filled(epoch, rows, planned)
        segments = np.zeros_like(ids)
        lengths = frame(ids, segments, left, tokenizer.cls_id, tokenizer.sep_id, self.settings.pairs)
        return TokenBatch(ids, segments, lengths)

    def _filled(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows with the truncated A and B in place (int32 [B, T]) and the tokens left of each (int64 [B, 2])."""
        from bertwright.objectives.masking import copy_slices, truncate
        from bertwright.objectives.sampling import stream_key

        pairs = self.settings.pairs
        sides = [self._corpus.locate(planned["a"], planned["a_count"])]
        if pairs:
            sides.append(self._corpus.locate(planned["b"], planned["b_count"]))
        sizes = np.zeros((rows.size, 2), np.int64)
        for side, (_, _, size) in enumerate(sides):
            sizes[:, side] = size
        most = self.length - (3 if pairs else 2)
        fronts, left = truncate(rows, sizes, most, stream_key(self._seed, epoch, _TRUNCATION))
        ids = np.full((rows.size, self.length), self._tokenizer.pad_id, np.int32)
        columns = np.ones(rows.size, np.int64)
        for side, (shards, starts, _) in enumerate(sides):
            for shard in np.unique(shards):
                chosen = np.flatnonzero(shards == shard)
                copy_slices(self._corpus.views[shard], chosen, starts + fronts[:, side], left[:, side], columns, ids)
            columns = columns + left[:, side] + 1
        return ids, left


class Examples(PlannedRows[PretrainingBatch]):
    """Rows for masked LM and the second objective; arguments as PlannedRows has them."""

    def __init__(self, corpus: "Corpus", settings: ExampleSettings, **more: Any) -> None:
        super().__init__(corpus, settings, **more)
        self._wanted = predictions_by_length(settings.masking, self.length)
        whole_words = settings.masking.units != "piece"
        pieces = self._tokenizer.continuation if whole_words else np.zeros(0, np.bool_)
        self._continuation = np.ascontiguousarray(pieces, dtype=np.bool_)

    @property
    def max_predictions(self) -> int:
        """P, the width of `positions`, `labels` and `weights`."""
        return int(self._wanted[-1])

    def _made(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> PretrainingBatch:
        from bertwright.objectives.masking import mask
        from bertwright.objectives.sampling import probability, stream_key

        tokenizer, masking = self._tokenizer, self.settings.masking
        whole = self._framed(epoch, rows, planned)
        positions = np.zeros((rows.size, self.max_predictions), np.int32)
        labels = np.zeros_like(positions)
        weights = np.zeros(positions.shape, np.float32)
        mask(
            rows,
            whole.ids,
            whole.lengths,
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
        is_random = planned["random"].astype(np.int32)
        return PretrainingBatch(**vars(whole), positions=positions, labels=labels, weights=weights, is_random=is_random)


def used_documents(corpus: "Corpus", *, part: Part, held_out_share: float) -> np.ndarray:
    """The numbers (int64) of the documents of a part that hold text and equal no earlier one."""
    documents = held_out_split(corpus.document_first(), part=part, held_out_share=held_out_share)
    return np.setdiff1d(documents, corpus.duplicates, assume_unique=True)


def held_out_split(document_first: np.ndarray, *, part: Part, held_out_share: float) -> np.ndarray:
    """The numbers (int64) of the non-empty documents of a part.

    A document is held out by a hash of its number, not of any seed: a run continued under another seed does not train
    on what was kept from it before.
    """
    from bertwright.objectives.masking import held_out
    from bertwright.objectives.sentence_pairs import filled_documents

    documents = filled_documents(document_first)
    if part == "all":
        return documents
    from bertwright.objectives.sampling import probability, stream_key

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
            f"{where}: one document; pairs need at least two, from which a random B can come: to learn from it, say "
            f"--second-sentence none; held-out rows are pairs whatever a run learns{hint}"
        )


# Shards → batches: rows for language models, nothing hidden in them (ablations of paper §5.1; GPT paper §3.1, §4.1).
#
# Letters: B rows, T tokens of a row, D documents.

_CUT = 0x5CA7  # the purpose in the stream's key


class Unmasked(PlannedRows[TokenBatch]):
    """Rows `[CLS] text [SEP]` of whole sentences, as masked LM without a second sentence has them."""

    def _made(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> TokenBatch:
        return self._framed(epoch, rows, planned)


class Spans(ShuffledRows[TokenBatch]):
    """Contiguous spans of T tokens of the text, for GPT-1: no special tokens, and no regard for where documents end.

    The documents of the part follow one another as they stand in the corpus. Neither GPT-1's paper nor its code says
    what stands between two of its books; here it is nothing. Every epoch has each token once, and cuts in places of its
    own: its first row is a shorter one, of 1 to T tokens, and so may be its last. Other arguments as PlannedRows'.
    """

    def __init__(
        self, corpus: "Corpus", *, length: int, seed: int, part: Part = "all", held_out_share: float = 0.0
    ) -> None:
        super().__init__(length, seed)
        self._corpus = corpus
        self._seed = seed
        documents = used_documents(corpus, part=part, held_out_share=held_out_share)
        if not documents.size:
            where = f"{corpus.folder}" if part == "all" else f"{corpus.folder}, part '{part}'"
            raise InputError(f"{where}: no document with text; at least one is needed")
        first = corpus.document_first()
        self._first, self._count = first[documents], np.diff(first)[documents].astype(np.int32)
        filled = np.flatnonzero(np.diff(first))
        tokens = np.add.reduceat(corpus.sentence_lengths(), first[filled], dtype=np.int64)
        self._ends = np.cumsum(tokens[np.searchsorted(filled, documents)])  # [D]

    def num_rows(self, epoch: int) -> int:
        """The number of rows of an epoch: one more or less, by where it cuts."""
        return 1 + -(-max(0, int(self._ends[-1]) - self._head(epoch)) // self.length)

    def missing_plan_bytes(self, rows: int) -> int:
        """None: there is nothing to plan."""
        return 0

    def batch(self, epoch: int, rows: np.ndarray) -> TokenBatch:
        """The given rows, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        refuse_outside(rows, epoch, self.num_rows(epoch))
        ends = np.minimum(self._head(epoch) + rows * self.length, self._ends[-1])
        begins = np.maximum(self._head(epoch) + (rows - 1) * self.length, 0)
        ids = np.full((rows.size, self.length), self._corpus.tokenizer.pad_id, np.int32)
        self._fill(ids, begins, ends)
        return TokenBatch(ids, np.zeros_like(ids), (ends - begins).astype(np.int32))

    def _head(self, epoch: int) -> int:
        """Tokens of an epoch's first row."""
        from bertwright.objectives.sampling import below, draw, stream_key

        drawn = np.uint64(draw(stream_key(self._seed, epoch, _CUT), np.uint64(0)))
        return 1 + int(below(drawn, np.uint64(self.length)))

    def _fill(self, ids: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Copy tokens begins[i] … ends[i]-1 of the text into row i, document by document (in place)."""
        from bertwright.objectives.masking import copy_slices

        columns, at = np.zeros_like(begins), begins.copy()
        while (open_rows := at < ends).any():
            document = np.minimum(np.searchsorted(self._ends, at, side="right"), self._ends.size - 1)
            shards, starts, sizes = self._corpus.locate(self._first[document], self._count[document])
            skipped = at - (self._ends[document] - sizes)
            counts = np.where(open_rows, np.minimum(sizes - skipped, ends - at), 0)
            for shard in np.unique(shards):
                chosen = np.flatnonzero((shards == shard) & open_rows)
                copy_slices(self._corpus.views[shard], chosen, starts + skipped, counts, columns, ids)
            columns, at = columns + counts, at + counts
