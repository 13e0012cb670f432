"""shards → rows of pre-training as text for people: pieces, masks, the second sentence (paper §3.1 and §A.1)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.settings import ExampleSettings, SecondSentence
from bertwright.text.base_tokenizer import MaskTokenizer
from bertwright.text.open_tokenizer import mask_tokenizer

Replacement = Literal["masked", "kept", "random"]
"""Replacement of a predicted piece: by [MASK], by itself, or by a random piece."""
SECOND: Final[dict[SecondSentence, tuple[str, str]]] = {
    "next": ("B follows A", "B is from another document"),
    "order": ("B follows A", "B precedes A"),
}
"""Meanings of the labels 0 and 1 of the second sentence."""
_MOST_ROWS, _SHORTEST, _LONGEST = 1000, 8, 8192


@dataclass(frozen=True)
class Prediction:
    """Piece that is predicted at a position of a row, counted from 0, and the piece that the model reads there."""

    position: int
    piece: str
    read: str
    replacement: Replacement


@dataclass(frozen=True)
class ShownRow:
    """Row as the model reads it; `label` is that of the second sentence, None without one."""

    pieces: tuple[str, ...]
    segments: tuple[int, ...]
    predictions: tuple[Prediction, ...]
    label: int | None
    second: str | None
    """Meaning of the label."""

    def lines(self, number: int) -> Iterator[str]:
        """Yield the row as lines of text."""
        second = "no second sentence" if self.label is None else f"second sentence: label {self.label}, {self.second}"
        yield f"  row {number}: {len(self.pieces)} tokens, {len(self.predictions)} predicted; {second}"
        for segment, name in enumerate("AB"):
            pieces = [piece for piece, of in zip(self.pieces, self.segments, strict=True) if of == segment]
            if pieces:
                yield f"    {name}  {' '.join(pieces)}"
        for prediction in self.predictions:
            read = {"masked": "replaced by [MASK]", "kept": "kept", "random": f"replaced by {prediction.read!r}"}
            yield f"    position {prediction.position}: {prediction.piece!r} {read[prediction.replacement]}"


def first_rows(folder: Path, settings: ExampleSettings, *, rows: int, length: int, seed: int) -> list[ShownRow]:
    """Return the first rows that `pretrain` makes from a corpus with these settings, row length and seed.

    They are those of step 0 of a run without validation documents. No file is written.
    Raises InputError for numbers out of range, for causal rows, and for a corpus that is too small or has no [MASK].
    """
    if settings.causal_share:
        raise InputError(
            f"--causal-share {settings.causal_share:g}: only rows of masked LM are shown, and a causal row is text "
            "without masks; leave the option out"
        )
    if not (1 <= rows <= _MOST_ROWS and _SHORTEST <= length <= _LONGEST):
        raise InputError(
            f"--rows {rows} --length {length}: expected 1 to {_MOST_ROWS} rows of {_SHORTEST} to {_LONGEST} tokens"
        )
    corpus = Corpus.open(folder)
    examples = Examples(corpus, settings, length=length, seed=seed, write_plans=False)
    batch, meanings = examples.step_batch(0, rows), SECOND.get(settings.second_sentence)
    tokenizer = mask_tokenizer(corpus.tokenizer, place=corpus.folder, advice="masked LM needs [MASK]")
    return [_shown(batch, row, tokenizer, meanings) for row in range(rows)]


def as_json(rows: list[ShownRow]) -> list[dict[str, Any]]:
    """Return the rows as plain values."""
    return [asdict(row) for row in rows]


def _shown(batch: PretrainingBatch, row: int, tokenizer: MaskTokenizer, meanings: tuple[str, str] | None) -> ShownRow:
    """Return a row of a batch."""
    end, chosen = int(batch.lengths[row]), batch.weights[row] > 0
    read, pieces = batch.ids[row, :end].tolist(), tokenizer.readable_pieces
    targets = zip(batch.positions[row, chosen].tolist(), batch.labels[row, chosen].tolist(), strict=True)
    label = int(batch.is_random[row])
    return ShownRow(
        pieces=tuple(pieces[id] for id in read),
        segments=tuple(batch.segments[row, :end].tolist()),
        predictions=tuple(
            Prediction(at, pieces[target], pieces[read[at]], _replacement(read[at], target, tokenizer.mask_id))
            for at, target in targets
        ),
        label=label if meanings else None,
        second=meanings[label] if meanings else None,
    )


def _replacement(read: int, predicted: int, mask: int) -> Replacement:
    """Return the replacement of a predicted piece by the one that the model reads."""
    if read == mask:
        return "masked"
    return "kept" if read == predicted else "random"
