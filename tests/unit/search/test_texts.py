"""Tables → rows to index: ids, texts and fields of each format, and every fault by its line."""

import gzip
import json
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertwright.errors import InputError
from bertwright.search import texts as texts_module
from bertwright.search.index_files import IndexRow
from bertwright.search.texts import TextTables
from bertwright.tasks.beir import documents_in_blocks


def rows(*sources: Path | str, **options: Any) -> list[IndexRow]:
    return [text.row for block in TextTables(tuple(map(str, sources)), **options).blocks() for text in block]


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_each_format_gives_ids_texts_and_fields(tmp_path: Path) -> None:
    expected = [IndexRow("a", "One.", {"year": "1"}), IndexRow("b", "Two.", {"year": "2"})]
    csv = write_lines(tmp_path / "a.csv", "id,text,year", "a,One.,1", "b,Two.,2")
    assert rows(csv) == expected
    assert rows(write_lines(tmp_path / "a.tsv", "year\t_id\tsentence", "1\ta\tOne.", "2\tb\tTwo.")) == expected
    records = [{"_id": "a", "text": "One.", "tags": ["x"]}, {"_id": 7, "text": "Two.", "year": None}]
    jsonl = write_lines(tmp_path / "a.jsonl", *map(json.dumps, records))
    assert rows(jsonl) == [IndexRow("a", "One.", {"tags": ["x"]}), IndexRow("7", "Two.", {"year": None})]
    pq.write_table(pa.table({"id": [1, 2], "text": ["One.", "Two."], "year": [1.5, None]}), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == [IndexRow("1", "One.", {"year": 1.5}), IndexRow("2", "Two.", {"year": None})]


def test_lines_of_text_are_numbered_through_all_files(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.txt", "One,\ttwo.", "Three.")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Four.\n"))
    expected = [IndexRow("1", "One,\ttwo.", {}), IndexRow("2", "Three.", {}), IndexRow("3", "Four.", {})]
    assert rows(first, tmp_path / "b.txt.gz") == expected
    table = write_lines(tmp_path / "c.txt", "id\ttext", "a\tOne.")
    assert rows(table, format="tsv") == [IndexRow("a", "One.", {})]


def test_a_row_that_is_left_out_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_lines(tmp_path / "a.txt", "One.", "", "Three.")
    assert [row.id for row in rows(lines, lines, on_error="skip")] == ["1", "3", "4", "6"]
    texts = ["text,topic", "a,1", "b,2,more", '"c\nd",3', ",4", "e,5", "f"]
    table = write_lines(tmp_path / "a.csv", *texts)
    assert [row.id for row in rows(table, table, on_error="skip")] == ["1", "3", "5", "7", "9", "11"]
    broken = write_lines(tmp_path / "a.jsonl", '{"text": "a"}', "{", "", '{"text": "b"}')
    monkeypatch.setattr(texts_module, "_BLOCK", 1)
    assert [row.id for row in rows(broken, table, on_error="skip")] == ["1", "4", "5", "7", "9"]


def test_commas_in_the_first_line_of_a_pipe_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(b"id,text\n5,hey\n")))
    with pytest.raises(InputError, match=r"--input-format lines for one text a line, or csv for columns"):
        next(TextTables(("-",)).blocks())


def test_a_column_of_texts_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("title,id\nship,1\n", "utf-8")
    with pytest.raises(InputError, match="--text-column title, title: a column is given twice"):
        next(TextTables((str(tmp_path / "t.csv"),), text=("title", "title")).blocks())


def test_the_first_line_of_a_pipe_is_no_column_unless_it_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(*lines: str, **options: Any) -> list[str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO("\n".join(lines).encode())))
        return [row.text for row in rows("-", **options)]

    with pytest.raises(InputError, match=r"expected a column 'text' in the first line of a pipe, got One\..*lines"):
        piped("One.", "Two.")
    assert piped("One.", "Two.", format="lines") == ["One.", "Two."]
    assert piped("text", "Two.") == piped("words", "Two.", text=("words",)) == piped('{"words": "Two."}') == ["Two."]


def test_named_columns_are_read_and_several_are_joined(tmp_path: Path) -> None:
    table = write_lines(tmp_path / "a.csv", "key,title,body,id", "k,A ship,sails.,9")
    options = {"text": ("title", "body"), "id": "key"}
    assert rows(table, **options) == [IndexRow("k", "A ship sails.", {"id": "9"})]
    assert rows(write_lines(tmp_path / "b.csv", "words", "One."))[0].text == "One."


def test_of_several_columns_some_may_be_empty(tmp_path: Path) -> None:
    lines = ['{"title": "A ship", "body": null}', '{"body": "Rain.", "title": ""}', '{"title": "A book."}']
    table = write_lines(tmp_path / "a.jsonl", *lines, '{"title": null, "body": " "}')
    assert [row.text for row in rows(table, text=("title", "body"), on_error="skip")] == ["A ship", "Rain.", "A book."]
    with pytest.raises(InputError, match=r"a.jsonl:4: expected a text in 'title' and 'body', got an empty one"):
        rows(table, text=("title", "body"))


def test_a_corpus_of_beir_has_the_texts_of_its_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "_BLOCK", 2)  # the first title is in the second block
    documents = [{"_id": 7, "text": " One. "}, {"_id": " b ", "text": "Two.", "year": 3}]
    documents += [{"_id": "c", "title": "A ship", "text": "sails."}, {"_id": "d", "title": "A book", "text": None}]
    corpus = write_lines(tmp_path / "corpus.jsonl", *map(json.dumps, documents))
    [(ids, texts)] = documents_in_blocks(corpus, 9)
    read = rows(corpus)
    assert [(row.id, row.text) for row in read] == [*zip(ids, texts, strict=True)]
    assert [row.fields for row in read] == [{}, {"year": 3}, {}, {}]
    assert rows(corpus, text=("text",), on_error="skip")[2] == IndexRow("c", "sails.", {"title": "A ship"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "a", "text": "One."}', '{"text": "Two."}'], r"a.jsonl:2: expected an id in 'id', got nothing"),
        (['{"text": "One."}', '{"id": "a", "text": "Two."}'], r"a.jsonl:2: expected no id, as in the first rows .*'a'"),
    ],
)
def test_the_first_rows_of_a_file_decide_on_its_ids(
    lines: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "_BLOCK", 1)
    with pytest.raises(InputError, match=message):
        rows(write_lines(tmp_path / "a.jsonl", *lines))
    without = write_lines(tmp_path / "b.jsonl", '{"text": "Three."}')
    assert [row.id for row in rows(write_lines(tmp_path / "a.jsonl", '{"id": "a", "text": "One."}'), without)] == [
        "a",
        "2",
    ]


def test_blanks_at_the_ends_of_an_id_are_left_out(tmp_path: Path) -> None:
    assert [row.id for row in rows(write_lines(tmp_path / "a.csv", "id,text", " a b ,One."))] == ["a b"]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            ['{"id": 1, "text": " "}'],
            {},
            "a.jsonl:2: expected a text in 'text', got an empty one; correct or remove the row; --on-error skip leaves "
            "such rows out$",
        ),
        (['{"id": 1, "text": 3}'], {}, r"a.jsonl:2: expected a text in 'text', got 3"),
        (['{"text": "One."}'], {}, r"a.jsonl:2: expected an id in 'id', got nothing"),
        (['{"id": "", "text": "One."}'], {}, r"a.jsonl:2: expected an id in 'id', got ''"),
        (['{"id": 1.5, "text": "One."}'], {}, r"a.jsonl:2: expected an id in 'id', got 1.5"),
        (["[1]"], {}, r"a.jsonl:2: expected one object"),
        ([], {"text": ("body",)}, r"a.jsonl: there is no column 'body'; the columns are: id, text"),
        ([], {"id": "key"}, r"a.jsonl: there is no column 'key'"),
        ([], {"id": "text"}, r"a.jsonl: 'text' is the column of the texts and of the ids; name another one"),
    ],
)
def test_a_fault_is_named_by_file_and_line(
    lines: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = write_lines(tmp_path / "a.jsonl", '{"id": "a", "text": "One."}', *lines)
    with pytest.raises(InputError, match=message):
        rows(table, **options)


def test_a_table_without_a_known_column_of_texts_is_refused(tmp_path: Path) -> None:
    table = write_lines(tmp_path / "a.csv", "title,body", "a,b")
    with pytest.raises(InputError, match=r"a.csv: expected a column 'text', got title, body; name the column with"):
        rows(table)


def test_bad_rows_are_left_out_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_lines(tmp_path / "a.txt", "One.", "", "Two.")
    with pytest.raises(InputError, match=r"a.txt:2: expected a text in 'text', got an empty one"):
        rows(table)
    assert rows(table, on_error="skip") == [IndexRow("1", "One.", {}), IndexRow("3", "Two.", {})]
    assert "1 row is left out: 1 without a text" in capsys.readouterr().err
