"""… → experiment: table 5 of GPT-1's paper, what pre-training and the auxiliary loss are worth there (GPT paper §5)."""

from typing import Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment, Published
from bertwright.recipes.paper.tables.shared import COLA, GPT, MNLI, MRPC, QNLI, QQP, RTE, SST2, STSB

_COLUMNS: Final = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE)
_ALL: Final = tuple(column.name for column in _COLUMNS)
_LARGE: Final = ("QQP", "MNLI-m", "QNLI")
_SMALL: Final = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")

GPT_TABLE_5: Final = Experiment(
    name="gpt-table5",
    title="GPT-1's table 5: pre-training, the auxiliary loss, and an LSTM instead",
    question="What of GPT-1 makes it good: pre-training, the language-model loss in fine-tuning, the Transformer?",
    arms=lambda _: (
        GPT,
        Arm(name="gpt-untrained", title="not pre-trained", pretraining=GPT.pretraining, is_trained=False),
        Arm(name="no-auxiliary", title="no auxiliary loss", pretraining=GPT.pretraining, finetuning={"lm_weight": 0.0}),
        Arm(name="lstm", title="LSTM", pretraining={"system": "lstm-left"}, finetuning={"lm_weight": 0.5}),
    ),
    columns=_COLUMNS,
    claims=(
        Claim(
            words="Pre-training is worth a lot.",
            paper="74.7 against 59.9 on average",
            first="gpt",
            second="gpt-untrained",
            columns=_ALL,
        ),
        Claim(
            words="The auxiliary loss helps on tasks with many rows.",
            paper="QQP 70.3 against 69.8, MNLI 81.8 against 81.1, QNLI 88.1 against 86.9",
            first="gpt",
            second="no-auxiliary",
            columns=_LARGE,
        ),
        Claim(
            words="It does harm on tasks with few.",
            paper="CoLA 45.4 against 47.9, SST-2 91.3 against 92.0, MRPC 82.3 against 84.9, STS-B 82.0 against 83.2; "
            "but RTE 56.0 against 54.4",
            first="no-auxiliary",
            second="gpt",
            columns=_SMALL,
        ),
        Claim(
            words="The Transformer is better than an LSTM.",
            paper="74.7 against 69.1 on average",
            first="gpt",
            second="lstm",
            columns=_ALL,
        ),
    ),
    published=Published(
        source="table 5 of GPT-1's paper",
        head=("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "QNLI", "RTE", "mean"),
        rows=(
            ("GPT-1", "45.4", "91.3", "82.3", "82.0", "70.3", "81.8", "88.1", "56.0", "74.7"),
            ("not pre-trained", "18.9", "84.0", "79.4", "30.9", "65.5", "75.7", "71.2", "53.8", "59.9"),
            ("no auxiliary loss", "47.9", "92.0", "84.9", "83.2", "69.8", "81.1", "86.9", "54.4", "75.0"),
            ("LSTM", "30.3", "90.5", "83.2", "71.8", "68.1", "73.7", "81.1", "54.6", "69.1"),
        ),
    ),
    note="The LSTM here is ELMo's, on the WordPiece vocabulary; GPT-1's paper has one layer of 2,048 on its own. Its "
    "STS-B is Pearson's correlation, here it is Spearman's.",
)
