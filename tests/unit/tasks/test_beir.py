"""Folders in BEIR's layout: plain and packed files, and each fault with its file and line."""

import gzip
import lzma
from pathlib import Path

import pytest

from bertwright.errors import InputError
from bertwright.tables.bad_rows import bad_rows_of
from bertwright.tasks.beir import is_retrieval, open_retrieval
from bertwright.tasks.embedding.beir import read_judged
from bertwright.tasks.embedding.spec import EMBED
from tests.support.retrieval import DOCUMENTS, write_beir


def test_plain_and_packed_files_are_read_alike(tmp_path: Path) -> None:
    plain, packed = write_beir(tmp_path / "plain"), write_beir(tmp_path / "packed")
    corpus, queries = packed / "corpus.jsonl", packed / "queries.jsonl"
    (packed / "corpus.jsonl.xz").write_bytes(lzma.compress(corpus.read_bytes()))
    (packed / "queries.jsonl.gz").write_bytes(gzip.compress(queries.read_bytes()))
    corpus.unlink()
    queries.unlink()
    first, second = open_retrieval(plain), open_retrieval(packed)
    assert (first.ids, first.queries, first.judgements) == (second.ids, second.queries, second.judgements)
    assert first.ids == tuple(sorted(DOCUMENTS, reverse=True))
    assert first.judgements == {"q1": {"d1": 1}, "q2": {"d10": 2, "d2": 0}}
    assert [*first.documents(2)] == [*second.documents(2)]
    assert next(first.documents(2))[1][0] == "A ship. It sails on the sea."


def test_the_file_of_judgements_is_test_or_the_named_one(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data")
    train = folder / "qrels" / "train.tsv"
    train.write_text("query-id\tcorpus-id\tscore\nq3\td2\t1\n", "utf-8")
    assert open_retrieval(folder).qrels.name == "test.tsv"
    assert open_retrieval(train).judgements == {"q3": {"d2": 1}}
    assert is_retrieval(folder)
    assert is_retrieval(train)
    assert not is_retrieval(tmp_path)
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "dev.tsv")
    with pytest.raises(InputError, match=r"qrels: expected test.tsv or a single table, found dev.tsv, train.tsv; give"):
        open_retrieval(folder)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("qrels/test.tsv", "q1\td9\t1", r"test.tsv:5: there is no document 'd9' in .*corpus.jsonl"),
        ("qrels/test.tsv", "q9\td1\t1", r"test.tsv:5: there is no query 'q9' in .*queries.jsonl"),
        ("qrels/test.tsv", "q1\td2\tmuch", r"test.tsv:5: expected a finite number in column 'score', got 'much'"),
        ("qrels/test.tsv", "q1\td2\t0.5", r"test.tsv:5: expected a whole number in 'score', got 0.5"),
        ("qrels/test.tsv", "q1\td2", r"test.tsv:5: expected a row of 3 columns, got 2 \(columns: query-id, corpus-id"),
        ("qrels/test.tsv", "q1\td1\t1", r"test.tsv:5: query 'q1' and document 'd1' are judged twice"),
        ("corpus.jsonl", '{"_id": "d7", "text": 7}', r"corpus.jsonl:4: expected a text in 'text', got 7"),
        ("corpus.jsonl", '{"_id": "d1", "text": "again"}', r"corpus.jsonl:4: the id 'd1' is there twice"),
        (
            "corpus.jsonl",
            '{"_id": 7.5, "text": "x"}',
            r"corpus.jsonl:4: expected a text or a whole number in '_id', got",
        ),
        ("queries.jsonl", "[1]", r"queries.jsonl:4: expected one object"),
    ],
)
def test_a_fault_is_reported_with_its_file_and_line(file: str, line: str, message: str, tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data")
    with (folder / file).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=message):
        for _ in open_retrieval(folder).documents(2):
            pass


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"data: expected queries.jsonl \(or packed"):
        open_retrieval(folder)


def test_documents_and_unjudged_queries_may_be_empty(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data")
    for file, line in (
        ("corpus.jsonl", '{"_id": "d7", "title": "", "text": " "}'),
        ("queries.jsonl", '{"_id": "q7", "text": ""}'),
    ):
        with (folder / file).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    data = open_retrieval(folder)
    assert [text for _, texts in data.documents(2) for text in texts][-1] == ""
    with (folder / "qrels/test.tsv").open("a", encoding="utf-8") as stream:
        stream.write("q7\td7\t1\n")
    with pytest.raises(InputError, match=r"test.tsv:5: expected an id with a text in 'query-id', got 'q7'"):
        open_retrieval(folder)


def test_search_and_training_read_odd_spellings_alike(tmp_path: Path) -> None:
    """Null titles, ids that are numbers, scores with a point, and judgements without a header line."""
    folder = write_beir(tmp_path / "data")
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": 7, "title": null, "text": "Bread from the baker."}\n')
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": 12, "text": "who bakes bread"}\n')
    qrels = folder / "qrels" / "test.tsv"
    qrels.write_text("12\t7\t1.0\nq1\td1\t2\n12\td2\t-1\n", "utf-8")
    data, pairs = open_retrieval(folder), read_judged(EMBED, qrels)
    assert data.judgements == {"12": {"7": 1, "d2": -1}, "q1": {"d1": 2}}
    documents = {id: text for ids, texts in data.documents(2) for id, text in zip(ids, texts, strict=True)}
    relevant = [(query, id) for query, judged in data.judgements.items() for id in judged if judged[id] > 0]
    assert [(data.queries[query], documents[id]) for query, id in relevant] == [
        (pairs.firsts[first], pairs.seconds[second])
        for first, second in zip(pairs.anchors, pairs.positives, strict=True)
    ]
    assert documents["7"] == "Bread from the baker."
    assert pairs.lines == (1, 2)


def test_judgements_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data")
    with (folder / "qrels" / "test.tsv").open("a", encoding="utf-8") as stream:
        stream.write("q1\td1\t1\nq1\td9\t1\nq2\td1\tmuch\n")
    with bad_rows_of(folder, "skip") as bad_rows:
        data = open_retrieval(folder, on_error=bad_rows.add)
    assert bad_rows.counts == {"judged twice": 1, "with an unknown id": 1, "without a number": 1}
    assert data.judgements == {"q1": {"d1": 1}, "q2": {"d10": 2, "d2": 0}}
