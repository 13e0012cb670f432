"""… → experiment: how much to mask (paper §A.1 says only that too little and too much are bad)."""

from typing import Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment
from bertwright.recipes.paper.tables.shared import BERT, PERPLEXITY, SENTENCE_NAMES, SENTENCES

_PERCENT: Final = (5, 10, 15, 30, 45, 60)


def _arm(percent: int) -> Arm:
    changes = BERT.pretraining if percent == 15 else {"examples": {"masking": {"share": percent / 100}}}
    return Arm(name=f"masked-{percent}", title=f"{percent} %", pretraining=changes, series="BERT", x=float(percent))


MASKED_SHARE: Final = Experiment(
    name="masked-share",
    title="How much to mask",
    question="How many pieces should be hidden: few, which teaches slowly, or many, which hides the context?",
    arms=lambda _: tuple(_arm(percent) for percent in _PERCENT),
    columns=(PERPLEXITY, *SENTENCES),
    claims=(
        Claim(
            words="5 % is too little.",
            paper="said in §A.1, not measured",
            first="masked-15",
            second="masked-5",
            columns=SENTENCE_NAMES,
        ),
        Claim(
            words="60 % is too much.",
            paper="said in §A.1, not measured",
            first="masked-15",
            second="masked-60",
            columns=SENTENCE_NAMES,
        ),
    ),
    axis="share of the pieces that are masked, in percent",
    note="Perplexity is that of held-out text with 15 % masked, whatever an arm learned with.",
)
