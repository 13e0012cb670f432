"""An index folder: searches equal those of a full sort, adding and removing, and every fault by its file."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sentence_transformers import SentenceTransformer

from bertwright.errors import Damaged, InputError
from bertwright.files import file_digest
from bertwright.model.folder import open_model
from bertwright.model.vector_settings import VectorSettings
from bertwright.search import nearest as nearest_module
from bertwright.search.index import SearchIndex, check_indexable
from bertwright.search.index_files import (
    FileEntry,
    IndexManifest,
    IndexRow,
    Segment,
    new_segment,
    segment_entry,
    write_index_manifest,
)
from bertwright.search.new_rows import IndexedText, TakenIds, checked_rows
from bertwright.shipped import shipped
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import NotFinite
from bertwright.tasks.sentence_vectors import SentenceEncoder
from tests.support.encoders import write_encoder
from tests.support.folders import contents
from tests.support.vectors import write_vector_model

TEXTS = {
    "ship": "A ship sails on the sea.",
    "rain": "Rain falls on the roof of the house.",
    "book": "The teacher reads a book.",
    "lane": "The old house stands by the lane.",
}
QUERIES = ("a ship on the sea", "rain on the house")
PROMPTS = VectorSettings(prompts={"query": "to ask: ", "document": ""}, normalize=True, max_length=20)


def open_encoder(folder: Path) -> SentenceEncoder:
    saved = open_model(str(folder))
    return SentenceEncoder(saved, open_tokenizer(saved))


def blocks(texts: dict[str, str], size: int = 3) -> list[list[IndexedText]]:
    rows = [
        IndexedText(IndexRow(id, text, {"line": line}), f"a.tsv:{line}", line + 1)
        for line, (id, text) in enumerate(texts.items())
    ]
    return [rows[first : first + size] for first in range(0, len(rows), size)]


@pytest.fixture(scope="module")
def vector_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    """A folder with an encoder whose queries have a prompt; no test writes to it."""
    folder = tmp_path_factory.mktemp("vectors") / "model"
    write_vector_model(folder, own_tokenizer, PROMPTS)
    return folder


@pytest.fixture
def build(tmp_path: Path, vector_model: Path) -> Callable[..., SearchIndex]:
    """Build an index of these texts with that model."""
    numbers = count()

    def build_index(texts: dict[str, str], **more: Any) -> SearchIndex:
        folder = tmp_path / f"index{next(numbers)}"
        return SearchIndex.build(folder, open_encoder(vector_model), blocks(texts), model=str(vector_model), **more)[0]

    return build_index


def test_hits_and_scores_are_those_of_sentence_transformers(
    build: Callable[..., SearchIndex], vector_model: Path
) -> None:
    theirs = SentenceTransformer(str(vector_model), device="cpu")
    scores = theirs.similarity(theirs.encode_query([*QUERIES]), theirs.encode_document([*TEXTS.values()])).numpy()
    for of_query, hits in zip(scores, build(TEXTS).search(open_encoder(vector_model), QUERIES, 3), strict=True):
        expected = sorted(zip(of_query, TEXTS, strict=True), reverse=True)[:3]
        assert [hit.id for hit in hits] == [id for _, id in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [score for score, _ in expected], atol=2e-5)
        assert [(hit.text, hit.fields) for hit in hits] == [
            (TEXTS[hit.id], {"line": [*TEXTS].index(hit.id)}) for hit in hits
        ]


@pytest.mark.parametrize("scores", [1, 7, 1 << 22])
def test_nearest_rows_are_those_of_a_full_sort_with_ties_segments_and_removed_rows(
    scores: int, build: Callable[..., SearchIndex], vector_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_module, "_SCORES", scores)
    index = build(TEXTS).add(open_encoder(vector_model), blocks({f"{id}2": text for id, text in TEXTS.items()}))[0]
    index = index.remove([("rain", "x:1"), ("lane2", "x:2")])
    ids = [id for id in (*TEXTS, *(f"{id}2" for id in TEXTS)) if id not in ("rain", "lane2")]
    vectors = np.concatenate([segment.vectors for segment in index.segments])[[0, 2, 3, 4, 5, 6]]
    queries = vectors[[1, 4]]
    products = np.round(queries.astype(np.float64) @ vectors.T.astype(np.float64), 6)
    numbers = [0, 2, 3, 4, 5, 6]
    for of_query, (nearest, values) in zip(products, index.nearest(queries, 10), strict=True):
        order = sorted(range(6), key=lambda row, of_query=of_query: (-of_query[row], row))
        assert nearest.tolist() == [numbers[row] for row in order]
        np.testing.assert_allclose(values, of_query[order], atol=2e-6)
    assert len(index) == len(ids) == 6
    assert {hit.id for hit in index.search(open_encoder(vector_model), ["a"], 10)[0]} == {*ids}


def test_removed_rows_cost_no_copy_of_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    vectors, queries = (draw.normal(size=(rows, 64)).astype(np.float32) for rows in (20_000, 2))
    removed = np.array([int(np.argmax(vectors @ queries[0])), 7, 9_000])
    with new_segment(tmp_path, 0, 64) as segment:
        segment.write(vectors, [IndexRow(str(row), "", {}) for row in range(len(vectors))])
    entry = segment_entry(tmp_path, 0, len(vectors)).model_copy(update={"removed": tuple(sorted(removed.tolist()))})
    manifest = IndexManifest(model="m", fingerprint="f", width=64, similarity="dot", segments=(entry,))
    write_index_manifest(tmp_path, manifest)
    index = SearchIndex.open(tmp_path)
    products = np.round(queries.astype(np.float64) @ vectors.T.astype(np.float64), 6).astype(np.float32)
    products[:, removed] = -np.inf
    for top_k, most_bytes in ((10, 1 << 26), (3000, 1 << 18)):  # products in fp32, and all of them in fp64
        monkeypatch.setattr(nearest_module, "_BYTES", most_bytes)
        tracemalloc.start()
        nearest = index.nearest(queries, top_k)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < vectors.nbytes / 3
        for of_query, (numbers, scores) in zip(products, nearest, strict=True):
            assert numbers.tolist() == np.lexsort((np.arange(len(vectors)), -of_query))[:top_k].tolist()
            assert scores.tolist() == of_query[numbers].tolist()


def test_rows_without_ids_get_the_next_free_numbers(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    encoder, index = open_encoder(vector_model), build(TEXTS)
    rows = [IndexRow(str(line), f"Line {line}.", {}) for line in (1, 2)]
    lines = [[IndexedText(row, f"a.txt:{row.id}", int(row.id), is_numbered=True) for row in rows]]
    index.add(encoder, blocks({"7": "A ship."}))
    index.add(encoder, lines)  # `index` was opened before the row 7 was added
    index.add(encoder, lines)
    ids = [id for segment in SearchIndex.open(index.folder).segments for id in segment.ids]
    assert ids == [*TEXTS, "7", "6", "8", "9", "10"]


def test_without_locks_an_index_is_not_changed(
    build: Callable[..., SearchIndex], vector_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that add at the same time would write the same files, and one would lose its rows."""
    index = build(TEXTS)
    before = contents(index.folder)
    monkeypatch.setattr("bertwright.locks._take", lambda *_: False)
    for change in (
        lambda: index.add(open_encoder(vector_model), blocks({"new": "A ship."})),
        lambda: index.remove([("ship", "x:1")]),
        index.join,
    ):
        with pytest.raises(InputError, match="this file system has no locks, which a change needs"):
            change()
    assert {name: content for name, content in contents(index.folder).items() if name != "lock"} == before


def test_a_folder_with_the_name_of_a_shipped_model_is_noted_by_its_path(
    tmp_path: Path, vector_model: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder, name = open_encoder(vector_model), shipped()[0]
    assert SearchIndex.build("a", encoder, blocks(TEXTS), model=name)[0].manifest.model == name
    (tmp_path / name).mkdir()
    assert SearchIndex.build("b", encoder, blocks(TEXTS), model=name)[0].manifest.model == str(tmp_path / name)


def test_empty_blocks_are_passed_over(tmp_path: Path, vector_model: Path) -> None:
    texts = [[], *blocks(TEXTS), []]
    index, added = SearchIndex.build(tmp_path / "i", open_encoder(vector_model), texts, model=str(vector_model))
    assert (len(index), added.rows) == (4, 4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (IndexRow("\ud800", "A.", {}), r"t:1: the id holds half of a character"),
        (IndexRow("a", "A \ud800.", {}), r"t:1: the text holds half of a character"),
        (IndexRow("a", "A.", {"day": date(2020, 1, 1)}), r"t:1: expected fields that JSON can hold, got \{'day'"),
        (IndexRow("a", "A.", {"day": "\ud800"}), r"t:1: expected fields that JSON can hold"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(
    row: IndexRow, message: str, build: Callable[..., SearchIndex], vector_model: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build(TEXTS).add(open_encoder(vector_model), [[IndexedText(row, "t:1")]])


@pytest.mark.parametrize("removed", [(99,), (1, 1), (2, 1)])
def test_numbers_of_removed_rows_that_are_none_are_refused(
    removed: tuple[int, ...], build: Callable[..., SearchIndex]
) -> None:
    index = build(TEXTS)
    entry = index.manifest.segments[0].model_copy(update={"removed": removed})
    with pytest.raises(Damaged, match=r"manifest.json: expected numbers of removed rows below 4, ascending, got"):
        Segment(index.folder, entry, index.manifest.width)


def test_a_width_keeps_the_first_components(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    whole, narrow = build(TEXTS), build(TEXTS, width=8)
    first = np.array(whole.segments[0].vectors[:, :8])
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(narrow.segments[0].vectors, expected, atol=1e-5)
    assert narrow.search(open_encoder(vector_model), QUERIES)[0][0].score <= 1.0


def test_a_removed_id_may_be_added_again(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    encoder = open_encoder(vector_model)
    index = build(TEXTS).remove([("ship", "x:1")]).add(encoder, blocks({"ship": "Another ship."}))[0]
    assert len(index) == 4
    assert {hit.text for hit in index.search(encoder, ["ship"], 9)[0] if hit.id == "ship"} == {"Another ship."}


def test_an_open_index_stays_as_it_was(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    encoder, index = open_encoder(vector_model), build(TEXTS)
    before = index.search(encoder, QUERIES)
    index.remove([(id, "x:1") for id in ("ship", "book")])
    assert index.search(encoder, QUERIES) == before
    assert len(SearchIndex.open(index.folder)) == 2


def test_an_index_without_rows_finds_nothing(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    index = build(TEXTS).remove([(id, "x:1") for id in TEXTS])
    assert index.search(open_encoder(vector_model), QUERIES) == [[], []]


def test_another_model_is_refused(build: Callable[..., SearchIndex], tmp_path: Path, own_tokenizer: Path) -> None:
    other = open_encoder(Path(write_encoder(tmp_path / "other", own_tokenizer)))
    index = build(TEXTS)
    before = contents(index.folder)
    for refused in (lambda: index.search(other, QUERIES), lambda: index.add(other, blocks({"a": "A."}))):
        with pytest.raises(InputError, match=r"index0: expected the model that made this index .*got one with the"):
            refused()
    assert {name: content for name, content in contents(index.folder).items() if name != "lock"} == before


def test_fingerprints_differ_by_settings_and_stay_with_precision(
    tmp_path: Path, own_tokenizer: Path, vector_model: Path
) -> None:
    write_vector_model(tmp_path / "cls", own_tokenizer, VectorSettings(pooling=("cls",)))
    write_vector_model(tmp_path / "again", own_tokenizer, PROMPTS)
    prints = [open_encoder(folder).fingerprint for folder in (vector_model, tmp_path / "again", tmp_path / "cls")]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            [[IndexedText(IndexRow("a", "One.", {}), "t:1"), IndexedText(IndexRow("a", "Two.", {}), "t:2")]],
            r"t:2: the id 'a' is",
        ),
        ([[IndexedText(IndexRow("ship", "One.", {}), "t:1")]], r"t:1: the id 'ship' is in the index already.*--remove"),
        (
            [[IndexedText(IndexRow("ship", "One.", {}, passage=1), "t:1")]],
            r"t:1: the id 'ship' is in the index already.*--remove",
        ),
        ([], r"expected at least one text, got none"),
    ],
)
def test_a_refused_addition_changes_nothing(
    texts: Sequence[Any], message: str, build: Callable[..., SearchIndex], vector_model: Path
) -> None:
    index = build(TEXTS)
    before = contents(index.folder)
    with pytest.raises(InputError, match=message):
        index.add(open_encoder(vector_model), texts)
    assert {name: content for name, content in contents(index.folder).items() if name != "lock"} == before


def passages(id: str, count: int) -> list[IndexedText]:
    """Return the passages of a document."""
    return [IndexedText(IndexRow(id, f"Part {number}.", {}, number), f"{id}:1") for number in range(1, count + 1)]


def plain(*ids: str) -> list[IndexedText]:
    """Return rows that are no passages."""
    return [IndexedText(IndexRow(id, "A row.", {}), f"{id}:2") for id in ids]


def all_ids(index: SearchIndex) -> list[str]:
    """Return the ids of all rows, sorted."""
    return sorted(id for segment in index.segments for id in segment.ids)


def test_a_document_is_removed_with_its_passages_alone(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    encoder = open_encoder(vector_model)
    index = build({"issue#7": "A row.", "issue": "A row.", "#1": "A row."}).add(encoder, [passages("ship", 2)])[0]
    with pytest.raises(InputError, match="there is no id ''"):
        index.remove([("", "x:1")])
    index = index.remove([("issue", "x:1")])
    with pytest.raises(InputError, match="there is no id 'issue'"):
        index.remove([("issue", "x:1")])
    index = index.remove([("ship#1", "x:1")]).join()
    assert all_ids(index) == ["#1", "issue#7", "ship#2"]
    for more in (passages("ship", 1), plain("ship")):
        with pytest.raises(InputError, match=r"ship:\d: the id 'ship' is in the index already"):
            check_indexable([more], index)
    index = index.remove([("ship", "x:1")]).add(encoder, [passages("ship", 2), passages(" a", 1)])[0]
    assert all_ids(index) == [" a#1", "#1", "issue#7", "ship#1", "ship#2"]
    assert all_ids(index.remove([(" a", "x:1"), (" ship ", "x:2")])) == ["#1", "issue#7"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (passages("C#1", 1), passages("C", 1), r"C:1: the id 'C' and its passages would have ids such as"),
        (plain("C#7"), passages("C", 1), r"C:1: the id 'C' and its passages would have ids such as that of another"),
        (
            passages("C", 1),
            plain("C#7"),
            r"C#7:2: the id 'C#7' is that of a passage; give one of the two texts another",
        ),
        (passages("C", 2), passages("C", 1), r"C:1: the id 'C' is (there twice; .* holds both|in the index already)"),
        (plain("C"), passages("C", 1), r"C:1: the id 'C' is (there twice|in the index already)"),
        (passages("C", 1), plain("C"), r"C:2: the id 'C' is (there twice; ids must differ$|in the index already)"),
    ],
)
def test_ids_that_two_rows_could_have_are_refused(
    first: list[IndexedText],
    second: list[IndexedText],
    words: str,
    build: Callable[..., SearchIndex],
    vector_model: Path,
) -> None:
    with pytest.raises(InputError, match=words):
        check_indexable([first, second])
    index = build(TEXTS).add(open_encoder(vector_model), [first])[0]
    with pytest.raises(InputError, match=words):
        check_indexable([second], index)


def test_numbered_rows_take_numbers_that_no_document_has() -> None:
    numbered = [IndexedText(IndexRow("", "A row.", {}), "t:1", 1, is_numbered=True)]
    document = [replace(numbered[0], row=IndexRow("", "A row.", {}, passage=1))]
    for before, row, id in (
        (passages("1", 1), numbered, "2"),
        (plain("1#4"), document, "2#1"),
        (plain("1"), document, "2#1"),
    ):
        blocks_of_rows = list(checked_rows([before, row], TakenIds(), 0))
        assert [row.id for row in blocks_of_rows[1][0]] == [id]


def test_an_index_of_version_1_0_0_has_no_passages(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    index = build({"a#1": "A ship.", "b": "A sea."})
    [entry] = index.manifest.segments
    path = index.folder / entry.texts.name
    table = pa.ipc.open_file(path).read_all().drop_columns(["passage"])
    with pa.ipc.new_file(path.with_suffix(".new"), table.schema) as stream:
        stream.write_table(table)
    path.with_suffix(".new").replace(path)
    texts = FileEntry(name=path.name, bytes=path.stat().st_size, sha256=file_digest(path))
    changed = entry.model_copy(update={"texts": texts})
    write_index_manifest(index.folder, index.manifest.model_copy(update={"segments": (changed,)}))
    index = SearchIndex.open(index.folder)
    with pytest.raises(InputError, match="there is no id 'a'"):
        index.remove([("a", "x:1")])
    index = index.add(open_encoder(vector_model), [passages("ship", 2)])[0].join()
    assert all_ids(index.remove([("ship", "x:1")])) == ["a#1", "b"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            [("ship", "ids.txt:1"), ("boat", "ids.txt:2")],
            r"ids.txt:2: there is no id 'boat' in .*; nothing was removed",
        ),
        ([("ship", "ids.txt:1"), ("ship", "ids.txt:2")], r"ids.txt:2: the id 'ship' is there twice \(first: ids.txt:1"),
    ],
)
def test_a_refused_removal_changes_nothing(ids: Any, message: str, build: Callable[..., SearchIndex]) -> None:
    index = build(TEXTS)
    with pytest.raises(InputError, match=message):
        index.remove(ids)
    assert len(SearchIndex.open(index.folder)) == 4


@pytest.mark.parametrize("name", ["manifest.json", "vectors-00000.npy", "rows-00000.arrow"])
@pytest.mark.parametrize("fault", ["cut", "changed", "missing"])
def test_a_damaged_file_is_named(name: str, fault: str, build: Callable[..., SearchIndex]) -> None:
    path = build(TEXTS).folder / name
    raw = path.read_bytes()
    path.unlink()
    if fault == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    if fault == "changed":
        position = raw.index(b"cosine") + 1 if name == "manifest.json" else len(raw) // 2
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
    with pytest.raises(
        InputError, match=rf"{'index0: not an index' if (name, fault) == ('manifest.json', 'missing') else name}"
    ):
        SearchIndex.open(path.parent)


def test_an_index_of_a_later_version_is_refused(build: Callable[..., SearchIndex]) -> None:
    path = build(TEXTS).folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "format": 2}), "utf-8")
    with pytest.raises(InputError, match=r"manifest.json: expected an index of format 1, got 2; build it again"):
        SearchIndex.open(path.parent)


def test_a_vector_that_is_not_finite_is_named_by_its_line(
    tmp_path: Path, vector_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = open_encoder(vector_model)
    monkeypatch.setattr(
        encoder, "of_rows", lambda rows, *_, **__: np.full((len(rows), encoder.size), np.nan, np.float32)
    )
    with pytest.raises(NotFinite, match=r"a.tsv:0: expected finite numbers"):
        SearchIndex.build(tmp_path / "index", encoder, blocks(TEXTS), model=str(vector_model))
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("query", ["", " \n"])
def test_an_empty_query_is_refused(query: str, build: Callable[..., SearchIndex], vector_model: Path) -> None:
    with pytest.raises(InputError, match=r"query 1: expected a text, got an empty one"):
        build(TEXTS).search(open_encoder(vector_model), ["ship", query])


def test_a_query_that_is_no_text_is_refused(build: Callable[..., SearchIndex], vector_model: Path) -> None:
    with pytest.raises(InputError, match=r"query 1 holds half of a character"):
        build(TEXTS).search(open_encoder(vector_model), ["ship", "\ud800"])


def test_a_similarity_that_is_no_product_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(similarity="euclidean"))
    with pytest.raises(InputError, match=r"similarity is euclidean"):
        SearchIndex.build(
            tmp_path / "i", open_encoder(tmp_path / "model"), blocks(TEXTS), model=str(tmp_path / "model")
        )
