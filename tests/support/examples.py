"""Examples of classification that no file holds."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bertwright.tasks.classification.examples import TextExamples


def text_examples(texts: Iterable[str], targets: Any, texts_b: Iterable[str] | None = None) -> TextExamples:
    """Return texts, or pairs of texts, with their targets; their lines are numbered from 0."""
    first, second = tuple(texts), None if texts_b is None else tuple(texts_b)
    return TextExamples(first, second, np.asarray(targets), "made up", tuple(range(len(first))))
