"""Metrics of retrieval: equal to those of trec_eval, the reference implementation, also where scores are tied."""

import numpy as np
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.search.exact import BestDocuments
from bertwright.search.metrics import DEPTH, retrieval_metrics

OF_TREC_EVAL = {"ndcg@10": "ndcg_cut_10", "recall@100": "recall_100", "map": "map"}


def by_trec_eval(scores: dict[str, dict[str, float]], judgements: dict[str, dict[str, int]]) -> dict[str, float]:
    """Return the means by trec_eval; MRR@10 is its reciprocal rank of a run that is cut to ten documents."""
    results = pytrec_eval.RelevanceEvaluator(judgements, set(OF_TREC_EVAL.values())).evaluate(scores)
    ordered = {
        query: dict(sorted(of_query.items(), key=lambda pair: (pair[1], pair[0]))[-10:])
        for query, of_query in scores.items()
    }
    reciprocal = pytrec_eval.RelevanceEvaluator(judgements, {"recip_rank"}).evaluate(ordered)
    means = {ours: np.mean([result[theirs] for result in results.values()]) for ours, theirs in OF_TREC_EVAL.items()}
    return {**means, "mrr@10": np.mean([result["recip_rank"] for result in reciprocal.values()])}


@given(
    scores=st.lists(st.lists(st.integers(0, 4), min_size=120, max_size=120), min_size=1, max_size=3),
    relevance=st.lists(st.lists(st.integers(0, 3), min_size=120, max_size=120), min_size=3, max_size=3),
    block=st.integers(1, 130),
)
@settings(max_examples=25, deadline=None)
def test_search_and_metrics_are_those_of_trec_eval_with_ties(
    scores: list[list[int]], relevance: list[list[int]], block: int
) -> None:
    ids = sorted((f"doc{number}" for number in range(120)), reverse=True)  # doc9 before doc10
    values = np.array(scores, dtype=np.float32) / 4 - 0.5
    best = BestDocuments(len(scores), DEPTH)
    for first in range(0, 120, block):
        numbers = np.arange(first, min(120, first + block))
        best.add(0, values[:, numbers], numbers, np.full(len(scores), -1))
    ranked = {str(row): [ids[number] for number in numbers] for row, (numbers, _) in enumerate(best.best())}
    judgements = {
        str(row): {id: judged for id, judged in zip(ids, relevance[row], strict=True) if judged or row == 0}
        for row in range(len(scores))
    }
    judgements = {query: judged or {ids[0]: 0} for query, judged in judgements.items()}
    run = {str(row): dict(zip(ids, map(float, of_row), strict=True)) for row, of_row in enumerate(values)}
    ours, expected = retrieval_metrics(ranked, judgements), by_trec_eval(run, judgements)
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)


def test_a_query_without_a_relevant_document_counts_as_zero() -> None:
    judgements = {"a": {"x": 1}, "b": {"x": 0}}
    metrics = retrieval_metrics({"a": ["x"], "b": ["x"]}, judgements)
    assert metrics == {"ndcg@10": 0.5, "mrr@10": 0.5, "recall@100": 0.5, "map": 0.5}
