"""Scores over the tokens of pre-training, with a decay of the rate before each measurement (paper §C.1, figure 5)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Claim, Experiment, Scale
from bertwright.experiments.tables import arms, columns

_LENGTHS: Final = (1.0, 3.0, 6.0, 12.0)
"""Tokens of each measurement, in multiples of the scale's."""
_PAIRS: Final = (columns.STSB_SPEARMAN.name, columns.QNLI_ACCURACY.name)
_MODELS: Final = (
    (Arm(name="bert", title="BERT"), "BERT"),
    (arms.NO_NSP, "masked LM alone"),
    (Arm(name="left", title="left-to-right, no NSP", pretraining={"system": "bert-left"}), "left-to-right"),
    (
        Arm(name="mask-40", title="BERT, 40 % masked", pretraining={"examples": {"masking": {"share": 0.4}}}),
        "BERT, 40 % masked",
    ),
)
"""Models with the titles of their lines."""


def _arms(_: Scale) -> Iterator[Arm]:
    """Yield the arms of each length, the shortest first, so that each run finds the one that it extends."""
    for number, length in enumerate(_LENGTHS, start=1):
        for arm, series in _MODELS:
            yield replace(
                arm,
                name=f"{arm.name}-{length:g}",
                title=f"{arm.title}, x {length:g}",
                pretraining={**arm.pretraining, "start": "local", "optimizer": {"schedule": "wsd"}},
                lengths=_LENGTHS[:number],
                series=series,
                x=length,
            )


LEARNING_CURVE: Final = Experiment(
    name="learning-curve",
    title="Scores over the tokens of pre-training",
    question="Do more tokens help? Does masked LM overtake left-to-right, when both learn no next sentences?",
    arms=lambda scale: tuple(_arms(scale)),
    columns=(
        columns.STSB_SPEARMAN,
        columns.QNLI_ACCURACY,
        columns.SST2_ACCURACY,
        columns.BLIMP_ACCURACY,
        columns.CHARACTER_BITS,
    ),
    claims=(
        Claim(
            statement="After few tokens left-to-right is better than masked LM alone.",
            paper="79.4 against 78.6 after 3 % of the steps (MNLI)",
            arm="left-1",
            against="no-nsp-1",
            paper_difference=0.8,
        ),
        Claim(
            statement="After many tokens masked LM alone is better than left-to-right.",
            paper="84.4 against 82.2 at the end (MNLI), where masked LM has next sentences",
            arm="no-nsp-12",
            against="left-12",
            paper_difference=2.2,
        ),
        Claim(
            statement="After many tokens next-sentence prediction helps where two texts are compared.",
            paper="QNLI 88.4 against 84.9 (table 5)",
            arm="bert-12",
            against="no-nsp-12",
            paper_difference=3.5,
            columns=_PAIRS,
        ),
        Claim(
            statement="The second half of the tokens still helps BERT.",
            paper="84.4 after a million steps, about a point more than after 500,000 (MNLI)",
            arm="bert-12",
            against="bert-6",
            paper_difference=1.0,
        ),
        Claim(
            statement="After many tokens 40 % masked pieces are better than 15 %.",
            paper="not measured; Wettig et al. (2023) have 40 % ahead for large models",
            arm="mask-40-12",
            against="bert-12",
        ),
    ),
    axis="tokens, in multiples of the scale's",
    note="The learning rate stays at its peak, and falls to zero in the last fifth of the steps before a measurement. "
    "A longer run continues from the end of the peak, not from the decay. So all points of a line are measured alike. "
    "The bits are the loss on masked pieces, with 15 % masked; a left-to-right model has none.",
    limits=("All arms had the same learning rate. No rate was searched for.",),
    pretraining_seeds=3,
)
