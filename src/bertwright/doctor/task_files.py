"""files of choices, questions, tagged sentences or pairs of texts → findings: they can be read, and their baselines."""

from functools import partial
from pathlib import Path
from typing import Final

from bertwright.doctor.data import TENTH, bad_rows, baseline_finding
from bertwright.doctor.findings import Finding, refused
from bertwright.errors import InputError
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import TaggingTask

_UNITS: Final[dict[type[TaskSpec], str]] = {SpanTask: "questions", TaggingTask: "sentences", VectorTask: "pairs"}
"""Names of the rows of tasks whose rows are no rows of a table."""
_finding = partial(Finding, "data")


def check_task_files(task: TaskSpec, path: Path, *, quick: bool) -> list[Finding]:
    """Read the files of a task as `finetune` does; return what was read and, unless `quick`, the baselines."""
    try:
        data = kind_of(task).read(task, path)
    except (InputError, OSError) as error:
        advice = "correct the file or the options that describe it (--task, --input-format)"
        return [refused("data", "reads", error=error, advice=advice)]
    name, validation = next(iter(data.validation.items()))
    name = name if data.digests["dev"] else TENTH
    unit = _UNITS.get(type(task), "rows")
    text = f"{data.train.source}: {len(data.train):,} {unit} to train on, {len(validation):,} for validation ({name})"
    parts = {part.source: part for part in (validation, data.train) if part.left_out}
    findings = [_finding("reads", "ok", len(data.train), text), *map(bad_rows, parts.values())]
    has_baselines = not isinstance(task, VectorTask)  # the baseline of vectors is the model before training
    return (
        findings
        if quick or not has_baselines
        else [*findings, baseline_finding(data.task, data.train, validation, name=name)]
    )
