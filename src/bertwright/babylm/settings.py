"""Settings of an entry beside those of its pre-training. This module is read for --help, so it imports no torch."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from bertwright.config import Count, Option, Positive, Settings
from bertwright.model.system import MASKED_LM_SYSTEMS, REPLACED_TOKEN_SYSTEMS
from bertwright.pretraining.settings import PLAIN, PretrainSettings
from bertwright.scoring.settings import Masking
from bertwright.text.word_counts import MILLION, parse_words

FIXED = frozenset({"steps", "minutes", "words", "epochs", "checkpoints_by_words", "snapshots"})
"""Settings of pre-training that an entry decides."""
ENTRY_SYSTEMS: Final = tuple(system for system in MASKED_LM_SYSTEMS if system not in REPLACED_TOKEN_SYSTEMS)
"""Systems of which an entry can be made: their masked LM scores minimal pairs."""
PLAIN_ENTRY: Final[PretrainSettings] = PLAIN.model_copy(
    update={"system": "modernbert", "examples": PLAIN.examples.model_copy(update={"second_sentence": "none"})}
)
"""Defaults of the pre-training: those of `pretrain`, but ModernBERT, with masked LM alone (docs/log.md, "The system of
an entry")."""


class EntrySettings(Settings):
    """Budget of the text, and how the models of an entry are measured."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    text_words: Annotated[Positive, Option("entry", name="words", read=parse_words)] = 10 * MILLION
    """Number of words of the text: the documents are drawn at random up to it. 10M or 100M in the challenge."""
    passes: Annotated[Annotated[float, Field(gt=0, le=1e6)], Option("entry", name="epochs")] = 10.0
    """Number of times that the text is read. Entries of the challenge read it up to ten times."""
    vocab_size: Annotated[Positive, Option("entry")] = 8000
    """Size of the vocabulary, which is learned from the drawn text alone."""
    cased: Annotated[bool, Option("entry")] = False
    """Keep capitals. Without this option the text is lower-cased."""
    held_out: Annotated[float, Field(gt=0, lt=0.5), Option("entry")] = 0.005
    """Fraction of the documents that is kept for validation and not trained on. Its words count as text."""
    masking: Annotated[Masking, Option("entry")] = "piece"
    """Pieces that are masked with the predicted one in minimal pairs: none (piece, as the pipeline of the challenge
    does) or the later ones of its word (within-word)."""
    checkpoint_pairs: Annotated[Count, Option("entry")] = 100
    """Number of pairs of each paradigm on which the checkpoints are measured, the first ones; 0: all."""
    glue_rows: Annotated[Positive, Option("entry")] = 10_000
    """Largest number of training rows of a task of GLUE; the rows are drawn once."""
    glue_seeds: Annotated[Positive, Option("entry")] = 1
    """Number of fine-tunings of each task, each with its own seed."""
