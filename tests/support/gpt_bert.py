"""A GPT-BERT with random weights, and the two classes of transformers that compute its two uses with these weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.bert import LANGUAGE_MODEL
from bertwright.model.families.gpt_bert import GPTBertConfig
from bertwright.model.folder import save_model
from bertwright.objectives.masked_next_token import MixedModel
from bertwright.text.wordpiece import Tokenizer


def random_gpt_bert(tokenizer: Path) -> MixedModel:
    """Return a model of two layers of 32 without dropout, a quarter of whose rows would be causal."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 80, "max_positions": 40}
    no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    vocab_size = Tokenizer.load(tokenizer).vocab_size
    config = GPTBertConfig.model_validate({"vocab_size": vocab_size, **shape, **no_dropout})
    model, draw = MixedModel(config, causal_share=0.25), torch.Generator().manual_seed(3)
    init_weights(model, 0.3, draw)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model.eval()


def saved_gpt_bert(folder: Path, model: MixedModel, tokenizer: Path) -> str:
    """Write the model folder; return its path."""
    save_model(folder, model, config=model.encoder.config, tokenizer=tokenizer, architecture="BertForMaskedLM")
    return str(folder)


def both_classes(folder: Path, model: MixedModel, tokenizer: Path) -> tuple[Any, Any]:
    """Return BertForMaskedLM and BertLMHeadModel of transformers with the model's weights, in float64."""
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    values = model.encoder.config.model_dump()
    for attends, architecture in (("both", "BertForMaskedLM"), ("left", LANGUAGE_MODEL)):
        config = EncoderConfig.model_validate({**values, "attends": attends})
        save_model(folder / attends, model, config=config, tokenizer=tokenizer, architecture=architecture)
    masked = transformers.BertForMaskedLM.from_pretrained(folder / "both").eval().double()
    return masked, transformers.BertLMHeadModel.from_pretrained(folder / "left").eval().double()
