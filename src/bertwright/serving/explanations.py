"""input → answer → the words that spoke for it: integrated gradients, or the drop of the score without a piece.

The answer is that of the model in its precision. The explanation is computed in fp32, from the weights of the folder.

Shapes: N tokens of the explained rows, P pieces.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.serving.answer_scores import answer_score
from bertwright.serving.embedding_path import EmbeddingPath
from bertwright.serving.pipeline import EncodedInputs, ModelRow, Pipeline
from bertwright.serving.pipelines import open_pipeline
from bertwright.serving.placed_pieces import PlacedRows, placed_rows, words_of_pieces
from bertwright.serving.results import ExplainedPiece, ExplainedWord, Explanation
from bertwright.serving.settings import ExplainSettings
from bertwright.serving.task_pipelines import FinetunedPipeline
from bertwright.tasks.finite import NotFinite
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer

COMPLETE: Final = 1e-3
"""Largest remaining difference of integrated gradients; for a number a fraction of the spread of the targets."""
STEPS: Final = (16, 32, 64, 128, 256, 512, 1024)
"""Numbers of points that are tried until the pieces add up."""
_REMOVED: Final = 64
"""Number of pieces or words whose drops are computed together."""
_COST: Final = 3 * STEPS[0]
"""Number of forward passes that the first points cost, each with a backward pass."""
_NOT_FINITE: Final = Explanation(
    answer="",
    start=None,
    end=None,
    measure="logits",
    score=math.nan,
    baseline=math.nan,
    difference=math.nan,
    remaining=None,
    method="gradients",
    replaced="zero",
    steps=None,
    words=(),
)
"""Explanation of an input whose answer is not finite. `Pipeline.results` refuses it, with the number of the input."""

_Word = tuple[int, int, int]
"""Number of the text, and (first, one past last) character, of a word."""
_Groups = Mapping[_Word, Sequence[int]]


def can_explain(saved: SavedModel) -> bool:
    """Return whether a model folder was fine-tuned for a task with the whole encoder."""
    return "task" in saved.extra and "features" not in saved.extra


@dataclass(frozen=True)
class ExplainedInput(ModelRow):
    """An input that stands for its rows in a queue; its length is the number of tokens that are computed.

    number: that of the input among those of its request.
    """

    number: int = 0
    item: Any = None
    tokens: int = 1

    def __len__(self) -> int:
        return self.tokens


class ExplainPipeline(Pipeline[Any, EncodedInputs]):
    """Explanations of the answers of another pipeline."""

    kind = "explain"

    def __init__(self, answering: Pipeline[Any, Any], saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        """Open the model in fp32. Raises InputError for a model without a task, and for one of fixed features."""
        if not can_explain(saved):
            raise InputError(
                f"{saved.source}: an explanation needs a model that was fine-tuned with its encoder, got one for "
                f"{answering.kind}{' on fixed features' if 'features' in saved.extra else ''}"
            )
        self.answering, self.tokenizer, self.source = answering, tokenizer, saved.source
        self.form, self.columns, self.max_length = answering.form, answering.columns, answering.max_length
        self.example = answering.example
        plain = SavedModel(**{field.name: getattr(saved, field.name) for field in fields(SavedModel)})
        exact = open_pipeline(plain, tokenizer)
        assert isinstance(exact, FinetunedPipeline)
        assert exact.model is not None
        exact.model.requires_grad_(False)
        self._exact, self._encoder = exact, exact.model.encoder

    def parse(self, value: Any) -> Any:
        """Return an input of the pipeline that answers."""
        return self.answering.parse(value)

    def texts(self, item: Any) -> tuple[str, ...]:
        """Return the texts of an input of the pipeline that answers."""
        return self.answering.texts(item)

    def encode(self, items: Sequence[Any]) -> EncodedInputs:
        """Return the inputs, each with the number of tokens that its explanation computes at least."""
        empty = np.zeros(0, dtype=np.int32)
        rows = []
        for number, item in enumerate(items):
            tokens = _COST * sum(map(len, self.answering.encode([item]).rows))
            rows.append(ExplainedInput(empty, 0, empty.astype(np.int64), number, item, max(1, tokens)))
        return EncodedInputs(rows)

    def forward(self, rows: Sequence[ModelRow], *, settings: ExplainSettings | None = None) -> list[Explanation | None]:
        """Return an explanation for each input; None for a text without words, whose tags are explained.

        Raises InputError for a word that the text does not have, and after the seconds of the settings.
        """
        chosen = settings or ExplainSettings()
        explanations: list[Explanation | None] = []
        for row in rows:
            assert isinstance(row, ExplainedInput)
            try:
                explanations.append(self._explain(row.item, chosen))
            except InputError as error:
                raise InputError(f"input {row.number}: {error}") from None
        return explanations

    def decode(self, inputs: EncodedInputs, outputs: Sequence[Explanation | None]) -> list[Explanation | None]:
        """Return the explanations."""
        return list(outputs)

    def numbers(self, output: Explanation | None) -> ArrayLike:
        """Return both scores."""
        return [] if output is None else [output.score, output.baseline]

    def _explain(self, item: Any, settings: ExplainSettings) -> Explanation | None:
        inputs = self.answering.encode([item])
        try:
            target = answer_score(self.answering, inputs, self.answering.outputs(inputs), word=settings.word)
        except NotFinite:  # `results` names the input by its number among all
            return _NOT_FINITE
        if target is None:
            return None
        placed = placed_rows(self._exact, item)
        numbers = np.concatenate([placed.numbers[row] for row in target.rows])
        name, replacement = self._replacement(settings)
        path = EmbeddingPath(
            self._encoder,
            self._exact.logits,
            target.score,
            rows=[placed.inputs.rows[row] for row in target.rows],
            replaced=numbers >= 0,
            replacement=replacement,
            seconds=settings.seconds,
        )
        groups = self._words(item, placed, numbers)
        baseline, score = path.scores(np.array([[0.0], [1.0]]).repeat(len(numbers), axis=1)).tolist()
        difference, steps, remaining = score - baseline, None, None
        if settings.method == "gradients":
            most = COMPLETE * target.scale
            pieces, steps = _integrated(path, numbers, len(placed.pieces), difference, most=most)
            remaining = difference - float(pieces.sum())
            words = {word: float(pieces[group].sum()) for word, group in groups.items()}
        else:
            pieces, words = _occluded(path, numbers, score, len(placed.pieces), groups)
        return Explanation(
            answer=target.answer,
            start=target.start,
            end=target.end,
            measure=target.measure,
            score=score,
            baseline=baseline,
            difference=difference,
            remaining=remaining,
            method=settings.method,
            replaced=name,
            steps=steps,
            words=self._explained(item, placed, groups, pieces, words),
        )

    def _replacement(self, settings: ExplainSettings) -> tuple[Literal["mask", "pad", "zero"], int | None]:
        """Return the name and the id of what replaces a piece. Raises InputError for [MASK] where there is none."""
        mask = self.tokenizer.mask_or_none if isinstance(self.tokenizer, MaskTokenizer) else None
        if settings.baseline == "pad":
            return "pad", self._encoder.config.pad_id
        if settings.baseline == "mask" and mask is None:
            raise InputError(f"baseline mask: the vocabulary of {self.source} has no mask token; use pad or zero")
        return ("zero", None) if settings.baseline == "zero" or mask is None else ("mask", mask)

    def _words(self, item: Any, placed: PlacedRows, numbers: NDArray[np.int64]) -> _Groups:
        """Return the pieces of each word, of the rows that are explained."""
        read = set(numbers.tolist())
        groups = words_of_pieces(self.tokenizer, self.texts(item), placed.pieces)
        kept = {word: [number for number in group if number in read] for word, group in groups.items()}
        return {word: group for word, group in kept.items() if group}

    def _explained(
        self, item: Any, placed: PlacedRows, groups: _Groups, pieces: NDArray[np.float64], words: Mapping[_Word, float]
    ) -> tuple[ExplainedWord, ...]:
        """Return the words with their scores and their pieces, in the order of the texts."""
        texts = self.texts(item)

        def piece_of(number: int) -> ExplainedPiece:
            piece = placed.pieces[number]
            return ExplainedPiece(
                self.tokenizer.readable_pieces[piece.id], piece.start, piece.end, float(pieces[number])
            )

        return tuple(
            ExplainedWord(
                text, texts[text][start:end], start, end, words[text, start, end], tuple(map(piece_of, group))
            )
            for (text, start, end), group in groups.items()
        )


def _integrated(
    path: EmbeddingPath, numbers: NDArray[np.int64], num_pieces: int, difference: float, *, most: float
) -> tuple[NDArray[np.float64], int]:
    """Return the integrated gradients [P] and the number of points, the first of `STEPS` that leaves at most `most`."""
    pieces = np.zeros(num_pieces)
    for steps in STEPS:
        pieces = np.zeros(num_pieces)
        np.add.at(pieces, numbers[numbers >= 0], path.attributions(steps)[numbers >= 0])
        if abs(difference - pieces.sum()) <= most:
            break
    return pieces, steps


def _occluded(
    path: EmbeddingPath, numbers: NDArray[np.int64], score: float, num_pieces: int, groups: _Groups
) -> tuple[NDArray[np.float64], dict[_Word, float]]:
    """Return the drop of the score without each piece [P], and without all pieces of each word."""

    def drops(removed: Sequence[Sequence[int]]) -> list[float]:
        scores: list[float] = []
        for begin in range(0, len(removed), _REMOVED):  # bounds the memory of a long text
            kept = [~np.isin(numbers, each) for each in removed[begin : begin + _REMOVED]]
            scores += path.scores(np.array(kept, dtype=np.float64)).tolist()
        return [score - without for without in scores]

    present = np.unique(numbers[numbers >= 0])
    long_words = [word for word, group in groups.items() if len(group) > 1]
    pieces = np.zeros(num_pieces)
    pieces[present] = drops([[int(number)] for number in present])
    of_words = dict(zip(long_words, drops([groups[word] for word in long_words]), strict=True))
    return pieces, {word: of_words.get(word, float(pieces[group[0]])) for word, group in groups.items()}


def explanation_json(explanation: Explanation | None) -> dict[str, Any] | None:
    """Return the explanation as JSON values, its numbers rounded to six decimals."""
    return None if explanation is None else _rounded(asdict(explanation))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value
