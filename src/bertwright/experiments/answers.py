"""evidence on the claims → sentences and tables of a page.

docs/claims.py reads the lines of `answer_lines` again, to put the verdicts of all pages into one table.
"""

from collections.abc import Iterator, Sequence

from bertwright.experiments.attention_start import condition, rests_on_head
from bertwright.experiments.details import markdown_table
from bertwright.experiments.evidence import ClaimEvidence
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.spec import UNKNOWN_DELTA, Claim
from bertwright.experiments.statistics import OUTCOME_WORDS, ClaimOutcome, Comparison, p_text

ON_HEAD = "on tasks that go with the hand-made head alone"
"""Words of a verdict whose tasks all go with the matching head."""
_MOST_DECIMALS = 4
_COLUMNS = """\
- *{unit}s*: number of {unit}s of the first and the second arm
- *difference*: points by which the first arm is better; a lower perplexity, time or memory is better
- *95 %*: interval of the difference over other {unit}s, not corrected for the number of tasks
- *other rows too*: the same interval if the dev rows were others as well
- *p*: probability of a difference of this size or larger if there were none, corrected for the number of tasks
- *visible*: smallest difference that the test would find in four of five repetitions, whatever the other tasks show"""


def answer_lines(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield a line for each claim: the claim, its verdict with the tasks, and the condition of the verdict."""
    for each in evidence:
        yield f"{each.number}. {each.claim.statement} **{verdict_word(plan, each)}** {_by_task(plan, each)}".rstrip()


def reading_lines(plan: ExperimentPlan, answers: Sequence[str]) -> Iterator[str]:
    """Yield the explanation of the numbers and words of a page, those of its answers first."""
    text = "\n".join(answers)
    yield (
        "**How to read this.** A number is the lead of the model that is better according to the claim (for *as good "
        "as*: of the first model); a negative lead says that it is behind. The unit is a point: a hundredth of "
        "accuracy, of a correlation or of F1."
    )
    units = [column.name for column in plan.columns if column.has_own_unit and f"{column.name} " in text]
    if units:
        yield f"Not in points, but in {'its own unit' if len(units) == 1 else 'their own units'}: {', '.join(units)}."
    if "visible from" in text:
        yield f"*Visible from*: these {plan.unit}s are too few to show a smaller difference."
    if "annot be tested here" in text:
        yield "*Cannot be tested here*: both models are at the floor, within two standard errors."
    if "on these rows" in text:
        yield "*On these rows*: with other dev rows the lead may be on the other side."
    yield ""
    arm = (
        "An *arm* is a model or a baseline. A *seed* is the number from which a run draws its random numbers. An arm "
        "has one or more pre-training seeds, and each pre-trained model has fine-tuning seeds."
    )
    start = " The *start* is the state of attention before the first step."
    if plan.used_model:
        arm = (
            "An *arm* is a use of the model, or a baseline. A *seed* is the number from which a fine-tuning draws its "
            "random numbers."
        )
        start = ""
    yield (
        f"{arm} The *floor* is the score that needs no learning. *δ* (delta) is the number of points that count as no "
        "difference: the number in the claim, half of the paper's own difference, or one point if the paper has "
        f"none.{start}"
    )
    if any(claim.unknown_delta != UNKNOWN_DELTA for claim in plan.experiment.claims):
        yield "A claim whose δ is another number has it above its table."


def verdict_word(plan: ExperimentPlan, evidence: ClaimEvidence) -> str:
    """Return the verdict on a claim in a few words, with a full stop.

    It names the task if one of several decides, and the head if all that decide go with it.
    """
    if evidence.outcome is None:
        return "Withdrawn." if evidence.claim.withdrawn else "No verdict."
    decided = [each for each in evidence.comparisons if each.outcome in ("supported", "reversed")]
    of_verdict = [each for each in evidence.comparisons if each.outcome == evidence.outcome]
    word = _word(evidence.claim, evidence.outcome, of_verdict)
    if evidence.outcome == "undecided":
        return f"{_capital(word)}{': the tasks disagree' if decided else ''}."
    parts = []
    if len(decided) == 1 < len(evidence.comparisons):
        parts.append(f"on {decided[0].column} alone")
    elif evidence.outcome != "cannot be tested" and all(
        rests_on_head(plan, each.column, *evidence.claim.arms) for each in of_verdict
    ):
        parts.append(ON_HEAD)
    if decided and all(each.holds_for_other_rows is False for each in decided):
        parts.append("on these rows")
    return f"{_capital(' '.join([word, ', '.join(parts)]).strip())}."


def _word(claim: Claim, outcome: ClaimOutcome, comparisons: Sequence[Comparison]) -> str:
    """Return an outcome in words, for the tasks that have it.

    Where the arms do not differ, the points that count as no difference are with it. The opposite of *as good as* is
    *not as good*, or *better* where the first arm is ahead.
    """
    if outcome == "no difference":
        return f"{OUTCOME_WORDS[outcome]} within {claim.delta:g}"
    if outcome == "reversed" and claim.within is not None:
        is_ahead = {each.difference > 0 for each in comparisons}
        return "not alike" if len(is_ahead) > 1 else "better" if is_ahead == {True} else "not as good"
    return OUTCOME_WORDS[outcome]


def outcome_word(claim: Claim, comparison: Comparison) -> str:
    """Return the outcome of one task in words, as in the table and the picture of a claim."""
    return _word(claim, comparison.outcome, [comparison]).removesuffix(f" within {claim.delta:g}")


def _capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return f"{text[:1].upper()}{text[1:]}"


def evidence_lines(plan: ExperimentPlan, evidence: Sequence[ClaimEvidence]) -> Iterator[str]:
    """Yield what the columns mean, then a table for each claim whose arms were compared: a row for each task."""
    compared = [each for each in evidence if each.comparisons]
    if compared:
        yield from ("The columns of the tables:", "", _COLUMNS.format(unit=plan.unit), "")
    for each in compared:
        claim = each.claim
        yield from (f"**Claim {each.number}.** {claim.statement} In the paper: {claim.paper}.", "")
        also = f" Also different: {claim.confound}." if claim.confound else ""
        yield from (f"{_arms(claim)}; {condition(plan, *claim.arms)}; δ {claim.delta:g}.{also}", "")
        head = ("", f"{plan.unit}s", "difference", "95 %", "other rows too", "p", "visible", "outcome")
        yield from markdown_table(head, [_row(claim, comparison) for comparison in each.comparisons])
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
    reason = f"{_capital(evidence.reason)}."
    if evidence.outcome is None:
        return reason
    parts: list[str] = []
    for outcome in OUTCOME_WORDS:
        comparisons = [each for each in evidence.comparisons if each.outcome == outcome]
        if comparisons:
            word = _word(claim, outcome, comparisons)
            is_verdict = outcome == evidence.outcome or len(comparisons) == len(evidence.comparisons)
            label = "" if is_verdict and not parts else f"{_capital(word)}: "
            parts.append(f"{label}{_tasks(comparisons, plan.unit)}")
    sentences = [f"{'. '.join(parts)} ({condition(plan, *claim.arms)})."]
    if claim.confound:
        sentences.append(f"Also different: {claim.confound}.")
    decided = [each.column for each in evidence.comparisons if each.outcome in ("supported", "reversed")]
    head = [column for column in decided if rests_on_head(plan, column, *claim.arms)]
    if head:
        sentences.append(f"Scores on {' and '.join(head)} go with the hand-made head.")
    return " ".join([*sentences, reason] if evidence.reason else sentences)


def _tasks(comparisons: Sequence[Comparison], unit: str) -> str:
    """Return tasks with one outcome and their differences; too few units of all are named once."""
    few = {_few(each, unit) for each in comparisons if each.outcome == "undecided" and not each.enough}
    if len(few) == 1 and not any(each.enough for each in comparisons):
        differences = ", ".join(f"{each.column} {each.difference:+.1f}" for each in comparisons)
        return f"{differences}, with {few.pop()}"
    return ", ".join(_task(each, unit) for each in comparisons)


def _task(comparison: Comparison, unit: str) -> str:
    """Return a task with its difference; if undecided, with the smallest visible difference or the reason for none.

    The two have as many decimals as they need to differ.
    """
    text = f"{comparison.column} {comparison.difference:+.1f}"
    if comparison.outcome == "undecided":
        visible = comparison.smallest_visible
        if not comparison.enough:
            return f"{text} ({_few(comparison, unit)})"
        if visible is None:
            return f"{text} (variance unknown)"
        decimals = 1
        while decimals < _MOST_DECIMALS and f"{abs(comparison.difference):.{decimals}f}" == f"{visible:.{decimals}f}":
            decimals += 1
        return f"{comparison.column} {comparison.difference:+.{decimals}f} (visible from {visible:.{decimals}f})"
    if comparison.outcome in ("supported", "reversed") and comparison.holds_for_other_rows is False:
        return f"{text} (on these rows)"
    return text


def _few(comparison: Comparison, unit: str) -> str:
    """Return the numbers of units of the arms in words; `unit` is a pre-training, or a fine-tuning of a used model."""
    if set(comparison.units) == {1}:
        return f"one {unit} each"
    return f"{' and '.join(map(str, comparison.units))} {unit}s"


def _row(claim: Claim, comparison: Comparison) -> tuple[str, ...]:
    visible = comparison.smallest_visible
    return (
        comparison.column,
        " / ".join(map(str, comparison.units)),
        f"{comparison.difference:+.1f}",
        _interval(comparison.interval()),
        _interval(comparison.interval(with_rows=True)),
        "–" if comparison.adjusted_p is None else p_text(comparison.adjusted_p).removeprefix("p ").removeprefix("= "),
        "–" if visible is None else f"{visible:.1f}",
        outcome_word(claim, comparison),
    )


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"
