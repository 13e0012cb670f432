"""Where a model's heads look at a token's own piece in the other text of a pair: the head that pairs of texts need.

python -m benchmarks.studies.same_piece --data STS-B/dev.tsv [--pairs 300] [--json] MODEL …

Counted are tokens whose piece stands in the other text where they can look, the 40 most frequent pieces left out: what
the mean of them gives to that piece there, for each head of each layer, beside what looking at all alike would give.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertwright
from bertwright.errors import InputError
from bertwright.model.config import Attends
from bertwright.model.encoder import visible_keys

FREQUENT = 40


def shares(source: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the attention to the same piece, by layer and head, rounded to thousandths."""
    model = bertwright.load(source)
    pipeline = model.pipeline_for("inside")
    rows = [pipeline.answer(pairs, layer=layer + 1) for layer in range(model.config.layers)]
    counts = Counter(piece for row in rows[0] for piece in row.pieces)
    frequent = {piece for piece, _ in counts.most_common(FREQUENT)}
    reach = [_reach(len(row.pieces), pipeline.encoder.config.attends) for row in rows[0]]
    same = [_same(row.pieces, row.segments, frequent) & keys for row, keys in zip(rows[0], reach, strict=True)]
    tokens = int(sum(at.any(1).sum() for at in same))
    if not tokens:
        raise InputError(
            f"of {len(pairs)} pairs none has a piece in both texts that is not among the {FREQUENT} most frequent"
        )
    alike = sum(float((at.sum(1) / keys.sum(1)).sum()) for at, keys in zip(same, reach, strict=True)) / tokens
    layers = [
        sum((np.array(row.attention) * at).sum((1, 2)) for row, at in zip(layer, same, strict=True)) / tokens
        for layer in rows
    ]
    heads = [[round(float(head), 3) for head in layer] for layer in layers]
    return {"work": "same piece", "model": source, "tokens": tokens, "alike": round(alike, 3), "layers": heads}


def _same(pieces: Sequence[str], segments: Sequence[int], frequent: set[str]) -> Any:
    """[T, T]: whether the second token is the first one's piece in the other text."""
    names, texts = np.array(pieces), np.array(segments)
    is_same = (names[:, None] == names) & (texts[:, None] != texts)
    is_same[np.isin(names, list(frequent))] = False
    return is_same


def _reach(tokens: int, attends: Attends) -> Any:
    """[T, T]: whether the first token can look at the second."""
    return visible_keys(torch.ones(1, tokens, dtype=torch.bool), attends).expand(1, 1, tokens, tokens)[0, 0].numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with options.data.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[: options.pairs]
    pairs = [(line["sentence1"], line["sentence2"]) for line in lines]
    for source in options.models:
        row = shares(source, pairs)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print(f"{source}: {row['tokens']} tokens, {row['alike']:.3f} where all were alike")
        for number, layer in enumerate(row["layers"], 1):
            print(f"  layer {number}: " + " ".join(f"{share:.3f}" for share in layer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
