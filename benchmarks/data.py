"""How fast one thread plans epochs and makes pre-training rows, on a synthetic corpus written on the fly.

    python -m benchmarks.data [--json]

The table goes to standard error; with --json the last line of standard output is {"rows": [...], "versions": {...}}.
Each figure is the median of five runs, its spread their largest minus their smallest.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

import bertwright
from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.objectives.examples import Examples, ExampleSettings
from bertwright.objectives.mlm import MaskingSettings
from bertwright.objectives.nsp import plan_pairs
from bertwright.text.tokenizer import import_vocabulary

RUNS = 5
VOCAB_SIZE = 30_522
LENGTH = 128
BATCH = 256
STEPS = 100  # in a run
DOCUMENTS = 20_000  # of 1 to 49 sentences of 5 to 44 pieces: about 12 million tokens


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(synthetic_corpus(Path(folder)))
    print(f"{'work':<60}{'median':>14}{'spread':>12}", file=sys.stderr)
    for row in rows:
        print(f"{row['work']:<60}{row['ours']:>12,}/s{row['spread']:>10,}/s", file=sys.stderr)
    versions = {
        "bertwright": bertwright.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }
    if arguments.json:
        print(json.dumps({"rows": rows, "versions": versions}))


def measure(corpus: Corpus) -> list[dict[str, Any]]:
    kinds = {
        f"examples of {LENGTH} tokens, one thread": ExampleSettings(),
        f"examples of {LENGTH} tokens, whole-word masks, one thread": ExampleSettings(
            masking=MaskingSettings(units="word")
        ),
        f"examples of {LENGTH} tokens, span masks, one thread": ExampleSettings(masking=MaskingSettings(units="span")),
        f"examples of {LENGTH} tokens, single segments, one thread": ExampleSettings(second_sentence="none"),
    }
    rows = []
    for work, settings in kinds.items():
        examples = Examples(corpus, settings, length=LENGTH, seed=0)

        def some_steps(run: int, examples: Examples = examples) -> int:
            for step in range(run * STEPS, (run + 1) * STEPS):
                examples.step_batch(step, BATCH)
            return STEPS * BATCH

        rows.append(measured(work, some_steps))
    lengths, first = corpus.sentence_lengths(), corpus.document_first()

    def one_plan(run: int) -> int:
        plan_pairs(lengths, first, length=LENGTH, seed=0, epoch=run)
        return lengths.size

    rows.append(measured("sentences planned into pairs, one thread", one_plan))
    return rows


def measured(work: str, run: Callable[[int], int]) -> dict[str, Any]:
    """Time `run(number)`, which returns how many things it did; run 0 compiles and is left out."""
    rates = []
    for number in range(RUNS + 1):
        begin = time.perf_counter()
        done = run(number)
        rates.append(done / (time.perf_counter() - begin))
    del rates[0]
    return {"work": work, "ours": round(statistics.median(rates)), "spread": round(max(rates) - min(rates))}


def synthetic_corpus(folder: Path) -> Corpus:
    """A corpus of random pieces in `folder`, with sentences and documents of about the sizes that real text has."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [f"{'##' if number % 5 == 0 else ''}{number}" for number in range(VOCAB_SIZE - len(special))]
    (folder / "vocab.txt").write_text("\n".join(special + pieces) + "\n")
    generator = np.random.default_rng(0)
    corpus = folder / "corpus"
    corpus.mkdir()
    with CorpusWriter(corpus, tokenizer=import_vocabulary(folder / "vocab.txt", cased=True)) as writer:
        for _ in range(DOCUMENTS // 1000):
            document_first = np.cumsum([0, *generator.integers(1, 50, 1000)])
            sentence_first = np.cumsum([0, *generator.integers(5, 45, document_first[-1])])
            ids = generator.integers(len(special), VOCAB_SIZE, sentence_first[-1]).astype(np.uint16)
            writer.add(EncodedDocuments(ids, sentence_first, document_first))
        writer.finish(text={}, sources=(), dropped=0)
    return Corpus.open(corpus)


if __name__ == "__main__":
    main()
