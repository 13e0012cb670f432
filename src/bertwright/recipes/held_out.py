"""corpus → the rows that a pre-training is measured on, and a model's figures on them (paper §3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from bertwright.corpus.shards import Corpus
from bertwright.model.sizes import System
from bertwright.objectives.characters import characters_of
from bertwright.objectives.examples import ExampleSettings, SecondSentence
from bertwright.objectives.shuffled import TokenBatch
from bertwright.recipes.systems import Model, Rows, figures_of, rows_of
from bertwright.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class HeldOut:
    """Fixed rows with fixed masks for measuring: the same for masked LM whatever a run trains on; with sentence order,
    as many rows of its walk for that figure. Language models have rows of their own.

    characters [V]: of each piece. one_segment: all of a row is of the first segment, for a model that has learned
    nothing of the second.
    """

    examples: Rows
    rows: int
    characters: np.ndarray
    ordered: Rows | None = None
    one_segment: bool = False

    @classmethod
    def of(
        cls,
        corpora: Sequence[tuple[Corpus, float]],
        second_sentence: SecondSentence,
        *,
        rows: int,
        length: int,
        system: System = "bert",
        one_segment: bool = False,
        **part: Any,
    ) -> Self:
        """The protocol's rows of a corpus, or of a part of it (as `rows_of` takes it); several give their shares."""
        kinds = [ExampleSettings(), *([ExampleSettings(second_sentence="order")] if second_sentence == "order" else [])]
        if system != "bert":
            kinds = [ExampleSettings(second_sentence="none")]
        examples = [rows_of(system, corpora, kind, length=length, seed=0, **part) for kind in kinds]
        ordered = examples[1] if len(examples) > 1 else None
        return cls(examples[0], rows, characters_of(corpora[0][0]), ordered, one_segment)

    @property
    def num_rows(self) -> int:
        """The rows there are, up to those asked for."""
        return min(self.rows, self.examples.num_rows(0))

    def __iter__(self) -> Iterator[TokenBatch]:
        for batch in self.examples.first(self.rows):
            yield replace(batch, segments=np.zeros_like(batch.segments)) if self.one_segment else batch

    def in_order(self) -> Iterator[TokenBatch]:
        """The rows for sentence order; none where that is not learned."""
        return self.ordered.first(self.rows) if self.ordered else iter(())

    def figures(self, model: Model, *, ranks: Ranks = ALONE) -> dict[str, float]:
        """Held-out figures of a model in evaluation mode; several ranks share out the rows."""
        return figures_of(model, self, self.in_order(), self.characters, ranks=ranks)
