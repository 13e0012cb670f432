"""heads → prediction: whether B follows A (paper §3.1, task 2)."""

import torch

from bertwright.errors import InputError
from bertwright.objectives.pretraining import PretrainingModel
from bertwright.prediction.classifier import padded
from bertwright.tasks.classify import encode
from bertwright.text.tokenizer import Tokenizer


def next_sentence_probability(model: PretrainingModel, tokenizer: Tokenizer, first: str, second: str) -> float:
    """The probability of IsNext; InputError where the model was pre-trained without that task."""
    if model.next_sentence is None:
        raise InputError("this model has no next-sentence head")
    encoded = encode(tokenizer, [first], [second], max_length=model.encoder.config.max_positions)
    rows = padded(encoded, [0], pad_id=tokenizer.pad_id)
    with torch.inference_mode():
        last = model.encoder(rows.ids, rows.segments, rows.mask, at=torch.zeros(1, 1, dtype=torch.int64)).last
        return float(model.next_sentence(model.pooler(last)).softmax(-1)[0, 0])
