"""… → experiment: table 3, SQuAD 2.0 (paper §4.3)."""

from typing import Final

from bertwright.recipes.paper.spec import Claim, Experiment, Published
from bertwright.recipes.paper.tables.shared import BERT, GPT, SQUAD2_EM, SQUAD2_F1, UNTRAINED, larger

TABLE_3: Final = Experiment(
    name="table3",
    title="Table 3: SQuAD 2.0",
    question="Does pointing at [CLS] tell the questions that the passage does not answer?",
    arms=lambda scale: (UNTRAINED, GPT, BERT, larger(scale)),
    columns=(SQUAD2_EM, SQUAD2_F1),
    claims=(
        Claim(
            words="The larger BERT answers better.",
            paper="not in the table, which has BERT large alone",
            first="larger",
            second="bert",
            columns=("SQuAD 2.0 F1",),
        ),
        Claim(
            words="Without pre-training it answers worse.",
            paper="not in the table",
            first="bert",
            second="untrained",
            columns=("SQuAD 2.0 F1",),
        ),
    ),
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
    note="Whoever answers nothing at all has half of the dev set right: read the figures beside that.",
)
