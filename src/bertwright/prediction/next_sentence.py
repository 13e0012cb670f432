"""heads → prediction: whether B follows A (paper §3.1, task 2)."""

import torch

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.objectives.pretraining import PretrainingModel
from bertwright.prediction.classifier import padded
from bertwright.prediction.fill import open_pretrained, second_objective
from bertwright.tasks.classify import encode
from bertwright.tasks.values import refuse_halves
from bertwright.text.any_tokenizer import AnyTokenizer


def open_next_sentence(saved: SavedModel) -> PretrainingModel:
    """The model with its next-sentence head; InputError where it learned sentence order instead, or neither."""
    learned = second_objective(saved)
    if learned == "order":
        raise InputError(
            f"{saved.place}: learned to tell the order of two sentences (second_sentence is 'order' in config.json), "
            "not whether the second follows the first; only --second-sentence next teaches that"
        )
    if saved.weights is not None and learned == "none":
        why = "fine-tuning keeps none" if "task" in saved.extra else "it was pre-trained without that task"
        raise InputError(f"{saved.place}: has no next-sentence head; {why}")
    return open_pretrained(saved, second_sentence="next", fills=False)


def next_sentence_probability(model: PretrainingModel, tokenizer: AnyTokenizer, first: str, second: str) -> float:
    """The probability of IsNext, of a model from `open_next_sentence`."""
    assert model.next_sentence is not None
    refuse_halves((first, second), "one of the two texts ")
    encoded = encode(tokenizer, [first], [second], max_length=model.encoder.config.max_positions)
    if encoded.num_truncated:
        say(f"the two texts exceed {model.encoder.config.max_positions} tokens and are cut")
    rows = padded(encoded, [0], pad_id=tokenizer.pad_id)
    with torch.inference_mode():
        state = model.encoder.summary(rows.ids, rows.segments, rows.mask)
        return float(model.next_sentence(model.pooler(state)).softmax(-1)[0, 0])
