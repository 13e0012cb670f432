"""Folders for tests of vectors: a small encoder of random weights with settings, and a corpus of documents."""

from pathlib import Path

import torch

from bertwright.corpus.build import build_corpus
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.vector_head import VectorHead
from bertwright.model.vector_settings import VectorSettings
from bertwright.objectives.masked_lm import PretrainingModel
from tests.support.encoders import write_encoder
from tests.support.page_data import documents


def write_vector_model(folder: Path, tokenizer: Path, settings: VectorSettings) -> VectorHead:
    """Write an encoder of random weights with these settings of vectors; return its head."""
    config = open_model(write_encoder(folder.with_name("plain"), tokenizer)).config
    assert isinstance(config, EncoderConfig)
    torch.manual_seed(5)
    model, head = PretrainingModel(config, second_sentence="none"), VectorHead(settings, config.hidden)
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture="BertForMaskedLM", vectors=head)
    return head


def write_corpus(folder: Path, tokenizer: Path, *, count: int = 40) -> Path:
    """Write `count` documents and build a corpus of them; return its folder."""
    (folder / "text.txt").write_text(documents(count), "utf-8")
    build_corpus([folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus", workers=1)
    return folder / "corpus"
