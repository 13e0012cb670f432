"""Claims of table 7 about the use of an encoder, with a model that was trained elsewhere (paper §5.3)."""

from typing import Final

from bertwright.experiments.spec import Arm, Changes, Claim, Experiment
from bertwright.experiments.tables import columns
from bertwright.experiments.tables.features import FEATURES

_AS_FINETUNE: Final = {"epochs": None, "batch_size": None, "learning_rate": None}
"""The schedule that the command `finetune` chooses for the rows and the model."""


def _use(name: str, title: str, finetuning: Changes) -> Arm:
    return Arm(name=name, title=title, uses_model=True, finetuning=finetuning)


USING: Final = Experiment(
    name="using",
    title="Fine-tuning and features of a published encoder",
    question="Are the states of a frozen encoder nearly as good as fine-tuning, and which layers are the best?",
    arms=lambda _: (
        _use("tuned", "fine-tuning", _AS_FINETUNE),
        *(_use(name, title, {"features": name}) for name, title in FEATURES.items()),
    ),
    columns=(columns.NER_F1, columns.WIKIGOLD_F1, columns.SST2_ACCURACY, columns.COLA_MATTHEWS),
    claims=(
        Claim(
            statement="The last four layers, concatenated, are as good as fine-tuning, within 1 point.",
            paper="96.1 against 96.4 (dev, names)",
            arm="concat-last-four",
            against="tuned",
            within=1.0,
        ),
        Claim(
            statement="The last layer is better than the embeddings.",
            paper="94.9 for the last layer, 91.0 for the embeddings (names)",
            arm="last",
            against="embeddings",
            paper_difference=3.9,
        ),
        Claim(
            statement="The last four layers, concatenated, are better than the last one.",
            paper="96.1 against 94.9 (names)",
            arm="concat-last-four",
            against="last",
            paper_difference=1.2,
        ),
        Claim(
            statement="The weighted sum of all layers is as good as the last four, concatenated, within 1 point.",
            paper="95.5 against 96.1 (names)",
            arm="sum-all",
            against="concat-last-four",
            within=1.0,
        ),
    ),
    note="A frozen encoder gives the features, and a BiLSTM of two layers learns from them. The paper measured this on "
    "names alone; single sentences are ours.",
    limits=(
        "The model may have been trained further after its pre-training, for example for sentence vectors. Its last "
        "layers are then those of that training.",
        "The BiLSTM has the width and the rate of the scale. The paper's has a width of 768.",
    ),
    pretraining_seeds=5,
    uses_model=True,
)
