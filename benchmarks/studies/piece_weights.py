"""Weights of pieces in the mean of a model's states: pairs of a corpus, tables of scores, a search, for each number a.

python -m benchmarks.studies.piece_weights --model vectors --corpus wiki --sts sts --search scifact

The weight of a piece is a / (a + p), with its frequency p in the pairs of the corpus that training takes. Spans of the
corpus that follow each other are those that training keeps for validation.
"""

import argparse
from pathlib import Path

import numpy as np

from bertwright.finetuning.piece_weights import piece_weights
from bertwright.model.folder import open_model
from bertwright.model.vector_head import VectorHead
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.evaluate import ranked_documents, ranking_metrics
from bertwright.tasks.beir import open_retrieval
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.embedding.measure import measure_tables
from bertwright.tasks.embedding.read import read_measured, read_vector_data
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.inference import Answerable
from bertwright.tasks.sentence_vectors import SentenceEncoder, saved_vector_head
from bertwright.tasks.spec import with_settings

CONSTANTS = (3e-3, 1e-3, 3e-4, 1e-4)


def main() -> None:
    """Print a line for the plain mean and for each number a."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--search", type=Path, required=True)
    options = parser.parse_args()
    saved = Answerable(**vars(open_model(options.model)))
    tokenizer = open_tokenizer(saved)
    plain = saved_vector_head(saved).settings.model_copy(update={"piece_weights": ()})
    pairs = read_vector_data(with_settings(EMBED, ["pairs=30000"]), options.corpus)
    counts = np.zeros(saved.config.vocab_size)
    for texts in (pairs.train.firsts, pairs.train.seconds):
        np.add.at(counts, np.concatenate([np.array(ids, dtype=np.int64) for ids in tokenizer.ids(texts)]), 1.0)

    def encoder_of(weights: tuple[float, ...]) -> SentenceEncoder:
        settings = VectorSettings.model_validate({**dict(plain), "piece_weights": weights})
        return SentenceEncoder(saved, tokenizer, VectorHead(settings, saved.config.hidden).eval())

    retrieval = open_retrieval(options.search)
    tables = read_measured(EMBED, options.sts)
    print(f"{'a':>8}{'spans':>8}{'STS':>8}{'search':>8}")
    for a in (None, *CONSTANTS):
        weights = () if a is None else piece_weights(counts, tuple(tokenizer.special_ids), a)
        encoder = encoder_of(weights)
        spans = measure_tables(encoder, {"dev": pairs.validation["dev"]})["mrr@10"]
        files = measure_tables(encoder, tables)["files"]
        sts = np.mean([files[name]["spearman"] for name in files])
        search = ranking_metrics(ranked_documents(encoder, retrieval), retrieval)["ndcg@10"]
        print(f"{a or 'mean':>8}{spans:8.4f}{sts:8.4f}{search:8.4f}", flush=True)


if __name__ == "__main__":
    main()
