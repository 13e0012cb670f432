"""table of the paper → experiment: table 4, SWAG (paper §4.4)."""

from typing import Final

from bertwright.experiments.spec import Claim, Experiment, Published
from bertwright.experiments.tables import arms, columns

TABLE_4: Final = Experiment(
    name="table4",
    title="Table 4: SWAG",
    question="Is one new vector enough to choose the likeliest of four continuations?",
    arms=arms.compared_models,
    columns=(columns.SWAG_ACCURACY,),
    claims=(
        Claim(
            statement="BERT chooses better than GPT-1.",
            paper="86.3 against 78.0 (BERT large, test)",
            arm="bert",
            against="gpt",
            paper_difference=8.3,
            confound=arms.WITH_NEXT_SENTENCES,
        ),
        Claim(
            statement="The larger BERT chooses better.",
            paper="86.6 against 81.6 (dev)",
            arm="larger",
            against="bert",
            paper_difference=5.0,
        ),
        Claim(
            statement="BERT chooses better than the same model without pre-training.",
            paper="not in the table",
            arm="bert",
            against="untrained",
        ),
    ),
    published=Published(
        source="table 4; people on 100 samples",
        head=("dev", "test"),
        rows=(
            ("ESIM + GloVe", "51.9", "52.7"),
            ("ESIM + ELMo", "59.1", "59.2"),
            ("GPT-1", "–", "78.0"),
            ("BERT base", "81.6", "–"),
            ("BERT large", "86.6", "86.3"),
            ("an expert", "–", "85.0"),
            ("five people", "–", "88.0"),
        ),
    ),
    note="A random choice is right in 25 %.",
)
