"""teacher and student → sizes, times and metrics side by side: the result of a distillation.

Both are computed in fp32 with the same threads, on the same validation rows. Times are no part of the model card, since
an interrupted run writes the same card as an uninterrupted one.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from bertwright.model.folder import WEIGHTS
from bertwright.pretraining.resources import count_parameters
from bertwright.tasks.metrics import without_collapsed

TIMED_TEXTS: Final = 256
"""Largest number of validation rows whose time is measured."""
_ROUNDS: Final = 5
"""Number of timed calls of each model, in turn; the median counts."""


@dataclass(frozen=True)
class Measured:
    """Numbers of a model.

    parameters    number of parameters
    bytes         size of the file of weights
    milliseconds  time of a text, where texts are computed in batches
    metrics       validation metrics
    """

    parameters: int
    bytes: int
    milliseconds: float
    metrics: Mapping[str, float]


def _measured(folder: Path, model: nn.Module, milliseconds: float, metrics: Mapping[str, float]) -> Measured:
    """Return the numbers of the model in a model folder."""
    size = (folder / WEIGHTS).stat().st_size
    return Measured(count_parameters(model), size, milliseconds, without_collapsed(metrics))


def milliseconds_per_text(calls: Sequence[Callable[[], object]], texts: int) -> list[float]:
    """Return the time of a text for each of several functions that compute the same `texts` texts.

    Each is called once before it is timed. Then they take turns, so that another program slows all of them.
    """
    for call in calls:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [1000 * statistics.median(times) / texts for times in seconds]


def comparison_result(
    folders: Sequence[Path],
    models: Sequence[nn.Module],
    times: Sequence[float],
    metrics: Sequence[Mapping[str, float]],
    *,
    metric: str,
    agreement: float | None,
    texts: int,
) -> dict[str, Any]:
    """Return the entries of a run's result: both models, the share of the teacher's metric, and equal answers.

    folders, models, times, metrics: those of teacher and student; times are the milliseconds of a text. metric: name of
    the metric, of which higher is better. agreement: fraction of the `texts` validation rows with the same answer of
    both; None where answers are numbers.
    """
    teacher, student = map(_measured, folders, models, times, metrics)
    best = teacher.metrics.get(metric, 0.0)  # a teacher without a masked-LM head has none
    return {
        "teacher": {"model": str(folders[0]), **asdict(teacher)},
        "student": asdict(student),
        "metric": metric,
        "share": student.metrics[metric] / best if best > 0.0 else None,
        "agreement": agreement,
        "texts": texts,
    }


def comparison_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the comparison as text: a line for each number, the teacher's beside the student's."""
    teacher, student, metric = result["teacher"], result["student"], result["metric"]
    rows = [
        ("", "teacher", "student", ""),
        ("parameters", *(f"{model['parameters']:,}" for model in (teacher, student)), _share("parameters", result)),
        ("size on disk", *(f"{model['bytes'] / 1e6:,.1f} MB" for model in (teacher, student)), _share("bytes", result)),
        (
            "time of a text",
            *(f"{model['milliseconds']:,.2f} ms" for model in (teacher, student)),
            _share("milliseconds", result),
        ),
    ]
    for name, value in student["metrics"].items():
        share = "" if name != metric or result["share"] is None else f"{result['share']:.1%} of the teacher's"
        rows.append((name, _shown(teacher["metrics"], name), f"{value:.4f}", share))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]
    if result["agreement"] is not None:
        lines.append(f"same answer as the teacher: {result['agreement']:.1%} of {result['texts']:,} validation rows")
    return lines


def card_numbers(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lines of the model card, without times."""
    teacher, student = result["teacher"], result["student"]
    lines = [
        f"{name}: {value:.4f}, of the teacher; {student['metrics'][name]:.4f} of this model on the same rows in fp32"
        for name, value in teacher["metrics"].items()
    ]
    if result["share"] is not None:
        lines.append(f"share of the teacher's {result['metric']}: {result['share']:.1%}")
    if result["agreement"] is not None:
        lines.append(f"same answer as the teacher: {result['agreement']:.1%} of {result['texts']:,} validation rows")
    lines.append(f"parameters: {student['parameters']:,}, of the teacher {teacher['parameters']:,}")
    lines.append(f"size on disk: {student['bytes']:,} bytes, of the teacher {teacher['bytes']:,}")
    return tuple(lines)


def _shown(metrics: Mapping[str, float], name: str) -> str:
    """Return a metric as text; - where the model has none."""
    return f"{metrics[name]:.4f}" if name in metrics else "-"


def _share(name: str, result: Mapping[str, Any]) -> str:
    return f"{result['student'][name] / result['teacher'][name]:.1%} of the teacher's"
