"""model + text → findings: is masked LM better than guessing, and does it use the context (paper §3.1, task 1)?"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.model.architectures import Bert
from bertwright.recipes.doctor_findings import Finding
from bertwright.text.tokenizer import Tokenizer

SENTENCES: Final = (
    "The old bridge over the river was closed in winter, and people had to walk around the hill.",
    "She opened the letter, read it twice, and put it back on the table without a word.",
    "The number of students at the school has doubled since the new building was opened.",
    "A good knife is sharp, light and easy to clean after use.",
    "He was born in a small town near the coast and moved to the capital when he was twenty.",
    "If the water is too cold, the plants will grow slowly and may not flower in the first year.",
    "The train from the north arrived late because of heavy snow on the line.",
    "Most of the houses in this street were built between the two wars.",
    "The first part of the book describes the journey, the second the life of the people there.",
    "They won the game by three points and will play again on Sunday.",
    "The city has a large market, two museums and one of the oldest libraries in the country.",
    "When the function is called with a negative value, it returns an error instead of a result.",
)
"""Plain English, for a model that is not measured on a corpus of its own."""

_EVERY: Final = 7
"""One place in so many is masked at a time, and each of them once: about the share of training."""
_NEAR: Final = 0.05
"""A loss within this share of ln(vocabulary) is that of guessing."""
_USE: Final = 0.1
"""Nats that the context must be worth."""
_MOST_UNKNOWN: Final = 0.1


@dataclass(frozen=True)
class MaskedLoss:
    """Mean nats of the masked pieces: as answered, and had every place been given the mean of all the answers."""

    loss: float
    without_context: float
    predictions: int
    unknown_share: float


def judge_masked_lm(model: Bert, tokenizer: Tokenizer, rows: Sequence[Sequence[int]] | None = None) -> Finding:
    """The loss on `rows` of ids from the model's own corpus, or on the sentences above, against ln(vocabulary).

    What the sentences alone tell is a warning at most: they may be in a language that the model never met.
    """
    measured = masked_loss(model, tokenizer, rows or tokenizer.ids(SENTENCES))
    size = model.encoder.config.vocab_size
    return verdict(measured, vocabulary=size, own_text=bool(rows))


def verdict(measured: MaskedLoss, *, vocabulary: int, own_text: bool) -> Finding:
    """What a loss says; `own_text` tells that it was measured on a corpus that the tokenizer belongs to."""
    loss, guess = measured.loss, math.log(vocabulary)
    value = {"loss": loss, "guessing": guess, "without_context": measured.without_context}
    where = "the corpus" if own_text else "built-in English sentences"
    text = f"{loss:.2f} nats on {where}, {guess:.2f} by guessing, {measured.without_context:.2f} without the context"
    elsewhere = "" if own_text else "; if the model is of another language or field, measure on its own with --corpus"
    if not own_text and measured.unknown_share > _MOST_UNKNOWN:
        text = f"not judged: {measured.unknown_share:.0%} of the built-in English sentences is [UNK]"
        return Finding("model", "masked LM", "note", value, text, "give --corpus, a corpus in the model's own language")
    if not math.isfinite(loss):
        advice = "see the weights above; a model whose answers are no numbers is of no use"
        return Finding("model", "masked LM", "error", value, f"the loss on {where} is {loss}", advice)
    if loss > (1 + _NEAR) * guess:
        return Finding(
            "model",
            "masked LM",
            "error" if own_text else "warning",
            value,
            f"{text}: worse than guessing",
            "most often the tokenizer is another model's, or weights were mapped to the wrong places; a small text "
            f"that was learned by heart looks the same{elsewhere}",
        )
    if loss > (1 - _NEAR) * guess:
        return Finding(
            "model",
            "masked LM",
            "warning",
            value,
            f"{text}: nothing was learned",
            f"train it, or find out why the weights that were trained are not these{elsewhere}",
        )
    if loss > measured.without_context - _USE:
        return Finding(
            "model",
            "masked LM",
            "warning" if own_text else "note",
            value,
            f"{text}: it knows which pieces are frequent, but makes no use of what stands around a mask",
            f"train on: small models stay at this plateau for long (--start local ends it sooner){elsewhere}",
        )
    return Finding("model", "masked LM", "ok", value, f"{text}: it has learned from context")


def masked_loss(model: Bert, tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> MaskedLoss:
    """Mask every place of the rows once, a seventh of them at a time, and answer. Rows are ids without [CLS], [SEP]."""
    limit = model.encoder.config.max_positions - 2
    ids = [list(row[:limit]) for row in rows if len(row)]
    total = torch.zeros(model.encoder.config.vocab_size, dtype=torch.float64)
    loss, labels = 0.0, []
    with torch.inference_mode():
        for row in ids:
            logits, asked = _answers(model, tokenizer, row)
            loss += float(F.cross_entropy(logits, asked, reduction="sum"))
            total += logits.softmax(-1).sum(0)
            labels.append(asked)
    asked = torch.cat(labels)
    alone = -(total / len(asked))[asked].log().mean()
    unknown = float((asked == tokenizer.unk_id).double().mean())
    return MaskedLoss(loss / len(asked), float(alone), len(asked), unknown)


def _answers(model: Bert, tokenizer: Tokenizer, row: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits [T, V], float64, for the T places of a row in some order, and the pieces that were there [T]."""
    plain = torch.tensor([tokenizer.cls_id, *row, tokenizer.sep_id])
    shifts = range(min(_EVERY, len(row)))
    places = [list(range(1 + shift, 1 + len(row), _EVERY)) for shift in shifts]
    ids = plain.repeat(len(places), 1)
    for index, masked in enumerate(places):
        ids[index, masked] = tokenizer.mask_id
    last = model.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
    picked = torch.cat([last[index, masked] for index, masked in enumerate(places)])
    logits: Tensor = model.masked_lm(picked, model.encoder.embeddings.word.weight)
    return logits.double(), torch.cat([plain[masked] for masked in places])
