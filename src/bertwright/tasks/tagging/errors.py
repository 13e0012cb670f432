"""predicted and gold tags → the table of errors, by entity (by word where tags are plain)."""

from typing import Any

import numpy as np

from bertwright.tasks.errors import Errors, rounded
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.entities import entities_of
from bertwright.tasks.tagging.spec import Tagged, TaggingTask


def tag_errors(task: TaggingTask, sentences: Sentences, tagged: Tagged) -> Errors:
    """Return every span that is a gold or a predicted entity, with both types; the type is empty where there is none.

    The probability of a span is the product of the probabilities of its predicted tags.
    """
    assert sentences.tags is not None
    probabilities = tagged.by_sentence
    cells: list[tuple[Any, ...]] = []
    for row, words in enumerate(sentences.words):
        gold, predicted = (
            {(entity.start, entity.end): entity.type for entity in entities_of(tags[row], task.learned_scheme)}
            for tags in (sentences.tags, tagged.tags)
        )
        for start, end in sorted(gold.keys() | predicted.keys()):
            types = gold.get((start, end), ""), predicted.get((start, end), "")
            probability = float(probabilities[row][start:end].prod())
            line, entity_text = sentences.lines[row][start], " ".join(words[start:end])
            cells.append((line, entity_text, *types, types[0] != types[1], probability, " ".join(words)))
    names = ("line", "entity", "gold", "predicted", "wrong", "probability", "sentence")
    columns = {name: [cell[index] for cell in cells] for index, name in enumerate(names)}
    confidence = np.array(columns["probability"], dtype=np.float64)
    columns["probability"] = rounded(confidence)
    return Errors(columns, 1.0 - np.array(columns["wrong"], dtype=np.float64), confidence)
