"""table of the paper → experiment: table 8, what replaces a masked piece (paper §C.2), and how many are masked."""

from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Claim, Column, Experiment, Published
from bertwright.experiments.tables import arms, columns

_NER_FEATURES_F1: Final = Column(
    name="NER F1, features", task="ner", metric="f1", finetuning={"features": "concat-last-four"}
)
_FINE_TUNED: Final = ("MNLI-m", "NER F1", "SST-2", "STS-B", "QNLI")
_MIXES: Final = ((100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))


def _mix(mask: int, same: int, random: int) -> Arm:
    masking = {"mask": mask / 100, "same": same / 100, "random": random / 100}
    return Arm(
        name=f"{mask}-{same}-{random}",
        title=f"{mask} % [MASK], {same} % same, {random} % random",
        pretraining={"examples": {"masking": masking}},
    )


_PAPERS_MIX: Final = replace(_mix(80, 10, 10), pretraining=arms.BERT.pretraining)

TABLE_8: Final = Experiment(
    name="table8",
    title="Table 8: what replaces a masked piece",
    question="Does it help to show some masked pieces unchanged, and some as another piece, instead of [MASK]?",
    arms=lambda _: (_PAPERS_MIX, *(_mix(*mix) for mix in _MIXES)),
    columns=(
        columns.MNLI_MATCHED,
        columns.NER_F1,
        _NER_FEATURES_F1,
        columns.SST2_ACCURACY,
        columns.STSB_SPEARMAN,
        columns.QNLI_ACCURACY,
    ),
    claims=(
        Claim(
            statement="For fine-tuning, [MASK] alone is as good as the paper's mix, within a point.",
            paper="MNLI 84.3 against 84.2, NER 94.9 against 95.4",
            arm="100-0-0",
            against="80-10-10",
            columns=_FINE_TUNED,
            within=1.0,
            published=("100 % [MASK], 0 % same, 0 % random", "80 % [MASK], 10 % same, 10 % random"),
        ),
        Claim(
            statement="As features of a frozen model, the paper's mix is better than [MASK] alone.",
            paper="94.9 against 94.0",
            arm="80-10-10",
            against="100-0-0",
            paper_difference=0.9,
            published=("80 % [MASK], 10 % same, 10 % random", "100 % [MASK], 0 % same, 0 % random"),
            columns=("NER F1, features",),
        ),
        Claim(
            statement="For fine-tuning, the paper's mix is better than random pieces alone.",
            paper="MNLI 84.2 against 83.6, NER 95.4 against 94.9",
            arm="80-10-10",
            against="0-0-100",
            paper_difference=0.55,
            published=("80 % [MASK], 10 % same, 10 % random", "0 % [MASK], 0 % same, 100 % random"),
            columns=_FINE_TUNED,
        ),
    ),
    published=Published(
        source="table 8, BERT base, dev; features are the last four layers side by side",
        head=("MNLI-m", "NER F1", "NER F1, features"),
        rows=(
            ("80 % [MASK], 10 % same, 10 % random", "84.2", "95.4", "94.9"),
            ("100 % [MASK], 0 % same, 0 % random", "84.3", "94.9", "94.0"),
            ("80 % [MASK], 0 % same, 20 % random", "84.1", "95.2", "94.6"),
            ("80 % [MASK], 20 % same, 0 % random", "84.4", "95.2", "94.7"),
            ("0 % [MASK], 20 % same, 80 % random", "83.7", "94.8", "94.6"),
            ("0 % [MASK], 0 % same, 100 % random", "83.6", "94.9", "94.6"),
        ),
    ),
    limits=("The paper's claims are about MNLI and names. The other tasks do not test what the paper says.",),
)


# The fraction of masked pieces. The paper says only that too few and too many are bad (§A.1).

_PERCENTAGES: Final = (5, 10, 15, 30, 45, 60)


def _masked_arm(percent: int) -> Arm:
    changes = arms.BERT.pretraining if percent == 15 else {"examples": {"masking": {"share": percent / 100}}}
    return Arm(name=f"masked-{percent}", title=f"{percent} %", pretraining=changes, series="BERT", x=float(percent))


MASKED_FRACTION: Final = Experiment(
    name="masked-share",
    title="How much to mask",
    question="How many pieces should be masked? With few, learning is slow. With many, the context is hidden.",
    arms=lambda _: tuple(_masked_arm(percent) for percent in _PERCENTAGES),
    columns=(columns.PERPLEXITY, *columns.SENTENCE_COLUMNS),
    claims=(
        Claim(
            statement="5 % is too little.",
            paper="said in §A.1, not measured",
            arm="masked-15",
            against="masked-5",
        ),
        Claim(
            statement="60 % is too much.",
            paper="said in §A.1, not measured",
            arm="masked-15",
            against="masked-60",
        ),
    ),
    axis="share of the pieces that are masked, in percent",
    note="All arms have the perplexity of held-out text with 15 % masked, whatever they were trained with.",
    limits=("All fractions had the same learning rate. No rate was searched for.",),
)
