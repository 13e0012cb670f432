"""Evidence on the claims of an experiment: units, floors, shared pre-trainings, and what gives no verdict."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.experiments.answers import answer_lines, evidence_lines, reading_lines
from bertwright.experiments.evidence import ClaimEvidence, gather_evidence
from bertwright.experiments.records import Spread
from bertwright.experiments.scores import Cell
from bertwright.experiments.spec import Arm, Claim, Column, Experiment, Published
from bertwright.experiments.spread import Variance

RTE = Column(name="RTE", task="rte", metric="accuracy")
STSB = Column(name="STS-B", task="stsb", metric="spearman")
SQUAD = Column(name="SQuAD", task="squad1", metric="f1", factor=1.0, floor="untrained")
CLAIM = Claim(statement="A is better.", paper="88 against 84", arm="a", against="b", published=("A", "B"))
SPREAD = Spread({("rte", "accuracy"): Variance(1e-4, 8), ("stsb", "spearman"): Variance(1e-4, 8)}, {})
"""Standard deviation of one point between pre-trainings."""


def pairs(*units: float) -> dict[tuple[int, int], float]:
    """Return scores of two fine-tunings of each pre-training, around its mean."""
    return {(p, f): unit + (f - 0.5) for p, unit in enumerate(units) for f in range(2)}


def plan(
    *columns: Column,
    claim: Claim = CLAIM,
    bodies: dict[str, str] | None = None,
    start: str = "matching",
    jobs: Any = None,
) -> Any:
    folders = bodies or {"a": "a", "b": "b"}
    model = SimpleNamespace(system="bert", start=start)
    models = {
        name: tuple((SimpleNamespace(folder=Path(f"{body}-{seed}"), settings=model),) for seed in range(2))
        for name, body in folders.items()
    }
    experiment = Experiment(
        name="table0",
        title="Table 0",
        question="",
        arms=lambda _: (),
        columns=columns,
        claims=(claim,),
        published=Published(source="", head=("RTE",), rows=(("A", "70.0"), ("B", "66.0"))),
    )
    arms = [Arm(name=name, title=name, is_trained=name != "untrained") for name in ("a", "b", "untrained")]
    return SimpleNamespace(
        experiment=experiment,
        unit="pre-training",
        used_model=None,
        columns=columns,
        arms=[*arms, Arm(name="majority", title="", baseline="majority")],
        models=models,
        jobs=jobs or {},
        all_jobs=[job for by_seed in (jobs or {}).values() for job in by_seed.values()],
        all_models=[each for seeds in models.values() for (each,) in seeds],
        seeds=2,
        data={column.task: SimpleNamespace(subset=SimpleNamespace(rows={"dev": (1000, 1000)})) for column in columns},
    )


def cells(
    column: Column, a: tuple[float, ...], b: tuple[float, ...], floor: float | None = 50.0
) -> dict[tuple[str, str], Cell]:
    values: dict[str, Any] = {"a": Cell(pairs(*a), 4), "b": Cell(pairs(*b), 4), "untrained": Cell({}, 4)}
    if column.floor == "untrained" and floor is not None:
        values["untrained"] = Cell(pairs(floor, floor), 4)
    is_known = column.floor == "majority" and floor is not None
    values["majority"] = Cell({(0, 0): floor or 0.0} if is_known else {}, 1, is_constant=True)
    return {(name, column.name): cell for name, cell in values.items()}


def evidence(column: Column, a: tuple[float, ...], b: tuple[float, ...], **options: Any) -> ClaimEvidence:
    floor = {"floor": options.pop("floor")} if "floor" in options else {}
    (one,) = gather_evidence(plan(column, **options), cells(column, a, b, **floor), SPREAD)
    return one


def test_a_claim_is_judged_by_the_means_of_its_pre_trainings() -> None:
    one = evidence(RTE, (68.0, 70.0), (60.0, 62.0))
    (comparison,) = one.comparisons
    assert (one.outcome, comparison.units, comparison.difference) == ("supported", (2, 2), 8.0)
    assert (comparison.error, comparison.degrees) == (pytest.approx(2**0.5), 2)  # their own variance is larger: 2


def test_one_pre_training_of_an_arm_gives_no_verdict_and_the_page_says_so() -> None:
    one = evidence(RTE, (68.0, 70.0), (55.0,))
    assert (one.outcome, one.reason) == ("undecided", "a verdict needs 2 pre-trainings of both models; `b` has 1")


def test_arms_at_the_floor_cannot_be_tested() -> None:
    assert evidence(RTE, (51.0, 52.0), (50.0, 50.5)).outcome == "cannot be tested"
    assert evidence(RTE, (51.0,), (50.0,)).outcome == "cannot be tested"  # with one pre-training too
    assert evidence(SQUAD, (11.0, 11.2), (10.0, 10.1), floor=9.6).outcome == "cannot be tested"
    assert evidence(SQUAD, (11.0, 11.2), (10.0, 10.1), floor=None).outcome != "cannot be tested"


def test_a_claim_is_withdrawn_until_its_arm_is_computed() -> None:
    claim = Claim(statement="A.", paper="", arm="a", against="b", withdrawn="`c` cannot replace it: two things differ")
    (one,) = gather_evidence(plan(RTE, claim=claim), cells(RTE, (68.0, 70.0), ()), SPREAD)
    (line,) = answer_lines(plan(RTE, claim=claim), [one])
    reason = "`b` is not computed yet, so the claim has no verdict. `c` cannot replace it: two things differ."
    assert line == f"1. A. **Withdrawn.** {reason}"
    assert evidence(RTE, (68.0, 70.0), (60.0, 62.0), claim=claim).outcome == "supported"


def test_what_differs_beside_the_claim_stands_beside_the_verdict() -> None:
    claim = replace(CLAIM, confound="a learns next sentences, b does not")
    one = evidence(RTE, (68.0, 70.0), (60.0, 62.0), claim=claim)
    (line,) = answer_lines(plan(RTE, claim=claim), [one])
    assert line.endswith("(start `matching`). Also different: a learns next sentences, b does not.")
    lines = evidence_lines(plan(RTE), [one])
    assert any(line.endswith("Also different: a learns next sentences, b does not.") for line in lines)


def test_words_and_numbers_are_explained_after_the_answers_where_they_are_used() -> None:
    answers = ["1. A is better. **Undecided.** RTE +0.8 (visible from 5.5) (start `matching`)."]
    text = "\n".join(reading_lines(plan(RTE), answers))
    words = ("*Visible from*", "An *arm* is", "A *seed* is", "The *floor*", "*δ* (delta)")
    assert [text.count(word) for word in words] == [1] * len(words)
    assert "*On these rows*" not in text
    assert "Perplexity" not in text
    assert "*Cannot be tested here*" in "\n".join(reading_lines(plan(RTE), ["**Cannot be tested here.** RTE +0.1"]))
    assert "*On these rows*" in "\n".join(reading_lines(plan(RTE), ["RTE +4.0 (on these rows)"]))


def test_arms_of_the_same_pre_trainings_are_compared_in_pairs() -> None:
    one = evidence(RTE, (68.0, 58.0), (66.0, 56.5), bodies={"a": "body", "b": "body"})
    (comparison,) = one.comparisons
    assert comparison.degrees == 1
    assert comparison.error == pytest.approx(0.25)  # differences 2.0 and 1.5


def test_an_arm_that_is_not_there_gives_no_verdict() -> None:
    claim = Claim(statement="", paper="", arm="a", against="c")
    assert evidence(RTE, (1.0,), (1.0,), claim=claim).reason == "`c` is not on this page"
    (missing,) = gather_evidence(plan(RTE), cells(RTE, (), (1.0,)), SPREAD)
    assert missing.reason == "`a` is not computed yet"
    other = Claim(statement="", paper="", arm="a", against="b", columns=("STS-B",))
    assert evidence(RTE, (1.0,), (1.0,), claim=other).reason == "none of its tasks is on this page"
    partly = cells(RTE, (60.0,), (50.0,)) | {("b", "RTE"): Cell({(0, 0): 50.0}, 4)}
    (missing,) = gather_evidence(plan(RTE), partly, SPREAD)
    assert missing.reason == "no task has all scores of both"


def test_answers_name_tasks_condition_and_the_difference_that_would_be_seen() -> None:
    supported = evidence(STSB, (80.0, 81.0), (20.0, 21.0), floor=0.0)
    (line,) = answer_lines(plan(STSB), [supported])
    head = "Scores on STS-B go with the hand-made head."
    alone = "Supported on tasks that go with the hand-made head alone"
    assert line == f"1. A is better. **{alone}.** STS-B +60.0 (start `matching`). {head}"
    (other,) = answer_lines(plan(STSB, start="local"), [supported])
    assert other == "1. A is better. **Supported.** STS-B +60.0 (start `local`)."
    undecided = evidence(RTE, (61.0, 62.0), (60.0, 61.5))
    (line,) = answer_lines(plan(RTE), [undecided])
    visible = undecided.comparisons[0].smallest_visible
    assert line == f"1. A is better. **Undecided.** RTE +0.8 (visible from {visible:.1f}) (start `matching`)."


def test_a_verdict_with_another_task_does_not_rest_on_the_head_alone() -> None:
    both = plan(RTE, STSB)
    of_both = cells(STSB, (80.0, 81.0), (20.0, 21.0), floor=0.0) | cells(RTE, (68.0, 70.0), (60.0, 62.0))
    (line,) = answer_lines(both, gather_evidence(both, of_both, SPREAD))
    assert "**Supported.** RTE +8.0, STS-B +60.0 (start `matching`)." in line


def test_with_one_pre_training_each_no_difference_is_called_visible() -> None:
    both = plan(RTE, STSB)
    one = gather_evidence(both, cells(STSB, (80.0,), (70.0,), floor=0.0) | cells(RTE, (68.0,), (60.0,)), SPREAD)
    (line,) = answer_lines(both, one)
    assert "**Undecided.** RTE +8.0, STS-B +10.0, with one pre-training each (start `matching`). A verdict" in line
    (line,) = answer_lines(plan(RTE), [evidence(RTE, (68.0, 70.0), (60.0,))])
    assert "**Undecided.** RTE +9.0, with 2 and 1 pre-trainings (start `matching`). A verdict needs 2" in line


@pytest.mark.parametrize(
    ("lead", "text"),
    [(1.0, "RTE +1.0 (visible from 2.2)"), (2.21, "RTE +2.21 (visible from 2.19)"), (-2.2, "RTE -2.20 (visible from")],
)
def test_a_lead_and_what_is_visible_have_the_decimals_in_which_they_differ(lead: float, text: str) -> None:
    one = evidence(RTE, (61.0, 62.0), (60.0, 61.5))
    (comparison,) = one.comparisons
    assert comparison.error
    assert comparison.smallest_visible
    error = comparison.error * 2.19 / comparison.smallest_visible
    exact = replace(comparison, first=60.0 + lead, second=60.0, error=error)
    (line,) = answer_lines(plan(RTE), [replace(one, comparisons=(exact,))])
    assert f"**Undecided.** {text}" in line


def test_the_opposite_of_as_good_is_not_as_good() -> None:
    claim = replace(CLAIM, statement="A is as good, within a point.", within=1.0)
    for a, word in (((50.2, 50.3), "not as good"), ((78.0, 78.1), "better")):
        one = evidence(RTE, a, (64.0, 64.1), claim=claim)
        assert one.outcome == "reversed"
        (line,) = answer_lines(plan(RTE, claim=claim), [one])
        assert line.startswith(f"1. A is as good, within a point. **{word.capitalize()}.** RTE ")
        assert any(row.endswith(f"| {word} |") for row in evidence_lines(plan(RTE, claim=claim), [one]))


def test_a_verdict_that_other_rows_may_turn_round_says_so() -> None:
    one = evidence(RTE, (66.0, 66.1), (62.0, 62.1))
    assert one.comparisons[0].holds_for_other_rows is False
    (line,) = answer_lines(plan(RTE), [one])
    assert "**Supported on these rows.** RTE +4.0 (on these rows)" in line


def test_the_table_of_a_claim_has_a_row_for_each_task() -> None:
    one = evidence(RTE, (68.0, 70.0), (60.0, 62.0))
    lines = list(evidence_lines(plan(RTE), [one]))
    assert lines[0] == "The columns of the tables:"
    assert "**Claim 1.** A is better. In the paper: 88 against 84." in lines
    assert any(line.startswith("| RTE | 2 / 2 | +8.0 | +1.9 to +14.1 |") for line in lines)


def test_the_papers_differences_are_those_of_its_table() -> None:
    assert plan(RTE, STSB).experiment.paper_differences(CLAIM) == {"RTE": 4.0}
