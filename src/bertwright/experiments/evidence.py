"""metrics of an experiment → evidence on each claim: the comparison of its arms in each column, and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.records import Spread
from bertwright.experiments.row_scores import paired_row_error
from bertwright.experiments.scores import Cell, arm_scores
from bertwright.experiments.spec import Claim, Column
from bertwright.experiments.spread import pool, sample_variance
from bertwright.experiments.statistics import (
    LEAST_PRETRAININGS,
    ArmScores,
    ClaimOutcome,
    ColumnFacts,
    Comparison,
    claim_outcome,
    compare_column,
    judge_claim,
    with_common_units,
)
from bertwright.experiments.tables.arms import MAJORITY

Cells = Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class ClaimEvidence:
    """Evidence on a claim.

    number        number of the claim on its page, from 1
    comparisons   comparison of the arms in each column that both have
    outcome       None where an arm of the claim is missing
    reason        the reason for no outcome, or for *undecided* with too few pre-trainings; else empty
    """

    number: int
    claim: Claim
    comparisons: tuple[Comparison, ...]
    outcome: ClaimOutcome | None
    reason: str = ""


def gather_evidence(plan: ExperimentPlan, cells: Cells, spread: Spread) -> list[ClaimEvidence]:
    """Return the evidence on each claim of an experiment, in their order."""
    return [
        _evidence(plan, cells, spread, number, claim) for number, claim in enumerate(plan.experiment.claims, start=1)
    ]


def _evidence(plan: ExperimentPlan, cells: Cells, spread: Spread, number: int, claim: Claim) -> ClaimEvidence:
    absent = {*claim.arms} - {arm.name for arm in plan.arms}
    if absent:
        return _no_outcome(number, claim, f"{_names(sorted(absent))} not on this page")
    columns = plan.experiment.columns_of(claim)
    comparisons: list[Comparison] = []
    few: dict[str, int] = {}
    for column in plan.columns:
        if column.name not in columns:
            continue
        arms = [arm_scores(plan, cells[name, column.name], column) for name in claim.arms]
        facts = column_facts(plan, cells, spread, column, claim)
        if facts.share_pretrainings:
            arms = with_common_units(arms)
        if not all(arm.units for arm in arms):
            continue
        comparisons.append(compare_column(column.name, arms, facts))
        few.update({name: len(arm.units) for name, arm in zip(claim.arms, arms, strict=True) if not arm.enough})
    if not comparisons:
        return _no_outcome(number, claim, _missing_scores(plan, cells, claim))
    judged = judge_claim(claim, comparisons, enough=not few)
    outcome = claim_outcome(judged)
    fewer = ", ".join(f"`{name}` has {count}" for name, count in few.items())
    models = "all models" if claim.beyond else "both models"
    needed = f"a verdict needs {LEAST_PRETRAININGS} {plan.unit}s of {models}; {fewer}"
    return ClaimEvidence(number, claim, judged, outcome, needed if few and outcome == "undecided" else "")


def _missing_scores(plan: ExperimentPlan, cells: Cells, claim: Claim) -> str:
    """Return the reason why a claim has no comparison, although its arms are on the page."""
    columns = [column.name for column in plan.columns if column.name in plan.experiment.columns_of(claim)]
    if not columns:
        return "none of its tasks is on this page"
    scored = {name for (name, column), cell in cells.items() if cell.values and column in columns}
    absent = {*claim.arms} - scored
    return f"{_names(sorted(absent))} not computed yet" if absent else "no task has all scores of both"


def _no_outcome(number: int, claim: Claim, missing: str) -> ClaimEvidence:
    """Return a claim without an outcome. Its reason includes `withdrawn`."""
    reason = f"{missing}, so the claim has no verdict. {claim.withdrawn}" if claim.withdrawn else missing
    return ClaimEvidence(number, claim, (), None, reason)


def _names(arms: Sequence[str]) -> str:
    """Return "`a` and `b` are", or "`a` is"."""
    return f"{' and '.join(f'`{name}`' for name in arms)} {'is' if len(arms) == 1 else 'are'}"


def column_facts(plan: ExperimentPlan, cells: Cells, spread: Spread, column: Column, claim: Claim) -> ColumnFacts:
    """Return what is known of a column for the comparison of a claim's arms."""
    share_pretrainings = _share_pretrainings(plan, claim)
    if column.task is None:
        arms = [arm_scores(plan, cells[arm.name, column.name], column) for arm in plan.arms]
        samples = [list(arm.units.values()) for arm in arms if len(arm.units) > 1]
        pooled = pool([sample_variance([values]) for values in samples])
        return ColumnFacts(pooled=None if share_pretrainings else pooled, share_pretrainings=share_pretrainings)
    metric = column.metric
    return ColumnFacts(
        metric=metric,
        factor=column.factor,
        rows=validation_rows(plan, column),
        row_error=paired_row_error(plan, column, claim.arms),
        floor=floor_of(plan, cells, column),
        pooled=spread.pooled(column.task, metric, share_pretrainings=share_pretrainings, factor=column.factor),
        share_pretrainings=share_pretrainings,
    )


def floor_of(plan: ExperimentPlan, cells: Cells, column: Column) -> ArmScores | None:
    """Return the scores of the arm that needs no learning; None where the page does not have them."""
    names: Sequence[str] = (
        [MAJORITY.name] if column.floor == "majority" else [arm.name for arm in plan.arms if not arm.is_trained]
    )
    for name in names:
        cell = cells.get((name, column.name))
        scores = arm_scores(plan, cell, column) if cell else None
        if scores and scores.units:
            return scores
    return None


def validation_rows(plan: ExperimentPlan, column: Column) -> int | None:
    """Return the number of validation rows of a column; None for a metric of the pre-training, and where unknown."""
    if column.task is None:
        return None
    rows = plan.data[column.task].subset.rows
    part = column.metric.rpartition(".")[0] or "dev"
    return rows[part][0] if part in rows else None


def _share_pretrainings(plan: ExperimentPlan, claim: Claim) -> bool:
    """Return whether the two arms of each lead of a claim are measurements of the same pre-trainings.

    A model with a head of a second model counts as one of its own pre-training.
    """
    with_head = {arm.name for arm in plan.arms if arm.head}
    folders = []
    for name in claim.arms:
        counted = 1 if name in with_head else None
        folders.append([[model.folder for model in models[:counted]] for models in plan.models.get(name, ())])
    return all(first and first == second for first, second in zip(folders[::2], folders[1::2], strict=True))
