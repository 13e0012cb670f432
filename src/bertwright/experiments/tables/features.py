"""table of the paper → experiment: table 7, named entities by fine-tuning, by features, and as ELMo (paper §5.3)."""

from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Changes, Claim, Experiment, Published, Scale
from bertwright.experiments.tables import arms, columns

FEATURES: Final = {
    "embeddings": "features: embeddings",
    "second-to-last": "features: second-to-last layer",
    "last": "features: last layer",
    "sum-last-four": "features: weighted sum of the last four",
    "concat-last-four": "features: last four layers, concatenated",
    "sum-all": "features: weighted sum of all layers",
}
"""Ways to use the states of a frozen model, with their titles."""

_PAIR: Final = "BERT learns next sentences; the two other models together read twice the tokens"
"""Further differences between BERT and two one-sided models."""


def _arms(scale: Scale) -> tuple[Arm, ...]:
    features = (
        replace(arms.BERT, name=name, title=title, finetuning={"features": name}) for name, title in FEATURES.items()
    )
    return (
        arms.BERT,
        arms.larger(scale),
        *features,
        _pair("elmo-lstm", "as ELMo: two LSTMs, features", {"system": "lstm-left"}, {"features": "elmo"}),
        _pair("elmo-transformer", "as ELMo: two Transformers, features", arms.LEFT.pretraining, {"features": "elmo"}),
        _pair("pair", "two one-sided Transformers, fine-tuned", arms.LEFT.pretraining, {}),
    )


def _pair(name: str, title: str, left: Changes, finetuning: Changes) -> Arm:
    """Return an arm of two joined models: one from left to right, and the same system from right to left."""
    right = {"system": str(left["system"]).replace("left", "right")}
    return Arm(name=name, title=title, pretraining=left, joined_with=right, finetuning=finetuning)


TABLE_7: Final = Experiment(
    name="table7",
    title="Table 7: names, by fine-tuning and by features of a frozen model",
    question="Are the states of a frozen BERT nearly as good as fine-tuning, and better than those of ELMo?",
    arms=_arms,
    columns=(columns.NER_F1, columns.WIKIGOLD_F1),
    claims=(
        Claim(
            statement="The last four layers, concatenated, are as good as fine-tuning, within 0.3 F1.",
            paper="96.1 against 96.4 (dev)",
            arm="concat-last-four",
            against="bert",
            within=0.3,
        ),
        Claim(
            statement="The last layer is better than the embeddings.",
            paper="94.9 for the last layer, 91.0 for the embeddings",
            arm="last",
            against="embeddings",
            paper_difference=3.9,
        ),
        Claim(
            statement="The last four layers, concatenated, are better than the last one.",
            paper="96.1 against 94.9",
            arm="concat-last-four",
            against="last",
            paper_difference=1.2,
        ),
        Claim(
            statement="The last four layers of BERT, concatenated, are better features than ELMo's.",
            paper="96.1 against ELMo's 95.7, whose tagger is another",
            arm="concat-last-four",
            against="elmo-lstm",
            paper_difference=0.4,
            confound=_PAIR,
            caveat="ELMo's two models learn from every piece, and BERT from 15 %. The table of costs has the minutes.",
        ),
        Claim(
            statement="One model with attention to both sides is better than two one-sided models together.",
            paper="discussed in §5.1, not measured",
            arm="bert",
            against="pair",
            confound=_PAIR,
            caveat="The two one-sided models have twice the weights. They learn from every piece, and BERT from 15 %.",
        ),
    ),
    published=Published(
        source="table 7, CoNLL-2003",
        head=("dev F1", "test F1"),
        rows=(
            ("ELMo", "95.7", "92.2"),
            ("CVT", "–", "92.6"),
            ("CSE", "–", "93.1"),
            ("BERT large, fine-tuned", "96.6", "92.8"),
            ("BERT base, fine-tuned", "96.4", "92.4"),
            ("features: embeddings", "91.0", "–"),
            ("features: second-to-last layer", "95.6", "–"),
            ("features: last layer", "94.9", "–"),
            ("features: weighted sum of the last four", "95.9", "–"),
            ("features: last four layers, concatenated", "96.1", "–"),
            ("features: weighted sum of all 12", "95.5", "–"),
        ),
    ),
    note="The paper's model for names is cased. A model with four layers or fewer has all of them in the last four.",
)
