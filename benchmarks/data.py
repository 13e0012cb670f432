"""Speed of one thread that plans epochs and makes pre-training rows; speed of a corpus build beside its tokenizer.

    python -m benchmarks.data [--squad dev-v1.1.json --tokenizer DIR] [--json]

Rows are made of a synthetic corpus. The build reads the documentation on this machine, its sentences shuffled, with all
cores; beside it the bare tokenizer encodes the same sentences, already read and parted, with all cores. Each process of
the build tokenizes a word once, and then looks it up. The table goes to standard error; with --json the last line of
standard output is {"rows": [...], "versions": {...}}. Each figure is the median of five runs (the build: three), its
spread their largest minus their smallest. --squad adds how long it takes to read a file of questions and make windows
of it.
"""

import argparse
import json
import platform
import shutil
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
from benchmarks.side_by_side import compare, show
from bertwright.corpus.build import build_corpus
from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.objectives.dataset import Examples
from bertwright.objectives.sentence_pairs import plan_rows
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.quickstart.docstrings import collect
from bertwright.tasks.question_answering.data import read_unlabelled
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.windows import encode_windows
from bertwright.tasks.spec import get_spec
from bertwright.text.document import TextSettings
from bertwright.text.wordpiece import Tokenizer, import_vocabulary, train_wordpiece

RUNS = 5
VOCAB_SIZE = 30_522
LENGTH = 128
BATCH = 256
STEPS = 100  # in a run
DOCUMENTS = 20_000  # of 1 to 49 sentences of 5 to 44 pieces: about 12 million tokens


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(synthetic_corpus(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        building = compare_building(Path(folder))
    show(building)
    if arguments.squad and arguments.tokenizer:
        rows.append(squad_windows(arguments.squad, Tokenizer.load(arguments.tokenizer)))
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
        print(json.dumps({"rows": rows + building, "versions": versions}))


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
        plan_rows(lengths, first, length=LENGTH, seed=0, epoch=run)
        return lengths.size

    rows.append(measured("sentences planned into pairs, one thread", one_plan))
    return rows


def compare_building(folder: Path) -> list[dict[str, Any]]:
    """Characters a second of `corpus build` and of the tokenizer alone."""
    sentences = [sentence for module in collect().modules for sentence in module.sentences]
    train_wordpiece(sentences, vocab_size=VOCAB_SIZE).save(folder / "tokenizer")
    tokenizer, random = Tokenizer.load(folder / "tokenizer"), np.random.default_rng(0)
    lines = [sentences[row] for row in random.permutation(len(sentences))]
    text, batches = folder / "text.txt", [lines[begin : begin + 20] for begin in range(0, len(lines), 20)]
    text.write_text("\n\n".join("\n".join(batch) for batch in batches), "utf-8")
    characters = float(sum(map(len, lines)))

    def build() -> float:
        shutil.rmtree(folder / "corpus", ignore_errors=True)
        build_corpus(
            [text], tokenizer=folder / "tokenizer", out=folder / "corpus", settings=TextSettings(lines="sentences")
        )
        return characters

    def encode() -> float:
        for begin in range(0, len(lines), 50_000):
            tokenizer.ids(lines[begin : begin + 50_000])
        return characters

    return compare("corpus build", build, {"the bare tokenizer": encode}, repeats=3, unit="characters/s")


def squad_windows(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Questions a second from the file to its windows, with all cores; nothing is kept from one to the next."""
    task = get_spec("squad1")
    assert isinstance(task, SpanTask)

    def windows(_: int) -> int:
        questions = read_unlabelled(path)
        encode_windows(tokenizer, questions, task, max_length=task.max_length)
        return len(questions)

    return measured(f"questions of {path.name} made windows", windows)


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
