"""PyTorch's vectors and those of an int8 graph → the agreement of their rankings: ten nearest texts, nDCG@10.

A cosine near 1 says little about a search: the vectors of a text and of its neighbours may be as near. So the texts
that are found are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.interop.onnx_parity import TEXTS, feed
from bertwright.model.vector_settings import Similarity
from bertwright.search.evaluate import VectorSource, ranked_documents, ranking_metrics
from bertwright.search.exact import as_compared
from bertwright.tasks.beir import RetrievalData
from bertwright.tasks.classification.model import TextBatch
from bertwright.tasks.inference import answered_batches, padded_inputs
from bertwright.tasks.sentence_vectors import SentenceEncoder, TextRole

NEAREST: Final = 10
"""Number of nearest texts that are compared."""
FEW_TEXTS: Final = 4 * NEAREST
"""Number of different texts below which the built-in texts are added."""
LEAST_OVERLAP: Final = 0.8
"""Default least fraction of the ten nearest texts by PyTorch's vectors that the int8 vectors find too."""
NDCG: Final = "ndcg@10"


@dataclass(frozen=True)
class RankingAgreement:
    """Agreement of the rankings of two sets of vectors.

    overlap   mean fraction of the ten nearest texts that both have
    queries   number of texts that were searched with
    texts     number of texts that were searched
    fp32      nDCG@10 of PyTorch's vectors; None without judgements
    int8      the same of the int8 graph
    """

    overlap: float
    queries: int
    texts: int
    fp32: float | None = None
    int8: float | None = None

    @property
    def text(self) -> str:
        """The agreement in words."""
        words = f"{self.overlap:.1%} of the ten nearest of {self.texts:,} texts are the same, {self.queries:,} queries"
        return words if self.fp32 is None else f"{words}; nDCG@10 {self.int8:.4f}, fp32 {self.fp32:.4f}"


@dataclass(frozen=True)
class RankingCheck:
    """Texts, or the judgements of a folder in BEIR's layout, by which rankings are compared, and the limits.

    Of few texts nearly all others are the ten nearest. The built-in texts are then searched too.

    least_overlap    least `overlap`
    least_agreement  least nDCG@10 of the int8 graph, as a fraction of that of PyTorch
    """

    texts: Sequence[str] = field(default=())
    data: RetrievalData | None = None
    least_overlap: float = LEAST_OVERLAP
    least_agreement: float = 0.0

    def compare(self, encoder: SentenceEncoder, session: Any) -> RankingAgreement:
        """Return the agreement of the graph of a session with `encoder`. Raises InputError where it is too small."""
        graph = GraphVectors(encoder, session)
        if self.data is None:
            is_few = len({*self.texts}) < FEW_TEXTS
            agreement = of_texts(encoder, graph, [*self.texts, *(TEXTS if is_few else ())])
        else:
            agreement = of_search(encoder, graph, self.data)
        if not agreement.overlap >= self.least_overlap:
            raise InputError(
                f"int8: sentence_embedding: {agreement.text}; less than --least-overlap {self.least_overlap}; nothing "
                "was written. Lower --least-overlap, or leave --int8 out"
            )
        if agreement.fp32 is not None and not (agreement.int8 or 0.0) >= self.least_agreement * agreement.fp32:
            raise InputError(
                f"int8: sentence_embedding: {agreement.text}; less than --least-agreement {self.least_agreement} times "
                "that of fp32; nothing was written. Lower --least-agreement, or leave --int8 out"
            )
        return agreement


class GraphVectors:
    """The vectors of an ONNX Runtime session, for texts that are tokenised as `encoder` does."""

    def __init__(self, encoder: SentenceEncoder, session: Any) -> None:
        self._encoder, self._session = encoder, session

    @property
    def similarity(self) -> Similarity:
        """Return the similarity of two vectors that the folder names."""
        return self._encoder.similarity

    def vectors(
        self, texts: Sequence[str], role: TextRole = "text", *, width: int | None = None, first: int = 0
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of N texts, in their order; the parameters are those of `SentenceEncoder`."""
        rows, _ = self._encoder.rows(texts, role)
        vectors = np.empty((len(rows), width or self._encoder.size), dtype=np.float32)
        for batch in answered_batches(np.array([len(row) for row in rows]), "vectors of the graph"):
            inputs = padded_inputs([rows[index] for index in batch], pad_id=self._encoder.pad_id)
            (computed,) = self._session.run(["sentence_embedding"], feed(TextBatch(*inputs)))
            vectors[batch] = computed[:, :width]
        return vectors


def of_texts(encoder: VectorSource, other: VectorSource, texts: Sequence[str]) -> RankingAgreement:
    """Return the agreement where each text is searched with among the others; equal texts count once."""
    different = list(dict.fromkeys(texts))
    nearest = [_nearest(source.vectors(different), source.similarity) for source in (encoder, other)]
    return RankingAgreement(_overlap(*nearest), queries=len(different), texts=len(different))


def of_search(encoder: VectorSource, other: VectorSource, data: RetrievalData) -> RankingAgreement:
    """Return the agreement of the rankings of all judged queries, and their nDCG@10."""
    ranked = [ranked_documents(source, data) for source in (encoder, other)]
    nearest = [[numbers[:NEAREST].tolist() for numbers, _ in ranking] for ranking in ranked]
    values = [ranking_metrics(ranking, data)[NDCG] for ranking in ranked]
    return RankingAgreement(_overlap(*nearest), len(data.queries), len(data.ids), *values)


def _nearest(vectors: NDArray[np.float32], similarity: Similarity) -> list[list[int]]:
    """Return the numbers of the ten nearest other vectors of each [N, W], of fewer vectors all others."""
    compared = as_compared(vectors, similarity).astype(np.float64)
    scores = np.round(compared @ compared.T, 6)
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    nearest: list[list[int]] = order[:, : min(NEAREST, len(scores) - 1)].tolist()
    return nearest


def _overlap(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float:
    """Return the mean fraction of the numbers of a row that the same row of the other has; 1 for empty rows."""
    pairs = zip(first, second, strict=True)
    return float(np.mean([len({*one} & {*other}) / len(one) if one else 1.0 for one, other in pairs]))
