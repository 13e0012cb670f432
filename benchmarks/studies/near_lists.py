"""Libraries for an approximate index, on one thread: time to build, bytes, recall of ten and time of a query.

python -m benchmarks.studies.near_lists [--rows 10000] [--width 256] [--queries 200] [--json]

The vectors have 40 random directions and noise, which is harder than clusters and easier than noise alone. faiss's
inverted file with a byte for each component is what `bertwright.search.approximate` uses; beside it stand the graphs
(HNSW) of faiss and of usearch, which is installed for this study alone: pip install usearch.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.tasks.embedding.metrics import unit

TOP = 10
Search = Callable[[NDArray[np.float32], int], NDArray[np.int64]]


def vectors_of(rows: int, width: int, seed: int) -> NDArray[np.float32]:
    """Return unit vectors with 40 directions, the same for each seed, and noise."""
    directions = np.random.default_rng(0).standard_normal((40, width), dtype=np.float32) / 6
    draw = np.random.default_rng(seed)
    noise = 0.3 * draw.standard_normal((rows, width), dtype=np.float32)
    return unit(draw.standard_normal((rows, 40), dtype=np.float32) @ directions + noise)


def contenders(vectors: NDArray[np.float32]) -> Iterator[tuple[str, float, int, Search, Sequence[int]]]:
    """Yield name, seconds to build, bytes, a search with a setting, and the settings."""
    import faiss
    from usearch.index import Index

    faiss.omp_set_num_threads(1)
    rows, width = vectors.shape
    for name, parameter, settings in (
        (f"IVF{min(int(4 * rows**0.5), rows // 40)},SQ8", "nprobe", (4, 16, 64, 128)),
        ("HNSW32", "efSearch", (32, 64, 128, 256)),
    ):
        begin = time.perf_counter()
        index = faiss.index_factory(width, name, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        seconds = time.perf_counter() - begin
        space = faiss.ParameterSpace()

        def by_faiss(query: NDArray[np.float32], setting: int, *, of: Any = (index, space, parameter)) -> Any:
            of[1].set_index_parameter(of[0], of[2], setting)
            return of[0].search(query[None], TOP)[1][0]

        yield f"faiss {name}", seconds, len(faiss.serialize_index(index)), by_faiss, settings
    begin = time.perf_counter()
    graph = Index(ndim=width, metric="ip", dtype="i8", connectivity=32)
    graph.add(np.arange(rows), vectors, threads=1)
    seconds = time.perf_counter() - begin

    def by_usearch(query: NDArray[np.float32], setting: int) -> Any:
        graph.expansion_search = setting
        return np.asarray(graph.search(query, TOP, threads=1).keys).astype(np.int64)

    yield "usearch HNSW32 i8", seconds, graph.memory_usage, by_usearch, (32, 64, 128, 256)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 10_000), ("width", 256), ("queries", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true", help="print the result as the last line of standard output")
    options = parser.parse_args()
    vectors, queries = vectors_of(options.rows, options.width, 1), vectors_of(options.queries, options.width, 2)
    nearest = np.argsort(-(queries @ vectors.T), axis=1)[:, :TOP]
    lines = []
    for name, seconds, num_bytes, search, settings in contenders(vectors):
        for setting in settings:
            begin = time.perf_counter()
            rows = [search(query, setting) for query in queries]
            milliseconds = 1000 * (time.perf_counter() - begin) / len(queries)
            recall = float(np.mean([np.isin(*pair).mean() for pair in zip(nearest, rows, strict=True)]))
            lines.append({"index": name, "build_s": round(seconds, 1), "bytes": num_bytes, "setting": setting})
            lines[-1] |= {"recall": round(recall, 3), "ms": round(milliseconds, 3)}
            print(lines[-1], file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"rows": lines}))


if __name__ == "__main__":
    main()
