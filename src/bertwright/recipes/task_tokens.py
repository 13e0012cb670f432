"""model and vocabulary → both with the three tokens that rows of tasks are made of (GPT paper §3.3 and 4.1).

The vocabulary that GPT-1 was published with has none of them: they come behind its pieces, and their embeddings, the
only new ones beside the head, begin as all weights of a GPT-1 did.
"""

from dataclasses import replace
from pathlib import Path

import torch

from bertwright.model.folder import SavedModel
from bertwright.model.sizes import GPTConfig
from bertwright.prediction.work import open_tokenizer
from bertwright.text.any_tokenizer import AnyTokenizer
from bertwright.text.bpe import BPETokenizer

_TABLE = "encoder.embeddings.word.weight"


def with_task_tokens(saved: SavedModel, words: AnyTokenizer) -> tuple[SavedModel, AnyTokenizer]:
    """A GPT-1 and its vocabulary with the tokens that this one lacks; all else as it is.

    The new rows of the table are the same whenever they are drawn.
    """
    config = saved.config
    if not isinstance(words, BPETokenizer) or not isinstance(config, GPTConfig):
        return saved, words
    grown = words.with_special()
    if grown is words:
        return saved, words
    config = config.model_copy(update={"vocab_size": max(config.vocab_size, grown.vocab_size)})
    if saved.weights is None:
        return replace(saved, config=config), grown
    before = saved.weights[_TABLE]
    table = before.new_zeros(config.vocab_size, config.hidden)
    table[: len(before)] = before
    new = table[words.vocab_size : grown.vocab_size]
    new.normal_(0.0, config.initializer_range, generator=torch.Generator().manual_seed(0))
    return replace(saved, config=config, weights={**saved.weights, _TABLE: table}), grown


def with_files(saved: SavedModel, words: AnyTokenizer, folder: Path) -> SavedModel:
    """The model with its vocabulary's files where they say all of it: in `folder`, if its own lack tokens."""
    if open_tokenizer(saved).hash == words.hash:
        return saved
    words.save(folder)
    return replace(saved, tokenizer=folder)
