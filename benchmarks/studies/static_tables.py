"""Width and weights of a static table: Spearman's correlation on pairs of texts, for each of several.

python -m benchmarks.studies.static_tables --model minilm --text wiki.txt --data STS-B/dev.tsv [--data TABLE …]

The tables have the columns sentence1, sentence2 and score. The pieces are encoded once.
"""

import argparse
from pathlib import Path

import numpy as np

from bertwright.interop.static import (
    piece_probabilities,
    piece_vectors,
    principal_components,
    usable_pieces,
    weighted_table,
)
from bertwright.model.folder import open_model
from bertwright.tables.reader import read_table
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.embedding.metrics import rounded_cosines, unit
from bertwright.tasks.metrics import measure
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.tasks.static_vectors import StaticVectors

WIDTHS = (64, 128, 256, 384)
CONSTANTS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


def main() -> None:
    """Print a line for each width, source of the probabilities and constant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--data", type=Path, action="append", required=True)
    options = parser.parse_args()
    saved = open_model(options.model)
    tokenizer = open_tokenizer(saved)
    pieces = usable_pieces(tokenizer)
    sources = {
        "zipf": piece_probabilities(tokenizer, pieces, None, None)[0],
        "text": piece_probabilities(tokenizer, pieces, None, options.text)[0],
    }
    vectors = piece_vectors(SentenceEncoder(saved, tokenizer), pieces)
    for width in [width for width in WIDTHS if width <= vectors.shape[1]]:
        components, kept = principal_components(vectors, width)
        for source, probabilities in sources.items():
            for constant in CONSTANTS:
                weights = constant / (constant + probabilities)
                static = StaticVectors(weighted_table(tokenizer, pieces, components, weights), tokenizer)
                correlations = "".join(f"{spearman(static, path):8.4f}" for path in options.data)
                print(f"{width:4} {kept:.3f} {source} {constant:.0e}{correlations}", flush=True)


def spearman(static: StaticVectors, path: Path) -> float:
    """Return the rank correlation of cosines and scores."""
    table = read_table(path, columns=["sentence1", "sentence2", "score"])
    first, second = (unit(static.vectors(table.texts(name))) for name in ("sentence1", "sentence2"))
    scores = np.array([float(str(cell)) for cell in table.column("score")])
    return measure(("spearman",), rounded_cosines(first, second), scores)["spearman"]


if __name__ == "__main__":
    main()
