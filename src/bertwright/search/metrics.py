"""ranked documents and judgements → nDCG@10, MRR@10, recall@100 and MAP, as trec_eval defines them."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

DEPTH: Final = 1000
"""Number of documents of a query that are ranked; MAP counts a relevant document behind them as not found."""
RETRIEVAL_METRICS: Final = ("ndcg@10", "mrr@10", "recall@100", "map")


def retrieval_metrics(
    ranked: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Return the mean of each metric over all judged queries, between 0 and 1.

    ranked: id of a query → ids of its documents, the best first. judgements: id of a query → id of a document →
    relevance. A query without a relevant document counts as 0.
    """
    totals = dict.fromkeys(RETRIEVAL_METRICS, 0.0)
    for query, judged in judgements.items():
        for name, value in _of_query(ranked.get(query, ()), judged).items():
            totals[name] += value
    return {name: total / len(judgements) for name, total in totals.items()}


def _of_query(ranked: Sequence[str], judged: Mapping[str, int]) -> dict[str, float]:
    gains = [max(0, judged.get(document, 0)) for document in ranked[:DEPTH]]
    ideal = sorted((relevance for relevance in judged.values() if relevance > 0), reverse=True)
    if not ideal:
        return dict.fromkeys(RETRIEVAL_METRICS, 0.0)
    ranks = [rank for rank, gain in enumerate(gains, start=1) if gain > 0]
    precisions = [hits / rank for hits, rank in enumerate(ranks, start=1)]
    return {
        "ndcg@10": _discounted(gains[:10]) / _discounted(ideal[:10]),
        "mrr@10": 1.0 / ranks[0] if ranks and ranks[0] <= 10 else 0.0,
        "recall@100": sum(rank <= 100 for rank in ranks) / len(ideal),
        "map": sum(precisions) / len(ideal),
    }


def _discounted(gains: Sequence[int]) -> float:
    """Return the sum of gains, each divided by the logarithm of its rank plus 1 (Järvelin and Kekäläinen 2002)."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
