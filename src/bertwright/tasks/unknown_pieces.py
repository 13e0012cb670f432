"""token ids of texts → the fraction of unknown pieces; a model cannot tell texts apart that have little else."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.corpus.checks import UNKNOWN_LIMIT
from bertwright.text.base_tokenizer import BaseTokenizer


class UnknownPieces:
    """Count of the pieces of texts, and of the unknown ones among them; special tokens of rows are left out."""

    def __init__(self, tokenizer: BaseTokenizer) -> None:
        self._special = [id for part in tokenizer.row_frame for id in part]
        self._unknown_id = tokenizer.unk_id
        self._name = tokenizer.pieces[tokenizer.unk_id]
        self._pieces = self._unknown = 0

    def add(self, rows: Iterable[NDArray[np.int32]]) -> None:
        """Count the pieces of rows of token ids."""
        ids = np.concatenate([np.zeros(0, np.int32), *rows])
        ids = ids[~np.isin(ids, self._special)]
        self._pieces += len(ids)
        self._unknown += int((ids == self._unknown_id).sum())

    @property
    def fraction(self) -> float:
        """Fraction of unknown pieces; 0 without any piece."""
        return self._unknown / max(1, self._pieces)

    def say(self, texts: str, model: str) -> None:
        """Print the fraction where it is above the limit. texts: name of the texts. model: name of the model."""
        if self.fraction > UNKNOWN_LIMIT:
            say(
                f"{texts}: {self.fraction:.0%} of the pieces are {self._name}, and {model} cannot see what stands "
                "there, since its vocabulary does not have it. For another language or script take a model of that "
                "one, or train a vocabulary and a model (bertwright tokenizer train); bertwright tokenizer extend adds "
                "pieces to a vocabulary"
            )
