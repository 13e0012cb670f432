"""Columns of the paper's tables: a task and its metric (paper §4, §5)."""

from typing import Final

from bertwright.experiments.spec import Column

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
SQUAD1_F1: Final = Column(name="SQuAD 1.1 F1", task="squad1", metric="f1", factor=1.0, floor="untrained")
SQUAD1_EM: Final = Column(name="SQuAD 1.1 EM", task="squad1", metric="em", factor=1.0, floor="untrained")
SQUAD2_F1: Final = Column(name="SQuAD 2.0 F1", task="squad2", metric="f1", factor=1.0)
SQUAD2_EM: Final = Column(name="SQuAD 2.0 EM", task="squad2", metric="em", factor=1.0)
SWAG_ACCURACY: Final = Column(name="SWAG", task="swag", metric="accuracy")
NER_F1: Final = Column(name="NER F1", task="ner", metric="f1")
WIKIGOLD_F1: Final = Column(name="WikiGold F1", task="wikigold", metric="f1")
PERPLEXITY: Final = Column(name="perplexity", task=None, metric="perplexity", factor=1.0, is_lower_better=True)
BLIMP_ACCURACY: Final = Column(name="BLiMP", task=None, metric="blimp")
CHARACTER_BITS: Final = Column(
    name="bits a character, x 100", task=None, metric="bits", factor=100.0, is_lower_better=True
)
"""Hundredths of a bit a character of validation text, 15 % of which is masked."""
BITS_DELTA: Final = 2.0
"""Hundredths of a bit a character that count as no difference."""

SENTENCE_COLUMNS: Final = (SST2_ACCURACY, COLA_MATTHEWS, STSB_SPEARMAN, RTE_ACCURACY, QNLI_ACCURACY)
"""Columns of experiments that the paper did not measure: tasks of one sentence and of pairs, with few and many rows."""
