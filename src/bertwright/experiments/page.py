"""metrics of an experiment → its page: question, answer, forest plot, table, how sure, and what it does not show.

The pages in docs/results were written with the sentences of this file. A change to one means to write all of them anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bertwright.experiments.answers import answer_lines, evidence_lines
from bertwright.experiments.details import cost_lines, data_lines, markdown_table, setting_lines
from bertwright.experiments.evidence import ClaimEvidence, floor_of, gather_evidence
from bertwright.experiments.forest import draw_forest
from bertwright.experiments.lock import lock_lines
from bertwright.experiments.pictures import draw_picture
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.records import read_spread
from bertwright.experiments.scores import Cell, scores_last_epoch, table_cells
from bertwright.experiments.spec import Arm, Column
from bertwright.experiments.start import start_box
from bertwright.files import atomic_file
from bertwright.reports.charts import short

_LEFT_OUT = "STS-B"
"""Column without which the mean is given too: with the matching start it measures one head."""
_PERFECT = 100.0


def write_page(plan: ExperimentPlan, *, command: str, failed: Mapping[Path, str]) -> Path:
    """Write results/NAME.md and its pictures into the plan's folder, from the finished parts; return its path."""
    cells = table_cells(plan)
    evidence = gather_evidence(plan, cells, read_spread(plan.out, last_epoch=scores_last_epoch(plan)))
    folder = plan.out / "results"
    folder.mkdir(parents=True, exist_ok=True)
    name = plan.experiment.name
    pictures = []
    if draw_forest(plan, evidence, folder / f"{name}-claims.png"):
        text = "differences with their 95 % intervals over pre-trainings (thick) and over other rows too (thin)"
        pictures.append(f"![{plan.experiment.title}: {text}]({name}-claims.png)")
    if plan.experiment.axis is not None and draw_picture(plan, cells, folder / f"{name}.png"):
        pictures.append(f"![{plan.experiment.title}: means and deviations over the seeds]({name}.png)")
    path = folder / f"{name}.md"
    with atomic_file(path) as stream:
        lines = _page(plan, cells, evidence, command, failed, pictures)
        stream.write("\n".join(lines).encode() + b"\n")
    return path


def _page(
    plan: ExperimentPlan,
    cells: Mapping[tuple[str, str], Cell],
    evidence: Sequence[ClaimEvidence],
    command: str,
    failed: Mapping[Path, str],
    pictures: Sequence[str],
) -> Iterator[str]:
    experiment = plan.experiment
    yield from (f"# {experiment.title}", "")
    yield from start_box(plan)
    yield from ("## Question", "", experiment.question, "")
    yield from (f"Scale: `{plan.scale.name}`, {plan.scale.title}.", "")
    if any(len(cell.values) < cell.wanted for cell in cells.values()):
        yield from ("**Not finished:** what is missing is marked … below.", "")
    yield from ("## Answer", "", *answer_lines(plan, evidence), "")
    for picture in pictures:
        yield from (picture, "")
    yield from ("## Here", "", *_results_table(plan, cells), "", *_legend(plan), "")
    if experiment.note:
        yield from (experiment.note, "")
    yield from ("## How sure", "", *_sureness(plan, cells), "", *evidence_lines(plan, evidence))
    yield from ("## What this does not show", "", *_limits(plan, evidence), "")
    if experiment.published:
        published = experiment.published
        yield from ("## In the paper", "")
        yield from markdown_table(("", *published.head), published.rows)
        yield from ("", f"From {published.source}.", "")
    yield from ("## The data", "", *data_lines(plan), "")
    if failed:
        yield from ("## What failed", "", *(f"- `{folder.name}`: {why}" for folder, why in failed.items()), "")
    yield from ("<details>", "<summary>Cost, settings and the command</summary>", "")
    yield from ("**The cost**", "", *cost_lines(plan), "")
    yield from ("**The settings**", "", *setting_lines(plan), "")
    yield from ("**The command**", "", f"    {command}", "", "</details>")


def _results_table(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    scored = [column for column in plan.columns if column.task is not None]
    means = _mean_columns(plan, cells, scored)
    rows = []
    for arm in plan.arms:
        texts = [_cell(cells[arm.name, column.name], column) for column in plan.columns]
        summaries = [_rescaled_mean(plan, cells, arm, columns) for _, columns in means]
        rows.append((f"{arm.title} (`{arm.name}`)", *texts, *summaries))
    head = ("", *(column.name for column in plan.columns), *(name for name, _ in means))
    yield from markdown_table(head, rows)


def _mean_columns(
    plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell], scored: Sequence[Column]
) -> list[tuple[str, list[Column]]]:
    """Return the names of the summaries, and the columns that each is the mean of; none without a floor of each."""
    if len(scored) < 2 or not all(floor_of(plan, cells, column) for column in scored):
        return []
    without = [column for column in scored if column.name != _LEFT_OUT]
    summaries = [("above the floor, %", list(scored))]
    return [*summaries, (f"without {_LEFT_OUT}", without)] if len(without) < len(scored) else summaries


def _rescaled_mean(
    plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell], arm: Arm, columns: Sequence[Column]
) -> str:
    """Return the mean of (score - floor) / (100 - floor) over the columns, in percent; … where a score is missing."""
    fractions = []
    for column in columns:
        cell, floor = cells[arm.name, column.name], floor_of(plan, cells, column)
        if floor is None or not cell.values or len(cell.values) < cell.wanted:
            return "…"
        score = sum(cell.values.values()) / len(cell.values)
        fractions.append((score - floor.mean) / (_PERFECT - floor.mean))
    return f"{_PERFECT * sum(fractions) / len(fractions) + 0.0:.1f}"


def _cell(cell: Cell, column: Column) -> str:
    values = list(cell.values.values())
    if not values:
        return "…" if cell.wanted else "–"
    mean = sum(values) / len(values)
    text = _number(mean, column)
    if len(values) > 1:
        deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        text += f" ± {_number(deviation, column)}"
    return text if len(values) == cell.wanted else f"{text} … ({len(values)} of {cell.wanted})"


def _number(value: float, column: Column) -> str:
    return f"{value:.1f}" if column.task is not None else short(round(value, 2))


def _legend(plan: ExperimentPlan) -> Iterator[str]:
    scored = [column for column in plan.columns if column.task is not None]
    epoch = "last epoch" if scores_last_epoch(plan) else "best epoch, which was chosen on the same rows"
    yield (
        f"Means ± standard deviations over {plan.pretraining_seeds} pre-training seed(s) x {plan.seeds} fine-tuning "
        f"seed(s), on the dev set, of the {epoch}."
    )
    if len(scored) > 1:
        yield (
            "*Above the floor* is the mean over the tasks of (score - floor) / (100 - floor): the floor is the "
            "commonest answer, or the model without pre-training for SQuAD 1.1. Accuracy, correlations and F1 are "
            "never averaged raw."
        )


def _sureness(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Yield the sentences on the test, the epoch, the rows and the lock."""
    yield (
        "The unit is a pre-training; its score is the mean over its fine-tuning seeds. The variance between "
        "pre-trainings is pooled over all arms of the task, or that of the two arms, if it is larger. p is corrected "
        "by Holm's method over the tasks of a claim, and for nothing else. The rules are in the manual, *The paper as "
        "experiments*, *The verdict*."
    )
    yield ""
    yield from (f"- {line}" for line in lock_lines(plan))
    if any(column.task for column in plan.columns) and not scores_last_epoch(plan):
        yield (
            "- The records do not hold the scores of the last epoch, so the best of the epochs is used. It was chosen "
            "on the rows that are reported, which favours arms with more epochs and noisier scores."
        )
    if without := [each.name for each in plan.columns if each.task and floor_of(plan, cells, each) is None]:
        yield f"- No floor is known for {', '.join(without)}: the page lacks the arm without learning."
    yield (
        "- The records hold no predictions of single rows. *Other rows* is a bound from the scores and the number of "
        "rows, as if two models' answers were independent; the F1 of names has none."
    )


def _limits(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield what the page does not show: limits of the experiment, of its claims, its data and its scale."""
    yield from (f"- {line}" for line in plan.experiment.limits)
    yield from (
        f"- Claim {each.number}: {each.claim.caveat}" for each in evidence if each.claim.caveat and each.comparisons
    )
    wikipedia = [data.task.title for data in plan.data.values() if data.task.is_wikipedia]
    if wikipedia:
        verb = "are" if len(wikipedia) > 1 else "is"
        yield (
            f"- {', '.join(wikipedia)} {verb} text of Wikipedia. Where the corpus is Wikipedia too, a gain may be "
            "memory of it."
        )
    subsets = [data.task.title for data in plan.data.values() if any(a < b for a, b in data.subset.rows.values())]
    if subsets:
        yield f"- Not all rows were used of {', '.join(subsets)}: more rows may change the order of the arms."
    yield (
        f"- Other scales than `{plan.scale.name}`: the paper's models have 5,000 times the tokens."
        if (plan.scale.name == "tiny")
        else f"- Other scales than `{plan.scale.name}`."
    )
