"""Lists of near vectors: scores and order of the exact search, removed rows, a measured recall."""

import sys
from pathlib import Path
from typing import Any

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


def test_found_rows_have_exact_scores_and_the_recall_is_that_which_was_measured(tmp_path: Path) -> None:
    vectors, queries = clustered(3000), clustered(50, seed=4)
    removed = tuple(range(0, 3000, 3))
    index = write_index(tmp_path / "index", [vectors, clustered(40, seed=5)], removed)
    lists = index.segments[0].entry.lists
    assert lists is not None
    assert WANTED_RECALL <= lists.recall <= 1.0
    assert lists.probes < 4 * np.sqrt(3000)
    pairs = zip(index.nearest(queries, 10), index.nearest(queries, 10, exact=True), strict=True)
    shares = []
    for row, ((numbers, scores), (expected, exact_scores)) in enumerate(pairs):
        every = np.concatenate([segment.vectors for segment in index.segments])
        np.testing.assert_allclose(scores, np.round(every[numbers] @ queries[row], 6), atol=2e-6)
        assert not set(numbers.tolist()) & set(removed)
        assert (np.diff(scores) <= 0).all()
        shares.append(np.isin(expected, numbers).mean())
        assert exact_scores[0] >= scores[0] - 2e-6
    assert np.mean(shares) > 0.9
    by_rows = index.nearest(vectors[:100], 1)
    assert [int(numbers[0]) for row, (numbers, _) in enumerate(by_rows) if row % 3] == [
        row for row in range(100) if row % 3
    ]


def test_with_all_lists_the_search_is_exact() -> None:
    vectors = clustered(400)
    vectors[200:] = vectors[:200]  # ties
    content, _, _ = make_lists(vectors)
    import faiss

    index = faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8))
    [candidates] = Lists(index, index.nlist).candidates(vectors[:1], 400, np.array([7], dtype=np.int64))
    assert candidates.tolist() == [row for row in range(400) if row != 7]


def test_equal_vectors_have_lists_too() -> None:
    content, probes, recall = make_lists(np.ones((50, 4), dtype=np.float32) / 2)
    assert len(content) > 0
    assert probes >= 1
    assert 0.0 <= recall <= 1.0


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
    assert 0.0 <= result["recall@10"] <= 1.0
    run_json(capsys, "index", tmp_path / "two.txt", "--out", tmp_path / "i", "--add", *options)
    segments = SearchIndex.open(tmp_path / "i").segments
    assert [segment.entry.lists is None for segment in segments] == [False, True]
    exact, _ = run_json(capsys, "search", tmp_path / "i", "A book.", "--exact", *options)
    assert exact["hits"][0]["text"] == "A book."
    near, _ = run_json(capsys, "search", tmp_path / "i", "A book.", *options)
    assert near["hits"][0] == exact["hits"][0]
    monkeypatch.setitem(sys.modules, "faiss", None)
    _, said = run_json(capsys, "index", tmp_path / "two.txt", "--out", tmp_path / "i", "--add", *options, code=2)
    assert "an approximate index needs the extra 'search'" in said
    assert len(SearchIndex.open(tmp_path / "i")) == 7


def test_a_damaged_file_of_lists_is_named(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index", [clustered(300)]).folder / "lists-00000.faiss"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"lists-00000.faiss: is cut"):
        SearchIndex.open(path.parent)
    with pytest.raises(InputError, match=r"lists-00000.faiss: cannot be read by faiss"):
        Lists.open(path, 4)


def test_without_faiss_the_extra_is_named_and_the_exact_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_index(tmp_path / "index", [clustered(300)])
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"an approximate index needs the extra 'search'"):
        index.nearest(clustered(1), 3)
    assert len(index.nearest(clustered(1), 3, exact=True)[0][0]) == 3
