"""Tables of every format, in and out: kept and converted values, and the errors of broken files."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tables import writer as asked_module
from bertwright.tables.reader import Table, add_columns, open_table, read_table
from bertwright.tables.writer import PredictRequest, answer_tables, as_format, write_table
from bertwright.tasks.classification.examples import learn, read_examples
from bertwright.tasks.classification.spec import get_task, with_columns, with_labels
from bertwright.tasks.multiple_choice.spec import SWAG, add_answers, choices_of
from tests.support.folders import read_jsonl

SETTINGS = FinetuneSettings(epochs=1, batch_size=8, threads=1, precision="fp32", max_length=16)


def table_bytes(table: Table) -> bytes:
    stream = io.BytesIO()
    write_table(table, stream)
    return stream.getvalue()


def as_parquet(path: Path, columns: dict[str, Any], **more: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **more)
    return path


def add_lengths(table: Table, out: Table) -> Table:
    """Stands for a model: the length of each text."""
    return add_columns(out, {"score": [float(len(text)) for text in table.texts("text")]})


def add_twice(table: Table, out: Table) -> Table:
    """Stands for another model: twice the length of each text."""
    return add_columns(out, {"twice": [2 * len(text) for text in table.texts("text")]})


def given(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_carriage_return_stays_in_tsv_and_is_refused_from_another_format(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\na\rb\tx\n")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\\rb", "label": "x"}\n')
    assert table_bytes(as_format(read_table(tmp_path / "a.tsv"), "tsv")) == b"text\tlabel\na\rb\tx\n"
    with pytest.raises(InputError, match=r"a\.jsonl:1: 'a\\rb' holds a tab or a line break, which tsv cannot hold"):
        as_format(read_table(tmp_path / "a.jsonl"), "tsv")


@pytest.mark.parametrize("last", ["b,c", '""', '"b\tc"', '"b\nc"', '"b\rc"'])
def test_a_bad_last_row_of_a_file_is_named_before_any_is_answered(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_module, "BLOCK_ROWS", 1)
    (tmp_path / "a.csv").write_text(f"text\na\n{last}\n")

    def check(table: Table) -> None:
        if "" in table.texts("text"):
            raise InputError(f"{table.location(0)}: expected a text")

    def answered(table: Table, out: Table) -> Table:
        raise AssertionError("no row may be answered")

    with pytest.raises(InputError, match=r"a\.csv:3: "):
        answer_tables(PredictRequest(f"{tmp_path}/a.csv", f"{tmp_path}/b.tsv"), answered, check=check)


def test_endings_in_capitals_are_those_in_small_letters(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").write_text('text\n"a, b"\n', "utf-8")
    with gzip.open(tmp_path / "A.Tsv.GZ", "wt", encoding="utf-8") as file:
        file.write("text\na, b\n")
    as_parquet(tmp_path / "A.PARQUET", {"text": ["a, b"]})
    for name in ("A.CSV", "A.Tsv.GZ", "A.PARQUET"):
        assert read_table(tmp_path / name).texts("text") == ("a, b",)
    target = PredictRequest(source=str(tmp_path / "A.CSV"), target=str(tmp_path / "B.JSONL"))
    assert target.table_format == "jsonl"


def test_parquet_is_read_as_json_lines_are(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "a.parquet", {"text": ["a", "b"], "label": [1, 2], "more": [[1], []]})
    table = read_table(path)
    assert (table.columns, len(table), table.location(1)) == (("text", "label", "more"), 2, f"{path}: row 2")
    assert table.texts("text") == ("a", "b")
    assert table.column("more") == ([1], [])
    few = read_table(path, columns=["label", "absent"])
    assert (few.columns, few.available) == (("label",), ("text", "label", "more"))
    with pytest.raises(InputError, match=r"a\.parquet: there is no column 'x'; the columns are: text, label, more"):
        table.column("x")


def test_other_columns_keep_their_types_and_bytes(tmp_path: Path) -> None:
    moment = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    columns = {
        "text": pa.array(["a", "bb", "ccc"]).dictionary_encode(),
        "when": pa.array([moment] * 3, pa.timestamp("ns", "UTC")),
        "price": pa.array([Decimal("1.50")] * 3, pa.decimal128(9, 2)),
        "picture": pa.array([b"\xff\x00", None, b""]),
        "vector": pa.array([[1.5, None], None, []], pa.list_(pa.float32())),
        "small": pa.array([1, None, 3], pa.uint8()),
    }
    path = as_parquet(tmp_path / "a.parquet", columns, row_group_size=2)
    request = PredictRequest(str(path), str(tmp_path / "b.parquet"))
    assert answer_tables(request, add_lengths) == 3
    before, after = parquet.read_table(path), parquet.read_table(tmp_path / "b.parquet")
    assert after.drop_columns(["score"]).equals(before)
    assert after.column("score").to_pylist() == [1.0, 2.0, 3.0]
    assert after.schema.field("score").type == pa.float64()


def test_parquet_becomes_text(tmp_path: Path) -> None:
    columns = {
        "text": ['say "a,b"', "c"],
        "day": pa.array([date(2024, 1, 2), None]),
        "price": pa.array([Decimal("1.50"), Decimal("2.25")]),
        "share": [float("nan"), 0.5],
        "tags": [["x", "y"], None],
        "inner": [{"n": 1, "d": date(2020, 1, 1)}, None],
    }
    table = read_table(as_parquet(tmp_path / "a.parquet", columns))
    assert [json.loads(line) for line in table_bytes(as_format(table, "jsonl")).splitlines()] == [
        {
            **{"text": 'say "a,b"', "day": "2024-01-02", "price": "1.50", "share": "NaN", "tags": ["x", "y"]},
            "inner": {"n": 1, "d": "2020-01-01"},
        },
        {"text": "c", "day": None, "price": "2.25", "share": 0.5, "tags": None, "inner": None},
    ]
    assert table_bytes(as_format(table, "csv")).decode() == (
        'text,day,price,share,tags,inner\n"say ""a,b""",2024-01-02,1.50,NaN,"[""x"", ""y""]",'
        '"{""n"": 1, ""d"": ""2020-01-01""}"\nc,,2.25,0.5,,\n'
    )
    as_parquet(tmp_path / "b.parquet", {"text": ["a"], "picture": [b"\xff"]})
    with pytest.raises(InputError, match=r"b\.parquet: column 'picture' holds binary, which is no text; take it out"):
        as_format(read_table(tmp_path / "b.parquet"), "csv")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "ndjson", "txt", "parquet", "csv.gz", "jsonl.zst", "tsv.xz"])
@pytest.mark.parametrize("source", ["csv", "tsv", "jsonl", "parquet"])
def test_the_outputs_ending_says_the_format(tmp_path: Path, source: str, ending: str) -> None:
    texts = ["a, b", "ü\u2028 ", ""]
    path = tmp_path / f"in.{source}"
    if source == "parquet":
        as_parquet(path, {"id": ["1", "2", "3"], "text": texts})
    elif source == "jsonl":
        path.write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts, 1)))
    else:
        lines = [f'{n},"{text}"' if source == "csv" else f"{n}\t{text}" for n, text in enumerate(texts, 1)]
        path.write_text("\n".join([",".join(("id", "text")) if source == "csv" else "id\ttext", *lines]) + "\n")
    target = tmp_path / f"out.{ending}"
    assert answer_tables(PredictRequest(str(path), str(target)), add_lengths) == 3
    table = read_table(target)
    assert table.columns == ("id", "text", "score")
    assert table.texts("id") == ("1", "2", "3")
    assert table.texts("text") == tuple(texts)
    assert [float(str(score)) for score in table.column("score")] == [4.0, 3.0, 0.0]
    again = tmp_path / f"again.{ending}"
    answer_tables(PredictRequest(str(path), str(again)), add_lengths)
    assert again.read_bytes() == target.read_bytes()


@pytest.mark.parametrize(("ending", "unpack"), [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_an_output_is_packed_as_it_is_called(tmp_path: Path, ending: str, unpack: Callable[..., Any]) -> None:
    (tmp_path / "in.tsv").write_text("text\na\n")
    answer_tables(PredictRequest(str(tmp_path / "in.tsv"), f"{tmp_path}/out.tsv{ending}"), add_lengths)
    with unpack(tmp_path / f"out.tsv{ending}") as stream:
        assert stream.read() == b"text\tscore\na\t1.0\n"


def test_the_same_format_gives_the_same_bytes_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields of JSON lines stay in the order in which the whole file has them."""
    lines = [{"text": "a", "x": 1}, {"y": 2, "text": "b"}, {"x": 3, "text": "c", "y": 4}, {"z": [5], "text": ""}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "in.csv").write_text('text,x\n"a\nb",1\n"",2\nc,3\n')
    as_parquet(tmp_path / "in.parquet", {"text": list("abc"), "x": [1, 2, 3]})
    for ending in ("jsonl", "csv", "parquet"):
        for size in (10, 1, 2):
            monkeypatch.setattr(asked_module, "BLOCK_ROWS", size)
            for format in ("jsonl", "csv", "parquet"):
                answer_tables(PredictRequest(f"{tmp_path}/in.{ending}", f"{tmp_path}/{size}.{format}"), add_lengths)
        for format in ("jsonl", "csv"):
            assert len({(tmp_path / f"{size}.{format}").read_bytes() for size in (10, 1, 2)}) == 1
        tables = [parquet.read_table(tmp_path / f"{size}.parquet") for size in (10, 1, 2)]
        assert tables[0].equals(tables[1])
        assert tables[0].equals(tables[2])


def test_a_csv_keeps_its_separator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_module, "BLOCK_ROWS", 1)
    (tmp_path / "a.csv").write_text('text;"a;b"\none, two;3,5\n"x;y";\n', "utf-8")
    for ending, content in {
        "csv": 'text;"a;b";score\none, two;3,5;8.0\n"x;y";;3.0\n',
        "tsv": "text\ta;b\tscore\none, two\t3,5\t8.0\nx;y\t\t3.0\n",
    }.items():
        answer_tables(PredictRequest(str(tmp_path / "a.csv"), str(tmp_path / f"out.{ending}")), add_lengths)
        assert (tmp_path / f"out.{ending}").read_text("utf-8") == content
    answer_tables(PredictRequest(str(tmp_path / "out.tsv"), str(tmp_path / "again.csv")), add_twice)
    assert (tmp_path / "again.csv").read_text("utf-8").splitlines()[1] == '"one, two","3,5",8.0,16'
    assert read_table(tmp_path / "out.csv").texts("a;b") == ("3,5", "")


def test_a_field_that_comes_later_does_not_change_what_answers_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of one file have one name; with the field in the first block, whether null or not, it is free."""

    def named(table: Table, out: Table) -> Table:
        return add_answers(out, np.zeros(len(out), int), [np.ones(2)] * len(out))

    monkeypatch.setattr(asked_module, "BLOCK_ROWS", 1)
    lines = ['{"text": "a"}\n', '{"text": "b"}\n', '{"text": "c", "label": 1}\n']
    (tmp_path / "in.jsonl").write_text("".join(lines))
    with pytest.raises(
        InputError, match=r"in\.jsonl: rows from line 3 on have a field 'label', which is the name of an ans"
    ):
        answer_tables(PredictRequest(f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl"), named)
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "in.jsonl").write_text("".join(['{"text": "0", "label": null}\n', *lines]))
    answer_tables(PredictRequest(f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl"), named)
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [row["predicted_label"] for row in rows] == [0] * 4
    assert [row.get("label", "absent") for row in rows] == [None, "absent", "absent", 1]


def test_blocks_end_after_rows_or_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tsv").write_text("text\n" + "".join(f"{'x' * 100}{n}\n" for n in range(5)))
    with open_table(tmp_path / "a.tsv") as opened:
        assert [block.lines for block in opened.blocks(2)] == [(2, 3), (4, 5), (6,)]
    monkeypatch.setattr("bertwright.tables.reader.BLOCK_CHARACTERS", 150)
    with open_table(tmp_path / "a.tsv") as opened:
        assert [len(block) for block in opened.blocks(100)] == [2, 2, 1]


def test_a_pipe_is_answered_as_its_rows_come(monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> None:
    given(b"text\na\nbb\nccc\n", monkeypatch)
    monkeypatch.setattr(asked_module, "BLOCK_ROWS", 1)
    seen: list[bytes] = []

    def watched(table: Table, out: Table) -> Table:
        seen.append(capsysbinary.readouterr().out)
        return add_lengths(table, out)

    assert answer_tables(PredictRequest("-", "-"), watched) == 3
    assert seen == [b"", b"text\tscore\na\t1.0\n", b"bb\t2.0\n"]


def test_a_pipe_holds_what_is_said_or_what_it_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    def piped(data: bytes, **formats: Any) -> bytes:
        given(data, monkeypatch)
        answer_tables(
            PredictRequest("-", "-", **formats), add_lengths, headerless=("text",) if "lines" in str(formats) else ()
        )
        output: bytes = capsysbinary.readouterr().out
        return output

    assert piped(b"text,n\na,1\n", input_format="csv") == b"text,n,score\na,1,1.0\n"
    assert piped(b"text,n\na,1\n", input_format="csv", output_format="jsonl") == (
        b'{"text": "a", "n": "1", "score": 1.0}\n'
    )
    assert piped(b'{"text": "a"}\n', output_format="tsv") == b"text\tscore\na\t1.0\n"
    assert piped(b"text\n\nlast", input_format="lines") == b"text\tscore\ntext\t4.0\n\t0.0\nlast\t4.0\n"
    data = as_parquet(tmp_path / "a.parquet", {"text": ["a"], "n": [1]}).read_bytes()
    written_bytes = piped(data)
    assert parquet.read_table(io.BytesIO(written_bytes)).to_pylist() == [{"text": "a", "n": 1, "score": 1.0}]
    assert piped(data, input_format="parquet", output_format="csv") == b"text,n,score\na,1,1.0\n"
    with pytest.raises(
        InputError, match=r"no column 'text'; .*text,n \(with commas between them\? add --input-format csv"
    ):
        piped(b"text,n\na,1\n")
    with pytest.raises(InputError, match=r"standard input:1: .*'a\\tb' holds a tab .*--output-format"):
        piped(b"a\tb\n", input_format="lines")


def test_an_option_names_the_format_that_a_file_name_does_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent: there is no such file or folder"):
        read_table(tmp_path / "absent")
    (tmp_path / "rows.dat").write_text("text;\n", "utf-8")
    with pytest.raises(InputError, match=r"rows\.dat: not a table's name; allowed endings: \.tsv, .*--input-format"):
        read_table(tmp_path / "rows.dat")
    (tmp_path / "rows.dat").write_text('{"text": "a"}\n', "utf-8")
    with pytest.raises(
        InputError, match=r"--output .*out\.xlsx: not a table's name; allowed .*\.parquet.*--output-form"
    ):
        answer_tables(PredictRequest(f"{tmp_path}/rows.dat", f"{tmp_path}/out.xlsx", input_format="jsonl"), add_lengths)
    request = PredictRequest(f"{tmp_path}/rows.dat", f"{tmp_path}/out", input_format="jsonl", output_format="csv")
    answer_tables(request, add_lengths)
    assert (tmp_path / "out").read_text() == "text,score\na,1.0\n"
    answer_tables(PredictRequest(f"{tmp_path}/rows.dat", "/dev/null", input_format="jsonl"), add_lengths)
    with pytest.raises(InputError, match=r"Parquet is compressed inside; leave \.gz out"):
        answer_tables(
            PredictRequest(f"{tmp_path}/rows.dat", f"{tmp_path}/o.parquet.gz", input_format="jsonl"), add_lengths
        )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": ["a", None]}, r"a\.parquet: row 2: expected a text in 'text', got null"),
        (
            {"text": [["a"], []], "b": ["x", "y"]},
            r"expected text in column 'text', got list<.*string> \(columns of text: b\)",
        ),
        ({"text": [1, 2]}, r"expected text in column 'text', got int64 \(columns of text: none\)"),
        (
            {"text": [b"a", b"b"]},
            r"(expected text in column 'text', got binary|column 'text' holds binary, which is no text)",
        ),
        ({"body": ["a", "b"]}, r"a\.parquet: there is no column 'text'; the columns are: body"),
        ({"text": pa.array([], pa.string())}, r"a\.parquet: holds no rows"),
        ({"text": ["a"], "score": [1]}, r"a\.parquet: already has a column 'score'"),
    ],
)
def test_an_impossible_parquet_file_is_reported(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    path = as_parquet(tmp_path / "a.parquet", columns)
    for target in ("out.parquet", "out.csv"):
        with pytest.raises(InputError, match=words):
            answer_tables(PredictRequest(str(path), str(tmp_path / target)), add_lengths)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    data = as_parquet(tmp_path / "a.parquet", {"text": ["a"] * 99}).read_bytes()
    for name, content, words in [
        ("cut.parquet", data[:-9], r"cut\.parquet: after row 0: not a readable Parquet file"),
        ("text.parquet", b"text\na\n", r"text\.parquet: after row 0: not a readable Parquet file"),
        ("empty.parquet", b"", r"empty\.parquet: after row 0: not a readable Parquet file"),
        ("a.tsv", data, r"a\.tsv: expected text, got Parquet"),
        ("b.csv", gzip.compress(b"text\na\n"), r"b\.csv: expected text, got \.gz"),
        ("c.jsonl", b"\xff\xfe{", r"c\.jsonl:1: not UTF-8 text"),
        ("d.tsv.zst", b"text", r"d\.tsv\.zst: cannot be read"),
        ("e.parquet.gz", data, r"e\.parquet\.gz: expected plain Parquet, which is compressed inside, got \.gz"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_table(tmp_path / name)
    with pytest.raises(InputError, match=r"absent\.parquet: there is no such file"):
        read_table(tmp_path / "absent.parquet")


def test_a_text_that_is_not_utf8_is_reported_with_its_row(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    as_parquet(tmp_path / "a.parquet", {"text": broken})
    with pytest.raises(InputError, match=r"a\.parquet: row 2: 'text' is not UTF-8 text"):
        read_table(tmp_path / "a.parquet").texts("text")


def test_json_lines_of_several_kinds_are_no_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "two"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: 'n' cannot be a column of Parquet.*write JSON lines"):
        answer_tables(PredictRequest(f"{tmp_path}/a.jsonl", f"{tmp_path}/b.parquet"), add_lengths)
    (tmp_path / "b.csv").write_text("text,x,x\na,1,2\n")
    with pytest.raises(InputError, match=r"b\.csv: expected one column 'x', got several; jsonl holds one"):
        answer_tables(PredictRequest(f"{tmp_path}/b.csv", f"{tmp_path}/b.jsonl"), add_lengths)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.csv"]


def test_labels_of_every_kind_are_read_from_parquet(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "train.parquet", {"text": list("abc"), "label": [10, 2, 10]})
    task = learn(get_task("classify"), path)
    assert task.labels == ("2", "10")
    examples = read_examples(task, path)
    assert examples.location(1) == f"{path}: row 2"
    path = as_parquet(tmp_path / "b.parquet", {"text": list("abc"), "label": [["x"], [], ["y", "x"]]})
    task = learn(get_task("multilabel"), path)
    assert task.labels == ("x", "y")
    assert read_examples(task, path).targets.tolist() == [[True, False], [False, False], [True, True]]
    path = as_parquet(tmp_path / "c.parquet", {"text": list("abc"), "label": pa.array([1, None, 2], pa.float32())})
    with pytest.raises(InputError, match=r"c\.parquet: row 2: expected a finite number in column 'label', got None"):
        read_examples(get_task("regress"), path)


@pytest.mark.parametrize("kind", [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(20, 2), pa.decimal256(40, 2)])
def test_decimals_of_parquet_are_numbers_and_labels(kind: Any, tmp_path: Path) -> None:
    cells = pa.array([Decimal("-1.50"), Decimal("2.00"), Decimal("1234567.25")], kind)
    path = as_parquet(tmp_path / "a.parquet", {"text": list("abc"), "label": cells})
    assert read_examples(get_task("regress"), path).targets.tolist() == [-1.5, 2.0, 1234567.25]
    assert learn(get_task("classify"), path).labels == ("-1.50", "2.00", "1234567.25")
    whole = pa.array([Decimal("1E+2"), Decimal(3), None], pa.decimal128(38, 0))
    path = as_parquet(tmp_path / "b.parquet", {"text": list("abc"), "label": whole})
    assert learn(get_task("classify"), as_parquet(tmp_path / "c.parquet", {"label": whole[:2]})).labels == ("3", "100")
    for task, expected in (("regress", "a finite number"), ("classify", "a label")):
        with pytest.raises(InputError, match=rf"b\.parquet: row 3: expected {expected} in column 'label', got None"):
            learn(get_task(task), path)


def test_choices_are_read_from_parquet(tmp_path: Path) -> None:
    columns = {"sent1": ["A", "B"], "ending0": ["a", "b"], "ending1": ["c", "d"], "ending2": ["e", None]}
    table = read_table(as_parquet(tmp_path / "a.parquet", {**columns, "label": [2, 0]}))
    rows = choices_of(SWAG, table)
    assert rows.choices == (("a", "c", "e"), ("b", "d"))
    table = read_table(as_parquet(tmp_path / "b.parquet", {"context": ["A"], "choices": [["a", "b"]], "label": [1]}))
    assert choices_of(SWAG, table).choices == (("a", "b"),)
    table = read_table(as_parquet(tmp_path / "c.parquet", {**columns, "sent1": ["A", None]}))
    with pytest.raises(InputError, match=r"c\.parquet: row 2: expected a text in 'sent1', got null"):
        choices_of(SWAG, table, require_label=False)


@pytest.fixture(scope="module")
def answerers(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    """A folder with models of one text, of a pair's number, of several labels and of choices, learned from Parquet."""
    folder = tmp_path_factory.mktemp("tuned")
    texts = [f"the {'large' if n % 2 else 'small'} house {n}" for n in range(16)]
    made = {
        "classify": ({"text": texts, "label": [n % 2 for n in range(16)]}, get_task("classify")),
        "regress": (
            {"a": texts, "b": texts[::-1], "label": [n / 2 for n in range(16)]},
            with_columns(get_task("regress"), text=("a", "b")),
        ),
        "multilabel": (
            {"text": texts, "label": [["x", "y"][: n % 3] for n in range(16)]},
            with_labels(get_task("multilabel"), ["x", "y"]),
        ),
        "swag": (
            {"context": texts, "choices": [["it stands", "it falls"]] * 16, "label": [n % 2 for n in range(16)]},
            SWAG,
        ),
    }
    for name, (columns, task) in made.items():
        (folder / f"{name}-data").mkdir()
        for part in ("train", "dev"):
            as_parquet(folder / f"{name}-data" / f"{part}.parquet", columns)
        run: Any = {"data": folder / f"{name}-data", "out": folder / name, "tokenizer": own_tokenizer}
        finetune(SETTINGS, task, model="random:tiny", **run)
    return folder


@pytest.mark.parametrize("name", ["classify", "regress", "multilabel", "swag"])
def test_models_answer_parquet_and_the_same_in_every_format(answerers: Path, tmp_path: Path, name: str) -> None:
    data = answerers / f"{name}-data" / "dev.parquet"
    task = SWAG if name == "swag" else get_task(name)
    text: Any = {"text": ("a", "b")} if name == "regress" else {}
    assert evaluate_task(task, model=str(answerers / name), data=data.parent, **text)["examples"] == 16
    for ending in ("parquet", "jsonl", "csv"):
        summary = predict_file(str(answerers / name), str(data), f"{tmp_path}/out.{ending}", precision="fp32")
        assert summary["rows"] == 16
    kept = parquet.read_table(tmp_path / "out.parquet")
    before = parquet.read_table(data)
    assert kept.select(before.column_names).equals(before)
    lines = read_jsonl(tmp_path / "out.jsonl")
    answer = {"regress": "score"}.get(name, "predicted_label")
    assert [line[answer] for line in lines] == kept.column(answer).to_pylist()
    cells = read_table(tmp_path / "out.csv").texts(answer)
    assert list(cells) == ["|".join(line[answer]) if name == "multilabel" else str(line[answer]) for line in lines]
    probability = {"classify": "probability_1", "multilabel": "probability_y", "swag": "probabilities"}.get(name)
    if probability:
        kind = kept.schema.field(probability).type
        assert kind in (pa.float64(), pa.list_(pa.float64()))


def run_command(*arguments: object, env: Mapping[str, str] = {}, **more: Any) -> subprocess.CompletedProcess[bytes]:
    typed = [sys.executable, "-m", "bertwright", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    return subprocess.run(typed, capture_output=True, env=env, timeout=120, **more)


@pytest.mark.slow
def test_lines_are_answered_through_a_pipe(answerers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("predict", "--model", answerers / "classify", "--precision", "fp32")
    plain = run_command(*arguments, "--input-format", "lines", input=b"the large house\n\nthe small house\n")
    assert (plain.returncode, plain.stderr) == (0, b"answering in fp32\n")
    head, *rows = plain.stdout.decode().splitlines()
    assert head == "text\tlabel\tprobability_0\tprobability_1"
    assert [row.split("\t")[0] for row in rows] == ["the large house", "", "the small house"]
    raw = run_command(*arguments, "--raw", "--output-format", "jsonl", input=b"the large house\n")
    fields = json.loads(raw.stdout)
    assert list(fields) == ["text", "label", "probabilities"]
    for more, words in [
        (["--model", f"{answerers}/regress", "--input-format", "lines"], "is a model for pairs (regress)"),
        (
            ["--model", f"{answerers}/swag", "--input-format", "lines"],
            "--input-format lines: for a model of choices (swag)",
        ),
        (["--model", f"{answerers}/classify", "--raw", "--text-column", "a"], "--raw reads plain text without columns"),
        (["--model", f"{answerers}/classify", "--raw", "--input-format", "csv"], "--raw means --input-format lines; "),
    ]:
        assert main(["predict", *more]) == 2
        assert words in capsys.readouterr().err


def test_a_pipe_that_is_closed_early_ends_it_quietly(answerers: Path, tmp_path: Path) -> None:
    rows = "".join(f"the small house {n} {'x' * 500}\n" for n in range(500))
    (tmp_path / "many.txt").write_text(rows)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    typed = f"{sys.executable} -m bertwright predict --model {answerers}/classify --input-format lines --input many.txt"
    completed = subprocess.run(
        ["bash", "-c", f"{typed} | head -1"], capture_output=True, env=env, cwd=tmp_path, timeout=120
    )
    assert completed.stdout == b"text\tlabel\tprobability_0\tprobability_1\n"
    assert b"roken" not in completed.stderr
    assert completed.stderr.count(b"\n") == 1, completed.stderr  # what it answers in


@pytest.mark.slow
def test_no_control_codes_where_there_is_no_terminal(
    answerers: Path, tmp_path: Path, own_text: Path, own_tokenizer: Path
) -> None:
    """Nor where a terminal's colours are forced upon a file."""
    (tmp_path / "in.txt").write_text("".join(f"the small house {n}\n" for n in range(50)))
    model = answerers / "classify"
    for arguments in (
        ["predict", "--model", model, "--input-format", "lines", "--input", tmp_path / "in.txt"],
        ["evaluate", "classify", "--model", model, "--data", answerers / "classify-data"],
        ["features", "--model", model, "--input", tmp_path / "in.txt", "--output", tmp_path / "f.npz"],
        ["corpus", "build", own_text, "--tokenizer", own_tokenizer, "--out", tmp_path / "c", "--workers", 1],
    ):
        completed = run_command(*arguments, env={"FORCE_COLOR": "1"})
        assert completed.returncode == 0, completed.stderr
        assert not re.search(rb"[\x00-\x08\x0b-\x1f]", completed.stderr + completed.stdout), arguments[0]
