"""A model folder in use from Python: `bertwright.load(MODEL)` → a function of texts."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from bertwright.console import say, told_to
from bertwright.errors import InputError, RunFailed, shown
from bertwright.model.backbones import Backbone
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import Encoder, EncoderLayer, kept
from bertwright.model.folder import open_model
from bertwright.objectives.masked_lm import second_objective
from bertwright.serving.embeddings import Pool
from bertwright.serving.pipelines import FillHead, FollowHead, Head, VectorHead, has_masked_lm, head_of
from bertwright.serving.results import Vector
from bertwright.tables.reader import column_names, column_values, refuse_halves
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import padded
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.inference import Answerable, choose
from bertwright.tasks.kinds import import_hint
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.hardware import keep_memory

_ENDED: Final = object()
BLOCK: Final = 1024
"""Inputs that are held and answered at a time; those of like length are computed together."""
_BLOCK_CHARACTERS: Final = 1_000_000
Asked = Literal["auto", "fp32", "bf16", "int8"]
Use = Literal["fill", "vectors", "next sentence"]
_USES: Final[dict[Use, type[FillHead] | type[VectorHead] | type[FollowHead]]] = {
    "fill": FillHead,
    "vectors": VectorHead,
    "next sentence": FollowHead,
}


def load(model: str | Path, *, precision: Asked = "auto") -> "Predictor":
    """Open MODEL (a model folder, a run folder, or small-wiki) to answer with.

    precision: auto is bf16 where this processor multiplies it faster, else fp32; int8 is faster and less exact. What is
    computed in is `Predictor.backend`. InputError for a folder that is missing, half copied, or no model.
    """
    keep_memory()
    heard: list[str] = []
    if str(model).startswith("random:"):
        raise InputError(f"{model}: random weights have learned nothing; name a model folder or a run")
    with told_to(heard.append):
        saved = open_model(str(model))
        answerable = Answerable(**vars(saved), answering=choose(precision))
        found = Predictor(answerable, open_tokenizer(saved), str(model))
    for text in heard:
        if not text.startswith("answering in"):  # that is `backend`; the rest is what could not be had
            _warn(text)
    return found


class Predictor:
    """A model in use. Call it with one input, with several, or with an iterator of any length.

    One input gives one result of `bertwright.serving.results`; a list, a tuple, a column or table of pandas or Arrow
    gives a list; any other iterator gives an iterator, of which a thousand inputs are held at a time. The order is
    kept. Of a table the columns are read that the model was trained on.

    An input is what the model was trained for: a text, a tuple of two texts (a pair; a question and its passage), or a
    tuple of a context and its choices. Two columns may be given side by side: model(questions, passages).

    Threads may share it; they take turns, since each turn uses all cores.
    """

    def __init__(self, saved: Answerable, words: BaseTokenizer, place: str) -> None:
        self.place, self.config, self.words = place, saved.config, words
        self.backend: str = "fp32" if saved.computed == "plain" else saved.computed
        self.saved = saved
        self._lock = threading.RLock()
        self.head = head_of(saved, words)
        if lacks_import := import_hint(saved):
            say(f"{lacks_import}; as it is, it gives vectors")
        self._plain: Backbone | None = None
        self._heads: dict[Use, Head[Any]] = {}

    @property
    def kind(self) -> str:
        """classification, tagging, questions, choice, fill, or vectors for an encoder without a head."""
        return self.head.kind

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the outputs; none where the model gives no labels."""
        return self.head.labels

    def __repr__(self) -> str:
        size = f"{self.config.layers} layers of {self.config.hidden}"
        return f"<bertwright model {self.place}: {self.kind}, {size}, {self.backend}>"

    def __call__(self, given: Any, second: Any = None) -> Any:
        """A result for one input, a list for several, an iterator for an iterator.

        InputError for an input of another form than the model's, with its place; RunFailed where the model's numbers
        are not finite. Inputs that are longer than the model reads are told by a warning, and in their results.
        """
        if isinstance(self.head, VectorHead):
            return self.vectors(given if second is None else paired(given, second))
        return self._mapped(given if second is None else paired(given, second), self.head, self.head.answers)

    def fill(self, given: Any, *, top_k: int = 5) -> Any:
        """The candidates for each [MASK] of a text, or of several."""
        if top_k < 1:
            raise InputError(f"top_k {top_k}: at least 1")
        head = self.used_for("fill")
        return self._mapped(given, head, partial(head.answers, top_k=top_k))

    def next_sentence(self, first: Any, second: Any) -> Any:
        """The probability that the second text follows the first; of two columns, a list of them."""
        head = self.used_for("next sentence")

        def answers(pairs: Sequence[Any]) -> list[float]:
            return [follows.probability for follows in head.answers(pairs)]

        return self._mapped(paired(first, second), head, answers)

    def vectors(self, given: Any, *, pool: Pool = "mean", layer: int = -1) -> Any:
        """One vector [D] for a text, [N, D] for several, an iterator of vectors for an iterator; float32.

        pool: mean or max over the tokens of a text, or cls, the state of [CLS]. layer: 0 for the embeddings, then the
        layers; -1 is the last.
        """
        if pool not in ("mean", "max", "cls"):
            raise InputError(f"pool {pool!r}: allowed are mean, max and cls")
        layers = self.config.layers
        if isinstance(layer, float) or layer not in range(-layers - 1, layers + 1):  # 1.0 is in a range
            raise InputError(f"layer {layer!r}: allowed are {-layers - 1} to {layers}; 0 is the embeddings")
        head = self.used_for("vectors")
        found = self._mapped(given, head, partial(head.answers, pool=pool, layer=layer))
        if isinstance(found, list):
            return np.array([one.values for one in found], dtype=np.float32).reshape(-1, self.config.hidden)
        return found.values if isinstance(found, Vector) else (one.values for one in found)

    @property
    def heads(self) -> int:
        """Attention heads of each layer; 0 for a body that has none, or two bodies."""
        return self.config.heads if isinstance(self.config, EncoderConfig) else 0

    def can(self, use: Use) -> bool:
        """Whether `used_for` has a head for that."""
        if use == "next sentence":
            return "task" not in self.saved.extra and second_objective(self.saved) == "next"
        return use == "vectors" or has_masked_lm(self.saved)

    def used_for(self, use: Use) -> Any:
        """The head for another use than the model's own; InputError where the model has none."""
        if self.kind == use:
            return self.head
        with self._lock:
            if use not in self._heads:
                if use == "fill" and not self.can(use):
                    raise InputError(f"{self.place}: is a model for {self.kind} without the head that fills [MASK]")
                self._heads[use] = _USES[use](self.saved, self.words)
            return self._heads[use]

    def plain_encoder(self) -> Backbone:
        """The encoder as it is trained, in fp32: the one that answers keeps no attention."""
        with self._lock:
            if self._plain is None:
                self._plain = frozen_encoder(self.saved)
            return self._plain

    def _mapped(self, given: Any, head: Head[Any], answers: Callable[[Sequence[Any]], list[Any]]) -> Any:
        if (one := checked(head, given)) is not None:
            return self._answered([one], head, answers)[0]
        several = _rows(head, given)
        if several is None:
            raise InputError(f"{_told(given)}: {self.place} takes {head.form}; or a list, column or iterator of them")
        items = _items(head, several)
        if isinstance(several, Sequence):
            return [result for block in _blocks(head, items) for result in self._answered(block, head, answers)]
        return (result for block in _blocks(head, items) for result in self._answered(block, head, answers))

    def _answered(
        self, items: Sequence[Any], head: Head[Any], answers: Callable[[Sequence[Any]], list[Any]]
    ) -> list[Any]:
        with self._lock, told_to(_warn):
            try:
                found = answers(items)
            except RunFailed as error:
                raise RunFailed(f"{self.place}: {error}") from None
        if cut := sum(getattr(result, "truncated", False) for result in found):
            _warn(f"{cut} of {len(found)} inputs exceed {head.limit} that {self.place} reads; cut")
        return found


def paired(first: Any, second: Any) -> Any:
    """Two inputs as one, two columns as one of pairs; InputError where one of them is longer."""
    left, right = _several(first), _several(second)
    if left is None:
        return (first, second)
    if right is None:
        raise InputError(f"{_told(first)} and {_told(second)}: give two texts, or two columns of one length")
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        if len(left) != len(right):
            raise InputError(f"columns of {len(left)} and {len(right)} values; they must have one length")
        return list(zip(left, right, strict=True))
    return _zipped(left, right)


def _zipped(first: Iterable[Any], second: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for pair in zip_longest(first, second, fillvalue=_ENDED):
        if any(one is _ENDED for one in pair):
            raise InputError("one of the two columns ended before the other; they must have one length")
        yield pair


def _several(given: Any) -> Sequence[Any] | Iterator[Any] | None:
    """The values of a list, of a column of pandas, Arrow or numpy, or of an iterator; None for anything else."""
    if isinstance(given, list | tuple):
        return given
    is_table = column_names(given) is not None
    if is_table or isinstance(given, set | frozenset):
        what = "a table; give a column, as in model(table['text'])" if is_table else "without an order"
        raise InputError(f"{type(given).__name__}: is {what}")
    for name in ("to_pylist", "tolist"):  # Arrow's, and that of pandas and numpy
        if callable(convert := getattr(given, name, None)):
            values = convert()
            return values if isinstance(values, list) else None
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return None
    return iter(given)


def _rows(head: Head[Any], given: Any) -> Sequence[Any] | Iterator[Any] | None:
    """As `_several`; of a table the columns that the head's inputs are made of, whatever else it holds."""
    names = column_names(given)
    if names is None or not head.columns:
        return _several(given)
    for name in head.columns:
        if names.count(name) != 1:
            due, there = (", ".join(map(str, some)) for some in (head.columns, names))
            raise InputError(f"{type(given).__name__}: the columns {shown(there)}; due, once each, are {due}")
    columns = [column_values(given, names.index(name)) for name in head.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _items(head: Head[Any], given: Iterable[Any]) -> Iterator[Any]:
    for place, value in enumerate(given):
        item = checked(head, value, place)
        if item is None:
            raise InputError(f"input {place}: {_told(value)}; due is {head.form}")
        yield item


def checked(head: Head[Any], given: Any, place: int | None = None) -> Any:
    """The item, or None where it has another form; InputError, with its place, where its content is wrong."""
    where = "" if place is None else f"input {place}: "
    try:
        item = head.item(given)
        refuse_halves(head.texts(item) if item is not None else ())
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return item


def _blocks(head: Head[Any], items: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of as many inputs as are held at a time."""
    block: list[Any] = []
    size = 0
    for item in items:
        block.append(item)
        size += sum(map(len, head.texts(item)))
        if len(block) == BLOCK or size >= _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _told(given: Any) -> str:
    return f"{type(given).__name__} {shown(given)}"


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


# text → what a model makes of it: pieces, segments and places (the paper's figure 2), and a layer's attention.

MOST_TOKENS = 96
"""Tokens of an input that is looked into: the answer has their square."""


@dataclass(frozen=True)
class Inside:
    """`pieces` and `segments` [T] of an input as the model gets it; `attention` [H, T, T] of one layer, from and to."""

    pieces: list[str]
    segments: list[int]
    attention: list[list[list[float]]]


def look_inside(model: Predictor, text: str, second: str | None = None, layer: int = 1) -> Inside:
    """The input that a text, or two, become, and how much each token attends to each in `layer` (from 1 on)."""
    if not 1 <= layer <= model.config.layers:
        raise InputError(f"layer {layer}: allowed are 1 to {model.config.layers}")
    limit = min(MOST_TOKENS, model.config.max_positions)
    texts = [text] if second is None else [text, second]
    sides = model.words.ids(texts, special=True) if isinstance(model.words, Tokenizer) else model.words.ids(texts)
    if sum(map(len, sides)) + 1 + len(sides) > limit:
        raise InputError(f"the input has more than {limit} tokens; so much is not drawn")
    words = _Read(model.words, sides)
    encoded = encode(words, [text], None if second is None else [second], max_length=limit)
    rows = padded(encoded, [0], pad_id=model.words.pad_id)
    with torch.inference_mode():
        encoder = model.plain_encoder()
        if not isinstance(encoder, Encoder):
            raise InputError("this model is no single Transformer: there is no attention to look at")
        keep = kept(rows.mask, encoder.config.attends)
        hidden = encoder.embeddings(rows.ids, rows.segments)
        for block in list(encoder.layers)[: layer - 1]:
            hidden = block(hidden, keep)
        chosen = encoder.layers[layer - 1]
        assert isinstance(chosen, EncoderLayer)
        shares = chosen.attention.probabilities(hidden, keep)[0]  # [H, T, T]
    return Inside(
        pieces=[model.words.pieces[id] for id in rows.ids[0].tolist()],
        segments=rows.segments[0].tolist(),
        attention=[[[round(share, 4) for share in row] for row in head] for head in shares.tolist()],
    )


class _Read:
    """A tokenizer whose texts were read already, [MASK] as the token."""

    def __init__(self, words: Any, sides: list[list[int]]) -> None:
        self.begin_id, self.between_id, self.end_id = words.begin_id, words.between_id, words.end_id
        self._sides = iter(sides)

    def ids(self, texts: Any) -> list[list[int]]:
        return [next(self._sides) for _ in texts]
