"""Experiment on the cause of scores on pairs: the matching head is removed and transplanted (not in the paper)."""

from dataclasses import replace
from typing import Final

from bertwright.experiments.spec import Arm, Claim, Experiment, HeadChange
from bertwright.experiments.tables import arms, columns

_PAIRS: Final = (columns.STSB_SPEARMAN.name, columns.QNLI_ACCURACY.name)
_NOT_MEASURED: Final = "not measured"


def _matching(arm: Arm) -> Arm:
    return replace(arm, pretraining={**arm.pretraining, "start": "matching"})


def _changed(arm: Arm, name: str, title: str, head: HeadChange) -> Arm:
    return replace(arm, name=name, title=f"{arm.title}, {title}", head=head)


_BERT: Final = _matching(arms.BERT)
_NO_NSP: Final = _matching(arms.NO_NSP)

HEAD_REMOVAL: Final = Experiment(
    name="head-removal",
    title="The matching head, removed and transplanted",
    question="Is the head that looks for the same piece the cause of the scores on pairs of texts?",
    arms=lambda _: (
        _BERT,
        _changed(_BERT, "bert-without-head", "matching head removed", "matching-removed"),
        _changed(_BERT, "bert-without-other", "another head of the layer removed", "other-removed"),
        _NO_NSP,
        _changed(_NO_NSP, "no-nsp-without-head", "matching head removed", "matching-removed"),
        replace(
            _changed(_NO_NSP, "no-nsp-with-head", "with BERT's matching head", "transplanted"),
            joined_with=_BERT.pretraining,
        ),
    ),
    columns=(columns.STSB_SPEARMAN, columns.QNLI_ACCURACY, columns.SST2_ACCURACY),
    claims=(
        Claim(
            statement="BERT compares two texts better with its matching head than without it.",
            paper=_NOT_MEASURED,
            arm="bert",
            against="bert-without-head",
            columns=_PAIRS,
        ),
        Claim(
            statement="BERT compares two texts better without another head of the same layer than without the "
            "matching head.",
            paper=_NOT_MEASURED,
            arm="bert-without-other",
            against="bert-without-head",
            columns=_PAIRS,
        ),
        Claim(
            statement="BERT classifies single sentences as well without its matching head, within 1 point.",
            paper=_NOT_MEASURED,
            arm="bert-without-head",
            against="bert",
            columns=(columns.SST2_ACCURACY.name,),
            within=1.0,
        ),
        Claim(
            statement="Next-sentence prediction helps where two texts are compared, and by more with the matching "
            "head than without it.",
            paper=_NOT_MEASURED,
            arm="bert",
            against="no-nsp",
            beyond=("bert-without-head", "no-nsp-without-head"),
            columns=_PAIRS,
        ),
        Claim(
            statement="Without its matching head, BERT is still better than a model without next sentences where two "
            "texts are compared.",
            paper=_NOT_MEASURED,
            arm="bert-without-head",
            against="no-nsp",
            columns=_PAIRS,
        ),
        Claim(
            statement="A model without next sentences compares two texts better with BERT's matching head than with "
            "its own.",
            paper=_NOT_MEASURED,
            arm="no-nsp-with-head",
            against="no-nsp",
            columns=_PAIRS,
            caveat="BERT's embeddings and its other layers are not transplanted. A head that fails in another model "
            "can still be the cause in its own.",
        ),
    ),
    note="Pre-training starts with `matching`, and its head is the last one of the second layer. The head is removed, "
    "or put into the other model, after pre-training and before fine-tuning. A removed head stays removed. The "
    "transplanted head is that of the BERT with the same pre-training seed.",
    limits=(
        "Only the hand-made head is changed. Another head of the model may look for the same piece too.",
        "All other weights have learned beside the head. A model that never had it can be better than one that lost "
        "it after pre-training.",
    ),
    pretraining_seeds=4,
)
