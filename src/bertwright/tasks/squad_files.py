"""… → task: which files of a folder are a SQuAD's, and questions asked without a file of its layout."""

import json
from pathlib import Path
from typing import Any

from bertwright.errors import InputError, shown
from bertwright.tasks.squad import (
    Question,
    Questions,
    SpanTask,
    load_json,
    questions_of,
    read_questions,
    read_text,
    refuse_table,
    text_of,
)


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
