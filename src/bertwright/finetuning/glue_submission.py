"""models of GLUE's tasks + its test files → the zip that its server scores (paper §4.1).

One file for each task, `index` and `prediction`: labels as the server spells them, and numbers between 0 and 5 for
STS-B. AX, the diagnostic set, is answered by MNLI's model. WNLI without a model is answered by its majority, as the
paper did.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file, refuse_unwritable
from bertwright.model.folder import SavedModel, open_model
from bertwright.tables.files import table_stem
from bertwright.tables.reader import read_table
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import decode, encode
from bertwright.tasks.classification.examples import examples_of
from bertwright.tasks.classification.model import noted_task
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns, with_texts_of
from bertwright.tasks.classification.task import open_logits, say_what_is_long
from bertwright.training.hardware import keep_memory


@dataclass(frozen=True)
class Part:
    """One file of the zip: which task answers it, where its test file lies in GLUE's folder, and how many rows it has.

    codes: whether the server wants a label's code (0, 1) or its name.
    """

    file: str
    task: str
    folder: str
    stem: str
    codes: bool
    rows: int


PARTS = (
    Part("CoLA", "cola", "CoLA", "test", True, 1063),
    Part("SST-2", "sst2", "SST-2", "test", True, 1821),
    Part("MRPC", "mrpc", "MRPC", "test", True, 1725),
    Part("STS-B", "stsb", "STS-B", "test", False, 1379),
    Part("QQP", "qqp", "QQP", "test", True, 390965),
    Part("MNLI-m", "mnli", "MNLI", "test_matched", False, 9796),
    Part("MNLI-mm", "mnli", "MNLI", "test_mismatched", False, 9847),
    Part("QNLI", "qnli", "QNLI", "test", False, 5463),
    Part("RTE", "rte", "RTE", "test", False, 3000),
    Part("WNLI", "wnli", "WNLI", "test", True, 146),
    Part("AX", "mnli", "diagnostic", "diagnostic", False, 1104),
)
TASKS = tuple(dict.fromkeys(part.task for part in PARTS))
_MAJORITY = {"wnli": "0"}


def write_submission(models: Mapping[str, str], data: Path, target: Path) -> dict[str, Any]:
    """Answer all of GLUE's test files with the models by task name; returns how many rows each file of the zip has.

    InputError for a task without a model, a model of another task, and a test file that is missing; a test file with
    another number of rows than GLUE's is said, and answered.
    """
    keep_memory()
    refuse_unwritable(target, "--out", is_folder=False)
    unknown = sorted(models.keys() - set(TASKS))
    missing = [name for name in TASKS if name not in models and name not in _MAJORITY]
    if unknown or missing:
        wrong = f"{', '.join(unknown)} is no task of GLUE's" if unknown else f"no model for {', '.join(missing)}"
        raise InputError(f"{wrong}; the server wants {', '.join(TASKS)}, and wnli's may be left out")
    files = {part.file: _test_file(data, part) for part in PARTS}
    for part in PARTS:  # the last model must not be refused after hours of the others' answers
        if part.task in models:
            _trained_for(part, open_model(models[part.task]))
    answers = {part.file: _answers(part, files[part.file], models.get(part.task)) for part in PARTS}
    with atomic_file(target) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in answers.items():
            text = io.StringIO()
            text.write("index\tprediction\n")
            text.writelines(f"{index}\t{answer}\n" for index, answer in enumerate(rows))
            archive.writestr(
                zipfile.ZipInfo(f"{name}.tsv"), text.getvalue()
            )  # a fixed date: equal answers, equal bytes
    return {"rows": {name: len(rows) for name, rows in answers.items()}, "output": str(target)}


def _answers(part: Part, path: Path, model: str | None) -> Sequence[str]:
    table = read_table(path, headerless=get_task(part.task).columns)
    if len(table) != part.rows:
        say(f"{path}: has {len(table):,} rows; GLUE's own has {part.rows:,}, and its server takes no other number")
    if model is None:
        say(f"{part.file}: no model; every row is answered with the majority, as the paper did")
        return [_MAJORITY[part.task]] * len(table)
    saved = open_model(model)
    trained, max_length = _trained_for(part, saved)
    wanted = get_task(part.task)
    text = ("sentence1", "sentence2") if part.file == "AX" else wanted.text
    task = with_columns(trained, text=text)
    part_rows = examples_of(task, table, require_label=False)
    encoded = encode(
        open_tokenizer(saved), part_rows.texts_a, part_rows.texts_b, max_length=max_length, long=trained.long
    )
    say_what_is_long(encoded, part_rows, max_length)
    found = decode(task, open_logits(saved)(encoded))
    say(f"{part.file}: {len(table):,} rows answered")
    if found.labels is None:
        return [f"{min(5.0, max(0.0, float(value))):.3f}" for value in found.values]
    codes = dict(zip(wanted.labels, wanted.codes or wanted.labels, strict=True))
    return [codes[label] if part.codes else label for label in found.labels]


def _trained_for(part: Part, saved: SavedModel) -> tuple[ClassificationTask, int]:
    """The task of a model, and its maximal length; InputError where it cannot answer this file.

    That it is one of GLUE's other tasks counts as such: RTE's labels are QNLI's.
    """
    trained, max_length = noted_task(saved)
    wanted = get_task(part.task)
    is_other = trained.name in TASKS and trained.name != part.task
    if is_other or trained.kind != wanted.kind or sorted(trained.labels) != sorted(wanted.labels):
        raise InputError(f"{saved.place}: was fine-tuned for {trained.name}, and cannot answer {part.file}")
    with_texts_of(with_columns(trained, text=wanted.text), trained, saved.place)
    return trained, max_length


def _test_file(data: Path, part: Part) -> Path:
    folder = data / part.folder
    found = [path for path in sorted(folder.glob("*")) if table_stem(path) == part.stem]
    if len(found) != 1:
        raise InputError(f"{folder}: {part.file} needs {part.stem}.tsv there; {len(found)} such files lie there")
    return found[0]
