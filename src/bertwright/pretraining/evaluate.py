"""corpus → the rows that a pre-training is measured on, and a model's figures on them (paper §3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.model.system import System, system_of
from bertwright.objectives.batches import TokenBatch
from bertwright.objectives.settings import ExampleSettings, SecondSentence
from bertwright.objectives.vocabulary_loss import characters_of
from bertwright.pretraining.settings import HELD_OUT_ROWS
from bertwright.pretraining.systems import Model, Rows, figures_of, open_learned, rows_of, second_of
from bertwright.tasks.binding import open_tokenizer
from bertwright.training.distributed import SINGLE_PROCESS, Ranks
from bertwright.training.hardware import Device, keep_memory, own_device
from bertwright.training.trial import ON_PROCESSORS, unless_full


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

    def figures(self, model: Model, *, ranks: Ranks = SINGLE_PROCESS) -> dict[str, float]:
        """Held-out figures of a model in evaluation mode; several ranks share out the rows."""
        return figures_of(model, self, self.in_order(), self.characters, ranks=ranks)


def evaluate_pretraining(
    model: str, corpus: Path, *, rows: int = HELD_OUT_ROWS, length: int = 128, device: Device = "cpu"
) -> dict[str, Any]:
    """Held-out figures: the first `rows` rows of `length` tokens of the next-sentence walk with seed 0, 80/10/10.

    Where the model learned sentence order, that is measured on as many rows of its own walk. A language model is
    measured on the first rows of the kind that it learned from. InputError without the device.
    """
    keep_memory()
    saved = open_model(model)
    data = Corpus.open(corpus)
    if rows < 1 or not 8 <= length <= saved.config.max_positions:
        raise InputError(f"rows {rows}, length {length}: at least 1 row of 8 to {saved.config.max_positions} tokens")
    if open_tokenizer(saved).hash != data.tokenizer_hash:
        raise InputError(f"{corpus}: was built with another tokenizer than the one of {model}")
    loaded = open_learned(saved)
    loaded.to(own_device(device))
    system = system_of(saved.config) or "bert"
    held_out = HeldOut.of([(data, 1.0)], second_of(loaded), rows=rows, length=length, system=system)
    with torch.inference_mode():
        return unless_full(lambda: held_out.figures(loaded), lambda: ON_PROCESSORS)
