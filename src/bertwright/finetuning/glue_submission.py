"""models of GLUE's tasks and GLUE's test files → the zip file for GLUE's server (paper §4.1).

The zip has one file per task, with the columns `index` and `prediction`: labels as the server spells them, and numbers
between 0 and 5 for STS-B. MNLI's model answers AX, the diagnostic set. Without a model, WNLI is answered with its
majority label, as in the paper.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.files import atomic_file
from bertwright.model.folder import SavedModel, open_model
from bertwright.output_paths import refuse_folder, refuse_own_file, refuse_unwritable
from bertwright.tables.files import InputFormat, table_stem
from bertwright.tables.reader import Table, read_table
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import decode
from bertwright.tasks.classification.examples import examples_of
from bertwright.tasks.classification.model import noted_task
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns, with_texts_of
from bertwright.tasks.classification.task import CLASSIFICATION, open_logits
from bertwright.training.hardware import prepare_processor


@dataclass(frozen=True)
class SubmissionFile:
    """A file of the zip: its task, the test file in GLUE's folder, and GLUE's number of rows.

    codes: True where the server needs a label's code (0, 1), False where it needs the name.
    """

    file: str
    task: str
    folder: str
    stem: str
    codes: bool
    rows: int


SUBMISSION_FILES = (
    SubmissionFile("CoLA", "cola", "CoLA", "test", True, 1063),
    SubmissionFile("SST-2", "sst2", "SST-2", "test", True, 1821),
    SubmissionFile("MRPC", "mrpc", "MRPC", "test", True, 1725),
    SubmissionFile("STS-B", "stsb", "STS-B", "test", False, 1379),
    SubmissionFile("QQP", "qqp", "QQP", "test", True, 390965),
    SubmissionFile("MNLI-m", "mnli", "MNLI", "test_matched", False, 9796),
    SubmissionFile("MNLI-mm", "mnli", "MNLI", "test_mismatched", False, 9847),
    SubmissionFile("QNLI", "qnli", "QNLI", "test", False, 5463),
    SubmissionFile("RTE", "rte", "RTE", "test", False, 3000),
    SubmissionFile("WNLI", "wnli", "WNLI", "test", True, 146),
    SubmissionFile("AX", "mnli", "diagnostic", "diagnostic", False, 1104),
)
TASKS = tuple(dict.fromkeys(part.task for part in SUBMISSION_FILES))
_MAJORITY = {"wnli": "0"}


def write_submission(
    models: Mapping[str, str], data: Path, target: Path, *, input_format: InputFormat = "auto"
) -> dict[str, Any]:
    """Answer all GLUE test files with the models by task name; return the number of rows of each file in the zip.

    input_format   format of the test files; "auto" goes by the endings of their names

    Raises InputError for a task without a model, a model of another task, and a missing test file. A test file with
    another number of rows than GLUE's is answered, and a message says so.
    """
    prepare_processor()
    refuse_unwritable(target, "--out", is_folder=False)
    refuse_folder(target, "--out")
    refuse_own_file(target, "--out")
    unknown = sorted(models.keys() - set(TASKS))
    missing = [name for name in TASKS if name not in models and name not in _MAJORITY]
    if unknown or missing:
        problem = f"{', '.join(unknown)} is not a GLUE task" if unknown else f"no model for {', '.join(missing)}"
        raise InputError(f"{problem}; expected models for {', '.join(TASKS)}; wnli is optional")
    files = {part.file: _test_file(data, part) for part in SUBMISSION_FILES}
    for part in SUBMISSION_FILES:  # a model that cannot answer a file must be refused now, not after hours
        if part.task in models:
            _trained_for(part, open_model(models[part.task]))
    tables = {
        part.file: read_table(files[part.file], headerless=get_task(part.task).columns, format=input_format)
        for part in SUBMISSION_FILES
    }
    indexes = {name: _indexes(table) for name, table in tables.items()}
    answers = {part.file: _answers(part, tables[part.file], models.get(part.task)) for part in SUBMISSION_FILES}
    with atomic_file(target, keep_new=True) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in answers.items():
            text = io.StringIO()
            text.write("index\tprediction\n")
            text.writelines(f"{index}\t{answer}\n" for index, answer in zip(indexes[name], rows, strict=True))
            # ZipInfo has a fixed date, so that equal answers give equal bytes.
            archive.writestr(zipfile.ZipInfo(f"{name}.tsv"), text.getvalue())
    return {"rows": {name: len(rows) for name, rows in answers.items()}, "output": str(target)}


def _answers(part: SubmissionFile, table: Table, model: str | None) -> Sequence[str]:
    if len(table) != part.rows:
        say(f"{table.source}: expected {part.rows:,} rows, as GLUE's server does, got {len(table):,}")
    if model is None:
        say(f"{part.file}: no model; every row gets the majority label, as in the paper")
        return [_MAJORITY[part.task]] * len(table)
    saved = open_model(model)
    trained, max_length = _trained_for(part, saved)
    original = get_task(part.task)
    text = ("sentence1", "sentence2") if part.file == "AX" else original.text
    task = with_columns(trained, text=text)
    rows = examples_of(task, table, require_label=False)
    encoded = CLASSIFICATION.encode(task, open_tokenizer(saved), rows, max_length)
    predictions = decode(task, open_logits(saved)(encoded), rows.location)
    say(f"{part.file}: {len(table):,} rows answered")
    if predictions.labels is None:
        return [f"{min(5.0, max(0.0, float(value))):.3f}" for value in predictions.values]
    codes = dict(zip(original.labels, original.codes or original.labels, strict=True))
    return [codes[label] if part.codes else label for label in predictions.labels]


def _indexes(table: Table) -> list[int]:
    """Return the index of each row: that of the column in GLUE's or the Hub's files, else its number from 0 on.

    Raises InputError where the column holds anything but different whole numbers.
    """
    name = next((name for name in ("index", "id", "idx") if name in table.columns), None)
    if name is None:
        return [*range(len(table))]
    indexes: dict[int, None] = {}
    for row, cell in enumerate(map(str, table.column(name))):
        if not cell.isdecimal() or int(cell) in indexes:
            raise InputError(
                f"{table.location(row)}: expected another whole number in the column {name!r}, got {shown(cell)!r}; "
                "GLUE's server takes an answer for each index"
            )
        indexes[int(cell)] = None
    return [*indexes]


def _trained_for(part: SubmissionFile, saved: SavedModel) -> tuple[ClassificationTask, int]:
    """Return the task of a model and its maximal length. Raises InputError where it cannot answer this file.

    A model of another GLUE task is refused even where its labels fit, as RTE's and QNLI's.
    """
    trained, max_length = noted_task(saved)
    original = get_task(part.task)
    is_other = trained.name in TASKS and trained.name != part.task
    if is_other or trained.kind != original.kind or sorted(trained.labels) != sorted(original.labels):
        raise InputError(f"{saved.source}: expected a model for {part.file}, got one for {trained.name}")
    with_texts_of(with_columns(trained, text=original.text), trained, saved.source)
    return trained, max_length


def _test_file(data: Path, part: SubmissionFile) -> Path:
    folder = data / part.folder
    paths = [path for path in sorted(folder.glob("*")) if table_stem(path) == part.stem]
    if len(paths) != 1:
        raise InputError(f"{folder}: expected one file {part.stem}.tsv for {part.file}, found {len(paths)}")
    return paths[0]
