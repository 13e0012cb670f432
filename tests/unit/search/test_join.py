"""Segments that are joined: the same answers from one segment, files that are deleted, and what is checked when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.errors import Damaged, InputError
from bertwright.search import index as index_module
from bertwright.search import index_files, join
from bertwright.search.approximate import LEAST_ROWS
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import (
    IndexManifest,
    IndexRow,
    new_segment,
    next_number,
    segment_entry,
    write_index_manifest,
)
from tests.support.commands import run_json

WIDTH = 8


def write_segments(folder: Path, *sizes: int, **more: Any) -> SearchIndex:
    """Write an index of segments of random vectors of length 1; each row has its number as id and text."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(3)
    entries, first = [], 0
    for number, size in enumerate(sizes):
        vectors = draw.normal(size=(size, WIDTH)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        with new_segment(folder, number, WIDTH) as segment:
            ids = map(str, range(first, first + size))
            segment.write(vectors, [IndexRow(id, f"text {id}", {"number": int(id)}) for id in ids])
        entries.append(segment_entry(folder, number, size))
        first += size
    shape: Any = {"width": WIDTH, "similarity": "cosine", "segments": tuple(entries), "numbered": first}
    write_index_manifest(folder, IndexManifest(model="m", fingerprint="f", **shape, **more))
    return SearchIndex.open(folder)


def answers(index: SearchIndex) -> list[list[tuple[Any, ...]]]:
    queries = np.random.default_rng(4).normal(size=(5, WIDTH)).astype(np.float32)
    return [[(hit.id, hit.score, hit.text, hit.fields["number"]) for hit in hits] for hits in index.hits(queries, 12)]


def test_the_joined_index_has_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_BLOCK", 4)
    index = write_segments(tmp_path, 5, 9, 1, 7).remove([("0", "x:1"), ("7", "x:2"), ("14", "x:3")])
    whole = index.join()
    assert answers(whole) == answers(index)  # the earlier index is still open
    assert (len(whole), len(whole.segments), whole.segments[0].kept) == (19, 1, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock",
        "manifest.json",
        "rows-00004.arrow",
        "vectors-00004.npy",
    ]
    assert next_number(whole.manifest) == 5
    assert whole.manifest.numbered == 22  # numbers of removed rows are not used again
    assert answers(whole.join()) == answers(index)


def test_an_approximate_index_gets_new_lists(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="in the extra search")
    index = write_segments(tmp_path, LEAST_ROWS // 2, LEAST_ROWS // 2, approximate=True)
    assert not any(segment.has_lists for segment in index.segments)
    whole = index.join()
    assert [segment.has_lists for segment in whole.segments] == [True]
    assert (tmp_path / "lists-00002.faiss").is_file()


def test_files_without_an_entry_are_deleted(tmp_path: Path) -> None:
    index = write_segments(tmp_path, 3, 3)
    kept = {"notes.txt", "rows-backup.arrow", "vectors-mine.npy", "lists-1.faiss"}
    for name in ("vectors-00007.npy", "rows-00007.arrow", "lists-00007.faiss", *kept):
        (tmp_path / name).touch()
    index.join()
    assert {path.name for path in tmp_path.iterdir()} == {
        *kept,
        "lock",
        "manifest.json",
        "rows-00002.arrow",
        "vectors-00002.npy",
    }


def test_an_open_approximate_index_keeps_its_lists(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="in the extra search")
    whole = write_segments(tmp_path, LEAST_ROWS, approximate=True).join()
    opened = SearchIndex.open(tmp_path)
    assert answers(whole.join()) == answers(opened)  # which reads its lists now


@pytest.mark.parametrize("is_found_later", [False, True])
def test_an_index_whose_segments_are_joined_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_found_later: bool
) -> None:
    index = write_segments(tmp_path, 3, 4)
    expected = answers(index)
    if is_found_later:  # the files vanish after their sizes were compared
        monkeypatch.setattr(index_files, "_check_file", lambda *_, **__: None)
    read: Callable[[Path], IndexManifest] = index_module.read_index_manifest
    manifests = iter([index.manifest])
    index.join()
    monkeypatch.setattr(index_module, "read_index_manifest", lambda folder: next(manifests, None) or read(folder))
    assert answers(SearchIndex.open(tmp_path)) == expected


def test_nothing_to_join_is_refused(tmp_path: Path) -> None:
    index = write_segments(tmp_path, 2).remove([("0", "x:1"), ("1", "x:2")])
    with pytest.raises(InputError, match="all rows are removed, so there is nothing to join"):
        index.join()
    assert len(SearchIndex.open(tmp_path)) == 0


def test_digests_of_large_files_are_compared_on_request_and_before_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index_files, "HASHED", 100)
    write_segments(tmp_path / "index", 3, 4)
    checked, _ = run_json(capsys, "index", "--out", tmp_path / "index", "--verify")
    assert (checked["verified"], checked["rows"], checked["segments"]) == (4, 7, 2)
    path = tmp_path / "index" / "vectors-00001.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert len(SearchIndex.open(path.parent)) == 7
    with pytest.raises(Damaged, match=r"vectors-00001.npy: its digest is not that"):
        SearchIndex.open(path.parent, verify=True)
    with pytest.raises(Damaged, match=r"vectors-00001.npy: its digest is not that"):
        SearchIndex.open(path.parent).join()
    for options in (["--verify"], ["--join"], ["--remove", "3"]):
        _, said = run_json(capsys, "index", "--out", path.parent, *options, code=2)
        assert "vectors-00001.npy: its digest is not that" in said
    path.write_bytes(raw[:-1])
    with pytest.raises(Damaged, match=r"vectors-00001.npy: is cut"):
        SearchIndex.open(path.parent)


def test_the_command_joins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segments(tmp_path / "index", 3, 4)
    result, _ = run_json(capsys, "index", "--out", tmp_path / "index", "--join")
    assert (result["rows"], result["segments"], result["joined"]) == (7, 1, 2)
    for options in (
        ["--join", "--verify"],
        ["--join", "--add"],
        ["--verify", "--remove", "1"],
        ["--join", "--width", "3"],
    ):
        _, said = run_json(capsys, "index", "--out", tmp_path / "index", *options, code=2)
        assert "takes an index alone, --out" in said
