"""table of the paper → experiment: arms and columns that several tables have in common (paper §4, §5)."""

from typing import Final

from bertwright.experiments.spec import Arm, Column, Scale

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
BAG_OF_WORDS: Final = Arm(name="bag-of-words", title="bag of words, linear", baseline="bag-of-words")


def larger(scale: Scale) -> Arm:
    """Return the larger of the two BERTs of tables 1 to 4, with the same text, steps and rows."""
    return Arm(name="larger", title=f"BERT, {scale.larger}", pretraining={"size": scale.larger})


def compared_models(scale: Scale) -> tuple[Arm, ...]:
    """Return the models that tables 1 to 4 compare."""
    return (UNTRAINED, GPT1, BERT, larger(scale))


MNLI_MATCHED: Final = Column(name="MNLI-m", task="mnli", metric="dev_matched.accuracy")
MNLI_MISMATCHED: Final = Column(name="MNLI-mm", task="mnli", metric="dev_mismatched.accuracy")
QQP_F1: Final = Column(name="QQP", task="qqp", metric="f1")
QNLI_ACCURACY: Final = Column(name="QNLI", task="qnli", metric="accuracy")
SST2_ACCURACY: Final = Column(name="SST-2", task="sst2", metric="accuracy")
COLA_MATTHEWS: Final = Column(name="CoLA", task="cola", metric="matthews")
STSB_SPEARMAN: Final = Column(name="STS-B", task="stsb", metric="spearman")
MRPC_F1: Final = Column(name="MRPC", task="mrpc", metric="f1")
MRPC_ACCURACY: Final = Column(name="MRPC", task="mrpc", metric="accuracy")
RTE_ACCURACY: Final = Column(name="RTE", task="rte", metric="accuracy")
SQUAD1_F1: Final = Column(name="SQuAD 1.1 F1", task="squad1", metric="f1", factor=1.0)
SQUAD1_EM: Final = Column(name="SQuAD 1.1 EM", task="squad1", metric="em", factor=1.0)
SQUAD2_F1: Final = Column(name="SQuAD 2.0 F1", task="squad2", metric="f1", factor=1.0)
SQUAD2_EM: Final = Column(name="SQuAD 2.0 EM", task="squad2", metric="em", factor=1.0)
SWAG_ACCURACY: Final = Column(name="SWAG", task="swag", metric="accuracy")
NER_F1: Final = Column(name="NER F1", task="ner", metric="f1")
WIKIGOLD_F1: Final = Column(name="WikiGold F1", task="wikigold", metric="f1")
PERPLEXITY: Final = Column(name="perplexity", task=None, metric="perplexity", factor=1.0, is_lower_better=True)

SENTENCE_COLUMNS: Final = (SST2_ACCURACY, COLA_MATTHEWS, STSB_SPEARMAN, RTE_ACCURACY, QNLI_ACCURACY)
"""Columns of experiments that the paper did not measure: tasks of one sentence and of pairs, with few and many rows."""
