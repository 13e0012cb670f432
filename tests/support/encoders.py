"""Folders with a small encoder of random weights, for tests that fine-tune one."""

from pathlib import Path
from typing import Any

import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.text.wordpiece import Tokenizer

SHAPE: dict[str, Any] = {"hidden": 48, "layers": 2, "heads": 4, "intermediate": 96, "max_positions": 64}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def write_encoder(folder: Path, tokenizer: Path, *, second_sentence: Any = "none", **changes: Any) -> str:
    """Write an encoder of `SHAPE` with `changes`, without dropout unless they name it; return its folder."""
    shape = {"vocab_size": Tokenizer.load(tokenizer).vocab_size, **SHAPE, **NO_DROPOUT, **changes}
    config = EncoderConfig.model_validate(shape)
    torch.manual_seed(4)
    model = PretrainingModel(config, second_sentence=second_sentence)
    architecture = "BertForMaskedLM" if second_sentence == "none" else "BertForPreTraining"
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture=architecture)
    return str(folder)


def classifier_config(vocab_size: int = 200, **changes: Any) -> EncoderConfig:
    """Return an encoder of one layer of 16, without dropout, with `changes`."""
    shape = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 128}
    return EncoderConfig.model_validate({"vocab_size": vocab_size, **shape, **NO_DROPOUT, **changes})


def small_classifier(config: EncoderConfig, num_outputs: int) -> Classifier:
    """Return a classifier of random weights of standard deviation 0.3."""
    model = Classifier(config, num_outputs)
    init_weights(model, 0.3, torch.Generator().manual_seed(1))
    return model


def save_classifier(folder: Path, model: Classifier, task: ClassificationTask, tokenizer: Path, max_length: int) -> str:
    """Write a classifier with the task that it answers; return its folder."""
    save_model(
        folder,
        model,
        config=model.encoder.config,
        tokenizer=tokenizer,
        architecture="BertForSequenceClassification",
        labels=task.labels or ("score",),
        extra={"task": task.model_dump(mode="json"), "max_length": max_length},
    )
    return str(folder)
