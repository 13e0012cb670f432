"""plan → the start of attention of its models, under which every verdict of a page stands."""

from collections.abc import Iterator

from bertwright.experiments.jobs import PretrainedModel
from bertwright.experiments.plan import ExperimentPlan

_HEAD_TASKS = ("stsb", "qnli")
"""Tasks whose scores follow the matching head."""
_BOX = """\
> **Read this first.** All Transformers here begin with one hand-made head that looks for the same piece elsewhere in
> the row (`--start matching`). Over 21 pre-trainings at scale `tiny`, how much of that head is left explains 87 % of
> the variance of STS-B (docs/log.md has the values). Where a verdict rests on STS-B or QNLI, read it as “… keeps or
> loses that head”, not as the paper's claim. docs/results/archive.md has the same claims without that start."""


def start_box(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the box at the top of a page whose models begin with the matching head."""
    starts = {start_of(model) for model in plan.all_models}
    if "matching" in starts:
        yield from (_BOX, "")


def start_of(model: PretrainedModel) -> str:
    """Return the start of attention of a model; a system without attention has none."""
    return "none" if model.settings.system.startswith("lstm") else model.settings.start


def condition(plan: ExperimentPlan, *arms: str) -> str:
    """Return the start of the models of some arms, as the condition of a verdict; arms without a model are left out."""
    by_arm = {
        name: " and ".join(sorted({start_of(model) for models in plan.models.get(name, ()) for model in models}))
        for name in arms
    }
    starts = {name: start for name, start in by_arm.items() if start}
    if not starts:
        return "no start"
    if len(set(starts.values())) == 1:
        return f"start `{next(iter(starts.values()))}`"
    return "starts " + ", ".join(f"`{start}` (`{name}`)" for name, start in starts.items())


def rests_on_head(plan: ExperimentPlan, column: str) -> bool:
    """Return whether a column's scores follow the matching head, with which the models of the page begin."""
    tasks = {each.name: each.task for each in plan.columns}
    return tasks.get(column) in _HEAD_TASKS and any(start_of(model) == "matching" for model in plan.all_models)
