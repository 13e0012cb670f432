"""Arms that several tables have in common (paper §4, §5)."""

from typing import Final

from bertwright.experiments.spec import Arm, Scale

FRACTIONS: Final = (0.03, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Fractions of the steps after which figure 5 measures: 30 to 800 thousand of the paper's million steps."""

BERT: Final = Arm(name="bert", title="BERT", pretraining={"snapshots": FRACTIONS})
NO_NSP: Final = Arm(name="no-nsp", title="no NSP", pretraining={"examples": {"second_sentence": "none"}})
LEFT: Final = Arm(
    name="left", title="left-to-right, no NSP", pretraining={"system": "bert-left", "snapshots": FRACTIONS}
)
GPT1: Final = Arm(name="gpt", title="GPT-1", pretraining={"system": "gpt"}, finetuning={"learning_rate": None})
"""GPT-1 with its own default learning rate, also where a scale sets BERT's for a task."""
UNTRAINED: Final = Arm(name="untrained", title="BERT, not pre-trained", is_trained=False)
MAJORITY: Final = Arm(name="majority", title="the commonest answer", baseline="majority")
"""Floor of every table: the same answer to every row."""
BAG_OF_WORDS: Final = Arm(name="bag-of-words", title="bag of words, linear", baseline="bag-of-words")

WITH_NEXT_SENTENCES: Final = "BERT learns next sentences in pre-training, and GPT-1 does not"
"""Second difference between BERT and GPT-1 wherever they are compared."""


def larger(scale: Scale) -> Arm:
    """Return the larger of the two BERTs of tables 1 to 4, with the same text, steps and rows."""
    return Arm(name="larger", title=f"BERT, {scale.larger}", pretraining={"size": scale.larger})


def compared_models(scale: Scale) -> tuple[Arm, ...]:
    """Return the models that tables 1 to 4 compare."""
    return (UNTRAINED, GPT1, BERT, larger(scale))
