"""table of the paper → experiment: table 5, the objectives (paper §5.1), and table 5 of GPT-1's paper."""

from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Claim, Experiment, Published, Scale
from bertwright.experiments.tables import arms, columns

_COLUMNS: Final = (
    columns.MNLI_MATCHED,
    columns.QNLI_ACCURACY,
    columns.MRPC_ACCURACY,
    columns.SST2_ACCURACY,
    columns.SQUAD1_F1,
    columns.COLA_MATTHEWS,
    columns.STSB_SPEARMAN,
    columns.RTE_ACCURACY,
)


def _arms(scale: Scale) -> tuple[Arm, ...]:
    with_bilstm = replace(
        arms.LEFT, name="left-bilstm", title="+ BiLSTM", finetuning={"bilstm": scale.features["lstm_width"]}
    )
    return (arms.UNTRAINED, arms.BERT, arms.NO_NSP, arms.LEFT, with_bilstm)


TABLE_5: Final = Experiment(
    name="table5",
    title="Table 5: the objectives of pre-training",
    question="Do next-sentence prediction and attention to both sides make BERT better?",
    arms=_arms,
    columns=_COLUMNS,
    claims=(
        Claim(
            statement="Next-sentence prediction helps where two texts are compared.",
            paper="QNLI 88.4 against 84.9, MNLI 84.4 against 83.9, SQuAD 88.5 against 87.9",
            arm="bert",
            against="no-nsp",
            paper_difference=1.5,
            published=("BERT", "no NSP"),
            columns=("QNLI", "MNLI-m", "SQuAD 1.1 F1", "MRPC", "STS-B", "RTE"),
        ),
        Claim(
            statement="Attention to both sides is better than left to right.",
            paper="better on all five: MNLI 1.8, QNLI 0.6, MRPC 9.0, SST-2 0.5, SQuAD 10.1",
            arm="no-nsp",
            against="left",
            paper_difference=4.8,
            published=("no NSP", "left-to-right, no NSP"),
        ),
        Claim(
            statement="A BiLSTM on top of the left-to-right model makes it better on SQuAD.",
            paper="84.9 against 77.8 F1",
            arm="left-bilstm",
            against="left",
            columns=("SQuAD 1.1 F1",),
            paper_difference=7.1,
            published=("+ BiLSTM", "left-to-right, no NSP"),
        ),
        Claim(
            statement="The BiLSTM makes the left-to-right model worse on GLUE.",
            paper="QNLI 84.3 against 84.1, MRPC 77.5 against 75.7, SST-2 92.1 against 91.6; MNLI the same",
            arm="left",
            against="left-bilstm",
            paper_difference=0.6,
            published=("left-to-right, no NSP", "+ BiLSTM"),
            columns=tuple(column.name for column in _COLUMNS if column is not columns.SQUAD1_F1),
        ),
        Claim(
            statement="Attention to both sides is better than left to right with the BiLSTM.",
            paper="87.9 against 84.9 F1",
            arm="no-nsp",
            against="left-bilstm",
            columns=("SQuAD 1.1 F1",),
            paper_difference=3.0,
            published=("no NSP", "+ BiLSTM"),
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
    limits=(
        "Both objectives read the same tokens. Masked LM learns from 15 % of the pieces, and a language model from "
        "every piece. So equal tokens are not equal compute.",
    ),
)


# Table 5 of GPT-1's paper (§5): the gain from pre-training and from the auxiliary loss.

_GPT_COLUMNS: Final = (
    columns.COLA_MATTHEWS,
    columns.SST2_ACCURACY,
    columns.MRPC_F1,
    columns.STSB_SPEARMAN,
    columns.QQP_F1,
    columns.MNLI_MATCHED,
    columns.QNLI_ACCURACY,
    columns.RTE_ACCURACY,
)

GPT_TABLE_5: Final = Experiment(
    name="gpt-table5",
    title="GPT-1's table 5: pre-training, the auxiliary loss, and an LSTM instead",
    question="Which part makes GPT-1 good: pre-training, the language-model loss in fine-tuning, or the Transformer?",
    arms=lambda _: (
        arms.GPT1,
        Arm(name="gpt-untrained", title="not pre-trained", pretraining=arms.GPT1.pretraining, is_trained=False),
        Arm(
            name="no-auxiliary",
            title="no auxiliary loss",
            pretraining=arms.GPT1.pretraining,
            finetuning={"lm_weight": 0.0},
        ),
        Arm(name="lstm", title="LSTM", pretraining={"system": "lstm-left"}, finetuning={"lm_weight": 0.5}),
    ),
    columns=_GPT_COLUMNS,
    claims=(
        Claim(
            statement="GPT-1 is better than the same model without pre-training.",
            paper="74.7 against 59.9 on average",
            arm="gpt",
            against="gpt-untrained",
            paper_difference=14.8,
            published=("GPT-1", "not pre-trained"),
        ),
        Claim(
            statement="The auxiliary loss helps on tasks with many rows.",
            paper="QQP 70.3 against 69.8, MNLI 81.8 against 81.1, QNLI 88.1 against 86.9",
            arm="gpt",
            against="no-auxiliary",
            paper_difference=0.8,
            published=("GPT-1", "no auxiliary loss"),
            columns=("QQP", "MNLI-m", "QNLI"),
        ),
        Claim(
            statement="The auxiliary loss does harm on tasks with few rows.",
            paper="CoLA 45.4 against 47.9, SST-2 91.3 against 92.0, MRPC 82.3 against 84.9, STS-B 82.0 against 83.2; "
            "but RTE 56.0 against 54.4",
            arm="no-auxiliary",
            against="gpt",
            paper_difference=1.3,
            published=("no auxiliary loss", "GPT-1"),
            columns=("CoLA", "SST-2", "MRPC", "STS-B", "RTE"),
        ),
        Claim(
            statement="The Transformer is better than an LSTM.",
            paper="74.7 against 69.1 on average",
            arm="gpt",
            against="lstm",
            paper_difference=5.6,
            published=("GPT-1", "LSTM"),
            caveat="The LSTM has random first weights and AdamW. The Transformer has the hand-made head and Muon.",
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
    note="The LSTM here is ELMo's, with the WordPiece vocabulary. GPT-1's paper has one layer of 2,048 with its own "
    "vocabulary. For STS-B it has Pearson's correlation; here it is Spearman's.",
    limits=("Claim 2 is about many training rows. At scale `tiny` no task has many.",),
)
