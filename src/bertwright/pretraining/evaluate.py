"""Corpus → the validation rows of pre-training, and a model's metrics on them (paper §3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import finds_replaced
from bertwright.model.folder import model_within, open_model
from bertwright.model.system import CAUSAL_SHARE_SYSTEMS, MASKED_LM_SYSTEMS, System, system_of
from bertwright.objectives.batches import TokenBatch
from bertwright.objectives.replaced_tokens import with_generator
from bertwright.objectives.settings import ExampleSettings, SecondSentence
from bertwright.objectives.system_model import SystemModel
from bertwright.objectives.vocabulary_loss import characters_of
from bertwright.pretraining.init_from import without_unused_rows
from bertwright.pretraining.settings import HELD_OUT_LENGTH, HELD_OUT_ROWS
from bertwright.pretraining.systems import (
    ExampleRows,
    example_rows,
    open_system_model,
)
from bertwright.shipped import folder_of
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import check_finite
from bertwright.training.distributed import SINGLE_PROCESS, Ranks
from bertwright.training.hardware import prepare_processor, resolve_device
from bertwright.training.run_files import ENTRY_RECORD, noted_corpora, run_record
from bertwright.training.settings import Device
from bertwright.training.trial import CPU_ADVICE, advise_on_full_gpu


@dataclass(frozen=True)
class ValidationRows:
    """Fixed rows with fixed masks for validation. Every BERT has the same rows, whatever its run is trained on.

    A BERT with sentence order has further rows for that objective. A language model has rows without masks. A
    GPT-BERT has both.
    """

    examples: ExampleRows
    rows: int
    """Number of rows; a small corpus has fewer."""
    characters: np.ndarray
    """Number of characters [V] of each piece, -1 for special tokens."""
    further: ExampleRows | None = None
    """Rows for sentence order, or without masks; None for a model with neither."""
    one_segment: bool = False
    """True where all tokens are in the first segment, for a model that was not trained on the second."""

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
        **options: Any,
    ) -> Self:
        """Return the validation rows from corpora and their weights; `options` are those of `example_rows`."""

        def rows_with(second: SecondSentence, of: System = system) -> ExampleRows:
            kind = ExampleSettings(second_sentence=second)
            return example_rows(of, corpora, kind, length=length, seed=0, **options)

        examples = rows_with("next" if system in MASKED_LM_SYSTEMS else "none")
        further = rows_with("order") if second_sentence == "order" else None
        if system in CAUSAL_SHARE_SYSTEMS:
            further = rows_with("none", of="bert-left")
        return cls(examples, rows, characters_of(corpora[0][0].tokenizer), further, one_segment)

    @property
    def num_rows(self) -> int:
        """Return the number of rows that the corpus has of them."""
        return min(self.rows, self.examples.num_rows(0))

    def __iter__(self) -> Iterator[TokenBatch]:
        for batch in self.examples.first(self.rows):
            yield replace(batch, segments=np.zeros_like(batch.segments)) if self.one_segment else batch

    def further_batches(self) -> Iterator[TokenBatch]:
        """Yield the batches of the further rows, if there are any."""
        return self.further.first(self.rows) if self.further else iter(())

    def metrics(self, model: SystemModel, *, ranks: Ranks = SINGLE_PROCESS) -> dict[str, float]:
        """Return validation metrics of a model in evaluation mode; several ranks divide the rows among them."""
        return model.metrics(self, self.further_batches(), characters=self.characters, ranks=ranks)


def evaluate_pretraining(
    model: str, corpus: Path, *, rows: int = HELD_OUT_ROWS, length: int = HELD_OUT_LENGTH, device: Device = "cpu"
) -> dict[str, Any]:
    """Return validation metrics on the first `rows` rows of `length` tokens of a corpus; see `ValidationRows`.

    Of the corpus that the run of the model was trained on, only the documents that it kept for validation are measured.
    Raises InputError without the device, for a corpus of another tokenizer, and for rows that the model cannot read;
    RunFailed where a loss is not finite.
    """
    prepare_processor()
    saved = open_model(model)
    saved = with_generator(saved) if finds_replaced(saved.config) else saved
    data = Corpus.open(corpus)
    most = saved.config.max_positions
    if rows < 1 or not 8 <= length <= most:
        raise InputError(f"expected at least 1 row of 8 to {most} tokens, got --rows {rows} --length {length}")
    if length > saved.trained_positions:
        say(
            f"{model}: was trained on rows of up to {saved.trained_positions} tokens and has not learned the later "
            f"positions; --length {saved.trained_positions} measures it on such rows"
        )
    tokenizer = open_tokenizer(saved)
    if tokenizer.hash != data.tokenizer_hash:
        raise InputError(f"{corpus}: was built with another tokenizer than that of {model}")
    system_model = open_system_model(without_unused_rows(saved, tokenizer.vocab_size))
    system_model.to(resolve_device(device))
    system = system_of(saved.config) or "bert"
    second_sentence = system_model.second_sentence
    validation = ValidationRows.of(
        [(data, 1.0)], second_sentence, rows=rows, length=length, system=system, **_kept_part(model, data)
    )
    with torch.inference_mode():
        metrics = advise_on_full_gpu(lambda: validation.metrics(system_model), lambda: CPU_ADVICE)
    check_finite(
        [[value for name, value in metrics.items() if name.endswith("loss")]], lambda _: f"{model} on {corpus}"
    )
    return metrics


def _kept_part(model: str, corpus: Corpus) -> dict[str, Any]:
    """Return the options of `example_rows` for the documents that the run of a model kept for validation, and print it.

    Another corpus has none. A corpus that the run was trained on as a whole has none either, and a warning is printed.
    """
    folder = model_within(folder_of(model)).absolute()
    above = (folder, *folder.parents[:2])
    runs = [*above, *(parent / "pretraining" for parent in above if (parent / ENTRY_RECORD).is_file())]
    record = next(filter(None, map(run_record, runs)), {})
    if record.get("kind") != "pretrain":
        return {}
    if corpus.fingerprint not in noted_corpora(record):
        return {}
    share = record["settings"].get("held_out_share", 0.0)
    fact = f"{corpus.folder}: the model was trained on this corpus"
    if not share or record["data"].get("held_out"):
        say(f"{fact}: the numbers below are better than those of other text; give a corpus that it was not trained on")
        return {}
    say(f"{fact}; only the documents that training kept for validation are measured, a fraction of {share:g}")
    return {"part": "held_out", "held_out_share": share}
