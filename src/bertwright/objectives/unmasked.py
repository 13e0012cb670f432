"""Shards → batches: rows for language models, nothing hidden in them (ablations of paper §5.1; GPT paper §3.1, §4.1).

Letters: B rows, T tokens of a row, D documents.
"""

from typing import TYPE_CHECKING

import numpy as np

from bertwright.errors import InputError
from bertwright.objectives.examples import Part, PlannedRows, used_documents
from bertwright.objectives.shuffled import ShuffledRows, TokenBatch, refuse_outside

if TYPE_CHECKING:
    from bertwright.corpus.shards import Corpus

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
        from bertwright.corpus.random import below, draw, stream_key

        drawn = np.uint64(draw(stream_key(self._seed, epoch, _CUT), np.uint64(0)))
        return 1 + int(below(drawn, np.uint64(self.length)))

    def _fill(self, ids: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Copy tokens begins[i] … ends[i]-1 of the text into row i, document by document (in place)."""
        from bertwright.objectives.rows import copy_slices

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
