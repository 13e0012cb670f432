"""checkpoint → prediction: masks filled by a pre-trained model in sentences of its own corpus (paper §3.1, task 1)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.reports.runs import Run
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import NotFinite
from bertwright.text.base_tokenizer import MaskTokenizer
from bertwright.text.open_tokenizer import mask_tokenizer
from bertwright.training.run_files import noted_corpora

NUM_SENTENCES, NUM_CANDIDATES = 6, 4
_SHORTEST, _LONGEST = 10, 32
"""Least and largest number of pieces of a sentence."""


@dataclass(frozen=True)
class FilledMask:
    """A sentence with one masked piece, and the likeliest pieces with their probabilities."""

    before: str
    after: str
    masked: str
    candidates: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FilledMasks:
    """Filled masks; note: the source of the sentences, or the reason why there are none."""

    filled: tuple[FilledMask, ...]
    note: str


def fill_own_masks(run: Run, corpus: Path | None = None) -> FilledMasks:
    """Fill masks in sentences of a run's validation text, or of its training text where it has none.

    corpus: another corpus folder to take sentences from. Raises InputError where that one cannot be used.
    """
    if not (run.folder / "model" / "config.json").is_file():
        return FilledMasks((), "The model folder is written when the run ends.")
    try:
        return _fill(run, corpus)
    except (InputError, OSError, NotFinite) as error:
        if corpus:
            raise
        return FilledMasks((), f"No masks were filled: {error}")


def _fill(run: Run, other_corpus: Path | None) -> FilledMasks:
    # Imported here, because `runs` and `report` of a fine-tuning need no torch.
    from bertwright.model.folder import open_model
    from bertwright.objectives.masked_lm import GENERATOR_FOLDER, open_pretrained
    from bertwright.tasks.fill_mask import fill_ids

    generator = run.folder / GENERATOR_FOLDER
    saved = open_model(str(generator if generator.is_dir() else run.folder))
    tokenizer = mask_tokenizer(open_tokenizer(saved), place=saved.source, advice="a masked LM needs it")
    key, path = ("", other_corpus) if other_corpus else _recorded_corpus(run.record)
    corpus = Corpus.open(path)
    if corpus.tokenizer_hash != tokenizer.hash:
        raise InputError(f"{path}: expected a corpus with the model's tokenizer, got another one")
    if key and corpus.fingerprint not in noted_corpora(run.record, key):
        raise InputError(f"{path}: the corpus has changed since the run; name one with --corpus DIR")
    model = open_pretrained(saved)
    fraction = float(run.record["settings"].get("held_out_share") or 0.0) if key == "corpus" else 0.0
    filled = []
    for ids, at in _sentences(corpus, tokenizer, fraction):
        masked = [*ids[:at], tokenizer.mask_id, *ids[at + 1 :]]
        best = fill_ids(model, tokenizer, masked, top_k=NUM_CANDIDATES)[0]
        candidates = tuple(zip(best.pieces, best.probabilities, strict=True))
        filled.append(
            FilledMask(
                tokenizer.decode(ids[:at]),
                tokenizer.decode(ids[at + 1 :]),
                tokenizer.readable_pieces[ids[at]],
                candidates,
            )
        )
        if len(filled) == NUM_SENTENCES:
            break
    kind = "validation corpus" if key == "held_out" else "corpus"
    if not filled:
        text = (
            f"No masks were filled: in {path} no sentence of {_SHORTEST} to {_LONGEST} pieces has a word of one piece"
        )
        return FilledMasks((), text)
    is_alone = len(noted_corpora(run.record)) == 1  # another corpus may have the same documents
    kept = " that were kept from training" if fraction and is_alone else ""
    return FilledMasks(tuple(filled), f"Sentences of the {kind} {path}{kept}; the word in the middle is masked.")


def _recorded_corpus(record: Mapping[str, Any]) -> tuple[str, Path]:
    """Return the key and the path of the run's validation corpus, or else of its training corpus."""
    paths = record.get("places") or {}
    for key in ("held_out", "corpus"):
        if paths.get(key):
            return key, Path(paths[key])
    raise InputError("run.json has no path of a corpus; name one with --corpus DIR")


def _sentences(corpus: Corpus, tokenizer: MaskTokenizer, fraction: float) -> Iterator[tuple[list[int], int]]:
    """Yield (ids, position to mask) of sentences from documents at even distances, at most one of each document.

    fraction: of the documents kept for validation, to which the sentences are limited; 0 stands for all documents.
    """
    from bertwright.objectives.dataset import used_documents

    first = corpus.document_first()
    documents = used_documents(corpus, part="held_out" if fraction else "all", held_out_share=fraction)
    tries = min(len(documents), 20 * NUM_SENTENCES)
    chosen = documents[np.linspace(0, len(documents) - 1, tries).astype(np.int64)]
    for turn in range(20):  # each turn takes documents from the whole corpus
        for document in chosen[turn::20]:
            sentence = _sentence(corpus, tokenizer, int(first[document]), int(first[document + 1]))
            if sentence:
                yield sentence


def _sentence(corpus: Corpus, tokenizer: MaskTokenizer, begin: int, end: int) -> tuple[list[int], int] | None:
    """Return the first sentence of fitting length in a range of sentences, and the position of its middle word."""
    numbers = np.arange(begin, end, dtype=np.int64)
    shards, starts, lengths = corpus.locate(numbers, np.ones(len(numbers), np.int32))
    for shard, start, length in zip(shards, starts, lengths, strict=True):
        if _SHORTEST <= length <= _LONGEST:
            ids = [int(piece) for piece in corpus.views[shard][start : start + length]]
            words = [at for at in range(1, length - 1) if _is_word(tokenizer, ids, at)]
            if words:
                return ids, min(words, key=lambda at: abs(2 * at - len(ids)))
    return None


def _is_word(tokenizer: MaskTokenizer, ids: list[int], at: int) -> bool:
    """Return whether the piece is a whole word of letters."""
    is_whole = not tokenizer.continuation[ids[at]] and not tokenizer.continuation[ids[at + 1]]
    return bool(is_whole and tokenizer.decode([ids[at]]).strip().isalpha())
