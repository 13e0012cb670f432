"""plan → the parts of a page that describe the runs: data, cost, settings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertwright.experiments.data import SEED
from bertwright.experiments.jobs import (
    BLIMP,
    Finetuning,
    PretrainedModel,
    pretraining_settings,
    unique,
    unsupported_settings,
)
from bertwright.experiments.plan import ExperimentPlan, Job
from bertwright.experiments.scores import numerics_of, seconds_spent
from bertwright.experiments.spec import Arm, Changes, Scale
from bertwright.pretraining.settings import PLAIN
from bertwright.reports.runs import duration


def data_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield lines about corpora, files, substitutes, rows, and parts that were left out."""
    if plan.used_model:
        yield (
            f"- Model `{plan.used_model.title}`: {plan.used_model.shape}; the sha256 of its weights begins with "
            f"{plan.used_model.digest[:12]}."
        )
    corpora = {plan.corpora.facts[model.corpus] for model in plan.all_models if model.is_trained}
    for facts in sorted(corpora, key=lambda each: (each.name, each.fingerprint)):
        size = f"{facts.tokens:,} tokens in {facts.documents:,} documents, a vocabulary of {facts.vocab_size:,}"
        yield f"- Corpus `{facts.name}`: {size}; its fingerprint begins with {facts.fingerprint[:12]}."
    for data in plan.data.values():
        rows = ", ".join(f"{name} {taken:,} of {total:,}" for name, (taken, total) in data.subset.rows.items())
        note = f"; {data.source.note}" if data.source.note else ""
        yield f"- {data.task.title}: rows of {rows}{note}."
    if any(taken < total for data in plan.data.values() for taken, total in data.subset.rows.values()):
        yield f"- If fewer rows are used than there are, they are a fixed random choice (seed {SEED})."
    yield from (f"- Left out: {line}." for line in plan.left_out)


def cost_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the table of tokens and hours by arm; a part that arms share counts in each, and once in the sum."""
    rows = []
    for arm in plan.arms:
        models = unique([model for seeds in plan.models.get(arm.name, ()) for model in seeds])
        jobs = unique([job for (name, _), by_seed in plan.jobs.items() if name == arm.name for job in by_seed.values()])
        rows.append((arm.title, *_cost(models, jobs)))
    if plan.rates:
        trials = [trial.model for trial in plan.rates.trials]
        rows.append(("trials of learning rates", *_cost(trials, [])))
    rows.append(("all, each once", *_cost(plan.all_models, plan.all_jobs)))
    yield from markdown_table(("", "models", "tokens", "pre-training", "fine-tuning"), rows)
    yield from ("", "Times are clock times. Other programs may have run on the machine too.")
    if any(arm.fraction < 1 for arm in plan.arms):
        yield "An arm that is taken before the end of a pre-training counts with the whole of it."
    if any(len(arm.lengths) > 1 for arm in plan.arms):
        yield "The tokens of a pre-training that extends a shorter one are those of both, and the time is its own."
    numerics = [each for job in (*plan.all_models, *plan.all_jobs) if (each := numerics_of(job.folder))]
    precisions = " and ".join(sorted({precision for _, precision in numerics}))
    devices = " and ".join(sorted({"processors" if device == "cpu" else "GPUs" for device, _ in numerics}))
    if numerics:
        yield from ("", f"Computed on {devices}, in {precisions}.")
    if " and " in devices:
        yield "`run.json` of each run has its device. Times and memory on different devices cannot be compared."


def _cost(models: Sequence[PretrainedModel], jobs: Sequence[Job]) -> tuple[str, str, str, str]:
    trained = [model for model in models if model.is_trained and model.is_finished]
    tokens = sum(model.tokens for model in trained)
    spent = [sum(seconds_spent(job.folder) for job in part) for part in (models, jobs)]
    return str(len(trained)), f"{tokens / 1e6:,.1f} M", duration(spent[0]), duration(spent[1])


def setting_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the scale's settings, the changes of each arm, and the settings of each task."""
    scale = plan.scale
    tuned = f"fine-tuning {_json(scale.finetuning)}; with features also {_json(scale.features)}"
    if plan.used_model:
        yield f"All arms: {tuned}. Everything else, and a value `null`, is what `finetune` chooses for the task."
    else:
        yield f"All arms: pre-training `{_json(scale.pretraining)}`; {tuned}."
        share, other = (each.examples.masking.share for each in (pretraining_settings(scale, {}, seed=0), PLAIN))
        yield (
            f"Masked LM predicts {100 * share:g} % of the tokens, where an arm names no other share. Everything else "
            "has the default of `PretrainSettings`, which is the paper's, or of `FinetuneSettings`. The command "
            f"`pretrain` has others: `--mask-share` is {other:g} there."
        )
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


def command_lines(plan: ExperimentPlan) -> Iterator[str]:
    """Yield what the placeholders of the command stand for."""
    if plan.used_model:
        yield (
            "`DATA` is the folder with the files of the tasks, and `MODEL` a model folder (here: "
            f"`{plan.used_model.title}`). With `--page` the command writes this page from the records alone; "
            "leave `--data` and `--model` out."
        )
        return
    corpora = sorted({plan.corpora.facts[model.corpus].name for model in plan.all_models})
    names = " and ".join(f"`{name}`" for name in corpora if not name.startswith("shuffled-"))
    yield (
        "`DATA` is the folder with the files of the tasks. `TEXT` is the text of a corpus, or a corpus folder (here: "
        f"{names}). Each corpus has a `--corpus` of its own. With `--page` the command writes this page from the "
        "records alone; leave `--data` and `--corpus` out."
    )
    if any(column.metric == BLIMP for column in plan.experiment.columns):
        yield "`BLIMP` is the folder of BLiMP's paradigms; leave `--blimp` out too with `--page`."


def _task_settings(job: Finetuning, scale: Scale) -> Mapping[str, Any]:
    settings = job.settings.model_dump(mode="json", include={"epochs", "batch_size", "learning_rate", "max_length"})
    return {
        **settings,
        "learning_rate": job.settings.learning_rate or ("by width" if job.learning_rate else None),
        **scale.tasks.get(job.folder.parent.name, {}),
    }


def _changes(arm: Arm, scale: Scale) -> str:
    if arm.baseline:
        return f"no network: {arm.baseline}"
    parts = [f"pre-training `{_json(arm.pretraining)}`"] if arm.pretraining else []
    left_out = ", ".join(f"`{'.'.join(path)}`" for path in unsupported_settings(scale, arm.pretraining))
    parts += [f"without {left_out}, which its system cannot have"] if left_out else []
    second = "joined with" if arm.head is None else "a second model"
    parts += [f"{second} `{_json(arm.joined_with)}`"] if arm.joined_with is not None else []
    parts += [f"head {arm.head}"] if arm.head else []
    parts += ["not trained"] if not arm.is_trained else []
    parts += [f"after {arm.fraction:.0%} of the steps"] if arm.fraction < 1 else []
    before = f", from the run of {arm.lengths[-2]:g} x on" if len(arm.lengths) > 1 else ""
    parts += [f"{arm.lengths[-1]:g} x the scale's steps{before}"] if arm.lengths else []
    parts += ["sentences shuffled"] if arm.text == "sentences" else []
    parts += [f"fine-tuning `{_json(arm.finetuning)}`"] if arm.finetuning else []
    return ", ".join(parts) or "as all"


def _json(changes: Changes) -> str:
    return json.dumps(changes, ensure_ascii=False)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
