"""Folders of a small encoder of random weights with settings of vectors."""

from pathlib import Path

import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.vector_head import VectorHead
from bertwright.model.vector_settings import VectorSettings
from bertwright.objectives.masked_lm import PretrainingModel
from tests.support.encoders import write_encoder


def write_vector_model(folder: Path, tokenizer: Path, settings: VectorSettings) -> VectorHead:
    """Write an encoder of random weights with these settings of vectors; return its head."""
    config = open_model(write_encoder(folder.with_name("plain"), tokenizer)).config
    assert isinstance(config, EncoderConfig)
    torch.manual_seed(5)
    model, head = PretrainingModel(config, second_sentence="none"), VectorHead(settings, config.hidden)
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture="BertForMaskedLM", vectors=head)
    return head
