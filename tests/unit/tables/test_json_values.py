"""Numbers that JSON lacks, and numbers that a float would change, in the columns of a table."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError
from bertwright.tables.reader import Table, add_columns, read_table
from bertwright.tables.writer import PredictRequest, answer_tables

INFINITE = [math.inf, -math.inf, math.nan, 1.5]
NAMES = ["Infinity", "-Infinity", "NaN", 1.5]


def strict_json(text: str) -> Any:
    """Parse JSON as RFC 8259 has it: Python's parser also takes NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def answer(source: Path, target: Path) -> Path:
    def answered(_: Table, rows: Table) -> Table:
        return add_columns(rows, {"answer": ["x"] * len(rows)})

    answer_tables(PredictRequest(str(source), str(target)), answered)
    return target


@pytest.fixture(params=["jsonl", "parquet"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with numbers that are not finite, alone and in lists."""
    path = tmp_path / f"in.{request.param}"
    rows = [{"text": "a", "value": value, "values": [value, 0.5]} for value in INFINITE]
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_infinite_numbers_are_texts_in_json_lines(source: Path, tmp_path: Path) -> None:
    lines = answer(source, tmp_path / "out.jsonl").read_text().splitlines()
    assert [strict_json(line) for line in lines] == [
        {"text": "a", "value": name, "values": [name, 0.5], "answer": "x"} for name in NAMES
    ]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_infinite_numbers_are_texts_in_cells(source: Path, tmp_path: Path, ending: str) -> None:
    table = read_table(answer(source, tmp_path / f"out.{ending}"))
    assert table.column("value") == tuple(map(str, NAMES))
    assert [strict_json(str(cell)) for cell in table.column("values")] == [[name, 0.5] for name in NAMES]


def test_parquet_keeps_infinite_numbers(source: Path, tmp_path: Path) -> None:
    table = parquet.read_table(answer(source, tmp_path / "out.parquet"))
    assert list(map(repr, table.column("value").to_pylist())) == list(map(repr, INFINITE))


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("number", "changed"),
    [
        ("9007199254740993.0", "9007199254740992.0"),
        ("1.2345678901234567890e19", "1.2345678901234567e+19"),
        ("9007199254740992.5", "9007199254740992.0"),
        ("1e400", "inf"),
    ],
)
def test_a_number_that_a_float_would_change_is_refused(number: str, changed: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(f'{{"text": "a", "id": 1}}\n{{"text": "b", "id": [{number}]}}\n')
    with pytest.raises(InputError) as caught:
        answer(tmp_path / "in.jsonl", tmp_path / f"out.{ending}")
    assert str(caught.value) == (
        f"{tmp_path / 'in.jsonl'}:2: expected a number that a 64-bit float holds, got {number}, which would become "
        f"{changed}; write it as a text"
    )
    assert not (tmp_path / f"out.{ending}").exists()


def test_whole_numbers_and_numbers_as_floats_are_written_stay(tmp_path: Path) -> None:
    """A float may be written with as few digits as possible, with 17, or with all digits that it has."""
    large = ["1e23", "9.9999999999999992e+22", "99999999999999991611392.0"]
    spellings = ["9007199254740993", *large, "0.1000000000000000055"]
    lines = "".join(f'{{"text": "a", "id": {spelling}}}\n' for spelling in spellings)
    (tmp_path / "in.jsonl").write_text(lines)
    out = answer(tmp_path / "in.jsonl", tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in out] == [2**53 + 1, 1e23, 1e23, 1e23, 0.1]
