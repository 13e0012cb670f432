"""heads → prediction: what stands behind [MASK] (paper §3.1, task 1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from bertwright.errors import InputError
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.sizes import NAMES, encoder_shape, system_of
from bertwright.objectives.examples import SecondSentence
from bertwright.objectives.pretraining import Inputs, PretrainingModel
from bertwright.tasks.values import refuse_halves
from bertwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Filled:
    """The candidates for one [MASK]: pieces with their probabilities, the likeliest first."""

    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]


def open_pretrained(
    saved: SavedModel, *, second_sentence: SecondSentence = "none", fills: bool = True
) -> PretrainingModel:
    """The model with its masked-LM head where it `fills`, and the second head where one is wanted.

    InputError without them. Published models have the parts alone that their use reads; the others stay random here.
    """
    if saved.weights is None:
        raise InputError(f"{saved.place}: random weights have learned nothing; name a pre-trained model")
    system = system_of(saved.config)
    if system not in (None, "bert"):
        raise InputError(f"{saved.place}: is a {NAMES[system]}, which predicts the next token and fills no [MASK]")
    model = PretrainingModel(encoder_shape(saved.config, saved.place), second_sentence=second_sentence)
    unread = (*(() if fills else ("masked_lm",)), *(("pooler",) if second_sentence == "none" else ()))
    load_weights(model, saved, fresh=unread)
    return model.eval()


def second_objective(saved: SavedModel) -> SecondSentence:
    """What the second head of a saved model was trained for; a folder that does not say so learned the original's."""
    if "next_sentence.linear.weight" not in (saved.weights or {}):
        return "none"
    named: SecondSentence = saved.extra.get("second_sentence", "next")
    if named not in get_args(SecondSentence):
        allowed = ", ".join(get_args(SecondSentence))
        raise InputError(f"{saved.place}: config.json: second_sentence is {named!r}; allowed are {allowed}")
    return named


def fill(model: PretrainingModel, tokenizer: Tokenizer, text: str, *, top_k: int = 5) -> list[Filled]:
    """Candidates for each [MASK] of `text`, in order; InputError without one or for a text that is too long."""
    if top_k < 1:
        raise InputError(f"top_k {top_k}: at least 1")
    refuse_halves([text], "the text ")
    pieces = tokenizer.ids([text], special=True)[0]
    if tokenizer.mask_id not in pieces:
        raise InputError(f"{text!r} holds no [MASK]")
    return fill_ids(model, tokenizer, pieces, top_k=top_k)


def fill_ids(model: PretrainingModel, tokenizer: Tokenizer, pieces: Sequence[int], *, top_k: int) -> list[Filled]:
    """As `fill`, for a text that is ids already, without [CLS] and [SEP]; at least one is [MASK]'s."""
    ids = [tokenizer.cls_id, *pieces, tokenizer.sep_id]
    limit = model.encoder.config.max_positions
    if len(ids) > limit:
        raise InputError(f"the text has {len(ids)} pieces; this model takes at most {limit}")
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
        logits = model.logits(inputs)[0].float()[
            :, : tokenizer.vocab_size
        ]  # a vocabulary may be padded beyond its pieces
        best = logits.softmax(-1).topk(min(top_k, tokenizer.vocab_size))
    return [
        Filled(tuple(tokenizer.pieces[index] for index in indices.tolist()), tuple(values.tolist()))
        for values, indices in zip(best.values, best.indices, strict=True)
    ]
