"""metrics of an experiment → its page: our table beside the paper's, verdicts, cost, settings, the command.

The pages in docs/results were written with the sentences of this file. A change to one means to write all of them anew.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.corpus.manifest import read_manifest
from bertwright.experiments.data import SEED
from bertwright.experiments.jobs import Finetuning, PretrainedModel, unique, unsupported_settings
from bertwright.experiments.pictures import draw_picture
from bertwright.experiments.plan import ExperimentPlan, Job
from bertwright.experiments.scores import Cell, arm_scores, numerics_of, seconds_spent, table_cells
from bertwright.experiments.spec import MARGIN, Arm, Changes, Claim, Column, Scale
from bertwright.experiments.statistics import SIGNIFICANT, Verdict, judge_claim, p_text
from bertwright.files import atomic_file
from bertwright.reports.charts import short
from bertwright.reports.runs import duration

_TEST = f"""\
The test: a pair is one pre-training seed and one fine-tuning seed, with which both arms had the same rows in the same
order; its difference is the mean over the claim's columns. Student's t over the pairs asks whether the mean
difference is zero. *Supported*: it lies in the claimed direction with p < {SIGNIFICANT}, and the mean of every single
pre-training lies there too. *Not supported*: it lies the other way just so; or else its 95 % interval lies within the
margin around zero. Else *not decided at this scale*. A claim of being as good is supported where the 95 % interval lies
within what it names, and not supported where it lies outside. Where all pairs differ by the same, p is that of so many
tosses of a coin that fell alike, and fewer than six decide nothing. Pairs of one pre-training are not independent; the
test takes them as if they were, so that p speaks of these pre-trainings. Nothing is corrected for the number of claims.
Where two arms have two vocabularies, as GPT-1 has its own, rows are put into batches by other lengths: the order is
then alike only in its seed.
"""


def write_page(plan: ExperimentPlan, *, command: str, failed: Mapping[Path, str]) -> Path:
    """Write results/NAME.md and its picture into the plan's folder, from the finished parts; return the page's path."""
    cells = table_cells(plan)
    folder = plan.out / "results"
    folder.mkdir(parents=True, exist_ok=True)
    name = plan.experiment.name
    has_picture = draw_picture(plan, cells, folder / f"{name}.png")
    path = folder / f"{name}.md"
    with atomic_file(path) as stream:
        stream.write("\n".join(_page(plan, cells, command, failed, has_picture=has_picture)).encode() + b"\n")
    return path


def _page(
    plan: ExperimentPlan,
    cells: Mapping[tuple[str, str], Cell],
    command: str,
    failed: Mapping[Path, str],
    *,
    has_picture: bool,
) -> Iterator[str]:
    experiment = plan.experiment
    yield from (f"# {experiment.title}", "", experiment.question, "")
    yield from (f"Scale: `{plan.scale.name}`, {plan.scale.title}.", "")
    if any(len(cell.values) < cell.wanted for cell in cells.values()):
        yield from ("**Not finished:** what is missing is marked … below.", "")
    if has_picture:
        yield from (f"![{experiment.title}: means and deviations over the seeds]({experiment.name}.png)", "")
    yield from ("## Here", "", *_results_table(plan, cells), "", _legend(plan), "")
    if experiment.note:
        yield from (experiment.note, "")
    if experiment.published:
        published = experiment.published
        yield from ("## In the paper", "")
        yield from _table(("", *published.head), published.rows)
        yield from ("", f"From {published.source}.", "")
    yield from ("## What the paper says, and what is seen here", "", *_claims(plan, cells), _TEST)
    yield from ("## The data", "", *_data(plan), "")
    yield from ("## The cost", "", *_costs(plan), "")
    yield from ("## The settings", "", *_settings(plan), "")
    if failed:
        yield from ("## What failed", "", *(f"- `{folder.name}`: {why}" for folder, why in failed.items()), "")
    yield from ("## The command", "", f"    {command}")


def _results_table(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    scored = [column for column in plan.columns if column.task is not None]
    with_mean = len(scored) > 1
    head = ("", *(column.name for column in plan.columns), *(("mean",) if with_mean else ()))
    rows = []
    for arm in plan.arms:
        texts = [_cell(cells[arm.name, column.name], column) for column in plan.columns]
        parts = [cells[arm.name, column.name].values.values() for column in scored]
        is_complete = all(
            len(cells[arm.name, column.name].values) == cells[arm.name, column.name].wanted for column in scored
        )
        means = [sum(part) / len(part) for part in parts] if is_complete else []
        mean = f"{sum(means) / len(means):.1f}" if means else "…"
        rows.append((f"{arm.title} (`{arm.name}`)", *texts, *((mean,) if with_mean else ())))
    yield from _table(head, rows)


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


def _legend(plan: ExperimentPlan) -> str:
    return (
        f"Means ± standard deviations over {plan.pretraining_seeds} pre-training seed(s) x {plan.seeds} fine-tuning "
        "seed(s), on the dev set, on which the best epoch was chosen as well."
    )


def _claims(plan: ExperimentPlan, cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    known = {arm.name for arm in plan.arms}
    for number, claim in enumerate(plan.experiment.claims, start=1):
        verdict = None
        if {claim.arm, claim.against} <= known:
            scores = [arm_scores(plan, cells, name) for name in (claim.arm, claim.against)]
            verdict = judge_claim(claim, *scores, columns=plan.experiment.columns_of(claim))
        yield f"{number}. {claim.statement} In the paper: {claim.paper}."
        yield f"   **{_verdict_word(verdict)}** {_verdict_numbers(claim, verdict)}{_sign_note(plan, verdict)}".rstrip()
    yield ""


def _verdict_word(verdict: Verdict | None) -> str:
    if verdict is None:
        return "No verdict: an arm of it is not among those of this page."
    if not verdict.columns:
        return "No verdict: none of its columns has figures of both arms on this page."
    if verdict.word is None:
        return "No verdict: it needs two pairs of seeds at least."
    return f"{verdict.word.capitalize()}."


def _verdict_numbers(claim: Claim, verdict: Verdict | None) -> str:
    """Return the difference of two arms, with interval and p, in all and by column."""
    if verdict is None or not verdict.differences:
        return ""
    on = ", ".join(f"{name} {value:+.1f}" for name, value in verdict.by_column.items())
    arms = f"`{claim.arm}` against `{claim.against}`"
    if verdict.mean is None or verdict.p is None:
        return f"{arms}, one pair: {on}."
    limit = f"within {claim.within:g}" if claim.within is not None else f"margin {MARGIN:g}"
    return (
        f"{arms}: {verdict.mean:+.2f} (95 %: {verdict.low:+.2f} to {verdict.high:+.2f}; {p_text(verdict.p)}; "
        f"{len(verdict.differences)} pairs; {limit}). By column: {on}."
    )


def _sign_note(plan: ExperimentPlan, verdict: Verdict | None) -> str:
    """Return a remark on columns where lower is better: the sign of their difference is reversed."""
    names = [column.name for column in plan.columns if column.is_lower_better]
    names = [name for name in names if verdict and name in verdict.by_column]
    return f" Of {' and '.join(names)}, + is lower." if names else ""


def _data(plan: ExperimentPlan) -> Iterator[str]:
    """Yield lines about corpora, files, substitutes, rows, and parts that were left out."""
    for folder in sorted({model.corpus for model in plan.all_models if model.is_trained}):
        manifest = read_manifest(folder)
        size = (
            f"{manifest.tokens:,} tokens in {manifest.documents:,} documents, a vocabulary of {manifest.vocab_size:,}"
        )
        yield f"- Corpus `{folder.name}`: {size}; its fingerprint begins with {manifest.fingerprint[:12]}."
    for data in plan.data.values():
        rows = ", ".join(f"{name} {taken:,} of {total:,}" for name, (taken, total) in data.subset.rows.items())
        note = f"; {data.source.note}" if data.source.note else ""
        yield f"- {data.task.title}: rows of {rows}{note}."
    if any(taken < total for data in plan.data.values() for taken, total in data.subset.rows.values()):
        yield f"- Where fewer rows are taken than there are, it is a fixed choice at random (seed {SEED})."
    yield from (f"- Left out: {line}." for line in plan.left_out)


def _costs(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the table of tokens and hours by arm; a part that arms share counts in each, and once in the sum."""
    rows = []
    for arm in plan.arms:
        models = unique([model for seeds in plan.models.get(arm.name, ()) for model in seeds])
        jobs = unique([job for (name, _), by_seed in plan.jobs.items() if name == arm.name for job in by_seed.values()])
        rows.append((arm.title, *_cost(models, jobs)))
    rows.append(("all, each once", *_cost(plan.all_models, plan.all_jobs)))
    yield from _table(("", "models", "tokens", "pre-training", "fine-tuning"), rows)
    yield from ("", "Times are of the clock, whatever else the machine did meanwhile.")
    if any(arm.fraction < 1 for arm in plan.arms):
        yield "A model that is looked at before its end is counted with its whole pre-training."
    numerics = [each for job in (*plan.all_models, *plan.all_jobs) if (each := numerics_of(job.folder))]
    precisions = " and ".join(sorted({each.precision for each in numerics}))
    devices = " and ".join(sorted({"processors" if each.device == "cpu" else "GPUs" for each in numerics}))
    if numerics:
        yield from ("", f"Computed on {devices}, in {precisions}.")
    if " and " in devices:
        yield "Each run's `run.json` says which; times and memory of the arms do not compare."


def _cost(models: Sequence[PretrainedModel], jobs: Sequence[Job]) -> tuple[str, str, str, str]:
    trained = [model for model in models if model.is_trained and model.is_finished]
    tokens = sum(model.tokens for model in trained)
    spent = [sum(seconds_spent(job.folder) for job in part) for part in (models, jobs)]
    return str(len(trained)), f"{tokens / 1e6:,.1f} M", duration(spent[0]), duration(spent[1])


def _settings(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the scale's settings, the changes of each arm, and the settings of each task."""
    scale = plan.scale
    tuned = f"fine-tuning {_json(scale.finetuning)}; with features also {_json(scale.features)}"
    yield f"All arms: pre-training `{_json(scale.pretraining)}`; {tuned}. Everything else has the default."
    yield ""
    for arm in plan.arms:
        yield f"- `{arm.name}`: {_changes(arm, scale)}"
    kinds = sorted(
        {
            (job.folder.parent.name, _json(_task_settings(job, scale)))
            for job in plan.all_jobs
            if isinstance(job, Finetuning)
        }
    )
    yield ""
    yield from (f"- {name}: `{text}`" for name, text in kinds)


def _task_settings(job: Finetuning, scale: Scale) -> Mapping[str, Any]:
    settings = job.settings.model_dump(mode="json", include={"epochs", "batch_size", "learning_rate", "max_length"})
    return {
        **settings,
        "learning_rate": job.settings.learning_rate or "by width",
        **scale.tasks.get(job.folder.parent.name, {}),
    }


def _changes(arm: Arm, scale: Scale) -> str:
    if arm.baseline:
        return f"no network: {arm.baseline}"
    parts = [f"pre-training `{_json(arm.pretraining)}`"] if arm.pretraining else []
    left_out = ", ".join(f"`{'.'.join(path)}`" for path in unsupported_settings(scale, arm.pretraining))
    parts += [f"without {left_out}, which its system cannot have"] if left_out else []
    parts += [f"joined with `{_json(arm.joined_with)}`"] if arm.joined_with is not None else []
    parts += ["not trained"] if not arm.is_trained else []
    parts += [f"after {arm.fraction:.0%} of the steps"] if arm.fraction < 1 else []
    parts += ["sentences shuffled"] if arm.text == "sentences" else []
    parts += [f"fine-tuning `{_json(arm.finetuning)}`"] if arm.finetuning else []
    return ", ".join(parts) or "as all"


def _json(changes: Changes) -> str:
    return json.dumps(changes, ensure_ascii=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
