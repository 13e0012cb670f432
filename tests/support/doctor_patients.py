"""Folders for the tests of the doctor: a corpus of sentences, and a model of random weights that look trained."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertwright.corpus.encode import EncodedDocuments, offsets_of
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.doctor.findings import Finding
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer

WORDS = (
    "harbour winter garden letter bridge window school market morning river paper music table horse island doctor "
    "summer kitchen forest meadow"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LOWER = Tokenizer(
    [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)], Rules(cased=False, strip_accents=False)
)
CASED = Tokenizer(
    [*SPECIAL, *WORDS, *(word.capitalize() for word in WORDS), *LETTERS, *(f"##{letter}" for letter in LETTERS)],
    Rules(cased=True, strip_accents=False),
)


def small_config(tokenizer: Tokenizer = LOWER, **changes: Any) -> EncoderConfig:
    """Return a configuration of one layer without dropout."""
    shape = {"hidden": 64, "layers": 1, "heads": 2, "intermediate": 128, "max_positions": 512}
    plain = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return EncoderConfig.model_validate({"vocab_size": tokenizer.vocab_size, **shape, **plain, **changes})


def write_model(
    folder: Path,
    *,
    tokenizer: Tokenizer = LOWER,
    architecture: str = "BertForPreTraining",
    change: Callable[[dict[str, Tensor]], None] = lambda weights: None,
    labels: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
    num_labels: int = 2,
    **config: Any,
) -> Path:
    """Write a model of random weights with biases and norms as training leaves them; `change` edits the weights."""
    shape = small_config(tokenizer, **config)
    model = Bert(shape, architecture, num_labels=num_labels)
    draw = torch.Generator().manual_seed(0)
    init_weights(model, shape.initializer_range, draw)
    weights = dict(model.state_dict())
    for name, tensor in weights.items():
        if tensor.ndim == 1:
            weights[name] = tensor + 0.01 * torch.randn(tensor.shape, generator=draw)
    change(weights)
    tokenizer_folder = folder.parent / f"{folder.name}-tokenizer"
    tokenizer.save(tokenizer_folder)
    save_model(
        folder,
        weights,
        config=shape,
        tokenizer=tokenizer_folder,
        architecture=architecture,
        labels=labels,
        extra=extra or {},
    )
    return folder


def write_corpus(
    folder: Path, documents: list[list[str]], *, tokenizer: Tokenizer = LOWER, keep_duplicates: bool = False
) -> Corpus:
    """Write a corpus of one shard; each document is a list of sentences."""
    ids = [tokenizer.ids(sentences) for sentences in documents]
    sentences = list(chain.from_iterable(ids))
    with CorpusWriter(folder, tokenizer=tokenizer, shard_tokens=10**9) as writer:
        writer.add(
            EncodedDocuments(
                ids=np.array(list(chain.from_iterable(sentences)), np.uint16),
                sentence_first=offsets_of(np.array([len(sentence) for sentence in sentences], np.int64)),
                document_first=offsets_of(np.array([len(document) for document in ids], np.int64)),
            )
        )
        writer.finish(text={}, sources=(), dropped=0, keep_duplicates=keep_duplicates)
    return Corpus.open(folder)


def random_sentences(count: int, *, seed: int = 0, longest: int = 12) -> list[str]:
    """Return random sentences of `WORDS`."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(6, longest))) for _ in range(count)]


def levels(findings: list[Finding]) -> dict[str, str]:
    """Return name → level of the findings that are not ok."""
    return {each.name: each.level for each in findings if each.level != "ok"}


def named(findings: list[Finding], name: str) -> Finding:
    """Return the only finding of that name."""
    (finding,) = (each for each in findings if each.name == name)
    return finding
