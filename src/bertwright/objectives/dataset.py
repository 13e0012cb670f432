"""Shards → batches: rows for masked LM and a second objective about pairs (paper §3.1, §A.1 and §A.2).

A row is a pure function of (corpus, settings, length, seed, epoch, row). It does not depend on its batch or its worker.

Static masks follow the original, which goes through the text `dupe_factor` times, each time with other pairs, cuts and
masks, and repeats these versions for ever. With K static masks, the rows of epoch e are those of epoch e modulo K. The
order differs from the original. The original shuffles the rows of all K versions together once, and again in training
within a buffer of records. Here the versions come one after another, each in full, and every epoch has its own shuffled
order, also where it repeats a version.

The modules that compile with numba are imported inside functions: serving a model imports this module, and its start
must not wait for numba.

Shapes: B rows, T tokens of a row, P predictions of a row, D documents.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.console import say
from bertwright.corpus.checks import ONE_DOCUMENT
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.batches import AnyBatch, ShuffledRows, TokenBatch, refuse_outside
from bertwright.objectives.settings import ExampleSettings, Part, predictions_by_length

# Purposes in the keys of the streams.
_TRUNCATION, _CHOICE, _REPLACEMENT, _HELD_OUT, _SPANS = 0x7C17, 0xC401, 0x4E91, 0x4E1D, 0x5CA7
_NEEDS_MASK = (
    "masked LM needs a WordPiece or byte-level one (bertwright tokenizer train, then corpus build); a GPT-1 is trained "
    "with pretrain --system gpt"
)


@dataclass(frozen=True)
class PretrainingBatch(TokenBatch):
    """Rows with masks, and P predictions each. Padded predictions have position, label and weight 0."""

    positions: np.ndarray  # int32 [B, P]: positions in the row, ascending
    labels: np.ndarray  # int32 [B, P]: id of the piece before masking
    weights: np.ndarray  # float32 [B, P]: 1 for a prediction
    is_random: np.ndarray  # int32 [B]: 0 where B follows A; 1 where B is random or, for sentence order, precedes A


class PlannedRows(ShuffledRows[AnyBatch]):
    """Rows of whole sentences between special tokens; a plan lists the sentences of each row (`sentence_pairs`).

    length: T, the number of tokens of a row.
    part: documents that are used: all, the training part or the validation part. A random B is from the same part.
    held_out_share: fraction of the documents in the validation part; they are the same for every seed.
    write_plans: True to save plans in CORPUS/plans.
    Raises InputError where the corpus is too small for the settings or its vocabulary has no [MASK].
    """

    def __init__(
        self,
        corpus: Corpus,
        settings: ExampleSettings,
        *,
        length: int,
        seed: int,
        part: Part = "all",
        held_out_share: float = 0.0,
        write_plans: bool = True,
    ) -> None:
        from bertwright.objectives.pair_index import Plans
        from bertwright.text.open_tokenizer import mask_tokenizer

        super().__init__(length, seed)
        self.settings = settings
        self._corpus = corpus
        self._tokenizer = mask_tokenizer(corpus.tokenizer, place=corpus.folder, advice=_NEEDS_MASK)
        self._seed = seed
        documents = used_documents(corpus, part=part, held_out_share=held_out_share)
        if settings.second_sentence == "order":
            documents = _with_order(corpus.document_first(), documents, corpus.folder)
        _check_size(corpus, documents.size, settings, part)
        self._plans = Plans(corpus, settings, documents, length=length, seed=seed, write=write_plans)

    def num_rows(self, epoch: int) -> int:
        """Return the number of rows of an epoch, which differs a little between epochs."""
        return self._plans.num_rows(self._version(epoch))

    def text_tokens(self) -> int:
        """Return the number of tokens of the sentences in the rows of epoch 0, with what is cut off."""
        plan = self._plans.of(0)
        ends = np.concatenate([[0], np.cumsum(self._corpus.sentence_lengths(), dtype=np.int64)])
        sides = [(plan["a"], plan["a_count"]), (plan["b"], plan["b_count"])]
        return int(sum((ends[first + count] - ends[first]).sum() for first, count in sides))

    def missing_plan_bytes(self, rows: int) -> int:
        """Return the number of bytes that the plans for the first `rows` rows add to CORPUS/plans."""
        return self._plans.missing_bytes(-(-rows // self.num_rows(0)))

    def batch(self, epoch: int, rows: np.ndarray) -> AnyBatch:
        """Return rows `rows`, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""
        epoch = self._version(epoch)
        plan = self._plans.of(epoch)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        refuse_outside(rows, epoch, plan.size)
        return self._planned_batch(epoch, rows, plan[rows])

    @abstractmethod
    def _planned_batch(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> AnyBatch:
        """Return the rows `rows` of an epoch; `planned` is their part of the plan."""

    def _version(self, epoch: int) -> int:
        """Return the number of the epoch whose rows this epoch has: with static masks an earlier one."""
        return epoch % self.settings.static_masks if self.settings.static_masks else epoch

    def _with_special_tokens(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> TokenBatch:
        """Return the truncated text of the rows between its special tokens."""
        from bertwright.objectives.masking import add_special_tokens

        tokenizer = self._tokenizer
        ids, left = self._text(epoch, rows, planned)
        segments = np.zeros_like(ids)
        lengths = add_special_tokens(ids, segments, left, tokenizer.cls_id, tokenizer.sep_id, self.settings.pairs)
        return TokenBatch(ids, segments, lengths)

    def _text(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows with truncated A and B at their positions, int32 [B, T], and both lengths, int64 [B, 2]."""
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
    """Rows for masked LM and the second objective; see `PlannedRows` for the arguments."""

    def __init__(self, corpus: Corpus, settings: ExampleSettings, **more: Any) -> None:
        super().__init__(corpus, settings, **more)
        self._num_predictions = predictions_by_length(settings.masking, self.length)
        continuation = np.zeros(0) if settings.masking.units == "piece" else self._tokenizer.continuation
        self._continuation = np.ascontiguousarray(continuation, dtype=np.bool_)

    @property
    def max_predictions(self) -> int:
        """Return P, the width of `positions`, `labels` and `weights`."""
        return int(self._num_predictions[-1])

    def _planned_batch(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> PretrainingBatch:
        from bertwright.objectives.masking import SPAN_LENGTHS, mask
        from bertwright.objectives.sampling import probability, stream_key

        tokenizer, masking = self._tokenizer, self.settings.masking
        text = self._with_special_tokens(epoch, rows, planned)
        positions = np.zeros((rows.size, self.max_predictions), np.int32)
        labels = np.zeros_like(positions)
        weights = np.zeros(positions.shape, np.float32)
        mask(
            rows,
            text.ids,
            text.lengths,
            self._num_predictions,
            self._continuation,
            SPAN_LENGTHS.get(masking.units, np.zeros(0, np.uint64)),
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
        return PretrainingBatch(**vars(text), positions=positions, labels=labels, weights=weights, is_random=is_random)


def used_documents(corpus: Corpus, *, part: Part, held_out_share: float) -> np.ndarray:
    """Return the numbers, int64, of the documents of a part that hold text and are no duplicates of earlier ones."""
    documents = held_out_split(corpus.document_first(), part=part, held_out_share=held_out_share)
    return np.setdiff1d(documents, corpus.duplicates, assume_unique=True)


def held_out_split(document_first: np.ndarray, *, part: Part, held_out_share: float) -> np.ndarray:
    """Return the numbers, int64, of the non-empty documents of a part."""
    from bertwright.objectives.sentence_pairs import filled_documents

    return documents_of_part(filled_documents(document_first), part=part, held_out_share=held_out_share)


def documents_of_part(documents: np.ndarray, *, part: Part, held_out_share: float) -> np.ndarray:
    """Return those of the document numbers, int64, that belong to a part.

    A hash of the document's number decides its part, independent of the seed. A run that is continued with another seed
    therefore does not train on validation documents.
    """
    if part == "all":
        return documents
    from bertwright.objectives.masking import held_out
    from bertwright.objectives.sampling import probability, stream_key

    is_validation: np.ndarray = held_out(documents, stream_key(_HELD_OUT), probability(held_out_share))
    chosen: np.ndarray = documents[is_validation if part == "held_out" else ~is_validation]
    return chosen


def _with_order(document_first: np.ndarray, documents: np.ndarray, folder: Path) -> np.ndarray:
    """Return the documents that have at least two sentences; a single sentence has no order."""
    kept: np.ndarray = documents[np.diff(document_first)[documents] >= 2]
    if kept.size < documents.size:
        say(f"{folder}: {documents.size - kept.size:,} documents of one sentence have no order and are left out")
    return kept


def _check_size(corpus: Corpus, num_documents: int, settings: ExampleSettings, part: Part) -> None:
    where = _where(corpus, part)
    hint = "; raise the fraction of documents kept for validation" if part == "held_out" else ""
    if num_documents == 0:
        text = "two sentences" if settings.second_sentence == "order" else "text"
        raise InputError(f"{where}: expected at least one document with {text}, found none{hint}")
    if num_documents == 1 and settings.second_sentence == "next":
        pairs = "; a corpus for --held-out needs two in any case"
        raise InputError(f"{where}: {ONE_DOCUMENT.text}; {ONE_DOCUMENT.advice}{pairs}{hint}")


def _where(corpus: Corpus, part: Part) -> str:
    """Return the folder and the part of a corpus, for messages."""
    return str(corpus.folder) if part == "all" else f"{corpus.folder}, part '{part}'"


class Unmasked(PlannedRows[TokenBatch]):
    """Rows `[CLS] text [SEP]` of whole sentences without masks, for language models (ablations of paper §5.1)."""

    def _planned_batch(self, epoch: int, rows: np.ndarray, planned: np.ndarray) -> TokenBatch:
        return self._with_special_tokens(epoch, rows, planned)


class Spans(ShuffledRows[TokenBatch]):
    """Contiguous spans of T tokens of the text, for GPT-1 (GPT paper §3.1, §4.1) and GPT-2, across documents.

    The documents of the part follow one another in the order of the corpus. Nothing stands between them for GPT-1:
    neither its paper nor its code defines a separator of two books. Every epoch has each token once, and its own cuts:
    its first row has 1 to T tokens, and its last row may be shorter too. See `PlannedRows` for the arguments.

    end_id: token that follows each document; None for nothing.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        length: int,
        seed: int,
        part: Part = "all",
        held_out_share: float = 0.0,
        end_id: int | None = None,
    ) -> None:
        super().__init__(length, seed)
        self._end_id = end_id
        self._corpus = corpus
        self._seed = seed
        documents = used_documents(corpus, part=part, held_out_share=held_out_share)
        if not documents.size:
            raise InputError(f"{_where(corpus, part)}: expected at least one document with text, found none")
        first = corpus.document_first()
        self._first, self._count = first[documents], np.diff(first)[documents].astype(np.int32)
        filled = np.flatnonzero(np.diff(first))
        tokens = np.add.reduceat(corpus.sentence_lengths(), first[filled], dtype=np.int64)
        self._ends = np.cumsum(tokens[np.searchsorted(filled, documents)] + (end_id is not None))  # [D]

    def num_rows(self, epoch: int) -> int:
        """Return the number of rows of an epoch; different cuts give one row more or less."""
        return 1 + -(-max(0, int(self._ends[-1]) - self._head(epoch)) // self.length)

    def text_tokens(self) -> int:
        """Return the number of tokens of text in an epoch, which has each once; ends of documents are no text."""
        return int(self._ends[-1]) - (self._ends.size if self._end_id is not None else 0)

    def missing_plan_bytes(self, rows: int) -> int:
        """Return 0: spans need no plan."""
        return 0

    def batch(self, epoch: int, rows: np.ndarray) -> TokenBatch:
        """Return rows `rows`, int64 [B], of an epoch; IndexError for a row that the epoch does not have."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        refuse_outside(rows, epoch, self.num_rows(epoch))
        ends = np.minimum(self._head(epoch) + rows * self.length, self._ends[-1])
        begins = np.maximum(self._head(epoch) + (rows - 1) * self.length, 0)
        pad_id, lengths = self._corpus.tokenizer.pad_id, (ends - begins).astype(np.int32)
        ids = np.full((rows.size, self.length), pad_id if self._end_id is None else self._end_id, np.int32)
        self._fill(ids, begins, ends)
        ids[np.arange(self.length) >= lengths[:, None]] = pad_id
        return TokenBatch(ids, np.zeros_like(ids), lengths)

    def _head(self, epoch: int) -> int:
        """Return the number of tokens of an epoch's first row."""
        from bertwright.objectives.sampling import below, draw, stream_key

        drawn = np.uint64(draw(stream_key(self._seed, epoch, _SPANS), np.uint64(0)))
        return 1 + int(below(drawn, np.uint64(self.length)))

    def _fill(self, ids: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Copy tokens begins[i] … ends[i]-1 of the text into row i, document by document (in place).

        The ends of documents, which `ids` holds everywhere before, are left as they are.
        """
        from bertwright.objectives.masking import copy_slices

        columns, at = np.zeros_like(begins), begins.copy()
        while (open_rows := at < ends).any():
            document = np.minimum(np.searchsorted(self._ends, at, side="right"), self._ends.size - 1)
            shards, starts, sizes = self._corpus.locate(self._first[document], self._count[document])
            past = int(self._end_id is not None)
            skipped = at - (self._ends[document] - past - sizes)
            counts = np.where(open_rows, np.minimum(sizes - skipped, ends - at), 0)
            for shard in np.unique(shards):
                chosen = np.flatnonzero((shards == shard) & open_rows)
                copy_slices(self._corpus.views[shard], chosen, starts + skipped, counts, columns, ids)
            passed = counts + np.where(open_rows & (skipped + counts == sizes) & (at + counts < ends), past, 0)
            columns, at = columns + passed, at + passed
