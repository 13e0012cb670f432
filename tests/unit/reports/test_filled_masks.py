"""Masks that a report fills: which pieces are words, and how candidates are written."""

from types import SimpleNamespace
from typing import Any

import torch

from bertwright.reports.filled_masks import _is_word
from bertwright.tasks.fill_mask import fill_masks
from bertwright.text.byte_pairs import train_byte_pairs


def test_words_of_byte_level_pieces_are_words_of_letters() -> None:
    tokenizer = train_byte_pairs(["\ubc14\ub2e4 \ud558\ub298 \u2014 \ubc14\ub2e4 \ud558\ub298"] * 9, vocab_size=320)
    (ids,) = tokenizer.ids([" \ubc14\ub2e4 \u2014 \ud558\ub298 \ubc14\ub2e4"])
    texts = {tokenizer.decode([id]).strip(): _is_word(tokenizer, ids, at) for at, id in enumerate(ids[:-1])}
    assert texts["\ubc14\ub2e4"]
    assert not texts.get("\u2014", False)


def test_candidates_of_bytes_are_written_as_text() -> None:
    tokenizer = train_byte_pairs(["\ubc14\ub2e4 \ud558\ub298"] * 9, vocab_size=290)
    ((*_, sky),) = tokenizer.ids(["\ubc14\ub2e4 \ud558\ub298"])
    logits = torch.zeros(2, tokenizer.vocab_size)
    logits[torch.arange(2), torch.tensor([sky, tokenizer.pieces.index("\u00eb")])] = 9.0
    model: Any = SimpleNamespace(
        encoder=SimpleNamespace(config=SimpleNamespace(max_positions=16)), logits=lambda _: (logits,)
    )
    masks = fill_masks(model, tokenizer, "\ubc14\ub2e4 [MASK] [MASK]", top_k=1)
    assert [mask.pieces for mask in masks] == [(tokenizer.decode([sky]).replace(" ", "\u2581"),), (r"\xeb",)]
    assert masks[0].pieces[0] in ("\ud558\ub298", "\u2581\ud558\ub298")
