"""evidence on the claims → sentences and tables of a page.

docs/claims.py reads the lines of `answer_lines` again, to put the verdicts of all pages into one table.
"""

from collections.abc import Iterator, Sequence

from bertwright.experiments.details import markdown_table
from bertwright.experiments.evidence import ClaimEvidence
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.spec import Claim
from bertwright.experiments.start import condition, rests_on_head
from bertwright.experiments.statistics import OUTCOME_WORDS, ClaimOutcome, Comparison, p_text


def answer_lines(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield a line for each claim: the claim, its verdict with the tasks, and the condition of the verdict."""
    for each in evidence:
        yield f"{each.number}. {each.claim.statement} **{verdict_word(each)}** {_by_task(plan, each)}".rstrip()


def verdict_word(evidence: ClaimEvidence) -> str:
    """Return the verdict on a claim in a few words, with a full stop."""
    if evidence.claim.withdrawn:
        return "Withdrawn."
    if evidence.outcome is None:
        return "No verdict."
    decided = [each for each in evidence.comparisons if each.outcome in ("supported", "reversed")]
    word = _word(evidence.claim, evidence.outcome)
    if evidence.outcome == "undecided" and decided:
        word += ": the tasks disagree"
    elif decided and all(each.holds_for_other_rows is False for each in decided):
        word += " on these rows"
    return f"{word[:1].upper()}{word[1:]}."


def _word(claim: Claim, outcome: ClaimOutcome) -> str:
    """Return an outcome in words; where the arms do not differ, with the points that count as no difference."""
    words = OUTCOME_WORDS[outcome]
    return f"{words} within {claim.delta:g}" if outcome == "no difference" else words


def evidence_lines(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield a table for each claim whose arms were compared: a row for each task."""
    for each in evidence:
        if not each.comparisons:
            continue
        claim = each.claim
        yield from (f"**Claim {each.number}.** {claim.statement} In the paper: {claim.paper}.", "")
        yield (
            f"`{claim.arm}` against `{claim.against}`; {condition(plan, claim.arm, claim.against)}; δ {claim.delta:g}."
        )
        yield ""
        head = ("", "pre-trainings", "difference", "95 %", "other rows too", "p", "visible", "outcome")
        yield from markdown_table(head, [_row(claim, comparison) for comparison in each.comparisons])
        yield ""
    if any(each.comparisons for each in evidence):
        yield (
            "*δ*: points that count as no difference. *Difference*: points by which the first arm is better (lower, "
            "where lower is better). *95 %*: interval over pre-trainings, not corrected. *Other rows too*: interval "
            "over pre-trainings and the choice of dev rows. *Visible*: difference that would have been seen in four of "
            "five repetitions."
        )
        yield ""


def _by_task(plan: ExperimentPlan, evidence: ClaimEvidence) -> str:
    """Return the tasks of each outcome, or the reason for no verdict, with the condition."""
    claim = evidence.claim
    if evidence.outcome is None:
        return f"{evidence.reason[:1].upper()}{evidence.reason[1:]}."
    parts: list[str] = []
    for outcome in OUTCOME_WORDS:
        comparisons = [each for each in evidence.comparisons if each.outcome == outcome]
        if comparisons:
            word = _word(claim, outcome)
            is_told = outcome == evidence.outcome or len(comparisons) == len(evidence.comparisons)
            label = "" if is_told and not parts else f"{word[:1].upper()}{word[1:]}: "
            parts.append(f"{label}{', '.join(_task(plan, each) for each in comparisons)}")
    text = ". ".join(parts)
    reason = f" {evidence.reason[:1].upper()}{evidence.reason[1:]}." if evidence.reason else ""
    head = [each.column for each in evidence.comparisons if _decides_on_head(plan, each)]
    note = f" {' and '.join(head)}: keeps or loses the matching head." if head else ""
    return f"{text} ({condition(plan, claim.arm, claim.against)}).{note}{reason}"


def _task(plan: ExperimentPlan, comparison: Comparison) -> str:
    """Return a task with its difference; with the smallest visible difference, if undecided."""
    text = f"{comparison.column} {comparison.difference:+.1f}"
    if comparison.outcome == "undecided":
        visible = comparison.smallest_visible
        return f"{text} ({visible:.1f} would be seen)" if visible is not None else f"{text} (no variance known)"
    if comparison.outcome in ("supported", "reversed") and comparison.holds_for_other_rows is False:
        return f"{text} (on these rows)"
    return text


def _decides_on_head(plan: ExperimentPlan, comparison: Comparison) -> bool:
    return comparison.outcome in ("supported", "reversed") and rests_on_head(plan, comparison.column)


def _row(claim: Claim, comparison: Comparison) -> tuple[str, ...]:
    visible = comparison.smallest_visible
    outcome = "withdrawn" if claim.withdrawn else OUTCOME_WORDS[comparison.outcome]
    return (
        comparison.column,
        " / ".join(map(str, comparison.units)),
        f"{comparison.difference:+.1f}",
        _interval(comparison.interval()),
        _interval(comparison.interval(with_rows=True)),
        "–" if comparison.adjusted_p is None else p_text(comparison.adjusted_p).removeprefix("p ").removeprefix("= "),
        "–" if visible is None else f"{visible:.1f}",
        outcome,
    )


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"
