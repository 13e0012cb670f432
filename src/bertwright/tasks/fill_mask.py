"""pre-trained heads → predictions: candidates for [MASK] and the next-sentence probability (paper §3.1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.model.folder import SavedModel
from bertwright.objectives.masked_lm import Inputs, PretrainingModel, open_pretrained, second_objective
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import padded
from bertwright.tasks.finite import check_finite
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer


@dataclass(frozen=True)
class Filled:
    """Candidates for one [MASK]: readable pieces with their probabilities, the most probable first."""

    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]


def fill_masks(model: PretrainingModel, tokenizer: MaskTokenizer, text: str, *, top_k: int = 5) -> list[Filled]:
    """Return the candidates for each [MASK] of `text`, in order.

    Raises InputError where the text has no [MASK] or is too long, and for top_k below 1; RunFailed where the model's
    output is not finite.
    """
    if top_k < 1:
        raise InputError(f"top_k: expected a number from 1 on, got {top_k}")
    refuse_halves([text], "the text ")
    pieces = tokenizer.ids([text], special=True)[0]
    if tokenizer.mask_id not in pieces:
        raise InputError(f"expected a text with [MASK], got {text!r}; write [MASK] in place of a word, in capitals")
    return fill_ids(model, tokenizer, pieces, top_k=top_k)


def fill_ids(model: PretrainingModel, tokenizer: MaskTokenizer, pieces: Sequence[int], *, top_k: int) -> list[Filled]:
    """Return the candidates for each [MASK] in the ids of a text without [CLS] and [SEP], as `fill_masks`."""
    filled = candidates(model, tokenizer, pieces, top_k=top_k)
    text = shown(tokenizer.decode(pieces))
    check_finite([[mask.probabilities for mask in filled]], lambda _: f"the text {text!r}")
    return filled


def candidates(model: PretrainingModel, tokenizer: MaskTokenizer, pieces: Sequence[int], *, top_k: int) -> list[Filled]:
    """Return what `fill_ids` returns, not checked: probabilities are NaN where the model's output is not finite."""
    ids = [tokenizer.cls_id, *pieces, tokenizer.sep_id]
    limit = model.encoder.config.max_positions
    if len(ids) > limit:
        raise InputError(f"the text has {len(ids)} tokens; this model takes at most {limit}")
    row = torch.tensor([ids])
    at = (row == tokenizer.mask_id).nonzero()[:, 1]
    inputs = Inputs(
        ids=row,
        segments=torch.zeros_like(row),
        mask=torch.ones_like(row, dtype=torch.bool),
        at=torch.cat((torch.zeros(1, dtype=torch.int64), at))[None],
        picked=torch.arange(1, len(at) + 1),
        labels=at,
        is_random=torch.zeros(1, dtype=torch.int64),
    )
    with torch.inference_mode():
        # A model may have more embeddings than the vocabulary has pieces.
        logits = model.logits(inputs)[0].float()[:, : tokenizer.vocab_size]
        best = finite_softmax(logits).topk(min(top_k, tokenizer.vocab_size))
    return [
        Filled(tuple(tokenizer.readable_pieces[index] for index in indices.tolist()), tuple(values.tolist()))
        for values, indices in zip(best.values, best.indices, strict=True)
    ]


def finite_softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension; all of it is NaN where a logit is not finite."""
    return logits.softmax(-1).masked_fill(~logits.isfinite().all(-1, keepdim=True), math.nan)


def open_next_sentence(saved: SavedModel) -> PretrainingModel:
    """Return the model with its next-sentence head. Raises InputError where it was trained without one."""
    learned = second_objective(saved)
    if learned == "order":
        raise InputError(
            f"{saved.source}: was pre-trained on the order of two sentences (second_sentence is 'order' in "
            "config.json); next-sentence prediction needs a model pre-trained with --second-sentence next"
        )
    if saved.weights is not None and learned == "none":
        reason = "fine-tuning removed it" if "task" in saved.extra else "it was pre-trained without that task"
        raise InputError(f"{saved.source}: has no next-sentence head; {reason}")
    return open_pretrained(saved, second_sentence="next", fills=False)


def next_sentence_probability(model: PretrainingModel, tokenizer: BaseTokenizer, first: str, second: str) -> float:
    """Return the probability that `second` follows `first`; the model comes from `open_next_sentence`.

    Raises RunFailed where the model's output is not finite.
    """
    refuse_halves((first, second), "one of the two texts ")
    encoded = encode(tokenizer, [first], [second], max_length=model.encoder.config.max_positions)
    if encoded.num_truncated:
        say(f"the two texts exceed {model.encoder.config.max_positions} tokens and are cut")
    rows = padded(encoded, [0], pad_id=tokenizer.pad_id)
    with torch.inference_mode():
        state = model.encoder.summary(rows.ids, rows.segments, rows.mask)
        probability = float(finite_softmax(model.pair_logits(state))[0, 0])
    check_finite([probability], lambda _: f"the texts {shown(first)!r} and {shown(second)!r}")
    return probability
