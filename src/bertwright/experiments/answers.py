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

_COLUMNS = """\
- *pre-trainings*: number of pre-trainings of the first and the second arm
- *difference*: points by which the first arm is better; a lower perplexity, time or memory is better
- *95 %*: interval of the difference over other pre-trainings, not corrected for the number of tasks
- *other rows too*: the same interval if the dev rows were others as well
- *p*: probability of a difference of this size or larger if there were none, corrected for the number of tasks
- *visible*: smallest difference that the test would find in four of five repetitions"""


def answer_lines(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield a line for each claim: the claim, its verdict with the tasks, and the condition of the verdict."""
    for each in evidence:
        yield f"{each.number}. {each.claim.statement} **{verdict_word(each)}** {_by_task(plan, each)}".rstrip()


def reading_lines(plan: ExperimentPlan, answers: Sequence[str]) -> Iterator[str]:
    """Yield the explanation of the numbers and words of a page, those of its answers first."""
    text = "\n".join(answers)
    yield (
        "**How to read this.** A number is the lead of the model that is better according to the claim (for *as good "
        "as*: of the first model); a negative lead says that it is behind. The unit is a point: a hundredth of "
        "accuracy, of a correlation or of F1."
    )
    units = [column.name for column in plan.columns if column.task is None and f"{column.name} " in text]
    if units:
        yield f"Not in points, but in {'its own unit' if len(units) == 1 else 'their own units'}: {', '.join(units)}."
    if "visible from" in text:
        yield "*Visible from*: these pre-trainings are too few to show a smaller difference."
    if "annot be tested here" in text:
        yield "*Cannot be tested here*: both models are at the floor, within two standard errors."
    if "on these rows" in text:
        yield "*On these rows*: with other dev rows the lead may be on the other side."
    yield ""
    yield (
        "An *arm* is a model or a baseline. A *seed* is the number from which a run draws its random numbers. An arm "
        "has one or more pre-training seeds, and each pre-trained model has fine-tuning seeds. The *floor* is the "
        "score that needs no learning. *δ* (delta) is the number of points that count as no difference: the number in "
        "the claim, half of the paper's own difference, or one point if the paper has none. The *start* is the state "
        "of attention before the first step."
    )


def verdict_word(evidence: ClaimEvidence) -> str:
    """Return the verdict on a claim in a few words, with a full stop."""
    if evidence.outcome is None:
        return "Withdrawn." if evidence.claim.withdrawn else "No verdict."
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
    """Yield what the columns mean, then a table for each claim whose arms were compared: a row for each task."""
    compared = [each for each in evidence if each.comparisons]
    if compared:
        yield from ("The columns of the tables:", "", _COLUMNS, "")
    for each in compared:
        claim = each.claim
        yield from (f"**Claim {each.number}.** {claim.statement} In the paper: {claim.paper}.", "")
        also = f" Also different: {claim.confound}." if claim.confound else ""
        yield from (f"{_arms(claim)}; {condition(plan, *claim.arms)}; δ {claim.delta:g}.{also}", "")
        head = ("", "pre-trainings", "difference", "95 %", "other rows too", "p", "visible", "outcome")
        yield from markdown_table(head, [_row(comparison) for comparison in each.comparisons])
        yield ""


def _arms(claim: Claim) -> str:
    """Return the names of the arms of a claim, and how they are compared."""
    arms = f"`{claim.arm}` against `{claim.against}`"
    if not claim.beyond:
        return arms
    one, other = claim.beyond
    return f"the lead of {arms}, minus that of `{one}` against `{other}`"


def _by_task(plan: ExperimentPlan, evidence: ClaimEvidence) -> str:
    """Return the tasks of each outcome, or the reason for no verdict, with the condition and what else differs."""
    claim = evidence.claim
    reason = f"{evidence.reason[:1].upper()}{evidence.reason[1:]}."
    if evidence.outcome is None:
        return reason
    parts: list[str] = []
    for outcome in OUTCOME_WORDS:
        comparisons = [each for each in evidence.comparisons if each.outcome == outcome]
        if comparisons:
            word = _word(claim, outcome)
            is_verdict = outcome == evidence.outcome or len(comparisons) == len(evidence.comparisons)
            label = "" if is_verdict and not parts else f"{word[:1].upper()}{word[1:]}: "
            parts.append(f"{label}{', '.join(map(_task, comparisons))}")
    sentences = [f"{'. '.join(parts)} ({condition(plan, *claim.arms)})."]
    if claim.confound:
        sentences.append(f"Also different: {claim.confound}.")
    decided = [each.column for each in evidence.comparisons if each.outcome in ("supported", "reversed")]
    head = [column for column in decided if rests_on_head(plan, column, *claim.arms)]
    if head:
        sentences.append(f"Scores on {' and '.join(head)} go with the hand-made head.")
    return " ".join([*sentences, reason] if evidence.reason else sentences)


def _task(comparison: Comparison) -> str:
    """Return a task with its difference; with the smallest visible difference, if undecided."""
    text = f"{comparison.column} {comparison.difference:+.1f}"
    if comparison.outcome == "undecided":
        visible = comparison.smallest_visible
        return f"{text} (visible from {visible:.1f})" if visible is not None else f"{text} (variance unknown)"
    if comparison.outcome in ("supported", "reversed") and comparison.holds_for_other_rows is False:
        return f"{text} (on these rows)"
    return text


def _row(comparison: Comparison) -> tuple[str, ...]:
    visible = comparison.smallest_visible
    return (
        comparison.column,
        " / ".join(map(str, comparison.units)),
        f"{comparison.difference:+.1f}",
        _interval(comparison.interval()),
        _interval(comparison.interval(with_rows=True)),
        "–" if comparison.adjusted_p is None else p_text(comparison.adjusted_p).removeprefix("p ").removeprefix("= "),
        "–" if visible is None else f"{visible:.1f}",
        OUTCOME_WORDS[comparison.outcome],
    )


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"
