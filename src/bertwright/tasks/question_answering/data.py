"""SQuAD's files → questions with their passages and answers (paper §4.2, §4.3: SQuAD 1.1 and 2.0).

The official JSON is read with every doubt raised: data → paragraphs → qas → answers.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bertwright.errors import InputError, shown
from bertwright.tables.files import open_lines
from bertwright.tables.reader import names_once
from bertwright.tasks.question_answering.spec import SpanTask, Version

Answers = Literal["checked", "texts", "ignored"]
KINDS: Final[dict[type, str]] = {str: "a text", list: "a list", dict: "an object", int: "a number from 0 on"}


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `answers`: (text, first character) of each that people gave; empty where there is none."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Questions:
    """A file's questions, in its order; the questions of a paragraph share one context."""

    items: tuple[Question, ...]
    version: Version
    source: str

    def __len__(self) -> int:
        return len(self.items)


def read_questions(path: Path | str, *, answers: Answers = "checked") -> Questions:
    """Read a file of SQuAD's layout; 2.0 is what says so or holds `is_impossible` or a question without answers.

    answers: "checked" against the context, at the character that the file names; their "texts" alone, as the official
    scripts read them; or "ignored", where they may be missing. InputError with the file and the question's id (or its
    place, where it has none) for what is missing, of another type, empty, twice there or contradicts itself.
    """
    text = read_text(path)
    refuse_table(text, str(path))
    return questions_of(load_json(text, str(path)), str(path), answers=answers)


def questions_of(raw: Any, source: str, *, answers: Answers = "checked") -> Questions:
    """As `read_questions`, for a file that was parsed already."""
    if not isinstance(raw, dict) or not isinstance(raw.get("data"), list):
        raise InputError(f"{source}: is not of SQuAD's layout: an object with a list 'data' is due")
    items: dict[str, Question] = {}
    says_two = re.fullmatch(r"[vV]?2(\.[0-9]+)*", str(raw.get("version", ""))) is not None  # and no year
    for entry, context, place in _entries(raw["data"], source):
        question = _question(entry, context, place, answers, source)
        if question.id in items:
            raise InputError(f"{source}: question {question.id}: the id is there twice; ids must differ")
        items[question.id] = question
        says_two = says_two or "is_impossible" in entry or entry.get("answers") == []
    if not items:
        raise InputError(f"{source}: holds no question")
    return Questions(tuple(items.values()), "2.0" if says_two else "1.1", source)


def read_text(path: Path | str) -> str:
    """A whole file as text, unpacked where its ending says so; "-" is standard input.

    InputError where it is missing, broken or no UTF-8.
    """
    source = "standard input" if str(path) == "-" else str(path)
    if Path(path).is_dir():
        raise InputError(f"{source}: is a folder; a file is due")
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
    """InputError for what does not even begin as JSON: questions are often kept as a table."""
    if text.lstrip()[:1] not in ("", "{", "["):
        raise InputError(
            f"{source}: is no JSON; questions stand in SQuAD's JSON, those to be answered also in JSON lines"
        )


def load_json(text: str, source: str, *, line: int | None = None) -> Any:
    """The value of a JSON text, of a file or of one `line` of it; InputError where it is broken or has a name twice."""
    begin = line or 1
    try:
        return json.loads(text, object_pairs_hook=names_once(f"{source}:{line}" if line else source))
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{begin + error.lineno - 1}: not valid JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{source}:{begin}: not valid JSON: {error}") from None


def text_of(entry: dict[str, Any], name: str, place: str) -> str:
    """A field that holds text, not blanks alone; InputError with the place for anything else."""
    text = str(_field(entry, name, str, place))
    if not text.strip():
        raise InputError(f"{place}: '{name}' is empty; a text is due")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{place}: '{name}' holds half of a surrogate pair (\\ud800 to \\udfff), no text") from None
    return text


def _entries(data: list[Any], source: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each question's object, its context, and where it stands."""
    for number, article in enumerate(data):
        place = f"{source}: data[{number}]"
        for index, paragraph in enumerate(_objects(_object(article, place), "paragraphs", place)):
            inner = f"{place}.paragraphs[{index}]"
            context = text_of(paragraph, "context", inner)
            for row, entry in enumerate(_objects(paragraph, "qas", inner)):
                yield entry, context, f"{inner}.qas[{row}]"


def _question(entry: dict[str, Any], context: str, place: str, answers: Answers, source: str) -> Question:
    name = text_of(entry, "id", place)
    place = f"{source}: question {name}"
    text = text_of(entry, "question", place)
    if answers == "ignored":
        return Question(name, text, context)
    given = _objects(entry, "answers", place)
    impossible = entry.get("is_impossible", not given)
    if not isinstance(impossible, bool):
        raise InputError(f"{place}: 'is_impossible' is {shown(impossible)}; true or false is due")
    if impossible == bool(given):
        said = "is_impossible is true" if impossible else "is_impossible is false"
        raise InputError(f"{place}: {said}, but there {'are' if given else 'are no'} answers")
    read = _checked if answers == "checked" else _text_alone
    return Question(name, text, context, tuple(read(answer, context, place) for answer in given))


def _text_alone(answer: dict[str, Any], context: str, place: str) -> tuple[str, int]:
    return str(_field(answer, "text", str, place)), -1


def _checked(answer: dict[str, Any], context: str, place: str) -> tuple[str, int]:
    text = text_of(answer, "text", place)
    first: int = _field(answer, "answer_start", int, place)
    if context[first : first + len(text)] == text:
        return text, first
    other = context.find(text)
    elsewhere = f"it begins at character {other}" if other >= 0 else "it is nowhere in the context"
    there = context[first : first + len(text)]
    raise InputError(
        f"{place}: the answer '{shown(text)}' is not at character {first} of its context, "
        f"where '{shown(there)}' stands; {elsewhere}"
    )


def _objects(entry: dict[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    found: list[Any] = _field(entry, name, list, place)
    return [_object(value, f"{place}.{name}[{index}]") for index, value in enumerate(found)]


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: is {shown(value)}; an object is due")
    return value


def _field(entry: dict[str, Any], name: str, kind: type, place: str) -> Any:
    value = entry.get(name)
    negative = isinstance(value, int) and value < 0
    if isinstance(value, kind) and not isinstance(value, bool) and not negative:
        return value
    what = f"is {shown(value)}" if name in entry else "is missing"
    raise InputError(f"{place}: '{name}' {what}; {KINDS[kind]} is due")


# … → task: which files of a folder are a SQuAD's, and questions asked without a file of its layout.


def train_questions_file(task: SpanTask, data: Path) -> Path:
    """The file to train on: `data` itself, or the folder's only train*.json of the task's version.

    The version is told by the content. InputError where there is none, or where there are two.
    """
    found = data if not data.is_dir() else _only(task, data, "train")
    if found is None:
        raise InputError(f"{data}: {_nothing(task, data, 'train')}")
    return found


def dev_questions_file(task: SpanTask, data: Path, *, needed: bool = False) -> Path | None:
    """The folder's only dev*.json of the task's version; `data` itself, where it is a file and one is needed.

    None without one; where it is needed, and where there are two, InputError.
    """
    if not data.is_dir():
        return data if needed else None
    found = _only(task, data, "dev")
    if found is None and needed:
        raise InputError(f"{data}: {_nothing(task, data, 'dev')}; name a file")
    return found


def read_labelled(task: SpanTask, path: Path) -> Questions:
    """A file's questions with their answers; InputError where it is of the other version."""
    questions = read_questions(path)
    if questions.version != task.version:
        other = "squad2" if questions.version == "2.0" else "squad1"
        raise InputError(f"{path}: is of SQuAD {questions.version}, and {task.name} reads {task.version}; use {other}")
    return questions


def read_asked(path: Path | str) -> Questions:
    """Questions to be answered: SQuAD's layout, answers or none, or JSON lines {"id", "question", "context"}.

    "-" is standard input. A line without an id has its number for one. InputError as of `read_questions`.
    """
    text = read_text(path)
    source = "standard input" if str(path) == "-" else str(path)
    lines = text.rstrip().split("\n")
    if not lines[0].strip():
        raise InputError(f"{source}: {'the first line is empty' if len(lines) > 1 else 'is empty'}; questions are due")
    refuse_table(text, source)
    try:
        json.loads(lines[0])
    except (ValueError, RecursionError):  # one object over many lines, or broken: what reads the whole says which
        return questions_of(load_json(text, source), source, answers="ignored")
    first: Any = load_json(lines[0], source, line=1)
    if isinstance(first, dict) and "data" in first:
        raw = first if len(lines) == 1 else load_json(text, source)
        return questions_of(raw, source, answers="ignored")
    return _of_lines(lines, source)


def _of_lines(lines: list[str], source: str) -> Questions:
    found: dict[str, Question] = {}
    for number, line in enumerate(lines, 1):
        place = f"{source}:{number}"
        entry = load_json(line, source, line=number)
        if not isinstance(entry, dict):
            raise InputError(f'{place}: is {shown(entry)}; an object {{"question", "context"}} is due')
        name = text_of(entry, "id", place) if "id" in entry else str(number)
        if name in found:
            raise InputError(f"{place}: the id '{shown(name)}' is there twice; ids must differ")
        found[name] = Question(name, text_of(entry, "question", place), text_of(entry, "context", place))
    return Questions(tuple(found.values()), "1.1", source)


def _only(task: SpanTask, folder: Path, stem: str) -> Path | None:
    found = [path for path in _named(folder, stem) if _version(path) == task.version]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder}: which one? {names} are of SQuAD {task.version}; keep one or name the file")
    return found[0] if found else None


def _named(folder: Path, stem: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{stem}*.json") if path.is_file())


def _version(path: Path) -> str:
    return read_questions(path, answers="ignored").version


def _nothing(task: SpanTask, folder: Path, stem: str) -> str:
    have = ", ".join(f"{path.name} (SQuAD {_version(path)})" for path in _named(folder, stem))
    return f"there is no {stem}*.json of SQuAD {task.version}; there is: {have or 'none of that name'}"
