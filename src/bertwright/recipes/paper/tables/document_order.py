"""… → experiment: documents or shuffled sentences (paper §3.1: "critical", not measured)."""

from typing import Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment
from bertwright.recipes.paper.tables.shared import BERT, SENTENCE_NAMES, SENTENCES, SQUAD1_F1

DOCUMENT_ORDER: Final = Experiment(
    name="document-order",
    title="Documents or shuffled sentences",
    question="Does it matter that pre-training reads whole documents, and not the same sentences shuffled?",
    arms=lambda _: (
        BERT,
        Arm(name="shuffled", title="the same sentences, shuffled", text="sentences"),
    ),
    columns=(*SENTENCES, SQUAD1_F1),
    claims=(
        Claim(
            words="Documents are better than the same sentences shuffled.",
            paper="called critical in §3.1, not measured",
            first="bert",
            second="shuffled",
            columns=(*SENTENCE_NAMES, "SQuAD 1.1 F1"),
        ),
    ),
    note="Shuffled sentences lie in documents of the same lengths as before, so that both have the same rows and the "
    "same sentences; next-sentence prediction has nothing to find there.",
)
