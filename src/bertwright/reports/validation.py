"""run folder of a fine-tuning → tables of its report: baselines, confusion matrix, calibration and the worst rows.

Each seed keeps `validation.json` beside its model: the review of the validation files by its best epoch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bertwright.files import read_object_if_there
from bertwright.reports.runs import Run, metrics_of
from bertwright.tasks.errors import VALIDATION

_MOST_LABELS: Final = 20
"""Number of labels up to which the confusion matrix is shown."""


@dataclass(frozen=True)
class PageTable:
    """A table of the page. The first cell of a row is its name; marked: numbers of the highlighted rows.

    whole_words: no cell breaks inside of a word or number; a table that is too wide scrolls.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    note: str = ""
    whole_words: bool = False


def validation_tables(run: Run, owner: str) -> list[PageTable]:
    """Return the tables about the answers of the best seed; none before a seed has finished.

    owner: the end of each title, which names the run where there are two.
    """
    return [
        *_baselines(run, owner),
        *(table for name, review in _reviews(run) for table in _tables(review, name + owner)),
    ]


def _reviews(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the end of the titles and the review of each validation file."""
    if not run.seeds:
        return
    metric = next(iter(metrics_of(run.seeds[0]["scores"])), "")
    best = max(run.seeds, key=lambda seed: metrics_of(seed["scores"]).get(metric, 0.0))
    path = run.folder / f"seed-{best['seed']}" / VALIDATION
    reviews = read_object_if_there(path)
    for name, review in reviews.items():
        yield f" of {name}" if len(reviews) > 1 else "", review


def _tables(review: Mapping[str, Any], owner: str) -> Iterator[PageTable]:
    confusion = review.get("confusion")
    if confusion and len(confusion) <= _MOST_LABELS:
        rows = [[gold, *(f"{row.get(label, 0):,}" for label in confusion)] for gold, row in confusion.items()]
        note = "A row for each gold label, a column for each predicted label; the best epoch of the best seed."
        yield PageTable(f"Confusion matrix{owner}", ["", *confusion], rows, note=note)
    elif confusion:
        note = f"The most frequent of {len(confusion)} labels' confusions."
        yield PageTable(f"Confusions{owner}", ["gold", "predicted", "rows"], _most_confused(confusion), note=note)
    if bins := review.get("reliability"):
        rows = [
            [
                f"{part['from']:.1f} to {part['to']:.1f}",
                f"{part['count']:,}",
                f"{part['probability']:.3f}",
                f"{part['correct']:.3f}",
            ]
            for part in bins
        ]
        note = f"Expected calibration error: {review['calibration_error']:.4f}."
        head = ["probability", "answers", "mean probability", "correct"]
        yield PageTable(f"Reliability{owner}", head, rows, note=note)
    worst = review.get("worst")
    if worst and worst["rows"]:
        rows = [[_text(cell) for cell in row] for row in worst["rows"]]
        note = (
            "The most confidently wrong first, then the most doubtful; of numbers the farthest first, of questions the "
            "lowest F1."
        )
        yield PageTable(f"Worst rows{owner}", worst["columns"], rows, note=note)


def _most_confused(confusion: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    pairs = [(count, gold, label) for gold, row in confusion.items() for label, count in row.items() if gold != label]
    most = sorted(pairs, key=lambda pair: -pair[0])[:_MOST_LABELS]
    return [[gold, label, f"{count:,}"] for count, gold, label in most]


def _text(cell: Any) -> str:
    if isinstance(cell, list):
        return ", ".join(map(str, cell)) or "none"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _baselines(run: Run, owner: str) -> Iterator[PageTable]:
    """Yield the metrics of the baselines of the run, a row each."""
    baselines = run.record.get("baselines")
    if not isinstance(baselines, Mapping) or not (metrics := baselines.get("metrics")):
        return
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    rows = [
        [title, *(f"{values[name]:.3f}" if name in values else "–" for name in names)]
        for title, values in metrics.items()
    ]
    yield PageTable(f"Baselines{owner}", ["", *names], rows, note=" ".join(baselines.get("notes", ())))
