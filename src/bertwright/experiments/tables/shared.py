"""… → experiment: the arms and columns that several tables have in common (paper §4, §5)."""

from typing import Final

from bertwright.experiments.spec import Arm, Column, Scale

SHARES: Final = (0.03, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Of the steps, where figure 5 looks before the end: 30 to 800 thousand of the paper's million."""

BERT: Final = Arm(name="bert", title="BERT", pretraining={"snapshots": SHARES})
NO_NSP: Final = Arm(name="no-nsp", title="no NSP", pretraining={"examples": {"second_sentence": "none"}})
LEFT: Final = Arm(name="left", title="left-to-right, no NSP", pretraining={"system": "bert-left", "snapshots": SHARES})
GPT: Final = Arm(name="gpt", title="GPT-1", pretraining={"system": "gpt"}, finetuning={"learning_rate": None})
"""At its own rate, where a scale names BERT's for a task."""
UNTRAINED: Final = Arm(name="untrained", title="BERT, not pre-trained", is_trained=False)
BAG_OF_WORDS: Final = Arm(name="bag-of-words", title="bag of words, linear", baseline="bag-of-words")


def larger(scale: Scale) -> Arm:
    """The larger of the two BERTs of tables 1 to 4: the same text, steps and rows."""
    return Arm(name="larger", title=f"BERT, {scale.larger}", pretraining={"size": scale.larger})


MNLI: Final = Column(name="MNLI-m", task="mnli", metric="dev_matched.accuracy")
MNLI_MM: Final = Column(name="MNLI-mm", task="mnli", metric="dev_mismatched.accuracy")
QQP: Final = Column(name="QQP", task="qqp", metric="f1")
QNLI: Final = Column(name="QNLI", task="qnli", metric="accuracy")
SST2: Final = Column(name="SST-2", task="sst2", metric="accuracy")
COLA: Final = Column(name="CoLA", task="cola", metric="matthews")
STSB: Final = Column(name="STS-B", task="stsb", metric="spearman")
MRPC: Final = Column(name="MRPC", task="mrpc", metric="f1")
MRPC_ACCURACY: Final = Column(name="MRPC", task="mrpc", metric="accuracy")
RTE: Final = Column(name="RTE", task="rte", metric="accuracy")
SQUAD1_F1: Final = Column(name="SQuAD 1.1 F1", task="squad1", metric="f1", times=1.0)
SQUAD1_EM: Final = Column(name="SQuAD 1.1 EM", task="squad1", metric="em", times=1.0)
SQUAD2_F1: Final = Column(name="SQuAD 2.0 F1", task="squad2", metric="f1", times=1.0)
SQUAD2_EM: Final = Column(name="SQuAD 2.0 EM", task="squad2", metric="em", times=1.0)
SWAG: Final = Column(name="SWAG", task="swag", metric="accuracy")
NER: Final = Column(name="NER F1", task="ner", metric="f1")
WIKIGOLD: Final = Column(name="WikiGold F1", task="wikigold", metric="f1")
PERPLEXITY: Final = Column(name="perplexity", task=None, metric="perplexity", times=1.0, is_lower_better=True)

SENTENCES: Final = (SST2, COLA, STSB, RTE, QNLI)
"""What is measured where the paper has no columns of its own: one sentence and pairs, few rows and many."""
SENTENCE_NAMES: Final = tuple(column.name for column in SENTENCES)
