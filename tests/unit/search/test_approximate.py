"""Lists of near vectors: scores and order of the exact search, removed rows, a measured recall."""

import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.search import index as index_module
from bertwright.search.approximate import WANTED_RECALL, Lists, make_lists
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import (
    IndexManifest,
    IndexRow,
    new_segment,
    segment_entry,
    with_lists,
    write_index_manifest,
)
from bertwright.tasks.embedding.metrics import unit
from bertwright.tasks.sentence_vectors import SentenceEncoder
from tests.support.commands import run_json
from tests.support.encoders import write_encoder

WIDTH = 16


def clustered(rows: int, seed: int = 3) -> NDArray[np.float32]:
    """Return unit vectors around a hundred centres, which are the same for each seed."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(100, WIDTH))
    return unit((centres[draw.integers(0, 100, rows)] + 0.4 * draw.normal(size=(rows, WIDTH))).astype(np.float32))


def write_index(folder: Path, parts: list[NDArray[np.float32]], removed: tuple[int, ...] = ()) -> SearchIndex:
    """Write an index whose first segment has lists, and some removed rows."""
    folder.mkdir()
    entries = []
    for number, vectors in enumerate(parts):
        with new_segment(folder, number, WIDTH) as segment:
            segment.write(vectors, [IndexRow(f"{number}-{row}", f"text {row}", {}) for row in range(len(vectors))])
        entry = segment_entry(folder, number, len(vectors))
        entries.append(entry if number else with_lists(folder, number, entry).model_copy(update={"removed": removed}))
    shape: Any = {"width": WIDTH, "similarity": "cosine", "approximate": True, "segments": tuple(entries)}
    write_index_manifest(folder, IndexManifest(model="m", fingerprint="f", **shape))
    return SearchIndex.open(folder)


def nearest_by_sort(vectors: NDArray[np.float32], queries: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """Return the numbers [Q, most] of the nearest rows of each query."""
    products = np.round(queries.astype(np.float64) @ vectors.T.astype(np.float64), 6)
    return np.argsort(-products, axis=1, kind="stable")[:, :most]


def test_the_noted_recall_is_that_of_searches_with_rows_of_the_segment(tmp_path: Path) -> None:
    vectors = clustered(3000)
    index = write_index(tmp_path / "index", [vectors])
    lists = index.segments[0].entry.lists
    assert lists is not None
    assert lists.probes < 3000 // 40  # a list for 40 rows
    rows = np.unique(np.linspace(0, 2999, 200).astype(np.int64))
    recalls = []
    for row, expected, (numbers, _) in zip(
        rows, nearest_by_sort(vectors, vectors[rows], 11), index.nearest(vectors[rows], 11), strict=True
    ):
        recalls.append(np.isin(expected[expected != row][:10], numbers).mean())
    assert lists.recall == pytest.approx(np.mean(recalls), abs=1e-4)
    assert WANTED_RECALL <= lists.recall < 1.0


@pytest.mark.parametrize("top_k", [3, 1000, 5000])
def test_a_query_gets_all_the_rows_that_it_asks_for(top_k: int, tmp_path: Path) -> None:
    vectors, queries = clustered(3000), clustered(5, seed=4)
    index = write_index(tmp_path / "index", [vectors, clustered(40, seed=5)])
    every = np.concatenate([segment.vectors for segment in index.segments])
    expected = nearest_by_sort(every, queries, top_k)
    nearest = [numbers for numbers, _ in index.nearest(queries, top_k)]
    assert [len(numbers) for numbers in nearest] == [min(top_k, 3040)] * 5
    if top_k > 3:  # more than the lists of a query have
        assert [numbers.tolist() for numbers in nearest] == expected.tolist()


@pytest.mark.parametrize("left", [12, 1400, 1700])
def test_the_rows_that_are_left_are_found(left: int, tmp_path: Path) -> None:
    vectors, queries = clustered(3000), clustered(20, seed=4)
    kept = np.sort(np.random.default_rng(2).permutation(3000)[:left])
    removed = tuple(np.delete(np.arange(3000), kept).tolist())
    index = write_index(tmp_path / "index", [vectors], removed)
    expected = kept[nearest_by_sort(vectors[kept], queries, 20)]
    nearest = [numbers.tolist() for numbers, _ in index.nearest(queries, 20)]
    assert [len(numbers) for numbers in nearest] == [min(left, 20)] * 20
    if left < 1500:  # less than half of the rows
        assert nearest == expected.tolist()


def test_found_rows_have_exact_scores_and_none_is_a_removed_one(tmp_path: Path) -> None:
    vectors, queries = clustered(3000), clustered(50, seed=4)
    removed = tuple(range(0, 3000, 3))
    index = write_index(tmp_path / "index", [vectors, clustered(40, seed=5)], removed)
    pairs = zip(index.nearest(queries, 10), index.nearest(queries, 10, exact=True), strict=True)
    fractions = []
    for row, ((numbers, scores), (expected, exact_scores)) in enumerate(pairs):
        every = np.concatenate([segment.vectors for segment in index.segments])
        np.testing.assert_allclose(scores, np.round(every[numbers] @ queries[row], 6), atol=2e-6)
        assert not set(numbers.tolist()) & set(removed)
        assert (np.diff(scores) <= 0).all()
        fractions.append(np.isin(expected, numbers).mean())
        assert exact_scores[0] >= scores[0] - 2e-6
    assert np.mean(fractions) > 0.9
    by_rows = index.nearest(vectors[:100], 1)
    assert [int(numbers[0]) for row, (numbers, _) in enumerate(by_rows) if row % 3] == [
        row for row in range(100) if row % 3
    ]


def test_with_all_lists_the_search_is_exact() -> None:
    vectors = clustered(400)
    vectors[200:] = vectors[:200]  # ties
    content, _, _ = make_lists(vectors)
    index = faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8))
    [candidates] = Lists(index, index.nlist).candidates(vectors[:1], 400, np.array([7], dtype=np.int64))
    assert candidates.tolist() == [row for row in range(400) if row != 7]


def test_equal_vectors_have_lists_too() -> None:
    content, probes, recall = make_lists(np.ones((50, 4), dtype=np.float32) / 2)
    assert faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8)).nlist == 1
    assert (probes, recall) == (1, 1.0)


def test_only_large_segments_of_an_approximate_index_get_lists(
    tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index_module, "LEAST_ROWS", 4)
    model = write_encoder(tmp_path / "model", own_tokenizer)
    (tmp_path / "five.txt").write_text("A ship.\nRain.\nA book.\nA house.\nThe sea.\n", "utf-8")
    (tmp_path / "two.txt").write_text("The lane.\nThe roof.\n", "utf-8")
    options = ("--precision", "fp32")
    made: Any = ("--model", model, "--out", tmp_path / "i", "--approximate", *options)
    result, _ = run_json(capsys, "index", tmp_path / "five.txt", *made)
    assert (result["recall@10"], result["rows_without_lists"]) == (1.0, 0)  # there is one list
    result, _ = run_json(capsys, "index", tmp_path / "two.txt", "--out", tmp_path / "i", "--add", *options)
    assert result["rows_without_lists"] == 2
    segments = SearchIndex.open(tmp_path / "i").segments
    assert [segment.entry.lists is None for segment in segments] == [False, True]
    exact, _ = run_json(capsys, "search", tmp_path / "i", "A book.", "--exact", *options)
    assert exact["hits"][0]["text"] == "A book."
    near, _ = run_json(capsys, "search", tmp_path / "i", "A book.", *options)
    assert near["hits"][0] == exact["hits"][0]
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delattr(SentenceEncoder, "of_rows")  # the extra is named before a vector is computed
    _, said = run_json(capsys, "index", tmp_path / "two.txt", "--out", tmp_path / "i", "--add", *options, code=2)
    assert "an approximate index needs the extra 'search'" in said
    assert len(SearchIndex.open(tmp_path / "i")) == 7


def test_a_damaged_file_of_lists_is_named(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index", [clustered(300)]).folder / "lists-00000.faiss"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"lists-00000.faiss: is cut"):
        SearchIndex.open(path.parent)
    with pytest.raises(InputError, match=r"lists-00000.faiss: cannot be read by faiss"):
        Lists.of_bytes(np.fromfile(path, np.uint8), 4, location=path.name)


def test_without_faiss_the_extra_is_named_and_the_exact_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_index(tmp_path / "index", [clustered(300)])
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"an approximate index needs the extra 'search'"):
        index.nearest(clustered(1), 3)
    assert len(index.nearest(clustered(1), 3, exact=True)[0][0]) == 3
