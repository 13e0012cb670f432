"""Dirty tables: rows that are left out and counted, labels that differ only in case or blanks."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError
from bertwright.tasks.classification.examples import read_examples, read_training
from bertwright.tasks.classification.spec import ClassificationTask, get_task
from bertwright.tasks.multiple_choice.spec import SWAG, read_choices
from bertwright.tasks.question_answering.spec import SQUAD1
from bertwright.tasks.spec import with_reading
from bertwright.tasks.tagging.spec import NER

DIRTY = b"text\tlabel\ngood\tpos\nno label\t\n \tneg\n\n\xe9\tneg\nx\ty\tz\n\xe2\x80\x8b\tpos\nbad\tneg\n"
COUNTS = {
    "empty": 1,
    "with another number of columns": 1,
    "not UTF-8 text": 1,
    "without a label": 1,
    "without a text": 2,
}


def skipping(task: ClassificationTask) -> ClassificationTask:
    return with_reading(task, input_format="auto", on_error="skip")


def test_bad_rows_are_left_out_and_counted_by_reason(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("a.tsv", DIRTY)
    task, rows = read_training(skipping(get_task("classify")), path)
    assert (task.labels, rows.texts_a, rows.lines, rows.left_out) == (("neg", "pos"), ("good", "bad"), (2, 9), COUNTS)
    messages = capsys.readouterr().err
    assert f"{path}: 6 rows are left out: 2 without a text, 1 empty, 1 not UTF-8 text, 1 with another " in messages
    assert f"left out: {path}:3: expected a label in column 'label', got ''" in messages
    assert read_examples(task, path).left_out == COUNTS
    with pytest.raises(InputError, match=r"a\.tsv:5: expected a row, got an empty line; --on-error skip leaves such"):
        read_training(get_task("classify"), path)


def test_missing_columns_are_named_together_and_without_a_way_to_leave_rows_out(write: Any) -> None:
    path = write("a.csv", "review,rating\ngood,5\n")
    for task in (get_task("classify"), skipping(get_task("classify"))):
        with pytest.raises(InputError, match=r"no columns 'text' and 'label'; the columns are: review, rating$"):
            read_training(task, path)


@pytest.mark.parametrize(
    ("task", "content", "texts", "left_out"),
    [
        ("sst2", "sentence,label\na,1\nb,2\nc,negative\n", ("a", "c"), {"with an unknown label": 1}),
        ("regress", "text,label\na,1\nb,high\nc,\nd,2\n", ("a", "d"), {"without a number": 2}),
        (
            "multilabel",
            "text,label\na,red|\nb,red|blue\nc,red|red\nd,\n",
            ("b", "d"),
            {"with an empty label beside another": 1, "with a label twice": 1},
        ),
        ("rte", "sentence1,sentence2,label\na,,entailment\nc,d,entailment\n", ("c",), {"without a text": 1}),
    ],
)
def test_every_kind_of_table_leaves_bad_rows_out(
    write: Any, task: str, content: str, texts: tuple[str, ...], left_out: dict[str, int]
) -> None:
    path = write("a.csv", content)
    rows = read_training(skipping(get_task(task)), path)[1]
    assert (rows.texts_a, rows.left_out) == (texts, left_out)


def test_rows_of_json_lines_and_parquet_are_left_out(write: Any, tmp_path: Path) -> None:
    lines = '{"text": "a", "label": 1}\n{"text": null, "label": 1}\n{"text": "b"}\n{"text": "c", "label": 2}\n'
    parquet.write_table(
        pa.table({"text": ["a", None, "b", "c"], "label": pa.array([1, 1, None, 2])}), tmp_path / "a.parquet"
    )
    for path in (write("a.jsonl", lines), tmp_path / "a.parquet"):
        rows = read_training(skipping(get_task("classify")), path)[1]
        assert (rows.texts_a, rows.left_out) == (("a", "c"), {"without a text": 1, "without a label": 1})


def test_a_row_of_parquet_that_is_not_utf8_is_left_out(tmp_path: Path) -> None:
    offsets = b"".join(offset.to_bytes(4, "little") for offset in range(4))
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"a\xffb"))
    parquet.write_table(pa.table({"text": texts, "label": ["x", "x", "y"]}), tmp_path / "a.parquet")
    rows = read_training(skipping(get_task("classify")), tmp_path / "a.parquet")[1]
    assert (rows.texts_a, rows.lines, rows.left_out) == (("a", "b"), (1, 3), {"not UTF-8 text": 1})


def test_choices_are_left_out(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("a.csv", "sent1,sent2,ending0,ending1,label\na,b,c,d,1\na,b,c,,0\na,b,,d,1\na,b,c,d,7\na,b,c,d,\n")
    rows = read_choices(with_reading(SWAG, input_format="csv", on_error="skip"), path)
    assert (rows.lines, sum(rows.left_out.values())) == ((2,), 4)
    assert "2 without the number of the right choice, 1 with fewer than two choices, 1 with an empty" in (
        capsys.readouterr().err
    )
    with pytest.raises(InputError, match=r"a\.csv:4: expected a choice in 'ending0', got an empty cell"):
        read_choices(SWAG, path)


def test_a_table_of_bad_rows_alone_is_refused_with_the_first(write: Any) -> None:
    with pytest.raises(
        InputError, match=r"holds no rows that can be used; 2 rows are left out: 2 without a label; the first: .*tsv:2"
    ):
        read_training(skipping(get_task("classify")), write("a.tsv", "text\tlabel\na\t\nb\t\n"))
    with pytest.raises(InputError, match=r"holds no rows \(with bars between them.*1 row is left out: 1 with another"):
        read_training(skipping(get_task("classify")), write("a.csv", "text|label\na, b|pos\n"))


def test_labels_that_differ_only_in_case_or_blanks_are_named(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("a.csv", "text,label\na,pos\nb,Pos\nc,pos \nd,neg\ne,very  bad\nf,very bad\n")
    task, rows = read_training(get_task("classify"), path)
    assert task.labels == ("neg", "Pos", "pos", "very  bad", "very bad")
    assert rows.targets is not None
    assert [task.labels[target] for target in rows.targets] == ["pos", "Pos", "pos", "neg", "very  bad", "very bad"]
    said = "'pos' (2 rows), 'Pos' (1 row); 'very  bad' (1 row), 'very bad' (1 row); they are different labels"
    assert f"{path}: labels differ only in case or blanks: {said}" in capsys.readouterr().err
    read_training(get_task("classify"), write("b.csv", "text,label\na,pos\nb,neg\nc,pos \n"))
    assert not capsys.readouterr().err


def test_an_empty_label_beside_another_is_named(write: Any) -> None:
    with pytest.raises(
        InputError, match=r"a\.csv:2: .* got an empty one beside another: 'red\|'; take the empty label"
    ):
        read_training(get_task("multilabel"), write("a.csv", "text,label\na,red|\nb,blue\n"))
    with pytest.raises(InputError, match=r"a\.jsonl:1: .* got an empty one beside another: \['', 'red'\]"):
        read_training(get_task("multilabel"), write("a.jsonl", '{"text": "a", "label": ["", "red"]}\n'))


def test_a_label_that_a_model_folder_cannot_store_is_named(write: Any) -> None:
    content = 'text,label\na,good\nb,"very\nbad"\nc,worse\n'
    with pytest.raises(InputError, match=r"a\.csv:3: expected a label in one line .*, got 'very\\nbad'"):
        read_training(get_task("classify"), write("a.csv", content))
    with pytest.raises(InputError, match=r"a\.jsonl:1: expected a label in one line .*, got 'x\\ty'"):
        read_training(get_task("multilabel"), write("a.jsonl", '{"text": "a", "label": ["x\\ty"]}\n'))


def test_the_format_of_an_option_is_read(write: Any) -> None:
    for format, name, content in [
        ("csv", "rows.dat", "text,label\na,x\nb,y\n"),
        ("tsv", "tabs.csv", "text\tlabel\na\tx\nb\ty\n"),
        ("jsonl", "rows.tsv", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'),
    ]:
        task = with_reading(get_task("classify"), input_format=format, on_error="stop")
        assert read_training(task, write(name, content))[1].texts_a == ("a", "b")


def test_options_of_reading_are_refused_where_a_task_has_none() -> None:
    for task, formats in ((NER, "auto, jsonl"), (SQUAD1, "auto, jsonl, parquet")):
        with pytest.raises(InputError, match=f"--input-format csv: for {task.name} it is one of {formats}$"):
            with_reading(task, input_format="csv", on_error="stop")
    skipped = with_reading(get_task("classify"), input_format="csv", on_error="skip")
    assert skipped.model_dump() == get_task("classify").model_dump()
