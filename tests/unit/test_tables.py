"""Tables: what is read, on which line, what is refused, and that writing gives back what was read."""

import bz2
import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.tasks.tables import ABSENT, add_columns, read_table, table_stem, write_table


@pytest.fixture
def write(tmp_path):
    def save(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return save


def written(table):
    stream = io.BytesIO()
    write_table(table, stream)
    return stream.getvalue().decode()


def test_tsv_knows_no_quoting(write):
    table = read_table(write("a.tsv", 'text\tlabel\n"open\t1\n5" disk, say\t0\n'))
    assert table.rows == (('"open', "1"), ('5" disk, say', "0"))
    assert table.lines == (2, 3)


def test_only_a_line_feed_ends_a_tsv_row(write):
    # U+0085 and U+2028 end lines for str.splitlines, and a lone carriage return does for a text-mode file.
    path = write("a.tsv", "text\tlabel\r\na\u0085b\u2028c\rd\t1\r\n")
    assert read_table(path).rows == (("a\u0085b\u2028c\rd", "1"),)


def test_the_last_line_needs_no_line_feed_and_a_byte_order_mark_is_no_text(write):
    table = read_table(write("a.tsv", "\ufeffQuality\ttext\n1\tA\n0\tB"))
    assert table.columns == ("Quality", "text")
    assert table.column("text") == ("A", "B")


def test_csv_fields_may_hold_line_breaks_and_rows_keep_their_first_line(write):
    table = read_table(write("a.csv", 'text,label\n"one\ntwo, ""three""",1\nfour,0\n'))
    assert table.rows == (('one\ntwo, "three"', "1"), ("four", "0"))
    assert table.lines == (2, 4)
    assert table.place(1).endswith("a.csv:4")


def test_json_lines_keep_types_and_know_absent_fields(write):
    table = read_table(write("a.jsonl", '{"text": "é", "label": 1}\n{"text": "b", "more": [1, null]}\n'))
    assert table.columns == ("text", "label", "more")
    assert table.rows == (("é", 1, ABSENT), ("b", ABSENT, [1, None]))
    assert [json.loads(line) for line in written(table).splitlines()] == [
        {"text": "é", "label": 1},
        {"text": "b", "more": [1, None]},
    ]


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_tables(write, ending, compress):
    content = b"text\tlabel\n" + b"".join(b"row %d\t1\n" % row for row in range(2000))
    path = write("a.tsv" + ending, compress(content))
    assert read_table(path).column("text")[-1] == "row 1999"
    broken = write("b.tsv" + ending, compress(content)[:-20])
    with pytest.raises(InputError, match=r"b\.tsv.*cannot be read"):
        read_table(broken)


def test_kept_columns_alone_are_kept_and_a_missing_one_lists_the_file(write):
    table = read_table(write("a.tsv", "index\ttext\tlabel\n0\tA\t1\n"), columns=["label", "text", "unknown"])
    assert table.columns == ("text", "label")
    assert table.rows == (("A", "1"),)
    with pytest.raises(InputError, match=r"a\.tsv: there is no column 'unknown'; the columns are: index, text, label"):
        table.column("unknown")


def test_two_columns_of_one_name_are_refused_when_asked_for(write):
    table = read_table(write("a.tsv", "text\ttext\tlabel\nA\tB\t1\n"))
    assert table.column("label") == ("1",)
    with pytest.raises(InputError, match="several columns 'text'"):
        table.column("text")


def test_files_without_a_header_line(write):
    names = ("source", "label", "mark", "sentence")
    table = read_table(write("a.tsv", "gj04\t1\t\tFine.\ncj99\t0\t*\tFine not.\n"), headerless=names)
    assert (table.header, table.columns, table.lines) == (False, names, (1, 2))
    assert table.column("sentence") == ("Fine.", "Fine not.")
    assert written(table) == "gj04\t1\t\tFine.\ncj99\t0\t*\tFine not.\n"
    headed = read_table(write("b.tsv", "index\tsentence\n0\tFine.\n"), headerless=names)
    assert (headed.header, headed.rows) == (True, (("0", "Fine."),))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nA\t1\nB\n", r"a\.tsv:3: a row of 1 columns where 2 are due \(text, label\)"),
        ("a.tsv", "text\tlabel\nA\t1\t2\n", r"a\.tsv:2: a row of 3 columns where 2"),
        ("a.tsv", "text\tlabel\nA\t1\n\nB\t0\n", r"a\.tsv:3: an empty line"),
        ("a.tsv", b"text\tlabel\nA\t1\nB\xff\t0\n", r"a\.tsv:3: not UTF-8 text \(byte 2 of the line\)"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv: holds no rows"),
        ("a.tsv", "", r"a\.tsv: is empty"),
        ("a.csv", 'text,label\nA,1\n"B,0\nC,1\n', r"a\.csv:3: not valid csv"),
        ("a.csv", "text,label\nA,1\nB\n", r"a\.csv:3: a row of 1 columns"),
        ("a.csv", "text,label\nA,1\n\nB,0\n", r"a\.csv:3: an empty line"),
        ("a.jsonl", '{"text": "A"}\n{"text": \n', r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", '{"text": "A"}\n["B"]\n', r"a\.jsonl:2: a JSON list where one object"),
        ("a.jsonl", '{"text": "A"}\n\n{"text": "B"}\n', r"a\.jsonl:2: an empty line"),
        ("a.jsonl", '{"text": "\\uD800"}\n', r"a\.jsonl:1: holds half of a surrogate pair"),
        ("a.jsonl", "", r"a\.jsonl: holds no rows"),
        ("a.tsv.gz", "not compressed", r"a\.tsv\.gz: cannot be read"),
        ("a.parquet", "x", r"a\.parquet: not a table's name; allowed endings: \.tsv"),
    ],
)
def test_bad_input_is_named_with_its_line(write, name, content, message):
    with pytest.raises(InputError, match=message):
        read_table(write(name, content))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.tsv: there is no such file"):
        read_table(tmp_path / "gone.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(InputError, match=r"folder\.tsv: cannot be read"):
        read_table(tmp_path / "folder.tsv")


def test_empty_lines_at_the_end_are_no_rows_but_a_single_column_may_be_empty(write):
    assert len(read_table(write("a.tsv", "text\tlabel\nA\t1\n\n\n"))) == 1
    assert len(read_table(write("a.csv", "text,label\nA,1\n\n\n"))) == 1
    assert len(read_table(write("a.jsonl", '{"text": "A"}\n\n'))) == 1
    assert read_table(write("b.tsv", "text\nA\n\nB\n")).column("text") == ("A", "", "B")


def test_broken_rows_of_a_published_file_are_left_out_aloud_up_to_a_number(write, capsys):
    path = write("a.tsv", "text\tlabel\nA\t1\ntorn\nB\t0\n")
    assert read_table(path, broken_rows=1).lines == (2, 4)
    assert "a.tsv:3: a row of 1 columns where 2 are due: left out" in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(InputError, match=r"a\.tsv:4"):
        read_table(write("a.tsv", "text\tlabel\nA\t1\ntorn\ntorn\n"), broken_rows=1)


@pytest.mark.parametrize(
    ("content", "format", "texts"),
    [('{"text": "A"}\n{"text": "B"}\n', "jsonl", ("A", "B")), ("text\tlabel\nA\t1\n", "tsv", ("A",))],
)
def test_standard_input(monkeypatch, content, format, texts):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
    table = read_table("-")
    assert (table.format, table.column("text")) == (format, texts)


def test_errors_of_standard_input_say_so(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    with pytest.raises(InputError, match="standard input: is empty"):
        read_table("-")


def test_added_columns_stand_on_the_right_and_replace_nothing(write):
    table = read_table(write("a.csv", 'text,label\n"a, ""b""\nc",1\n'))
    more = add_columns(table, {"answer": ["yes"], "sure": [0.5]})
    assert written(more) == 'text,label,answer,sure\n"a, ""b""\nc",1,yes,0.5\n'
    assert table.columns == ("text", "label")
    with pytest.raises(InputError, match="already has a column 'label'"):
        add_columns(table, {"label": ["0"]})
    with pytest.raises(ValueError, match="argument"):
        add_columns(table, {"answer": ["yes", "no"]})


def test_a_tab_cannot_be_written_to_tsv(write):
    table = add_columns(read_table(write("a.tsv", "text\nA\n")), {"label": ["a\tb"]})
    with pytest.raises(InputError, match="holds a tab"):
        written(table)


def test_stems():
    wanted = {"train.tsv": "train", "train.derived.tsv.gz": "train.derived", "a.txt.bak": None, "notes.md": None}
    assert {name: table_stem(Path("x") / name) for name in wanted} == wanted


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n"), max_size=8).filter(
    lambda cell: not cell.endswith("\r") and not cell.startswith("\ufeff")
)


@settings(max_examples=40)
@given(st.integers(2, 4).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1)))
def test_what_is_written_is_read_again(tmp_path_factory, rows):
    names = [f"column{number}" for number in range(len(rows[0]))]
    folder = tmp_path_factory.mktemp("tables")
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    table = read_table(source)
    assert table.rows == tuple(map(tuple, rows))
    for format in ("tsv", "csv", "jsonl"):
        copy = folder / f"copy.{format}"
        with copy.open("wb") as stream:
            write_table(SimpleNamespace(**{**vars(table), "format": format}), stream)
        assert read_table(copy).rows == table.rows
        assert read_table(copy).columns == table.columns
