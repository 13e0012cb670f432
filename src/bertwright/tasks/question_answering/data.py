"""SQuAD's JSON files → questions with passages and answers (paper §4.2, §4.3: SQuAD 1.1 and 2.0).

A file has a list `data` of articles; these have `paragraphs`, these have `qas`, and these have `answers`. Every value
that is read is checked. The functions at the end find the training and the validation file of a folder.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bertwright.errors import InputError, shown
from bertwright.tables.files import only_file, open_lines, source_name
from bertwright.tables.reader import names_once
from bertwright.tasks.question_answering.spec import SpanTask, Version

Answers = Literal["checked", "texts", "ignored"]
"""Ways to read answers.

checked   the context must have the answer at the character that the file names
texts     the position is not read, as in the official scripts
ignored   the answers may be missing
"""
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
    """A file's questions, in order; the questions of a paragraph share one context."""

    items: tuple[Question, ...]
    version: Version
    source: str

    def __len__(self) -> int:
        return len(self.items)


def read_questions(path: Path | str, *, answers: Answers = "checked") -> Questions:
    """Read a file in SQuAD's layout.

    It is SQuAD 2.0 where `version` begins with 2, where a question has `is_impossible`, and where one has no answers.
    Raises InputError with the file and the question's id (or its position) for a value that is missing, empty,
    duplicate, contradictory or of another type.
    """
    text = read_text(path)
    refuse_table(text, str(path))
    return questions_of(load_json(text, str(path)), str(path), answers=answers)


def questions_of(raw: Any, source: str, *, answers: Answers = "checked") -> Questions:
    """Return the questions of parsed JSON; version and errors as in `read_questions`."""
    if not isinstance(raw, dict) or not isinstance(raw.get("data"), list):
        raise InputError(f"{source}: expected SQuAD's layout, an object with a list 'data'")
    items: dict[str, Question] = {}
    is_two = re.fullmatch(r"[vV]?2(\.[0-9]+)*", str(raw.get("version", ""))) is not None  # a year is not a version
    for entry, context, position in _entries(raw["data"], source):
        question = _question(entry, context, position, answers, source)
        if question.id in items:
            raise InputError(f"{source}: question {question.id}: duplicate id")
        items[question.id] = question
        is_two = is_two or "is_impossible" in entry or entry.get("answers") == []
    if not items:
        raise InputError(f"{source}: expected questions, found none")
    return Questions(tuple(items.values()), "2.0" if is_two else "1.1", source)


def read_text(path: Path | str) -> str:
    """Return a file's text, decompressed where its ending says so; "-" is standard input.

    Raises InputError where the file is missing, broken or not UTF-8.
    """
    source = source_name(path)
    if Path(path).is_dir():
        raise InputError(f"{source}: expected a file, got a folder")
    if str(path) == "-":
        raw = sys.stdin.buffer.read()
    else:
        with open_lines(Path(path)) as lines:
            raw = b"".join(lines)
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 text (byte {error.start + 1})") from None


def refuse_table(text: str, source: str) -> None:
    """Raise InputError where the text does not begin like JSON: it may be a table of questions."""
    if text.lstrip()[:1] not in ("", "{", "["):
        raise InputError(f"{source}: expected SQuAD's JSON, or JSON lines for prediction")


def load_json(text: str, source: str, *, line: int | None = None) -> Any:
    """Parse the JSON text of a file, or of one `line` of it. Raises InputError for invalid JSON and duplicate names."""
    begin = line or 1
    try:
        return json.loads(text, object_pairs_hook=names_once(f"{source}:{line}" if line else source))
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{begin + error.lineno - 1}: not valid JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{source}:{begin}: not valid JSON: {error}") from None


def text_of(entry: dict[str, Any], name: str, position: str) -> str:
    """Return a text field that is not blank. Raises InputError with the position for any other value."""
    text = str(_field(entry, name, str, position))
    if not text.strip():
        raise InputError(f"{position}: expected a text in '{name}', got an empty one")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{position}: expected a text in '{name}', got half of a surrogate pair (\\ud800 to \\udfff)"
        ) from None
    return text


def _entries(data: list[Any], source: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each question's object, its context and its position in the file."""
    for number, article in enumerate(data):
        position = f"{source}: data[{number}]"
        for index, paragraph in enumerate(_objects(_object(article, position), "paragraphs", position)):
            inner = f"{position}.paragraphs[{index}]"
            context = text_of(paragraph, "context", inner)
            for row, entry in enumerate(_objects(paragraph, "qas", inner)):
                yield entry, context, f"{inner}.qas[{row}]"


def _question(entry: dict[str, Any], context: str, position: str, answers: Answers, source: str) -> Question:
    name = text_of(entry, "id", position)
    position = f"{source}: question {name}"
    text = text_of(entry, "question", position)
    if answers == "ignored":
        return Question(name, text, context)
    gold = _objects(entry, "answers", position)
    impossible = entry.get("is_impossible", not gold)
    if not isinstance(impossible, bool):
        raise InputError(f"{position}: expected true or false in 'is_impossible', got {shown(impossible)}")
    if impossible == bool(gold):
        flag = "is_impossible is true" if impossible else "is_impossible is false"
        raise InputError(f"{position}: {flag}, but there {'are' if gold else 'are no'} answers")
    if answers == "texts":
        return Question(name, text, context, tuple((str(_field(answer, "text", str, position)), -1) for answer in gold))
    return Question(name, text, context, tuple(_checked_answer(answer, context, position) for answer in gold))


def _checked_answer(answer: dict[str, Any], context: str, position: str) -> tuple[str, int]:
    text = text_of(answer, "text", position)
    first: int = _field(answer, "answer_start", int, position)
    if context[first : first + len(text)] == text:
        return text, first
    other = context.find(text)
    elsewhere = f"the context has it at character {other}" if other >= 0 else "the context does not have it"
    actual = context[first : first + len(text)]
    raise InputError(
        f"{position}: expected the answer '{shown(text)}' at character {first} of its context, "
        f"got '{shown(actual)}'; {elsewhere}"
    )


def _objects(entry: dict[str, Any], name: str, position: str) -> list[dict[str, Any]]:
    """Return the objects in the list `name`."""
    values: list[Any] = _field(entry, name, list, position)
    return [_object(value, f"{position}.{name}[{index}]") for index, value in enumerate(values)]


def _object(value: Any, position: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{position}: expected an object, got {shown(value)}")
    return value


def _field(entry: dict[str, Any], name: str, kind: type, position: str) -> Any:
    value = entry.get(name)
    negative = isinstance(value, int) and value < 0
    if isinstance(value, kind) and not isinstance(value, bool) and not negative:
        return value
    actual = f"got {shown(value)}" if name in entry else "it is missing"
    raise InputError(f"{position}: expected {FIELD_TYPES[kind]} in '{name}', {actual}")


def train_questions_file(task: SpanTask, data: Path) -> Path:
    """Return the training file: `data` itself, or the folder's only train*.json of the task's version.

    The content decides the version. Raises InputError where there is no such file, or more than one.
    """
    path = _find_file(task, data, "train") if data.is_dir() else data
    if path is None:
        raise InputError(f"{data}: {_expected_file(task, data, 'train')}")
    return path


def dev_questions_file(task: SpanTask, data: Path, *, needed: bool = False) -> Path | None:
    """Return the folder's only dev*.json of the task's version; `data` itself where it is a file and `needed`.

    None without such a file. Raises InputError where one is needed, and where there are two.
    """
    if not data.is_dir():
        return data if needed else None
    path = _find_file(task, data, "dev")
    if path is None and needed:
        raise InputError(f"{data}: {_expected_file(task, data, 'dev')}; give the path of a file")
    return path


def read_labelled(task: SpanTask, path: Path) -> Questions:
    """Return a file's questions with answers. Raises InputError for a file of the other SQuAD version."""
    questions = read_questions(path)
    if questions.version != task.version:
        other = "squad2" if questions.version == "2.0" else "squad1"
        raise InputError(
            f"{path}: expected SQuAD {task.version} for {task.name}, got SQuAD {questions.version}; use the task "
            f"{other}"
        )
    return questions


def read_unlabelled(path: Path | str) -> Questions:
    """Return questions without answers, from SQuAD's layout or from JSON lines {"id", "question", "context"}.

    "-" is standard input. The id of a line without an id is its number. Raises InputError as `read_questions`.
    """
    text, source = read_text(path), source_name(path)
    lines = text.rstrip().split("\n")
    if not lines[0].strip():
        raise InputError(f"{source}: expected questions, got an empty {'first line' if len(lines) > 1 else 'file'}")
    refuse_table(text, source)
    try:
        json.loads(lines[0])
    except (ValueError, RecursionError):  # an object over many lines, or invalid JSON, for which load_json raises
        return questions_of(load_json(text, source), source, answers="ignored")
    first: Any = load_json(lines[0], source, line=1)
    if isinstance(first, dict) and "data" in first:
        raw = first if len(lines) == 1 else load_json(text, source)
        return questions_of(raw, source, answers="ignored")
    return _of_lines(lines, source)


def _of_lines(lines: list[str], source: str) -> Questions:
    by_id: dict[str, Question] = {}
    for number, line in enumerate(lines, 1):
        position = f"{source}:{number}"
        entry = load_json(line, source, line=number)
        if not isinstance(entry, dict):
            raise InputError(f'{position}: expected an object {{"question", "context"}}, got {shown(entry)}')
        name = text_of(entry, "id", position) if "id" in entry else str(number)
        if name in by_id:
            raise InputError(f"{position}: duplicate id '{shown(name)}'")
        by_id[name] = Question(name, text_of(entry, "question", position), text_of(entry, "context", position))
    return Questions(tuple(by_id.values()), "1.1", source)


def _find_file(task: SpanTask, folder: Path, stem: str) -> Path | None:
    paths = [path for path in _named(folder, stem) if _version(path) == task.version]
    return only_file(folder, paths, f"file of SQuAD {task.version}")


def _named(folder: Path, stem: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{stem}*.json") if path.is_file())


def _version(path: Path) -> str:
    return read_questions(path, answers="ignored").version


def _expected_file(task: SpanTask, folder: Path, stem: str) -> str:
    have = ", ".join(f"{path.name} (SQuAD {_version(path)})" for path in _named(folder, stem))
    return f"expected {stem}*.json of SQuAD {task.version}, found {have or 'no such name'}"
