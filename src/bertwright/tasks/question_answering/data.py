"""SQuAD's files → questions with passages and answers (paper §4.2, §4.3: SQuAD 1.1 and 2.0).

A file of JSON has a list `data` of articles; these have `paragraphs`, these have `qas`, and these have `answers`. JSON
lines and Parquet have a question in each row, with the columns of the Hub's SQuAD. Every value that is read is checked.
"""

import io
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from bertwright.errors import InputError, shown
from bertwright.tables.bad_rows import BadRow, bad_rows_of, is_blank
from bertwright.tables.decoding import decode_file, decode_lines, undecoded
from bertwright.tables.files import InputFormat, open_lines, source_name, table_ending
from bertwright.tables.json_objects import is_cut, names_once
from bertwright.tables.parquet import read_arrow_rows
from bertwright.tasks.question_answering.spec import SpanTask, Version
from bertwright.text.decompress import is_undecoded
from bertwright.text.document import OnError, raise_error
from bertwright.text.parquet import PARQUET_MAGIC

Answers = Literal["checked", "texts", "ignored"]
"""Ways to read answers.

checked   the context must have the answer at the character that the file names
texts     the position is not read, as in the official scripts
ignored   the answers may be missing
"""
_COLUMNS: Final = frozenset({"id", "question", "context", "answers", "is_impossible"})
_TWICE: Final = "with the id of another question"
_ROWS: Final = (
    "or JSON lines or Parquet with the columns id, question, context and answers; jq -c '.[]' makes JSON lines of a "
    "JSON list of such rows"
)
FIELD_TYPES: Final[dict[type, str]] = {str: "a text", list: "a list", int: "a number from 0 on"}


@dataclass(frozen=True, slots=True)
class Question:
    """Question with its passage. `answers`: (text, first character) of each gold answer; empty where there is none."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Questions:
    """A file's questions, in order; the questions of a paragraph share one context.

    left_out   numbers of the questions that were left out, by reason
    """

    items: tuple[Question, ...]
    version: Version
    source: str
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)


def read_questions(
    path: Path | str,
    *,
    answers: Answers = "checked",
    input_format: InputFormat = "auto",
    on_error: OnError = raise_error,
) -> Questions:
    """Read a file in SQuAD's layout, or JSON lines or Parquet with the Hub's columns; "-" is standard input.

    It is SQuAD 2.0 where `version` begins with 2, where a question has `is_impossible`, and where one has no answers.
    A row without an id has its number as id.

    on_error   function that is called with the BadRow of each question that cannot be used; if it returns, the question
               is left out

    Raises InputError with the file and the question's id (or its position) for a value that is missing, empty,
    duplicate, contradictory or of another type.
    """
    raw, source = _read_bytes(path), source_name(path)
    if input_format == "parquet" or raw.startswith(PARQUET_MAGIC) or table_ending(path) == ".parquet":
        return _of_rows(_parquet_rows(raw, source), source, answers, on_error)
    strict = on_error is raise_error
    text = decode_file(raw, source) if strict else "".join(decode_lines(io.BytesIO(raw), source, strict=False))
    lines = text.rstrip().split("\n")
    are_lines = input_format == "jsonl" or table_ending(path) in (".jsonl", ".ndjson")
    if not lines[0].strip() and (strict or not are_lines or len(lines) == 1):
        raise InputError(f"{source}: expected questions, got an empty {'first line' if len(lines) > 1 else 'file'}")
    if text.lstrip()[:1] not in ("{", "[") and (strict or not are_lines):
        raise InputError(f"{source}: expected SQuAD's JSON, {_ROWS}")
    try:
        first: Any = json.loads(lines[0])
    except (ValueError, RecursionError):  # an object over many lines, or invalid JSON
        first = None
        are_lines = are_lines and not (input_format != "jsonl" and _is_one_object(text))
    fields = first.keys() if isinstance(first, dict) else set()
    is_whole = not are_lines and (first is None or (answers != "ignored" and not fields & {"question", "context"}))
    if is_whole or ("data" in fields and input_format != "jsonl"):
        return questions_of(load_json(decode_file(raw, source), source), source, answers=answers, on_error=on_error)
    return _of_rows(_json_rows(lines, source, on_error), source, answers, on_error)


def _is_one_object(text: str) -> bool:
    """Return True for SQuAD's one JSON object over many lines, whatever the name of the file says."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(whole, dict) and "data" in whole


def questions_of(raw: Any, source: str, *, answers: Answers = "checked", on_error: OnError = raise_error) -> Questions:
    """Return the questions of parsed JSON; version and errors as in `read_questions`."""
    if not isinstance(raw, dict) or not isinstance(raw.get("data"), list):
        raise InputError(f"{source}: expected SQuAD's layout, an object with a list 'data', {_ROWS}")
    items: dict[str, Question] = {}
    is_two = re.fullmatch(r"[vV]?2(\.[0-9]+)*", str(raw.get("version", ""))) is not None  # a year is not a version
    for value, paragraph, position in _entries(raw["data"], source):
        try:
            context = text_of(paragraph, "context", position.rpartition(".")[0])
            entry = _object(value, position)
            name = text_of(entry, "id", position)
            if name in items:
                raise BadRow(_TWICE, f"{source}: question {name}: duplicate id")
            items[name] = _question(entry, context, name, f"{source}: question {name}", answers)
        except BadRow as error:
            on_error(error)
            continue
        is_two = is_two or "is_impossible" in entry or entry.get("answers") == []
    if not items:
        raise InputError(f"{source}: expected questions, found none")
    return Questions(tuple(items.values()), "2.0" if is_two else "1.1", source)


def read_text(path: Path | str) -> str:
    """Return a file's text, decompressed where its ending says so; "-" is standard input.

    Raises InputError where the file is missing, broken or not UTF-8.
    """
    return decode_file(_read_bytes(path), source_name(path))


def _read_bytes(path: Path | str) -> bytes:
    if Path(path).is_dir():
        raise InputError(f"{path}: expected a file, got a folder")
    if str(path) == "-":
        return sys.stdin.buffer.read()
    with open_lines(Path(path)) as lines:
        return b"".join(lines)


def load_json(text: str, source: str, *, line: int | None = None) -> Any:
    """Parse the JSON text of a file, or of one `line` of it. Raises InputError for invalid JSON and duplicate names."""
    begin = line or 1
    try:
        return json.loads(text, object_pairs_hook=names_once(f"{source}:{line}" if line else source))
    except json.JSONDecodeError as error:
        unit = "line" if line else "file"
        cut = f"; the {unit} ends in the middle of its JSON: was it cut short? Copy or download the file again"
        raise InputError(
            f"{source}:{begin + error.lineno - 1}: not valid JSON: {error.msg}{cut if is_cut(text, error) else ''}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{source}:{begin}: not valid JSON: {error}") from None


def text_of(entry: dict[str, Any], name: str, position: str) -> str:
    """Return a text field that is not blank. Raises InputError with the position for any other value."""
    text = str(_field(entry, name, str, position))
    if is_blank(text):
        content = f"one without a visible character: {shown(ascii(text))}" if text.strip() else "an empty one"
        raise BadRow(_without(name), f"{position}: expected a text in '{name}', got {content}")
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{position}: expected a text in '{name}', got half of a surrogate pair (\\ud800 to \\udfff)"
        raise BadRow(_without(name), message) from None
    return text


def _without(name: str) -> str:
    """Return the reason to leave out a question without a value that can be used in the field `name`."""
    return f"without a usable '{name}'"


def _entries(data: list[Any], source: str) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Yield each question's value, its paragraph and its position in the file."""
    for number, article in enumerate(data):
        position = f"{source}: data[{number}]"
        for index, paragraph in enumerate(_objects(_object(article, position), "paragraphs", position)):
            inner = f"{position}.paragraphs[{index}]"
            for row, entry in enumerate(_field(paragraph, "qas", list, inner)):
                yield entry, paragraph, f"{inner}.qas[{row}]"


def _question(entry: dict[str, Any], context: str, name: str, position: str, answers: Answers) -> Question:
    text = text_of(entry, "question", position)
    if answers == "ignored":
        return Question(name, text, context)
    gold = _objects(entry, "answers", position)
    impossible = entry.get("is_impossible", not gold)
    if not isinstance(impossible, bool):
        message = f"{position}: expected true or false in 'is_impossible', got {shown(impossible)}"
        raise BadRow(_without("is_impossible"), message)
    if impossible == bool(gold):
        flag = "is_impossible is true" if impossible else "is_impossible is false"
        message = f"{position}: {flag}, but there {'are' if gold else 'are no'} answers"
        raise BadRow("with answers that contradict 'is_impossible'", message)
    if answers == "texts":
        return Question(name, text, context, tuple((str(_field(answer, "text", str, position)), -1) for answer in gold))
    return Question(name, text, context, tuple(_checked_answer(answer, context, position) for answer in gold))


def _checked_answer(answer: dict[str, Any], context: str, position: str) -> tuple[str, int]:
    text = text_of(answer, "text", position)
    first: int = _field(answer, "answer_start", int, position)
    if context[first : first + len(text)] == text:
        return text, first
    other = context.find(text)
    elsewhere = f"the context has it at character {other}" if other >= 0 else _difference(text, context, first)
    actual = context[first : first + len(text)]
    message = f"{position}: expected the answer '{shown(text)}' at character {first} of its context, got"
    raise BadRow("with an answer that its passage does not have there", f"{message} '{shown(actual)}'; {elsewhere}")


def _difference(text: str, context: str, first: int) -> str:
    """Return which character differs, and where, if a context has the answer but for white space or normal form."""
    folded = _folded(text)
    longest = 4 * len(text) + 8  # a letter has at most three marks in the normal forms of nearly all texts
    for begin in (first, *range(len(context))):
        if context[begin : begin + 1].isspace() or not _folded(context[begin : begin + longest]).startswith(folded):
            continue
        same = next(
            (index for index, letter in enumerate(text) if context[begin + index : begin + index + 1] != letter), 0
        )
        return (
            f"the context has it at character {begin}, with other white space or in another Unicode normal form: at "
            f"character {begin + same} of the context it has {_character(context, begin + same)}, and the answer has "
            f"{_character(text, same)}; write the answer with the characters of the context"
        )
    return "the context does not have it"


def _folded(text: str) -> str:
    """Return a text without the differences of white space and Unicode normal form."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _character(text: str, position: int) -> str:
    """Return the number and the name of a character: U+00A0 (NO-BREAK SPACE)."""
    letter = text[position : position + 1]
    return f"U+{ord(letter):04X} ({unicodedata.name(letter, 'a control character')})" if letter else "its end"


def _objects(entry: dict[str, Any], name: str, position: str) -> list[dict[str, Any]]:
    """Return the objects in the list `name`."""
    values: list[Any] = _field(entry, name, list, position)
    return [_object(value, f"{position}.{name}[{index}]") for index, value in enumerate(values)]


def _object(value: Any, position: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRow("that are no objects", f"{position}: expected an object, got {shown(value)}")
    return value


def _field(entry: dict[str, Any], name: str, kind: type, position: str) -> Any:
    value = entry.get(name)
    negative = isinstance(value, int) and value < 0
    if isinstance(value, kind) and not isinstance(value, bool) and not negative:
        return value
    actual = f"got {shown(value)}" if name in entry else "it is missing"
    raise BadRow(_without(name), f"{position}: expected {FIELD_TYPES[kind]} in '{name}', {actual}")


def read_labelled(task: SpanTask, path: Path) -> Questions:
    """Return a file's questions with answers; with the task's `on_error` "skip" without those that cannot be used.

    Raises InputError for a file of the other SQuAD version.
    """
    with bad_rows_of(path, task.on_error, unit="question") as bad_rows:
        on_error = bad_rows.add if task.on_error == "skip" else raise_error
        questions = read_questions(path, input_format=task.input_format, on_error=on_error)
    refuse_version(task, questions)
    return replace(questions, left_out=dict(bad_rows.counts))


def refuse_version(task: SpanTask, questions: Questions) -> None:
    """Raise InputError for questions of the other SQuAD version."""
    if questions.version != task.version:
        other = "squad2" if questions.version == "2.0" else "squad1"
        raise InputError(
            f"{questions.source}: expected SQuAD {task.version} for {task.name}, got SQuAD {questions.version}; use "
            f"the task {other}"
        )


def read_unlabelled(path: Path | str, input_format: InputFormat = "auto") -> Questions:
    """Return questions without their answers; the files and errors are those of `read_questions`."""
    return read_questions(path, answers="ignored", input_format=input_format)


def _json_rows(lines: Iterable[str], source: str, on_error: OnError) -> Iterator[tuple[str, Any]]:
    """Yield the position and the value of each line; `on_error` is called with the BadRow of a line that is no JSON."""
    for number, line in enumerate(lines, 1):
        position = f"{source}:{number}"
        try:
            if is_undecoded(line):
                raise undecoded(line, position)
            value = load_json(line, source, line=number)
        except InputError as error:
            on_error(error if isinstance(error, BadRow) else BadRow("not valid JSON", str(error)))
            continue
        yield position, value


def _of_rows(rows: Iterable[tuple[str, Any]], source: str, answers: Answers, on_error: OnError) -> Questions:
    """Return the questions of rows with their positions, which have the columns of the Hub's SQuAD."""
    by_id: dict[str, Question] = {}
    is_two = False
    for number, (position, entry) in enumerate(rows, 1):
        try:
            if not isinstance(entry, dict):
                message = f'{position}: expected an object {{"question", "context"}}, got {shown(entry)}'
                raise BadRow("that are no objects", message)
            name = text_of(entry, "id", position) if "id" in entry else str(number)
            if name in by_id:
                raise BadRow(_TWICE, f"{position}: duplicate id '{shown(name)}'")
            if isinstance(entry.get("answers"), dict):
                entry = {**entry, "answers": _answer_objects(entry["answers"], position)}
            by_id[name] = _question(entry, text_of(entry, "context", position), name, position, answers)
        except BadRow as error:
            on_error(error)
            continue
        is_two = is_two or "is_impossible" in entry or entry.get("answers") == []
    if not by_id:
        raise InputError(f"{source}: expected questions, found none")
    return Questions(tuple(by_id.values()), "2.0" if is_two else "1.1", source)


def _answer_objects(answers: dict[str, Any], position: str) -> list[dict[str, Any]]:
    """Return the Hub's {"text": […], "answer_start": […]} as an object for each answer."""
    texts: list[Any] = _field(answers, "text", list, f"{position}: answers")
    starts: list[Any] = _field(answers, "answer_start", list, f"{position}: answers")
    if len(texts) != len(starts):
        message = f"{position}: answers: expected as many numbers in 'answer_start' as texts in 'text', got"
        raise BadRow(_without("answers"), f"{message} {len(starts)} and {len(texts)}")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _parquet_rows(raw: bytes, source: str) -> Iterator[tuple[str, Any]]:
    """Yield the position and the fields of each row of a Parquet file."""
    for _, rows in read_arrow_rows(io.BytesIO(raw), source, columns=_COLUMNS):
        for number, row in enumerate(rows, rows.begin):
            yield f"{source}: row {number}", dict(zip(rows.table.column_names, row, strict=True))
