"""Milliseconds of one query over many vectors, and the rate at which an index is built beside that of its encoder.

python -m benchmarks.search --model MODEL [--rows 100000] [--width 384] [--texts 4096] [--repeats 4] [--json]

The vectors are random, of length 1, in an index on disk that is opened once; beside it stands the bare product with the
same vectors in memory, and its ten best by argpartition. The texts are sentences of numpy's documentation.
"""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.side_by_side import compare, finish, parser, timed
from bertwright.quickstart.docstrings import collect
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import (
    IndexManifest,
    IndexRow,
    new_segment,
    segment_entry,
    write_index_manifest,
)
from bertwright.search.new_rows import IndexedText
from bertwright.search.run import open_encoder
from bertwright.tasks.embedding.metrics import unit
from bertwright.tasks.static_vectors import TextVectors

TOP = 10
BLOCK = 4096


def random_index(folder: Path, rows: int, width: int) -> SearchIndex:
    """Write and open an index of random vectors."""
    draw = np.random.default_rng(0)
    with new_segment(folder, 0, width) as segment:
        for first in range(0, rows, BLOCK):
            numbers = range(first, min(rows, first + BLOCK))
            vectors = unit(draw.standard_normal((len(numbers), width), dtype=np.float32))
            segment.write(vectors, [IndexRow(str(number), f"text {number}", {}) for number in numbers])
    entry = segment_entry(folder, 0, rows)
    manifest = IndexManifest(model="random", fingerprint="0", width=width, similarity="cosine", segments=(entry,))
    write_index_manifest(folder, manifest)
    return SearchIndex.open(folder)


def bare_product(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> int:
    """Return the number of queries that were answered: one."""
    scores = vectors @ query
    best = np.argpartition(scores, -TOP)[-TOP:]
    best[np.argsort(-scores[best])]
    return 1


def answered(index: SearchIndex, query: NDArray[np.float32]) -> int:
    """Return the number of queries that were answered: one."""
    return len(index.nearest(query[None], TOP))


def built(folder: Path, encoder: TextVectors, blocks: Sequence[Sequence[IndexedText]]) -> int:
    """Build an index in a new folder; return its number of rows."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        index, _ = SearchIndex.build(Path(inside) / "index", encoder, blocks, model="small-wiki")
        return len(index)


def encoded(encoder: TextVectors, blocks: Sequence[Sequence[IndexedText]]) -> int:
    """Compute the vectors alone; return their number."""
    return sum(len(encoder.vectors([text.row.text for text in block], "document")) for block in blocks)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, threads=False)
    options.add_argument("--model", required=True, help="model folder or run that computes the vectors")
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--width", type=int, default=384)
    options.add_argument("--texts", type=int, default=BLOCK)
    options.add_argument("--precision", default="auto")
    arguments = options.parse_args()
    encoder = open_encoder(arguments.model, arguments.precision, "cpu")
    documentation = collect({"numpy": Path(np.__file__).parent})
    sentences = list(islice((text for module in documentation.modules for text in module.sentences), arguments.texts))
    texts = [IndexedText(IndexRow(str(number), line, {}), f"line {number}") for number, line in enumerate(sentences)]
    blocks = [texts[first : first + BLOCK] for first in range(0, len(texts), BLOCK)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        begin = time.perf_counter()
        index = random_index(path, arguments.rows, arguments.width)
        written = time.perf_counter() - begin
        query, vectors = np.array(index.segments[0].vectors[0]), np.array(index.segments[0].vectors)
        peers = {"numpy in memory": partial(bare_product, vectors, query)}
        name = f"one query, {arguments.rows:,} x {arguments.width}"
        repeats = arguments.repeats
        rows = compare(name, partial(answered, index, query), peers, repeats=repeats, unit="queries/s")
        milliseconds = 1000 * timed(partial(answered, index, query), repeats=10 * repeats)
        peers = {"the encoder alone": partial(encoded, encoder, blocks)}
        name, build = f"index of {len(texts):,} texts", partial(built, path, encoder, blocks)
        rows += compare(name, build, peers, repeats=repeats, unit="texts/s")
    finish(
        arguments,
        rows,
        packages=("numpy", "pyarrow"),
        milliseconds_of_a_query=round(milliseconds, 2),
        seconds_to_write_and_open=round(written, 1),
    )


if __name__ == "__main__":
    main()
