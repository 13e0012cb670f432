"""A GPT-1 folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, vocab.json, merges.txt.

Here stands the one table between our parameter names and those of transformers' OpenAIGPTLMHeadModel, which stores the
weight of a linear layer transposed.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.files import read_object
from bertwright.model.described import check_values
from bertwright.model.naming import check_places, module_of, rename
from bertwright.model.sizes import GPTConfig

ARCHITECTURE = "OpenAIGPTLMHeadModel"
MODEL_TYPE = "openai-gpt"

_NAMES = {
    "encoder.embeddings.word": "transformer.tokens_embed",
    "encoder.embeddings.position": "transformer.positions_embed",
    "encoder.layers.#.attention.qkv": "transformer.h.#.attn.c_attn",
    "encoder.layers.#.attention.output": "transformer.h.#.attn.c_proj",
    "encoder.layers.#.attention_norm": "transformer.h.#.ln_1",
    "encoder.layers.#.expand": "transformer.h.#.mlp.c_fc",
    "encoder.layers.#.contract": "transformer.h.#.mlp.c_proj",
    "encoder.layers.#.output_norm": "transformer.h.#.ln_2",
}
"""Our module → Hugging Face's; # is the layer, the leaf (weight or bias) stays."""
_LINEAR = ("qkv", "output", "expand", "contract")
"""Where our module's name ends so, its weight stands transposed in the file."""
_CONSTANT = re.compile(r"(transformer\.)?(position_ids|h\.\d+\.attn\.(bias|masked_bias))")
"""The causal mask and the numbers of the positions, which older versions of transformers stored among the weights."""

_CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "max_positions": "n_positions",
    "hidden_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_epsilon",
    "pad_id": "pad_token_id",
}


def gpt_described(config: GPTConfig) -> dict[str, Any]:
    """What config.json says of a GPT-1 of that shape."""
    own = config.model_dump()
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "afn": "gelu",  # the tanh form, by the name it has there
        "embd_pdrop": config.hidden_dropout,
        **{theirs: own[ours] for ours, theirs in _CONFIG_NAMES.items()},
    }


def gpt_to_foreign(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameter names → Hugging Face's; the tied output is not written."""
    return {rename(name, _NAMES): _turned(name, tensor) for name, tensor in weights.items()}


def gpt_from_foreign(weights: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """Hugging Face's parameter names, a bare body's too, → ours in fp32; constants are left out.

    InputError with the names of tensors that have no place in a GPT-1, and for an output that is not tied.
    """
    kept = {_full_name(name): tensor.float() for name, tensor in weights.items() if not is_constant(name)}
    output, words = "lm_head.weight", "transformer.tokens_embed.weight"
    if output in kept and not (words in kept and torch.equal(kept[output], kept[words])):
        raise InputError(f"{place}: {output} is not {words}; only models that tie the two can be read")
    kept.pop(output, None)
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    try:
        check_places(kept, back, kind="GPT-1")
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    named = {rename(name, back): tensor for name, tensor in kept.items()}
    return {name: _turned(name, tensor) for name, tensor in named.items()}


def is_constant(name: str) -> bool:
    """Whether a tensor of this name in a file is no weight."""
    return _CONSTANT.fullmatch(name) is not None


def read_gpt_config(path: Path) -> tuple[GPTConfig, dict[str, Any]]:
    """Read config.json: the configuration, and what was noted for this project; InputError for other models."""
    raw = read_object(path)
    wanted = {
        "model_type": (raw.get("model_type"), MODEL_TYPE),
        "afn": (raw.get("afn", "gelu"), "gelu"),
        "tie_word_embeddings": (raw.get("tie_word_embeddings", True), True),
        "n_special": (raw.get("n_special", 0), 0),
        "embd_pdrop": (raw.get("embd_pdrop", 0.1), raw.get("resid_pdrop", 0.1)),
    }
    check_values(path, wanted)
    if not isinstance(raw.get("bertwright", {}), dict):
        raise InputError(f"{path}: bertwright is {raw['bertwright']!r}; it must be an object")
    values = {ours: raw[theirs] for ours, theirs in _CONFIG_NAMES.items() if theirs in raw}
    if values.get("pad_id", 0) is None:  # transformers' way of saying that there is none
        del values["pad_id"]
    hidden = values.get("hidden")
    try:
        config = GPTConfig.model_validate({**values, "intermediate": 4 * hidden if isinstance(hidden, int) else hidden})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return config, raw.get("bertwright", {})


def _full_name(name: str) -> str:
    return f"transformer.{name}" if name.startswith(("tokens_embed.", "positions_embed.", "h.")) else name


def _turned(name: str, tensor: Tensor) -> Tensor:
    """A tensor by our name, transposed where the two forms differ."""
    turns = name.endswith(".weight") and module_of(name).rpartition(".")[2] in _LINEAR
    return tensor.T if turns else tensor
