"""checkpoint of GPT-1 → model folder: what an importer finds, Hugging Face's form, and how it is written.

Hugging Face's form is a folder with config.json (model_type openai-gpt), model.safetensors or pytorch_model.bin, whole
or in shards, and tokenizer.json or vocab.json with merges.txt.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.interop.foreign import check_tensors
from bertwright.interop.huggingface import read_weights
from bertwright.model.folder import save_weights
from bertwright.model.gpt import GPT
from bertwright.model.gpt_naming import ARCHITECTURE, gpt_from_foreign, is_constant, read_gpt_config
from bertwright.model.sizes import GPTConfig
from bertwright.text.bpe import BPETokenizer


@dataclass(frozen=True)
class ForeignGPT:
    """A GPT-1 as an importer read it.

    `found` says what was recognised, `weights` are by our names, `left_out` the names of tensors that are no weights.
    """

    place: str
    found: str
    config: GPTConfig
    weights: Mapping[str, Tensor]
    tokenizer: BPETokenizer
    left_out: tuple[str, ...] = ()


def read_gpt_folder(folder: Path) -> ForeignGPT:
    """Read Hugging Face's form; InputError for what is missing, broken or no GPT-1, each with its name."""
    config, _ = read_gpt_config(folder / "config.json")
    stored, files = read_weights(folder)
    return ForeignGPT(
        place=str(folder),
        found=f"a GPT-1 in Hugging Face's layout, {files}",
        config=config,
        weights=gpt_from_foreign(stored, str(folder)),
        tokenizer=BPETokenizer.load(folder),
        left_out=tuple(filter(is_constant, stored)),
    )


def write_gpt(foreign: ForeignGPT, out: Path) -> None:
    """Write the model folder; InputError where the checkpoint is not whole, holds no numbers, or `out` exists."""
    if out.exists():
        raise InputError(f"{out}: exists already; name another folder or remove it")
    _check_whole(foreign)
    with tempfile.TemporaryDirectory() as place:
        foreign.tokenizer.save(Path(place))
        save_weights(out, foreign.weights, config=foreign.config, tokenizer=Path(place), architecture=ARCHITECTURE)


def _check_whole(foreign: ForeignGPT) -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"encoder": GPT(foreign.config)})
    check_tensors(foreign.place, foreign.weights, model=model, kind=ARCHITECTURE)
    pieces, rows = foreign.tokenizer.vocab_size, foreign.config.vocab_size
    if pieces > rows:
        raise InputError(f"{foreign.place}: the vocabulary has {pieces} pieces, but there are embeddings for {rows}")
