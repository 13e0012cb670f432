"""Files that are not UTF-8 text with line feeds: each message says what the file has, and how to convert it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.tables.decoding import decode_lines, is_utf16
from bertwright.tables.reader import Table, add_columns, read_table
from bertwright.tables.writer import PredictRequest, answer_tables
from bertwright.tasks.question_answering.data import read_questions
from bertwright.tasks.tagging.conll import read_tag_lines

ROWS = "text\tlabel\ngood\tpos\nbad\tneg\n"
GREEK = "κείμενο,ετικέτα\nκαλό,ναι\n"
LINES = json.dumps({"tokens": ["Ada"], "tags": ["O"]}) + "\n"
SQUAD = json.dumps({"data": [{"title": "t", "paragraphs": []}]})

ENCODINGS = [
    ("a.tsv", ROWS.encode("utf-16"), r"a\.tsv:1: not UTF-8 text: .*mark of UTF-16; .*iconv -f UTF-16 -t UTF-8"),
    ("a.tsv", ROWS.encode("utf-16-le"), r"a\.tsv:1: not UTF-8 text: .*NUL bytes of UTF-16; .*iconv -f UTF-16LE "),
    ("a.tsv", ROWS.encode("utf-16-be"), r"a\.tsv:1: not UTF-8 text: .*NUL bytes of UTF-16; .*iconv -f UTF-16BE "),
    ("a.csv", "텍스트,라벨\n좋다,긍정\n".encode("utf-16-le"), r"a\.csv:1: .*NUL bytes of UTF-16; .*iconv -f UTF-16LE "),
    ("a.csv", GREEK.encode("utf-16-le"), r"a\.csv:\d: .*NUL bytes of UTF-16; .*iconv -f UTF-16LE "),
    ("a.jsonl", LINES.encode("utf-16-le"), r"a\.jsonl:1: .*NUL bytes of UTF-16; "),
    (
        "a.tsv",
        "text\tlabel\ncafé noir\tpos\n".encode("cp1252"),
        r"a\.tsv:2: not UTF-8 text \(byte 4 of the cell\): as Windows-1252 it reads 'café noir'; .*-f WINDOWS-1252",
    ),
    (
        "a.csv",
        "text,label\n한국어 문장,b\n".encode("cp949"),
        r"a\.csv:2: not UTF-8 text \(byte 1 of the cell\): as CP949 \(Korean\) it reads '한국어'; .*-f CP949",
    ),
    ("a.csv", "café,label\na,b\n".encode("cp1252"), r"a\.csv:1: not UTF-8 text \(byte 4 of the cell\): .*'café'"),
    ("a.jsonl", '{"text": "é"}\n'.encode("cp1252"), r"a\.jsonl:1: not UTF-8 text \(byte 11 of the line\)"),
    ("a.csv", b"PK\x03\x04\x14\x00\x06\x00", r"a\.csv: expected text, got an Excel workbook .*save the table as \.csv"),
    ("a.tsv", ROWS.replace("\n", "\r").encode(), r"a\.tsv: expected lines that end in a line feed, got carriage .*tr"),
    ("a.csv", b"text,label\rgood,pos\rbad,neg\r", r"a\.csv: expected lines that end in a line feed, got carriage"),
    ("a.csv", b'text,label\r"good",pos\rbad,neg\n', r"a\.csv.* got carriage returns alone"),
]


@pytest.mark.parametrize(("name", "content", "words"), ENCODINGS)
def test_another_encoding_is_named_with_its_conversion(write: Any, name: str, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_table(write(name, content))


def test_columns_of_words_and_questions_have_the_same_messages(write: Any) -> None:
    words = "Ada O\nleft O\n"
    with pytest.raises(InputError, match=r"a\.conll:1: not UTF-8 text: .*NUL bytes of UTF-16"):
        read_tag_lines(write("a.conll", words.encode("utf-16-le")))
    with pytest.raises(InputError, match=r"a\.conll: .*got carriage returns alone"):
        read_tag_lines(write("a.conll", words.replace("\n", "\r")))
    for encoding, kind in [("utf-16", "mark"), ("utf-16-le", "NUL bytes"), ("utf-16-be", "NUL bytes")]:
        with pytest.raises(InputError, match=rf"a\.json: not UTF-8 text: it .* the {kind} of UTF-16"):
            read_questions(write("a.json", SQUAD.encode(encoding)))
    with pytest.raises(InputError, match=r"a\.json: not UTF-8 text \(byte 11\): .*; was it cut short\?"):
        read_questions(write("a.json", '{"data": "é"}'.encode()[:11]))


def test_a_nul_byte_in_utf8_is_not_utf16() -> None:
    for line in ("\0a text\n", "a text\0\n", "\0é ü\n"):
        assert list(decode_lines([b"first\n", line.encode()], "a.txt")) == ["first\n", line]
    assert is_utf16("\n한국어".encode("utf-16-le")[1:], is_first=False)


def test_lines_of_utf16_are_not_answered_as_three_texts(write: Any, tmp_path: Path) -> None:
    path = write("two.txt", "first text\nsecond text\n".encode("utf-16-le"))

    def answered(table: Table, out: Table) -> Table:
        return add_columns(out, {"score": [0.0] * len(table)})

    with pytest.raises(InputError, match=r"two\.txt:1: not UTF-8 text: it has the NUL bytes of UTF-16"):
        answer_tables(
            PredictRequest(str(path), str(tmp_path / "out.tsv"), input_format="lines"), answered, headerless=("text",)
        )
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"a lone \0 in a longer text\n",
        b"a carriage return \r in the only line\n",
        b"a line\n\0\0\0\0",
        "caf\u00e9\r\nna\u00efve\r\n".encode(),
        b"a carriage return \r in a line\nand another line\n",
        b"",
    ],
)
def test_other_text_is_read_as_before(content: bytes) -> None:
    lines = list(decode_lines(io.BytesIO(content), "a"))
    assert "".join(lines).encode() == content
