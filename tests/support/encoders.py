"""Folders with a small encoder of random weights, for tests that fine-tune one."""

from pathlib import Path
from typing import Any

import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.objectives.masked_lm import PretrainingModel
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
