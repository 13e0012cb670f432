"""table of the paper → experiment: table 7, named entities by fine-tuning, by features, and as ELMo (paper §5.3)."""

from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Changes, Claim, Experiment, Published, Scale
from bertwright.experiments.tables import arms, columns

_FEATURES: Final = {
    "embeddings": "features: embeddings",
    "second-to-last": "features: second-to-last layer",
    "last": "features: last layer",
    "sum-last-four": "features: weighted sum of the last four",
    "concat-last-four": "features: last four side by side",
    "sum-all": "features: weighted sum of all layers",
}


def _arms(scale: Scale) -> tuple[Arm, ...]:
    features = (
        replace(arms.BERT, name=name, title=title, finetuning={"features": name}) for name, title in _FEATURES.items()
    )
    return (
        arms.BERT,
        arms.larger(scale),
        *features,
        _pair("elmo-lstm", "ELMo's way: two LSTMs, features", {"system": "lstm-left"}, {"features": "elmo"}),
        _pair(
            "elmo-transformer", "ELMo's way: two Transformers, features", arms.LEFT.pretraining, {"features": "elmo"}
        ),
        _pair("pair", "two Transformers side by side, fine-tuned", arms.LEFT.pretraining, {}),
    )


def _pair(name: str, title: str, left: Changes, finetuning: Changes) -> Arm:
    """Return an arm of two joined models: one from left to right, and the same system from right to left."""
    right = {"system": str(left["system"]).replace("left", "right")}
    return Arm(name=name, title=title, pretraining=left, joined_with=right, finetuning=finetuning)


TABLE_7: Final = Experiment(
    name="table7",
    title="Table 7: names by fine-tuning, and by features of a frozen model",
    question="Do the states of a frozen BERT serve nearly as well as fine-tuning it, and better than ELMo's?",
    arms=_arms,
    columns=(columns.NER_F1, columns.WIKIGOLD_F1),
    claims=(
        Claim(
            statement="The last four layers side by side are within 0.3 F1 of fine-tuning.",
            paper="96.1 against 96.4 (dev)",
            arm="concat-last-four",
            against="bert",
            within=0.3,
        ),
        Claim(
            statement="The layers know more of a word than its embedding.",
            paper="94.9 for the last layer, 91.0 for the embeddings",
            arm="last",
            against="embeddings",
            paper_difference=3.9,
        ),
        Claim(
            statement="Four layers side by side are better than the last one.",
            paper="96.1 against 94.9",
            arm="concat-last-four",
            against="last",
            paper_difference=1.2,
        ),
        Claim(
            statement="BERT's states, the last four layers side by side, are better features than ELMo's.",
            paper="96.1 against ELMo's 95.7, whose tagger is another",
            arm="concat-last-four",
            against="elmo-lstm",
            paper_difference=0.4,
            caveat="ELMo's way has two models, twice the tokens, about four times the minutes of pre-training and 6.7 "
            "times the predictions of a token: equal tokens are not equal compute.",
        ),
        Claim(
            statement="Looking to both sides at once is better than two models side by side that look to one each.",
            paper="discussed in §5.1, not measured",
            arm="bert",
            against="pair",
            caveat="The pair has twice the parameters and twice the tokens, and it learns from every piece.",
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
            ("features: last four side by side", "96.1", "–"),
            ("features: weighted sum of all 12", "95.5", "–"),
        ),
    ),
    note="The paper's model for names is cased. Of four layers the last four are all; fewer layers have fewer.",
)
