"""plan → the start of attention of its models, under which every verdict of a page stands."""

from collections.abc import Iterator

from bertwright.experiments.jobs import PretrainedModel
from bertwright.experiments.plan import ExperimentPlan

_HEAD_TASKS = ("stsb", "qnli")
"""Tasks whose scores follow the matching head."""
_ALL_MATCHING = """\
> **Read this first.** All Transformers here begin with one hand-made attention head (`--start matching`). It looks for
> the same piece elsewhere in the row. Pre-training keeps this head or loses it. Over 21 pre-trainings with next
> sentences at scale `tiny`, the part that is left explains 87 % of the variance of STS-B
> (docs/results/matching-head.md has the values and the command). So scores on STS-B and QNLI go with this head. Do not
> read them as a test of the paper's claim. docs/results/archive.md has six claims on an earlier ground without this
> start."""
_SOME_MATCHING = """\
> **Read this first.** The arms differ in the start of attention. With `--start matching` a model begins with one
> hand-made head that looks for the same piece elsewhere in the row. Over 21 pre-trainings with next sentences at scale
> `tiny`, the part of it that is left explains 87 % of the variance of STS-B (docs/results/matching-head.md has the
> values and the command). So a verdict on STS-B or QNLI holds for its start alone, which stands beside it."""

_CHANGED_HEADS = """\
> **Read this first.** This page is about the hand-made attention head with which all its models begin (`--start
> matching`). Its claims are not the paper's. Means over pre-trainings hide that single models keep the head or lose it:
> docs/results/matching-head.md has the scores of each pre-training."""


def start_box(plan: ExperimentPlan) -> Iterator[str]:
    """Yield the box at the top of a page of which some or all models begin with the matching head."""
    starts = {start_of(model) for model in plan.all_models} - {"none"}
    if any(arm.head for arm in plan.arms):
        yield from (_CHANGED_HEADS, "")
    elif "matching" in starts:
        yield from (_ALL_MATCHING if starts == {"matching"} else _SOME_MATCHING, "")


def start_of(model: PretrainedModel) -> str:
    """Return the start of attention of a model; a system without attention has none."""
    return "none" if model.settings.system.startswith("lstm") else model.settings.start


def condition(plan: ExperimentPlan, *arms: str) -> str:
    """Return the condition of a verdict: the start of the models of its arms, or the used model.

    Arms without a model are left out.
    """
    if plan.used_model:
        return f"model `{plan.used_model.title}`"
    by_arm = {name: " and ".join(sorted(_starts(plan, name))) for name in arms}
    starts = {name: start for name, start in by_arm.items() if start}
    if not starts:
        return "no start"
    if len(set(starts.values())) == 1:
        return f"start `{next(iter(starts.values()))}`"
    return "starts " + ", ".join(f"`{start}` (`{name}`)" for name, start in starts.items())


def rests_on_head(plan: ExperimentPlan, column: str, *arms: str) -> bool:
    """Return whether a column's scores follow the matching head, with which the models of all these arms begin."""
    tasks = {each.name: each.task for each in plan.columns}
    return tasks.get(column) in _HEAD_TASKS and all("matching" in _starts(plan, arm) for arm in arms)


def _starts(plan: ExperimentPlan, arm: str) -> set[str]:
    return {start_of(model) for models in plan.models.get(arm, ()) for model in models}
