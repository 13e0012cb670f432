"""metrics of an experiment → its page: question, answer, forest plot, table, how sure, and what it does not show.

The pages in docs/results were written with the sentences of this file. After a change to one, docs/pages.py writes all
of them anew.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from bertwright.experiments.answers import answer_lines, evidence_lines, reading_lines
from bertwright.experiments.attention_start import start_box
from bertwright.experiments.details import command_lines, cost_lines, data_lines, markdown_table, setting_lines
from bertwright.experiments.evidence import ClaimEvidence, floor_of, gather_evidence, validation_rows
from bertwright.experiments.forest import draw_forest
from bertwright.experiments.lock import lock_lines
from bertwright.experiments.pictures import draw_picture
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.rate_search import rate_lines
from bertwright.experiments.records import read_spread
from bertwright.experiments.row_scores import paired_row_error
from bertwright.experiments.sampling import item_variance
from bertwright.experiments.scores import Cell, scores_last_epoch, table_cells
from bertwright.experiments.spec import Arm, Column, Experiment
from bertwright.files import atomic_file
from bertwright.version import __version__

_LEFT_OUT = "STS-B"
"""Column without which the mean is given too: with the matching start it measures one head."""
_PERFECT = 100.0


def page_path(experiment: Experiment, out: Path) -> Path:
    """Return the path of an experiment's page in the folder `out` of its parts."""
    return out / "results" / f"{experiment.name}.md"


def title_line(experiment: Experiment) -> str:
    """Return the first line of an experiment's page."""
    return f"# {experiment.title}"


def write_page(plan: ExperimentPlan, *, command: str, failed: Mapping[Path, str]) -> Path:
    """Write results/NAME.md and its pictures into the plan's folder, from the finished parts; return its path."""
    cells = table_cells(plan)
    spread = read_spread(plan.out, last_epoch=scores_last_epoch(plan))
    evidence = gather_evidence(plan, cells, spread)
    path = page_path(plan.experiment, plan.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    forest, means = path.with_name(f"{plan.experiment.name}-claims.png"), path.with_suffix(".png")
    pictures = []
    if draw_forest(plan, evidence, forest):
        text = "the difference of each claim and task, with its intervals"
        pictures.append(f"![{plan.experiment.title}: {text}]({forest.name})")
    if plan.experiment.axis is not None and draw_picture(plan, cells, means):
        pictures.append(f"![{plan.experiment.title}: means and standard deviations over the seeds]({means.name})")
    with atomic_file(path) as stream:
        lines = _page(plan, cells, evidence, spread.versions, command, failed, pictures)
        stream.write("\n".join(lines).encode() + b"\n")
    return path


def _page(
    plan: ExperimentPlan,
    cells: Mapping[tuple[str, str], Cell],
    evidence: Sequence[ClaimEvidence],
    versions: Set[str],
    command: str,
    failed: Mapping[Path, str],
    pictures: Sequence[str],
) -> Iterator[str]:
    experiment = plan.experiment
    yield from (title_line(experiment), "")
    yield from start_box(plan)
    yield from ("## Question", "", experiment.question, "")
    if plan.used_model:
        yield from (
            f"Model: `{plan.used_model.title}`, {plan.used_model.shape}. Rows as at scale `{plan.scale.name}`.",
            "",
        )
    else:
        is_timed = plan.rates is not None and plan.rates.search.minutes is not None
        minutes = " Minutes take the place of its number of tokens." if is_timed else ""
        yield from (f"Scale: `{plan.scale.name}`, {plan.scale.title}.{minutes}", "")
    others = [
        f"{data.task.title} ({data.source.note})"
        for data in plan.data.values()
        if data.source.note and data.source != data.task.sources[0]
    ]
    if others:
        yield from (f"**Other data than the paper's:** {', '.join(others)}.", "")
    if any(len(cell.values) < cell.wanted for cell in cells.values()):
        yield from ("**Not finished:** … marks what has not been computed.", "")
    answers = list(answer_lines(plan, evidence))
    yield from ("## Answer", "", *answers, "", *reading_lines(plan, answers), "")
    for picture in pictures:
        yield from (picture, "")
    yield from ("## Here", "", *_results_table(plan, cells), "", *_legend(plan, cells), "")
    yield from _notes(plan)
    if plan.rates:
        yield from (*rate_lines(plan), "")
    yield from ("## How sure", "", *_sureness(plan, cells, versions), "", *evidence_lines(plan, evidence))
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
    yield from ("**The command**", "", f"    {command}", "", *command_lines(plan), "", "</details>")


def _notes(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the note of the experiment, and the columns that are here or in the paper alone."""
    experiment = plan.experiment
    notes = [experiment.note] if experiment.note else []
    head = experiment.published.head if experiment.published else ()
    if any(column.name in head for column in experiment.columns):
        here = [column.name for column in plan.columns if column.name not in head]
        missing = [name for name in head if name not in {column.name for column in plan.columns}]
        known = [name for name in missing if name in {column.name for column in experiment.columns}]
        notes += [f"Not in the paper's table: {', '.join(here)}."] if here else []
        notes += [f"In the paper's table and not measured here: {', '.join(known)}."] if known else []
    if notes:
        yield from (" ".join(notes), "")


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
    if not cell.applies:
        return "does not apply"
    if not values:
        return "…" if cell.wanted else "–"
    mean = sum(values) / len(values)
    decimals = _decimals(mean, column)
    text = f"{mean:,.{decimals}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):,.{decimals}f}"
    return text if len(values) == cell.wanted else f"{text} … ({len(values)} of {cell.wanted})"


def _decimals(mean: float, column: Column) -> int:
    """Return the number of decimals of a mean and its deviation: one for points, else those of four digits."""
    if not column.has_own_unit:
        return 1
    return max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else 0


def _legend(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Yield what the numbers of the table are, and what the summaries are where the table has them."""
    scored = [column for column in plan.columns if column.task is not None]
    epoch = "last epoch" if scores_last_epoch(plan) else "best epoch, which was chosen on the same rows"
    is_whole = all(len(cell.values) == cell.wanted for cell in cells.values() if cell.values)
    seeds = f"{'' if is_whole else 'up to '}{_count(plan.pretraining_seeds, f'{plan.unit} seed')}"
    if not plan.used_model:
        seeds += f" x {_count(plan.seeds, 'fine-tuning seed')}"
    yield f"Means ± standard deviations over {seeds}, on the dev set, of the {epoch}."
    if _mean_columns(plan, cells, scored):
        untrained = [column.name for column in scored if column.floor == "untrained"]
        floor = f" (for {', '.join(untrained)}: the model without pre-training)" if untrained else ""
        yield (
            "*Above the floor* is the mean over the tasks of (score - floor) / (100 - floor). The floor is the "
            f"commonest answer{floor}. Accuracy, correlations and F1 are never averaged without this change of scale."
        )


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _sureness(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell], versions: Set[str]) -> Iterator[str]:
    """Yield the sentences on the test, the lock, the epoch and the rows; versions: of the program in the folder."""
    counted = "its score is the mean over its fine-tuning seeds"
    if plan.used_model:
        counted = "all of them begin with the same model, so a verdict holds for this model alone"
    yield (
        f"Each {plan.unit} counts once: {counted}. Few {plan.unit}s say little "
        f"about the variance between {plan.unit}s. So the test uses the variance over all arms of the task, or that of "
        "the two arms if it is larger. p is corrected by Holm's method for the number of tasks of a claim, and for "
        "nothing else. The manual has the rules: *The paper as experiments*, *The verdict*."
    )
    yield ""
    yield from (f"- {line}" for line in lock_lines(plan))
    if len(versions) > 1 and (others := sorted(versions - {__version__})):
        yield (
            f"- The folder has fine-tunings by other versions of the program: {', '.join(others)}. Those on the tasks "
            "of this page enter the variance over all arms."
        )
    if any(column.task for column in plan.columns) and not scores_last_epoch(plan):
        yield (
            "- The records do not hold the scores of the last epoch. So the score is that of the best epoch, chosen on "
            "the rows that are reported. This favours arms with more epochs and with scores that vary more."
        )
    if without := [each.name for each in plan.columns if each.task and floor_of(plan, cells, each) is None]:
        yield f"- The floor of {', '.join(without)} is unknown: the model without pre-training is not on this page."
    have = [each.name for each in plan.columns if each.task and _has_row_scores(plan, each)]
    bound = (
        "- The records have no predictions of single rows. So the interval for *other rows* is an upper bound: it is "
        "computed from the scores and the number of rows, as if the errors of two models had nothing in common."
    )
    if have:
        bound = (
            f"- The interval for *other rows* is computed row by row, from the predictions, for {', '.join(have)}. "
            "For the other tasks it is an upper bound from the scores and the number of rows."
        )
    unknown = [each.name for each in plan.columns if each.task and not _has_row_variance(plan, each)]
    yield f"{bound} There is none for {', '.join(unknown)}." if unknown else bound


def _has_row_scores(plan: ExperimentPlan, column: Column) -> bool:
    """Return whether the arms of any claim have predictions, from which the difference over other rows is computed."""
    claims = [claim for claim in plan.experiment.claims if column.name in plan.experiment.columns_of(claim)]
    return any(paired_row_error(plan, column, claim.arms) is not None for claim in claims)


def _has_row_variance(plan: ExperimentPlan, column: Column) -> bool:
    """Return whether the variance of a score over other dev rows can be estimated."""
    rows = validation_rows(plan, column)
    return item_variance(column.metric, _PERFECT / 2, rows, factor=column.factor) is not None


def _limits(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield what the page does not show: limits of the experiment, of its claims, its data and its scale."""
    yield from (f"- {line}" for line in plan.experiment.limits)
    caveats: dict[str, list[str]] = {}
    for each in evidence:
        if each.claim.caveat and each.comparisons:
            caveats.setdefault(each.claim.caveat, []).append(str(each.number))
    for caveat, numbers in caveats.items():
        yield f"- Claim{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {caveat}"
    wikipedia = [data.task.title for data in plan.data.values() if data.task.is_wikipedia]
    if wikipedia:
        yield (
            f"- The text of {' and '.join(wikipedia)} is from Wikipedia. If the models were pre-trained on Wikipedia, "
            "they may have read it before."
        )
    subsets = [data.task.title for data in plan.data.values() if any(a < b for a, b in data.subset.rows.values())]
    if subsets:
        yield f"- Only a part of the rows of {', '.join(subsets)} was used. More rows may change the order of the arms."
    if plan.used_model:
        yield "- The results of other models."
        return
    yield (
        "- The results of large models. The paper's models read 5,000 times the tokens of scale `tiny`."
        if plan.scale.name == "tiny"
        else f"- The results at other scales than `{plan.scale.name}`."
    )
