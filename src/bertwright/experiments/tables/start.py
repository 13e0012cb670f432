"""Next sentences and direction under each start of attention (paper §5.1 has one start: small random weights)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from bertwright.experiments.spec import Arm, Claim, Experiment
from bertwright.experiments.tables import arms, columns

_PAIRS: Final = ("QNLI", "STS-B", "RTE")
_LIKE_TABLE_5: Final = "table 5, with one start"


def _with_start(arm: Arm, start: str) -> Arm:
    changes = {**arm.pretraining, "start": start}
    return replace(arm, name=f"{arm.name}-{start}", title=f"{arm.title}, {start}", pretraining=changes)


_ARMS: Final = (
    *(replace(arm, title=f"{arm.title}, matching") for arm in (arms.BERT, arms.NO_NSP, arms.LEFT)),
    *(_with_start(arm, "local") for arm in (arms.BERT, arms.NO_NSP, arms.LEFT)),
    _with_start(arms.BERT, "random"),
)


def _twice(statement: str, arm: str, against: str, **more: Any) -> Iterator[Claim]:
    """Yield a claim with the matching start, the same with the local one, and the difference of the two leads."""
    both = {"arm": arm, "against": against, "paper": _LIKE_TABLE_5, **more}
    yield Claim(statement=f"{statement} (start `matching`).", **both)
    yield Claim(
        statement=f"{statement} (start `local`).", **{**both, "arm": f"{arm}-local", "against": f"{against}-local"}
    )
    yield Claim(
        statement=f"{statement}, and by more with the start `matching` than with `local`.",
        beyond=(f"{arm}-local", f"{against}-local"),
        **{**both, "paper": "not measured", "paper_difference": None},
    )


START: Final = Experiment(
    name="start",
    title="Next sentences, direction, and the start of attention",
    question="Do the verdicts on next sentences and on direction depend on the weights from which attention starts?",
    arms=lambda _: _ARMS,
    columns=(*columns.SENTENCE_COLUMNS, columns.SWAG_ACCURACY, columns.NER_F1),
    claims=(
        *_twice(
            "Next-sentence prediction helps where two texts are compared",
            "bert",
            "no-nsp",
            paper_difference=1.5,
            columns=_PAIRS,
        ),
        *_twice("Attention to both sides is better than left to right", "no-nsp", "left", paper_difference=4.8),
        Claim(
            statement="BERT with the start `matching` is better than with `local`.",
            paper="not measured",
            arm="bert",
            against="bert-local",
        ),
        Claim(
            statement="BERT with the start `local` is better than with `random`.",
            paper="not measured",
            arm="bert-local",
            against="bert-random",
        ),
    ),
    limits=("All arms had the same learning rate. No rate was searched for.",),
)
