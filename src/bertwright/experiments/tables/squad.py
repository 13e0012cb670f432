"""table of the paper → experiment: tables 2 and 3, SQuAD 1.1 and 2.0 (paper §4.2, §4.3)."""

from typing import Final

from bertwright.experiments.spec import Claim, Column, Experiment, Published
from bertwright.experiments.tables import arms, columns


def _common_claims(f1: Column, *, paper: str, difference: float | None) -> tuple[Claim, Claim]:
    """Return the claims of both tables; paper, difference: numbers of the larger BERT and of the smaller one."""
    return (
        Claim(
            statement="The larger BERT answers better.",
            paper=paper,
            arm="larger",
            against="bert",
            columns=(f1.name,),
            paper_difference=difference,
        ),
        Claim(
            statement="BERT answers better than the same model without pre-training.",
            paper="not in the table",
            arm="bert",
            against="untrained",
            columns=(f1.name,),
        ),
    )


TABLE_2: Final = Experiment(
    name="table2",
    title="Table 2: SQuAD 1.1",
    question="Are two new vectors, for the start and the end, enough to find the answer in a passage?",
    arms=arms.compared_models,
    columns=(columns.SQUAD1_EM, columns.SQUAD1_F1),
    claims=(
        *_common_claims(columns.SQUAD1_F1, paper="90.9 against 88.5 F1", difference=2.4),
        Claim(
            statement="BERT answers better than GPT-1, which attends to earlier tokens only.",
            paper="not in the table; table 5 has 87.9 F1 against 77.8 for left-to-right",
            arm="bert",
            against="gpt",
            columns=("SQuAD 1.1 F1",),
            paper_difference=10.1,
            confound=arms.WITH_NEXT_SENTENCES,
        ),
    ),
    published=Published(
        source="table 2; dev where the paper has it",
        head=("dev EM", "dev F1", "test EM", "test F1"),
        rows=(
            ("human", "–", "–", "82.3", "91.2"),
            ("nlnet (ensemble)", "–", "–", "86.0", "91.7"),
            ("QANet (ensemble)", "–", "–", "84.5", "90.5"),
            ("BiDAF + ELMo", "–", "85.6", "–", "85.8"),
            ("R.M. Reader (ensemble)", "81.2", "87.9", "82.3", "88.5"),
            ("BERT base", "80.8", "88.5", "–", "–"),
            ("BERT large", "84.1", "90.9", "–", "–"),
            ("BERT large (ensemble)", "85.8", "91.8", "–", "–"),
            ("BERT large + TriviaQA", "84.2", "91.1", "85.1", "91.8"),
            ("BERT large (ensemble) + TriviaQA", "86.2", "92.2", "87.4", "93.2"),
        ),
    ),
)


TABLE_3: Final = Experiment(
    name="table3",
    title="Table 3: SQuAD 2.0",
    question="Can a model that answers with [CLS] detect the questions that have no answer in the passage?",
    arms=arms.compared_models,
    columns=(columns.SQUAD2_EM, columns.SQUAD2_F1),
    claims=_common_claims(columns.SQUAD2_F1, paper="not in the table, which has BERT large alone", difference=None),
    published=Published(
        source="table 3",
        head=("dev EM", "dev F1", "test EM", "test F1"),
        rows=(
            ("human", "86.3", "89.0", "86.9", "89.5"),
            ("MIR-MRC (F-Net)", "–", "–", "74.8", "78.0"),
            ("nlnet", "–", "–", "74.2", "77.1"),
            ("unet (ensemble)", "–", "–", "71.4", "74.9"),
            ("SLQA+", "–", "–", "71.4", "74.4"),
            ("BERT large", "78.7", "81.9", "80.0", "83.1"),
        ),
    ),
    note="Half of the questions have no answer. So a model that never answers is right in half of the dev set.",
)
