"""table of the paper → experiment: table 1, GLUE (paper §4.1)."""

from typing import Final

from bertwright.experiments.spec import Claim, Experiment, Published
from bertwright.experiments.tables import arms, columns

TABLE_1: Final = Experiment(
    name="table1",
    title="Table 1: GLUE",
    question="Is a pre-trained BERT better on GLUE than GPT-1, than a smaller BERT, and than no pre-training?",
    arms=lambda scale: (arms.BAG_OF_WORDS, *arms.compared_models(scale)),
    columns=(
        columns.MNLI_MATCHED,
        columns.MNLI_MISMATCHED,
        columns.QQP_F1,
        columns.QNLI_ACCURACY,
        columns.SST2_ACCURACY,
        columns.COLA_MATTHEWS,
        columns.STSB_SPEARMAN,
        columns.MRPC_F1,
        columns.RTE_ACCURACY,
    ),
    claims=(
        Claim(
            statement="BERT is better than GPT-1 of the same size.",
            paper="79.6 against 75.1 on average",
            arm="bert",
            against="gpt",
            paper_difference=4.5,
            published=("BERT base", "GPT-1"),
            confound=arms.WITH_NEXT_SENTENCES,
            caveat="On an earlier ground, BERT without next sentences had no lead on pairs of texts "
            "(docs/results/archive.md).",
        ),
        Claim(
            statement="The larger BERT is better.",
            paper="82.1 against 79.6 on average",
            arm="larger",
            against="bert",
            paper_difference=2.5,
            published=("BERT large", "BERT base"),
        ),
        Claim(
            statement="BERT is better than the same model without pre-training.",
            paper="not in the table; GPT-1's table 5 has 74.7 against 59.9 without pre-training",
            arm="bert",
            against="untrained",
            paper_difference=14.8,
        ),
        Claim(
            statement="BERT is better than a linear model on words and word pairs.",
            paper="not in the table",
            arm="bert",
            against="bag-of-words",
            caveat="The linear model is trained once. If the page has the best epoch of the encoder, that favours the "
            "encoder.",
        ),
    ),
    published=Published(
        source="table 1, GLUE's test sets; the average is of the nine columns",
        head=("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "mean"),
        rows=(
            ("best before GPT-1", *"80.6 80.1 66.1 82.3 93.2 35.0 81.0 86.0 61.7 74.0".split()),
            ("BiLSTM + ELMo + attention", *"76.4 76.1 64.8 79.8 90.4 36.0 73.3 84.9 56.8 71.0".split()),
            ("GPT-1", *"82.1 81.4 70.3 87.4 91.3 45.4 80.0 82.3 56.0 75.1".split()),
            ("BERT base", *"84.6 83.4 71.2 90.5 93.5 52.1 85.8 88.9 66.4 79.6".split()),
            ("BERT large", *"86.7 85.9 72.1 92.7 94.9 60.5 86.5 89.3 70.1 82.1".split()),
        ),
    ),
    note="The paper's numbers are for the test sets, which only GLUE's server scores. "
    "The numbers here are for the dev sets.",
    limits=("All sizes and objectives had the same learning rate. No rate was searched for.",),
)
