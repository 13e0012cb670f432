"""task + data + encoder → what the recipe trains and measures: the one contract that every kind of task meets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel
from bertwright.tables.writer import Asked
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.training.distributed import Trainable

Batch = TypeVar("Batch")

LEARNED_TOKENS = 32_768
"""Tokens of the rows whose gradients are computed at a time: those of a choice among hundreds fill any memory."""

_WINDOW = 50
"""Batches that are sorted by length together: padding nearly vanishes, the order stays random beyond."""


@dataclass(frozen=True)
class Answered:
    """A model as its folder will hold it: the module, its class in transformers, its label names, its notes."""

    module: nn.Module
    architecture: str
    labels: tuple[str, ...]
    extra: Mapping[str, Any]


@dataclass(frozen=True)
class Work(Generic[Batch]):
    """A task bound to its data.

    task        as the training data complete it: with its labels, say
    digests     {"train": sha256, "dev": {name: sha256}} of the files
    lengths     [N] tokens of each training row
    head        the prefix of the new layer's parameters, which start anew whatever the model brings
    build       the model for an encoder's shape, with the encoder as `encoder`
    batch       training rows → one padded batch
    trainable   what the loop trains
    evaluate    dev figures with dropout off, the one that chooses the best epoch first; keys that end with "collapsed"
                tell (1.0) that a dev set was answered the same throughout
    answered    the model as it is saved
    ready       what is computed once, before the first seed
    tokens      [N] tokens of all inputs that a training row makes, where these are several; None: `lengths`
    """

    task: TaskSpec
    digests: Mapping[str, Any]
    lengths: NDArray[np.int64]
    head: str
    build: Callable[[BackboneConfig], nn.Module]
    batch: Callable[[NDArray[np.int64]], Batch]
    trainable: Callable[[nn.Module], Trainable[Batch]]
    evaluate: Callable[[nn.Module], dict[str, float]]
    answered: Callable[[nn.Module], Answered]
    ready: Callable[[], None] = lambda: None
    tokens: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Kind:
    """What can be done with one kind of task.

    prepare     (task, data, tokenizer, encoder's shape, maximal length) → the task bound to its data
    evaluate    (task, model, tokenizer, data) → figures
    predict     (model, tokenizer, what is read and written) → what was written
    features    as prepare, for the feature-based way: → FeatureData; None where a kind has no such way
    """

    spec: type[TaskSpec]
    prepare: Callable[[Any, Path, BaseTokenizer, BackboneConfig, int], Work[Any]]
    evaluate: Callable[[Any, SavedModel, BaseTokenizer, Path], dict[str, Any]]
    predict: Callable[[SavedModel, BaseTokenizer, Asked], dict[str, Any]]
    features: Callable[[Any, Path, BaseTokenizer, BackboneConfig, int], Any] | None = None


def open_tokenizer(saved: SavedModel) -> BaseTokenizer:
    """The model's tokenizer; InputError where it has pieces that the model has no embedding for."""
    words = open_tokenizer_folder(saved.tokenizer)
    if words.vocab_size > saved.config.vocab_size:
        raise InputError(
            f"{saved.tokenizer}: its vocabulary has {words.vocab_size} pieces, "
            f"but {saved.place} has embeddings for {saved.config.vocab_size}"
        )
    return words


def epoch_batches(lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Row numbers of an epoch's batches: shuffled, sorted by length within windows of 50 batches, batches shuffled."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    batches = []
    for begin in range(0, len(order), _WINDOW * batch_size):
        window = order[begin : begin + _WINDOW * batch_size]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
    return [batches[index] for index in random.permutation(len(batches))]


def steps_of(work: Work[Batch], batch_size: int, *, seed: int, parts: int = 1) -> Callable[[int], Sequence[Batch]]:
    """step → its micro-batches, epoch after epoch: `parts`, or as many as the tokens of the step's rows need."""
    tokens = work.lengths if work.tokens is None else work.tokens
    per_epoch = -(-len(work.lengths) // batch_size)
    cache: dict[int, list[NDArray[np.int64]]] = {}

    def of_step(step: int) -> list[Batch]:
        epoch, place = divmod(step, per_epoch)
        if epoch not in cache:
            cache.clear()
            cache[epoch] = epoch_batches(work.lengths, batch_size, seed=seed, epoch=epoch)
        whole = cache[epoch][place]
        pieces = np.array_split(whole, min(parts, len(whole)))
        return [work.batch(rows) for piece in pieces for rows in _parts(piece, tokens)]

    return of_step


def _parts(rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows of a step in parts of at most LEARNED_TOKENS, or of one row."""
    begin, total = 0, 0
    for place, row in enumerate(rows):
        total += int(tokens[row])
        if total > LEARNED_TOKENS and place > begin:
            yield rows[begin:place]
            begin, total = place, int(tokens[row])
    yield rows[begin:]
