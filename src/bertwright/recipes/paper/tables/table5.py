"""… → experiment: table 5, what pre-training asks (paper §5.1)."""

from typing import Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment, Published, Scale
from bertwright.recipes.paper.tables.shared import (
    BERT,
    COLA,
    LEFT,
    MNLI,
    MRPC_ACCURACY,
    NO_NSP,
    QNLI,
    RTE,
    SQUAD1_F1,
    SST2,
    STSB,
)

_COLUMNS: Final = (MNLI, QNLI, MRPC_ACCURACY, SST2, SQUAD1_F1, COLA, STSB, RTE)
_ALL: Final = tuple(column.name for column in _COLUMNS)
_QUESTIONS: Final = ("SQuAD 1.1 F1",)


def _arms(scale: Scale) -> tuple[Arm, ...]:
    on_top = Arm(
        name="left-bilstm",
        title="+ BiLSTM",
        pretraining=LEFT.pretraining,
        finetuning={"bilstm": scale.bilstm},
    )
    return (BERT, NO_NSP, LEFT, on_top)


TABLE_5: Final = Experiment(
    name="table5",
    title="Table 5: what pre-training asks",
    question="Is it next-sentence prediction and looking to both sides that make BERT better?",
    arms=_arms,
    columns=_COLUMNS,
    claims=(
        Claim(
            words="Next-sentence prediction helps where two texts are compared.",
            paper="QNLI 88.4 against 84.9, MNLI 84.4 against 83.9, SQuAD 88.5 against 87.9",
            first="bert",
            second="no-nsp",
            columns=("QNLI", "MNLI-m", "SQuAD 1.1 F1", "MRPC", "STS-B", "RTE"),
        ),
        Claim(
            words="Looking to both sides is better than left to right.",
            paper="better on all five: MNLI 1.8, QNLI 0.6, MRPC 9.0, SST-2 0.5, SQuAD 10.1",
            first="no-nsp",
            second="left",
            columns=_ALL,
        ),
        Claim(
            words="A BiLSTM on top of the left-to-right model helps it with SQuAD.",
            paper="84.9 against 77.8 F1",
            first="left-bilstm",
            second="left",
            columns=_QUESTIONS,
        ),
        Claim(
            words="It makes the left-to-right model worse on GLUE.",
            paper="QNLI 84.3 against 84.1, MRPC 77.5 against 75.7, SST-2 92.1 against 91.6; MNLI the same",
            first="left",
            second="left-bilstm",
            columns=tuple(name for name in _ALL if name not in _QUESTIONS),
        ),
        Claim(
            words="With it, left to right is still behind looking to both sides.",
            paper="84.9 against 87.9 F1",
            first="no-nsp",
            second="left-bilstm",
            columns=_QUESTIONS,
        ),
    ),
    published=Published(
        source="table 5, BERT base, dev",
        head=("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD 1.1 F1"),
        rows=(
            ("BERT", "84.4", "88.4", "86.7", "92.7", "88.5"),
            ("no NSP", "83.9", "84.9", "86.5", "92.6", "87.9"),
            ("left-to-right, no NSP", "82.1", "84.3", "77.5", "92.1", "77.8"),
            ("+ BiLSTM", "82.1", "84.1", "75.7", "91.6", "84.9"),
        ),
    ),
    note="CoLA, STS-B and RTE are not in the paper's table; they are measured because they are small.",
)
