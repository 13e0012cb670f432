"""A small GPT-1 as OpenAI and as Hugging Face lay it out, ways to break such files, and what they must give."""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertwright.model.backbones import build_backbone
from bertwright.model.folder import load_weights, open_model
from bertwright.text.bpe import BPETokenizer
from tests.support import bpe_oracle
from tests.support.texts import OWN_TEXT

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

LAYERS, HIDDEN, POSITIONS = 2, 24, 20
LAYER = ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
"""The parts of a layer in the order of the release; each is a weight and a bias."""


@cache
def vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    return bpe_oracle.learn(re.findall(r"[a-z]+|[^a-z\s]", OWN_TEXT.read_text("utf-8").lower()), 60)


def shapes() -> list[list[int]]:
    wide = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    sizes = [[POSITIONS, HIDDEN], [len(vocabulary()[0]), HIDDEN]]
    for part in LAYER * LAYERS:
        first, last = (HIDDEN * times for times in wide.get(part, (1, 1)))
        sizes += [[1, first, last], [last]] if part in wide else [[last], [last]]
    return sizes


def release(folder: Path) -> dict[str, Tensor]:
    """Write a small release in OpenAI's layout; the same weights by the names of transformers."""
    folder.mkdir()
    random = np.random.default_rng(7)
    arrays = [random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes()]
    row = np.concatenate([array.ravel() for array in arrays])
    for index, shard in enumerate(np.array_split(row, 10)):
        np.save(folder / f"params_{index}.npy", shard)
    (folder / "params_shapes.json").write_text(json.dumps(shapes()))
    pieces, merges = vocabulary()
    (folder / "encoder_bpe_40000.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (folder / "vocab_40000.bpe").write_text("".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in merges)]))
    names = [f"h.{layer}.{part}.{leaf}" for layer in range(LAYERS) for part in LAYER for leaf in ("weight", "bias")]
    named = zip(("positions_embed.weight", "tokens_embed.weight", *names), arrays, strict=True)
    return {name: torch.from_numpy(array.squeeze()) for name, array in named}


def transformers_model(weights: dict[str, Tensor]) -> Any:
    settings = transformers.OpenAIGPTConfig(
        n_layer=LAYERS, n_embd=HIDDEN, n_positions=POSITIONS, vocab_size=len(weights["tokens_embed.weight"])
    )
    model = transformers.OpenAIGPTLMHeadModel(settings).eval()
    model.transformer.load_state_dict(weights)
    return model


def published(folder: Path) -> dict[str, Tensor]:
    """The same model in Hugging Face's form."""
    weights = release(folder.with_name("release"))
    transformers_model(weights).save_pretrained(folder)
    BPETokenizer(*vocabulary()).save(folder)
    return weights


def assert_same_as_transformers(folder: Path, weights: dict[str, Tensor]) -> None:
    """The model folder gives the numbers of transformers' model with these weights."""
    texts = [line for line in OWN_TEXT.read_text("utf-8").splitlines() if line][:4]
    saved = open_model(str(folder))
    model = build_backbone(saved.config).eval()
    load_weights(nn.ModuleDict({"encoder": model}), saved)
    pieces, merges = vocabulary()
    tokenizer = BPETokenizer.load(saved.tokenizer)
    assert (tokenizer.pieces, tokenizer.merges) == (pieces, merges)
    ids = torch.tensor([ids[:POSITIONS] for ids in tokenizer.ids(texts)])
    with torch.inference_mode():
        mine = model(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
        other = transformers_model(weights)(ids, output_hidden_states=True)
        torch.testing.assert_close(mine, other.hidden_states[-1], atol=1e-5, rtol=1e-5)
        logits = torch.nn.functional.linear(mine, model.word_embeddings()[0].weight)
        torch.testing.assert_close(logits, other.logits, atol=1e-5, rtol=1e-5)
        opened = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder)
        assert torch.equal(opened.eval()(ids).logits, other.logits)
    assert transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"] == tokenizer.ids(texts)


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def edited(name: str, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a change to a JSON file: `edit` changes its value or returns a new one."""

    def change(folder: Path) -> None:
        value = json.loads((folder / name).read_text("utf-8"))
        new = edit(value)
        (folder / name).write_text(json.dumps(value if new is None else new), "utf-8")

    return change
