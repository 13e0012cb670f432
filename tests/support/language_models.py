"""Folders with small language models and masked LMs of random weights, and tokenizers of their own."""

from pathlib import Path

import torch

from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.model.system import system_config
from bertwright.objectives.language_model import LanguageModel
from bertwright.text.bpe import train_bpe
from bertwright.text.open_tokenizer import open_tokenizer_folder


def write_language_model(folder: Path, system: str, tokenizer: Path, text: str) -> str:
    """Write a language model of random weights of standard deviation 0.3; GPT-1 gets byte pairs learned from `text`."""
    if system == "gpt":
        tokenizer = folder.with_name(f"{folder.name}-pairs")
        train_bpe([text], merges=200).save(tokenizer)
    config = system_config(system, "1x64", open_tokenizer_folder(tokenizer).vocab_size)
    model = LanguageModel(config)
    init_weights(model, 0.3, torch.Generator().manual_seed(5))
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture=model.architecture)
    return str(folder)
