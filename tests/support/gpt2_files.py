"""GPT-2 of random weights as transformers saves it, and small byte-level tokenizers as GPT-2's and RoBERTa's."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import nn

from tests.support.published_tokenizers import TEXTS

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

END = "<|endoftext|>"


def write_gpt2_tokenizer(folder: Path) -> int:
    """Write byte-level byte pairs as GPT-2's, with one special token, the last one; return the number of pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust.train_from_iterator(TEXTS * 4, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    rust.add_special_tokens([END])
    rust.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2Tokenizer", "unk_token": END, "bos_token": END, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return rust.get_vocab_size()


def publish_gpt2(folder: Path, kind: str = "GPT2LMHeadModel", **shape: Any) -> Any:
    """Write a model of random weights as transformers saves it; return it."""
    shape = {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 40, "vocab_size": 90, **shape}
    model = getattr(transformers, kind)(transformers.GPT2Config(**shape, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.named_parameters():
        # So large that GELU is bent where it is used: its two forms are 1e-6 apart on what transformers starts with.
        nn.init.normal_(tensor, mean=float(name.endswith("weight") and "ln_" in name), std=0.3, generator=generator)
    model.save_pretrained(folder)
    return model
