"""Tables with another separator or format than their name says, and rows that are left out and counted."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError
from bertwright.tables.bad_rows import BadRow, BadRows, is_blank
from bertwright.tables.reader import read_table, usable_rows
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents

OBJECTS = [{"text": "a", "label": "b"}, {"text": "c", "label": "d"}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "te,xt;label\ngood;pos\n", r"a\.csv:2: expected a row of 2 columns, got 1 \(columns: te, xt"),
        ("a.csv", "text|label\ngood, so|pos\n", r"a\.csv:2: expected a row of 1 columns.*with bars between them"),
        ("a.csv", '"text"|"label"\n"good"|"pos"\n', r"a\.csv:1: not valid csv: .*\(with bars between them\? csv has"),
        ("a.csv", '"te,xt"x,"label"\n', r"a\.csv:1: not valid csv: [^()]*$"),
        ("a.csv", "text\tlabel\ngood\tpos\n", r"with tabs between them\? add --input-format tsv, or name .* \.tsv\)"),
        ("a.tsv", "text,label\ngood,pos\n", r"with commas between them\? add --input-format csv, or name .* \.csv\)"),
        ("a.tsv", "text|label\ngood|pos\n", r"with bars between them\? csv has commas and tsv has tabs: save"),
        ("a.csv", "".join(json.dumps(row) + "\n" for row in OBJECTS), r"\(JSON lines\? add --input-format jsonl, or"),
        ("a.csv", json.dumps(OBJECTS[0]) + "\n", r"a\.csv: holds no rows \(JSON lines\? add --input-format jsonl"),
        (
            "a.jsonl",
            "text,label\ngood,pos\n",
            r"a\.jsonl:1: .*expected one object \{…\} a line, got text,label",
        ),
        ("a.json", json.dumps(OBJECTS), r"a\.json:1: .*a list begins here: write each .* own.* jq -c '\.\[\]'"),
        ("a.json", json.dumps(OBJECTS, indent=1), r"a\.json:1: .*a list begins here: write each .* own"),
        (
            "a.json",
            json.dumps(OBJECTS[0], indent=1),
            r"a\.json:1: .*goes on in the next line: write each object on",
        ),
        ("a.jsonl", json.dumps(OBJECTS[0])[:18], r"a\.jsonl:1: .*ends in the middle of the object: was the file cut"),
        (
            "a.jsonl",
            '{"text": "a" "b"}\n',
            r"a\.jsonl:1: not valid JSON: Expecting .,. delimiter: [^;]*$",
        ),
    ],
)
def test_another_format_is_named_with_what_to_do(write: Any, name: str, content: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_table(write(name, content)).texts("text")


@pytest.mark.parametrize(
    "content",
    [
        "text;label\ngood, so;pos\n",
        'text;"label"\n"good, so";"pos"\n',
        'text;"la,bel";label\r\n"good, so";"a ""b"";c";pos\r\n',
    ],
)
def test_csv_may_have_semicolons_as_spreadsheets_write_it(write: Any, content: str) -> None:
    table = read_table(write("a.csv", content), columns=("text", "label"))
    assert (table.texts("text"), table.texts("label")) == (("good, so",), ("pos",))
    [document] = read_documents(write("b.csv", content), TextSettings())
    assert document.paragraphs == ("good, so",)
    with pytest.raises(BadRow, match=r"a\.csv:3: expected a row of [23] columns, got 4"):
        read_table(write("a.csv", f"{content}a;b;c;d\n"))


def test_a_first_line_that_is_no_csv_with_semicolons_is_read_with_commas(write: Any) -> None:
    with pytest.raises(InputError, match=r"a\.csv:1: not valid csv: new-line character.*"):
        read_table(write("a.csv", 'text;label\rgood;"pos\nneg"\r'), headerless=("text", "label"))
    wide = f"{'x' * 200_000};label"
    assert read_table(write("a.csv", f"{wide}\n"), headerless=("text",)).texts("text") == (wide,)


def test_a_text_with_semicolons_before_a_table_without_header_stays_one_text(write: Any) -> None:
    table = read_table(write("a.csv", "It rains; so we stay\nand read\n"), headerless=("sentence",))
    assert table.texts("sentence") == ("It rains; so we stay", "and read")
    table = read_table(write("a.csv", "sentence;label\nIt rains, so;1\n"), headerless=("sentence",))
    assert table.texts("sentence") == ("It rains, so",)


def test_rows_that_cannot_be_read_are_left_out_by_reason(write: Any) -> None:
    content = b"text\tlabel\ngood\tpos\n\nx\ty\tz\ncaf\xe9\tpos\nbad\tneg\n\n"
    rows = BadRows("skip")
    table = read_table(write("a.tsv", content), on_error=rows.add)
    assert (table.lines, table.texts("text")) == ((2, 6), ("good", "bad"))
    assert rows.counts == {"empty": 1, "with another number of columns": 1, "not UTF-8 text": 1}
    assert rows.text == "3 rows are left out: 1 empty, 1 with another number of columns, 1 not UTF-8 text"
    assert ":3: expected a row" in rows.messages["empty"][0]
    rows = BadRows("skip")
    content = b'{"text": "a"}\n{"text": \n\n{"text": "\xff"}\n[1]\n{"text": "b"}\n{"text": "c", "text": 1e999}\n'
    assert read_table(write("a.jsonl", content), on_error=rows.add).lines == (1, 6)
    assert rows.counts == {"not valid JSON": 3, "empty": 1, "not UTF-8 text": 1}
    rows = BadRows("skip")
    content = b'text,label\n"a" b,pos\n"c\xff\nd",pos\ne,neg\n'
    assert read_table(write("a.csv", content), on_error=rows.add).lines == (5,)
    assert rows.counts == {"not valid csv": 1, "not UTF-8 text": 1}


def test_faults_of_more_than_a_row_are_never_left_out(write: Any) -> None:
    for content, words in [
        (
            b'text,label\n"a,pos\nb,neg\nc,neg\n',
            r"a\.csv:2: not valid csv: .*; the quotation mark that opens here",
        ),
        (b"te\xfft,label\na,b\n", r"a\.csv:1: not UTF-8 text"),
        ("text,label\na,b\n".encode("utf-16-le"), r"a\.csv:1: .*NUL bytes of UTF-16"),
        (b"text,label\n\n", r"a\.csv: holds no rows"),
    ]:
        with pytest.raises(InputError, match=words):
            read_table(write("a.csv", content), on_error=BadRows("skip").add)


def test_all_lines_that_a_stray_quotation_mark_takes_are_counted(write: Any) -> None:
    path = write(
        "a.csv", "\n".join(["text,label", '"broken,a', "one,b", '"two, three",a', "four,b", '"five" ,a', "six,b"])
    )
    rows = BadRows("skip")
    table = read_table(path, on_error=rows.add)
    assert table.texts("text") == ("four", "six")
    assert [table.location(row).rpartition(":")[2] for row in range(2)] == ["5", "7"]
    assert rows.counts == {"not valid csv": 4}
    words = r"a\.csv:2: not valid csv: .*; the quotation mark that opens here takes all lines up to 4$"
    with pytest.raises(BadRow, match=words):
        read_table(path)


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_a_check_leaves_out_the_rows_that_fail_it(write: Any, tmp_path: Any, ending: str) -> None:
    numbers = [str(number) for number in range(20)]
    if ending == "parquet":
        parquet.write_table(pa.table({"number": numbers}), tmp_path / "a.parquet")
    else:
        write("a.tsv", "".join(f"{line}\n" for line in ["number", *numbers]))
    table = read_table(tmp_path / f"a.{ending}")
    bad = {3, 4, 11, 19}

    def check(part: Any) -> None:
        for row, text in enumerate(part.texts("number")):
            if int(text) in bad:
                raise BadRow("bad", f"{part.location(row)}: bad")

    rows = BadRows("skip")
    kept = usable_rows(table, check, rows.add)
    assert [int(text) for text in kept.texts("number")] == sorted(set(range(20)) - bad)
    assert kept.location(3) == table.location(5)
    assert (rows.counts["bad"], rows.messages["bad"]) == (4, [f"{table.location(3)}: bad"])
    with pytest.raises(BadRow, match="bad"):
        usable_rows(table, check, BadRows("stop").add)


def test_a_text_without_a_visible_character_is_blank() -> None:
    assert all(map(is_blank, ["", " \t\n", "\u200b", "\0\ufffd", "\u00a0\ufeff \u2060"]))
    assert not any(map(is_blank, ["a", "\u200ba", "한", "?", "\u0301"]))
