"""task's files → the rows that a scale takes of them: a fixed choice, written once in the task's own layout."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.errors import InputError
from bertwright.files import atomic_folder, file_digest, read_object, write_json
from bertwright.recipes.paper.data import PaperTask
from bertwright.tasks.classify import ClassificationTask
from bertwright.tasks.conll import BLANK, DOCUMENT_START
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.tasks.squad import SpanTask, load_json, read_questions, read_text
from bertwright.tasks.table_output import write_table
from bertwright.tasks.tables import read_table
from bertwright.tasks.tagging import TaggingTask

NOTE = "subset.json"
SEED = 0
"""Of the choice: the same rows in every run, and those of a smaller limit among those of a larger one."""

Limits = tuple[int | None, int | None]


@dataclass(frozen=True)
class Subset:
    """A task's files as a scale takes them. rows: (taken, of so many) by the name of the file."""

    folder: Path
    digest: str
    rows: Mapping[str, tuple[int, int]]


def make_subset(task: PaperTask, files: Mapping[str, Path], limits: Limits, out: Path) -> Subset:
    """The subset below `out`, written if it is not there yet; InputError where a file cannot be read."""
    sums = {name: file_digest(path) for name, path in files.items()}
    digest = hashlib.sha256(json.dumps([task.task, sums, limits, SEED]).encode()).hexdigest()[:12]
    folder = out / f"{task.name}-{digest}"
    if not (folder / NOTE).is_file():
        with atomic_folder(folder) as temporary:
            counts = {
                name: _write(get_spec(task.task), path, limits[name != "train"], temporary / f"{name}{path.suffix}")
                for name, path in files.items()
            }
            write_json(temporary / NOTE, {"rows": counts, "sha256": sums})
    noted = read_object(folder / NOTE)
    return Subset(folder, digest, {name: (taken, total) for name, (taken, total) in noted["rows"].items()})


def chosen(total: int, limit: int | None) -> list[int]:
    """Which of so many rows are taken, in their order."""
    if limit is None or limit >= total:
        return list(range(total))
    return sorted(np.random.default_rng(SEED).permutation(total)[:limit].tolist())


def _write(spec: TaskSpec, source: Path, limit: int | None, target: Path) -> tuple[int, int]:
    """Write the chosen rows of a file; how many, of how many."""
    if isinstance(spec, SpanTask):
        return _write_questions(source, limit, target)
    if isinstance(spec, TaggingTask):
        return _write_sentences(source, limit, target)
    headerless = spec.columns if isinstance(spec, ClassificationTask) else ()
    broken = spec.broken_rows if isinstance(spec, ClassificationTask) else 0
    table = read_table(source, headerless=headerless, broken_rows=broken)
    rows = chosen(len(table), limit)
    if len(rows) == len(table):
        shutil.copyfile(source, target)
    else:
        cells = list(table.rows)
        with target.open("wb") as stream:
            write_table(replace(table, rows=tuple(tuple(cells[row]) for row in rows)), stream)
    return len(rows), len(table)


def _write_questions(source: Path, limit: int | None, target: Path) -> tuple[int, int]:
    """The chosen questions with their passages; passages and articles without one are left out."""
    names = [question.id for question in read_questions(source, answers="ignored").items]
    kept = {names[row] for row in chosen(len(names), limit)}
    raw: dict[str, Any] = load_json(read_text(source), str(source))

    def passages(article: Mapping[str, Any]) -> list[dict[str, Any]]:
        asked = ({**one, "qas": [qa for qa in one["qas"] if qa["id"] in kept]} for one in article["paragraphs"])
        return [one for one in asked if one["qas"]]

    articles = [{**article, "paragraphs": passages(article)} for article in raw["data"]]
    target.write_text(json.dumps({**raw, "data": [one for one in articles if one["paragraphs"]]}), "utf-8")
    return len(kept), len(names)


def _write_sentences(source: Path, limit: int | None, target: Path) -> tuple[int, int]:
    """The chosen sentences of columns, an empty line after each; the lines between documents stay."""
    sentences = list(_sentences(source.read_text("utf-8").splitlines(keepends=True)))
    real = [place for place, lines in enumerate(sentences) if not lines[0].startswith(DOCUMENT_START)]
    if not real:
        raise InputError(f"{source}: holds no sentence")
    kept = {real[row] for row in chosen(len(real), limit)} | (set(range(len(sentences))) - set(real))
    target.write_text("".join("".join(sentences[place]).rstrip("\n") + "\n\n" for place in sorted(kept)), "utf-8")
    return len(kept) - len(sentences) + len(real), len(real)


def _sentences(lines: Sequence[str]) -> list[list[str]]:
    """Lines in groups, as empty ones part them."""
    groups = groupby(lines, key=lambda line: bool(line.strip(BLANK)))
    return [list(group) for is_text, group in groups if is_text]
