"""GPT-1 from Hugging Face's layout, today's and the old one: the same numbers, and every broken file by its name."""

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.interop.openai import is_gpt1, read_gpt
from bertwright.model.families.gpt import GPT_ARCHITECTURE
from bertwright.model.folder import open_model
from bertwright.model.hf_config import describe_model, read_description
from bertwright.text.bpe import BPETokenizer
from tests.support.gpt_files import (
    HIDDEN,
    LAYERS,
    POSITIONS,
    Code,
    assert_same_as_transformers,
    edited,
    published,
    transformers_model,
    vocabulary,
)


def test_the_form_of_hugging_face_is_read(tmp_path: Path) -> None:
    weights = published(tmp_path / "theirs")
    said = import_model(str(tmp_path / "theirs"), tmp_path / "out")
    assert said["found"] == "a GPT-1 in Hugging Face's layout, model.safetensors"
    assert_same_as_transformers(tmp_path / "out", weights)


def test_shards_with_an_index_are_read(tmp_path: Path) -> None:
    weights = published(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    transformers_model(weights).save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    said = import_model(str(tmp_path / "theirs"), tmp_path / "out")
    assert re.fullmatch(r"a GPT-1 in Hugging Face's layout, [2-9] shards of model\.safetensors", said["found"])
    assert_same_as_transformers(tmp_path / "out", weights)


def test_its_old_files_with_constants_among_the_weights_are_read(tmp_path: Path) -> None:
    """A bare backbone in pytorch_model.bin, the causal mask and positions stored, and no tokenizer.json."""
    weights = published(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    constants = {f"h.{layer}.attn.bias": torch.ones(1, 1, POSITIONS, POSITIONS).tril() for layer in range(LAYERS)}
    constants["position_ids"] = torch.arange(POSITIONS)
    torch.save({**weights, **constants}, tmp_path / "theirs" / "pytorch_model.bin")
    said = import_model(str(tmp_path / "theirs"), tmp_path / "out")
    assert said["found"] == "a GPT-1 in Hugging Face's layout, pytorch_model.bin"
    assert said["left_out"] == list(constants)
    assert_same_as_transformers(tmp_path / "out", weights)


def weights_with(edit: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    """A change to the tensors of a folder."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def pickled(value: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Write a pytorch_model.bin instead of model.safetensors."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value(folder), folder / "pytorch_model.bin")

    return change


def bare_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code(folder / "ran"), protocol=2))


WORDS = "transformer.tokens_embed.weight"


def encrypted(folder: Path) -> None:
    """Mark the entries of a zip as encrypted; a reader then asks for a password."""
    pickled(lambda _: {"a": torch.zeros(2)})(folder)
    path = folder / "pytorch_model.bin"
    content = bytearray(path.read_bytes())
    for start in (match.start() for match in re.finditer(b"PK\x01\x02", content)):
        content[start + 8] |= 1
    path.write_bytes(content)


BROKEN_FOLDER: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another activation": (edited("config.json", lambda c: c.update(afn="relu")), "afn is 'relu'; only 'gelu' can be"),
    "an untied output": (
        edited("config.json", lambda c: c.update(tie_word_embeddings=False)),
        "tie_word_embeddings is",
    ),
    "special embeddings": (
        edited("config.json", lambda c: c.update(n_special=3)),
        "n_special is 3; only 0 can be read",
    ),
    "two dropouts": (
        edited("config.json", lambda c: c.update(embd_pdrop=0.3)),
        "embd_pdrop is 0.3; only 0.1 can be read",
    ),
    "no width": (edited("config.json", lambda c: c.pop("n_embd") and None), r"config\.json: n_embd is missing"),
    "a width of text": (edited("config.json", lambda c: c.update(n_embd="wide")), r"config\.json: n_embd is 'wide': "),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"holds no weights: expected model\.safetensors"),
    "truncated": (lambda f: os.truncate(f / "model.safetensors", 900), r"model\.safetensors: broken or truncated"),
    "a head of its own": (
        weights_with(lambda t: t.update({"score.weight": torch.zeros(2, HIDDEN)})),
        "1 of 27 tensors do not belong to a GPT-1: score.weight",
    ),
    "another output": (
        weights_with(lambda t: t.update({"lm_head.weight": t[WORDS] + 1})),
        "lm_head.weight is not transformer.tokens_embed.weight; only models that tie",
    ),
    "a tensor is missing": (
        weights_with(lambda t: t.pop("transformer.h.1.ln_1.bias")),
        r"not a complete OpenAIGPTLMHeadModel; missing: transformer\.h\.1\.ln_1\.bias$",
    ),
    "a layer too many": (
        weights_with(lambda t: t.update({"transformer.h.2.ln_1.bias": torch.zeros(HIDDEN)})),
        r"unknown: transformer\.h\.2\.ln_1\.bias$",
    ),
    "a shape": (
        weights_with(lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.zeros(4 * HIDDEN, HIDDEN)})),
        r"transformer\.h\.0\.mlp\.c_fc\.weight is \(96, 24\), not \(24, 96\)$",
    ),
    "not a number": (
        weights_with(lambda t: t[WORDS][3].fill_(np.nan)),
        r"that are no numbers in transformer\.tokens_embed\.weight$",
    ),
    "code": (pickled(lambda f: {"a": Code(f / "ran")}), r"pytorch_model\.bin: holds more than tensors"),
    "code alone": (bare_pickle, r"pytorch_model\.bin: holds more than tensors, so it is not opened"),
    "encrypted": (encrypted, r"pytorch_model\.bin: '.*' in it is encrypted, which torch never does; refused"),
    "a number": (
        pickled(lambda f: {"epoch": 3}),
        r"pytorch_model\.bin: expected a state dict of named tensors, got a dict",
    ),
    "a list": (
        pickled(lambda f: [torch.zeros(2)]),
        r"pytorch_model\.bin: expected a state dict of named tensors, got a list",
    ),
    "no vocabulary": (
        lambda f: [(f / name).unlink() for name in ("tokenizer.json", "vocab.json", "merges.txt")],
        "no GPT-1 tokenizer",
    ),
    "more pieces": (
        lambda f: BPETokenizer([*vocabulary()[0], "zz"], vocabulary()[1]).save(f),
        r"the vocabulary has \d+ pieces, but there are embeddings for \d+",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN_FOLDER.values(), ids=BROKEN_FOLDER.keys())
def test_broken_folders_are_refused(tmp_path: Path, damage: Callable[[Path], Any], words: str) -> None:
    published(tmp_path / "theirs")
    damage(tmp_path / "theirs")
    assert is_gpt1(tmp_path / "theirs")
    with pytest.raises(InputError, match=words):
        import_model(str(tmp_path / "theirs"), tmp_path / "out")
    assert not (tmp_path / "theirs" / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_rows_without_a_piece_may_follow_the_vocabulary(tmp_path: Path) -> None:
    published(tmp_path / "theirs")
    weights_with(lambda t: t.update({WORDS: torch.cat([t[WORDS], torch.ones(3, HIDDEN)])}))(tmp_path / "theirs")
    edited("config.json", lambda c: c.update(vocab_size=c["vocab_size"] + 3))(tmp_path / "theirs")
    read = read_gpt(tmp_path / "theirs")
    assert read.config.vocab_size == read.tokenizer.vocab_size + 3
    import_model(str(tmp_path / "theirs"), tmp_path / "out")
    saved = open_model(str(tmp_path / "out"))
    assert saved.weights is not None
    assert len(saved.weights["encoder.embeddings.word.weight"]) == saved.config.vocab_size


def test_what_fills_a_row_up_is_noted(tmp_path: Path) -> None:
    published(tmp_path / "theirs")
    import_model(str(tmp_path / "theirs"), tmp_path / "out")
    config = read_description(tmp_path / "out" / "config.json").config
    padded = describe_model(config.model_copy(update={"pad_id": 7}), GPT_ARCHITECTURE, ())
    (tmp_path / "config.json").write_text(json.dumps(padded))
    assert read_description(tmp_path / "config.json").config.pad_id == 7
    (tmp_path / "config.json").write_text(json.dumps({**padded, "pad_token_id": None}))
    assert read_description(tmp_path / "config.json").config.pad_id == 0
