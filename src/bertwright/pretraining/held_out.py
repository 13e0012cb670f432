"""corpora + wanted fraction → fraction of the documents that is kept for validation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.dataset import documents_of_part, used_documents

LARGER_FRACTIONS: Final = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Fractions that are tried where the wanted one keeps too few documents."""
FEWEST: Final = 2
"""Number of documents that validation and training need: a random second sentence comes from another document."""


def held_out_fraction(folders: Iterable[Path], wanted: float) -> float:
    """Return the wanted fraction, or the first larger one that keeps two documents of each corpus on either side.

    Documents that equal an earlier one do not count, since they are not used.

    Says so where it is not the wanted one. Raises InputError for a corpus with too few documents.
    """
    corpora = [Corpus.open(folder) for folder in folders]
    used = [used_documents(corpus, part="all", held_out_share=0.0) for corpus in corpora]
    for fraction in (wanted, *(larger for larger in LARGER_FRACTIONS if larger > wanted)):
        parts = [
            documents_of_part(documents, part=part, held_out_share=fraction).size
            for documents in used
            for part in ("held_out", "train")
        ]
        if min(parts) >= FEWEST:
            if fraction != wanted:
                say(f"--held-out {wanted:g} keeps fewer than {FEWEST} documents; {fraction:g} is used")
            return fraction
    sizes = ", ".join(f"{corpus.folder} has {documents.size}" for corpus, documents in zip(corpora, used, strict=True))
    raise InputError(
        f"--held-out {wanted:g}: validation and training need {FEWEST} documents each, and {sizes}; blank lines "
        "separate the documents of a text, and copies do not count; --held-out FOLDER names a corpus of other text"
    )
