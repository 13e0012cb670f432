"""Texts without labels: the files that are read and refused."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.distillation.prepare import read_texts
from bertwright.errors import InputError
from bertwright.tasks.classification.spec import COLA, RTE, SST2
from bertwright.tasks.spec import with_reading


def test_lines_and_tables_are_read(write: Callable[[str, Any], Path]) -> None:
    lines = read_texts(SST2, write("more.txt", 'a "fine" film\nanother\tone\n'))
    assert lines.texts_a == ('a "fine" film', "another\tone")
    assert (lines.texts_b, lines.targets) == (None, None)
    table = read_texts(RTE, write("more.tsv", "sentence2\tother\tsentence1\nb\tx\ta\n"))
    assert (table.texts_a, table.texts_b) == (("a",), ("b",))
    assert read_texts(COLA, write("headless.tsv", "gj04\t1\t\tThe sun rose.\n")).texts_a == ("The sun rose.",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("more.txt", "one\n \n", r"more\.txt:2: expected a text, got ' '; take the row out"),
        ("more.csv", "text\none\n", r"more\.csv: there is no column 'sentence'"),
        ("more.doc", "one\n", r"more\.doc: not a table's name"),
    ],
)
def test_other_files_are_refused(write: Callable[[str, Any], Path], name: str, content: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_texts(SST2, write(name, content))


def test_rows_without_a_text_are_left_out_on_request(
    write: Callable[[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    task = with_reading(SST2, input_format="auto", on_error="skip")
    assert read_texts(task, write("more.txt", "one\n \ntwo\n")).texts_a == ("one", "two")
    assert "1 row is left out: 1 without a text" in capsys.readouterr().err


def test_packed_lines_are_lines(write: Callable[[str, Any], Path]) -> None:
    path = write("more.txt.xz", "")
    path.write_bytes(lzma.compress(b"sentence\nanother\n"))
    assert read_texts(SST2, path).texts_a == ("sentence", "another")


def test_lines_are_no_pairs(write: Callable[[str, Any], Path]) -> None:
    with pytest.raises(InputError, match=r"expected a table with the columns sentence1, sentence2, got a \.txt file"):
        read_texts(RTE, write("more.txt", "one\n"))
