"""checkpoint → prediction: masks filled by a pre-trained model in sentences of its own corpus (paper §3.1, task 1)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.reports.runs import Run
from bertwright.text.wordpiece import Tokenizer

NUM_SENTENCES, NUM_CANDIDATES = 6, 4
_SHORTEST, _LONGEST = 10, 32
"""Pieces of a sentence that is shown."""


@dataclass(frozen=True)
class FilledMask:
    """A sentence around one hidden word, and the likeliest pieces with their probabilities."""

    before: str
    after: str
    was: str
    candidates: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FilledMasks:
    """Filled masks, and where their sentences come from or why there are none."""

    filled: tuple[FilledMask, ...]
    note: str


def fill_own_masks(run: Run, corpus: Path | None = None) -> FilledMasks:
    """Fill masks in a run's held-out text, or its training text where nothing was held out."""
    if not (run.folder / "model" / "config.json").is_file():
        return FilledMasks((), "The model folder is written when the run ends.")
    try:
        return _fill(run, corpus)
    except (InputError, OSError) as error:
        if corpus:
            raise
        return FilledMasks((), f"No masks were filled: {error}")


def _fill(run: Run, given: Path | None) -> FilledMasks:
    from bertwright.corpus.shards import Corpus
    from bertwright.model.folder import open_model
    from bertwright.objectives.masked_lm import open_pretrained
    from bertwright.tasks.fill_mask import fill_ids
    from bertwright.text.wordpiece import Tokenizer

    saved = open_model(str(run.folder))
    tokenizer = Tokenizer.load(saved.tokenizer)
    part, path = _source(run.record, given)
    data = Corpus.open(path)
    if data.tokenizer_hash != tokenizer.hash:
        raise InputError(f"{path}: was built with another tokenizer than the model's")
    if not given and data.fingerprint != run.record["data"].get("held_out" if part == "held-out corpus" else "corpus"):
        raise InputError(f"{path}: is another corpus by now; --corpus DIR names one to take")
    model = open_pretrained(saved)
    share = float(run.record["settings"].get("held_out_share") or 0.0) if part == "corpus" and not given else 0.0
    filled = []
    for ids, at in _sentences(data, tokenizer, share):
        hidden = [*ids[:at], tokenizer.mask_id, *ids[at + 1 :]]
        best = fill_ids(model, tokenizer, hidden, top_k=NUM_CANDIDATES)[0]
        candidates = tuple(zip(best.pieces, best.probabilities, strict=True))
        filled.append(
            FilledMask(
                tokenizer.decode(ids[:at]), tokenizer.decode(ids[at + 1 :]), tokenizer.pieces[ids[at]], candidates
            )
        )
        if len(filled) == NUM_SENTENCES:
            break
    kept = " that were kept from training" if share else ""
    return FilledMasks(tuple(filled), f"Sentences of the {part} {path}{kept}; the word in the middle is hidden.")


def _source(record: Mapping[str, Any], given: Path | None) -> tuple[str, Path]:
    """What the corpus is, and its place."""
    if given:
        return "corpus", given
    places = record.get("places") or {}
    for name, what in (("held_out", "held-out corpus"), ("corpus", "corpus")):
        if places.get(name):
            return what, Path(places[name])
    raise InputError("this run does not say where its corpus lies; --corpus DIR names one")


def _sentences(data: "Corpus", tokenizer: "Tokenizer", held_out_share: float) -> Iterator[tuple[list[int], int]]:
    """(ids, place to hide) of sentences from documents evenly apart, at most one of each document."""
    from bertwright.objectives.dataset import held_out_split

    first = data.document_first()
    documents = held_out_split(first, part="held_out" if held_out_share else "all", held_out_share=held_out_share)
    tries = min(len(documents), 20 * NUM_SENTENCES)
    places = np.linspace(0, len(documents) - 1, tries).astype(np.int64)
    for turn in range(20):  # a turn takes documents from the whole corpus
        for place in places[turn::20]:
            found = _sentence(data, tokenizer, int(first[documents[place]]), int(first[documents[place] + 1]))
            if found:
                yield found


def _sentence(data: "Corpus", tokenizer: "Tokenizer", begin: int, end: int) -> tuple[list[int], int] | None:
    numbers = np.arange(begin, end, dtype=np.int64)
    shards, starts, lengths = data.locate(numbers, np.ones(len(numbers), np.int32))
    for shard, start, length in zip(shards, starts, lengths, strict=True):
        if _SHORTEST <= length <= _LONGEST:
            ids = [int(piece) for piece in data.views[shard][start : start + length]]
            words = [at for at in range(1, length - 1) if _is_word(tokenizer, ids, at)]
            if words:
                return ids, min(words, key=lambda at: abs(2 * at - len(ids)))
    return None


def _is_word(tokenizer: "Tokenizer", ids: list[int], at: int) -> bool:
    """Whether the piece is a whole word of letters."""
    alone = not tokenizer.continuation[ids[at]] and not tokenizer.continuation[ids[at + 1]]
    return bool(alone and tokenizer.pieces[ids[at]].isalpha())
