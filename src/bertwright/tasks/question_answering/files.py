"""folder → its files of SQuAD for training and validation; the content of a file decides its version."""

from pathlib import Path
from typing import Final

from bertwright.errors import InputError
from bertwright.tables.bad_rows import BadRows
from bertwright.tables.files import only_file
from bertwright.tasks.question_answering.data import read_questions
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.text.document import raise_error

_ENDINGS: Final = (".json", ".jsonl", ".ndjson", ".parquet")


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


def _find_file(task: SpanTask, folder: Path, stem: str) -> Path | None:
    paths = [path for path in _named(folder, stem) if _version(path, task) == task.version]
    paths = [path for path in paths if path.suffix.lower() == ".json"] or paths
    return only_file(folder, paths, f"file of SQuAD {task.version}")


def _named(folder: Path, stem: str) -> list[Path]:
    """Return the files of a folder whose names begin with `stem`; the Hub's validation files stand for dev."""
    stems = (stem, "validation") if stem == "dev" else (stem,)
    paths = (path for path in folder.iterdir() if path.name.startswith(stems) and path.suffix.lower() in _ENDINGS)
    return sorted(path for path in paths if path.is_file())


def _version(path: Path, task: SpanTask) -> str:
    """Return the version of a file; bad questions, which are left out, are printed where the file is read for good."""
    on_error = BadRows("skip").add if task.on_error == "skip" else raise_error
    return read_questions(path, answers="ignored", on_error=on_error).version


def _expected_file(task: SpanTask, folder: Path, stem: str) -> str:
    have = ", ".join(f"{path.name} (SQuAD {_version(path, task)})" for path in _named(folder, stem))
    return f"expected {stem}*.json of SQuAD {task.version} (or .jsonl, .parquet), found {have or 'no such name'}"
