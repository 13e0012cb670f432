"""The card of fine-tuned models that are no BERTs, or that transformers does not read."""

from typing import Any

import pytest

from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.card import finetuning_card, origin, pretraining_card
from bertwright.model.config import BackboneConfig
from bertwright.model.families.bert import FEATURES
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.system import system_config
from bertwright.pretraining.settings import PretrainSettings

BERT, GPT, LEFT = (system_config(system, "tiny", 400) for system in ("bert", "gpt", "bert-left"))
PAIR = PairConfig(left=system_config("lstm-left", "tiny", 400), right=system_config("lstm-right", "tiny", 400))
WEIGHTS = "the model `run`, its weights' sha256 `abababababababab`"
RESULT: dict[str, Any] = {
    "scores": [0.5],
    "metric": "accuracy",
    "mean": 0.5,
    "sd": 0.0,
    "collapsed": [],
    "seeds": [{"seed": 0, "scores": {"accuracy": 0.5}}],
    "baselines": {"metrics": {"bag of words": {"accuracy": 0.75}}, "notes": []},
}


@pytest.mark.parametrize(
    ("config", "architecture", "title", "is_theirs"),
    [
        (BERT, "BertForSequenceClassification", "A BERT model for sst2: 2 layers of 128", True),
        (BERT, FEATURES, "A BERT model for sst2: 2 layers of 128", False),
        (GPT, "BertForSequenceClassification", "A GPT-1 model for sst2: 2 layers of 128", False),
        (LEFT, "BertForSequenceClassification", "A left-to-right BERT model for sst2: 2 layers of 128", False),
        (
            PAIR,
            "BertForSequenceClassification",
            "A pair of a left-to-right LSTM and a right-to-left LSTM model for sst2: 2 layers of 256",
            False,
        ),
        (
            TopConfig(inner=BERT, width=16),
            "BertForSequenceClassification",
            "A BERT (BiLSTM on top) model for sst2: 2 layers of 16",
            False,
        ),
    ],
)
def test_a_card_says_what_a_model_is_and_who_reads_it(
    config: BackboneConfig, architecture: str, title: str, is_theirs: bool
) -> None:
    card = finetuning_card(
        FinetuneSettings(epochs=3, batch_size=32, learning_rate=5e-4),
        config,
        chosen={"batch_size": 32, "warmup": 0.1},
        task="sst2",
        predicts_number=False,
        architecture=architecture,
        labels=("no", "yes"),
        digests={"train": "0" * 64},
        rows=8,
        max_length=16,
        result=RESULT,
        began=origin("somewhere/run/model", None if config is BERT else "ab" * 32),
    )
    assert f"\n- began from {'random weights' if config is BERT else WEIGHTS}\n" in card
    assert f"# {title}, 400 pieces\n" in card
    assert "\n- accuracy: 0.7500, of the baseline bag of words\n" in card
    # Without a line that was chosen: it is no difference from the defaults.
    assert "\nWhere they differ from the defaults:\n\n- epochs: 3\n- learning_rate: 0.0005\n\nChosen for " in card
    assert "\nChosen for the task, the number of rows and the model:\n\n- batch_size: 32\n- warmup: 0.1\n\n## " in card
    assert ("is read by transformers" in card) == is_theirs
    assert ("split_special_tokens=True" in card) == is_theirs
    assert ("is read by bertwright alone" in card) == (not is_theirs)
    assert card.startswith(f"---\nlibrary_name: {'transformers' if is_theirs else 'bertwright'}\n")
    assert ("pipeline_tag: text-classification" in card) == ("\n- bert\n" in card) == is_theirs


def test_counts_of_pretraining_have_no_decimals() -> None:
    card = pretraining_card(
        PretrainSettings(steps=10),
        BERT,
        data=["a corpus"],
        tokens=1000,
        architecture="BertForPreTraining",
        steps=10,
        metrics={"mlm_loss": 4.5, "rows": 2048, "predictions": 20332},
        trained_positions=128,
    )
    assert "\n- mlm_loss: 4.5000\n- rows: 2,048\n- predictions: 20,332\n" in card


@pytest.mark.parametrize(
    ("labels", "predicts_number", "limit"),
    [
        (("score",), True, "It predicts a number."),
        (("toxic",), False, "Its labels are toxic; it predicts no others."),
    ],
)
def test_one_label_of_several_per_text_is_no_number(labels: tuple[str, ...], predicts_number: bool, limit: str) -> None:
    card = finetuning_card(
        FinetuneSettings(),
        BERT,
        chosen={},
        task="own",
        predicts_number=predicts_number,
        architecture="BertForSequenceClassification",
        labels=labels,
        digests={"train": "0" * 64},
        rows=8,
        max_length=16,
        result=RESULT,
        began=origin("somewhere/run/model", None),
    )
    assert f"\n- {limit}\n" in card
