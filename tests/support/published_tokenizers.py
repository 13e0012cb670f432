"""Small tokenizers as transformers publishes them: byte-level byte pairs as RoBERTa's, and Unigram as XLM-R's."""

import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The harbour lies near the old bridge, and the ships wait there.",
    "A café's naïve prices don't change; 3,500 guests came in 2019!",
    "Near the harbour the old ships wait: the bridge is old, the harbour older.",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_byte_pairs(folder: Path) -> None:
    """Write byte-level byte pairs framed as RoBERTa's."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust.train_from_iterator(
        TEXTS * 4, trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    rust.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls_token=("<s>", 0), add_prefix_space=False)
    _write(folder, rust, "RobertaTokenizer")


def write_unigram(folder: Path) -> None:
    """Write a Unigram vocabulary framed as XLM-R's."""
    rust = tokenizers.Tokenizer(models.Unigram())
    rust.normalizer = normalizers.NFKC()
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Metaspace()
    rust.train_from_iterator(
        TEXTS * 4, trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>")
    )
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    _write(folder, rust, "PreTrainedTokenizerFast")


WRITERS: dict[str, Callable[[Path], None]] = {"byte pairs": write_byte_pairs, "unigram": write_unigram}


def _write(folder: Path, rust: tokenizers.Tokenizer, kind: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rust.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": kind,
        "cls_token": "<s>",
        "bos_token": "<s>",
        "sep_token": "</s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
