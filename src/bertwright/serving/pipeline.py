"""inputs → rows of token ids → the model's outputs → results: the steps that every kind of model in use has.

Encoding and decoding are those of training, evaluation and `predict`; here inputs are values instead of files.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.model import TextBatch, padded
from bertwright.tasks.finite import NotFinite, check_finite
from bertwright.tasks.inference import batches_by_length
from bertwright.text.base_tokenizer import BaseTokenizer


@dataclass(frozen=True, eq=False)
class ModelRow:
    """A row that the model reads.

    ids    [T] token ids with the special tokens
    first  number of tokens of segment 0
    at     [Q] positions whose outputs the result needs; empty where the result needs the whole row
    """

    ids: NDArray[np.int32]
    first: int
    at: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


WHOLE_ROW = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class EncodedInputs:
    """The rows of some inputs, in the order of the inputs. Subclasses hold what else `Pipeline.decode` needs."""

    rows: Sequence[ModelRow]

    def input_of(self, row: int) -> int:
        """Return the number of the input that a row belongs to."""
        return row


Item = TypeVar("Item")
EncodedT = TypeVar("EncodedT", bound=EncodedInputs)


class Pipeline(ABC, Generic[Item, EncodedT]):
    """A model ready to answer inputs of one form.

    `forward` gets rows of any inputs, of several requests for example, and returns one output for each row. So rows are
    batched freely between `encode` and `decode`.
    """

    kind: ClassVar[str]
    """Name of the kind of results."""
    form: str
    """Description of one input, for messages."""
    tokenizer: BaseTokenizer
    max_length: int
    """Largest number of tokens of a row; longer inputs are cut, or read in windows."""
    labels: tuple[str, ...] = ()
    """Labels in the order of the outputs; empty where the model gives none."""
    columns: tuple[str, ...] = ()
    """Columns of a table that make up one input; empty where a table has no such columns."""
    example: Item
    """An input for a first answer."""

    @abstractmethod
    def parse(self, value: Any) -> Item | None:
        """Return one checked input, or None where `value` is not of the pipeline's form.

        Raises InputError where its content is wrong.
        """

    def texts(self, item: Item) -> tuple[str, ...]:
        """Return the texts of an input: the input itself, or both of a pair."""
        return tuple(item) if isinstance(item, tuple) else (str(item),)

    @abstractmethod
    def encode(self, items: Sequence[Item]) -> EncodedT:
        """Return the rows of all inputs."""

    @abstractmethod
    def forward(self, rows: Sequence[ModelRow]) -> list[Any]:
        """Return one output for each row, computed as one batch."""

    @abstractmethod
    def decode(self, inputs: EncodedT, outputs: Sequence[Any]) -> list[Any]:
        """Return a result for each input, from the outputs of all rows, which are finite."""

    def numbers(self, output: Any) -> ArrayLike:
        """Return the numbers of a row's output, for the check that they are finite."""
        numbers: ArrayLike = output
        return numbers

    def results(self, inputs: EncodedT, outputs: Sequence[Any]) -> list[Any]:
        """Return a result for each input. Raises NotFinite, with the number of the input, for NaN or infinity."""
        try:
            check_finite(map(self.numbers, outputs))
        except NotFinite as error:
            index = inputs.input_of(error.index)
            raise NotFinite(index, f"input {index}") from None
        return self.decode(inputs, outputs)

    def warnings(self, inputs: EncodedT) -> list[str]:
        """Return messages about inputs whose tokens are not what their text suggests."""
        return []

    @property
    def batch_key(self) -> Hashable:
        """Key of the computation: rows of two pipelines of a model are computed together where their keys are equal."""
        return self.kind

    @property
    def limit(self) -> str:
        """Limit on the length of an input, for messages."""
        return f"the {self.max_length} tokens"

    def answer(self, items: Sequence[Item], **options: Any) -> list[Any]:
        """Return a result for each input; `options` are those of `forward`."""
        inputs = self.encode(items)
        for message in self.warnings(inputs):
            say(message)
        return self.results(inputs, self.outputs(inputs, **options))

    def outputs(self, inputs: EncodedT, **options: Any) -> list[Any]:
        """Return the output of each row, as `forward`. Rows of similar length share a batch."""
        outputs: list[Any] = [None] * len(inputs.rows)
        for batch in batches_by_length(np.array([len(row) for row in inputs.rows], dtype=np.int64)):
            for index, output in zip(batch, self.forward([inputs.rows[row] for row in batch], **options), strict=True):
                outputs[index] = output
        return outputs


class TextPipeline(Pipeline[str, EncodedT]):
    """A pipeline whose input is one text."""

    form = "a text"
    example = "The old mill stands by the river, and nobody knows who built it."

    def parse(self, value: Any) -> str | None:
        """Return `value` where it is a text."""
        return value if isinstance(value, str) else None


def parse_input(pipeline: Pipeline[Any, Any], value: Any, index: int | None = None) -> Any:
    """Return the checked input, or None where it has another form. Raises InputError for wrong content."""
    try:
        item = pipeline.parse(value)
        refuse_halves(pipeline.texts(item) if item is not None else ())
    except InputError as error:
        raise InputError(f"{'' if index is None else f'input {index}: '}{error}") from None
    return item


def rows_of_encoded(encoded: Encoded) -> list[ModelRow]:
    """Return the rows of encoded texts or pairs."""
    return [ModelRow(ids, int(first), WHOLE_ROW) for ids, first in zip(encoded.ids, encoded.first, strict=True)]


def encoded_of_rows(rows: Sequence[ModelRow]) -> Encoded:
    """Return rows in the form that the task's functions take; which examples were cut is not kept."""
    first = np.array([row.first for row in rows], dtype=np.int32)
    return Encoded(ids=tuple(row.ids for row in rows), first=first, cut=np.zeros(len(rows), dtype=np.bool_))


def padded_batch(rows: Sequence[ModelRow], *, pad_id: int, both_orders: bool = False) -> TextBatch:
    """Return ids, segments and mask [B, T] of the rows; with `both_orders` [2·B, T], as `padded` says."""
    return padded(encoded_of_rows(rows), range(len(rows)), pad_id=pad_id, both_orders=both_orders)


def as_arrays(logits: Iterable[torch.Tensor]) -> list[NDArray[np.float32]]:
    """Return the logits of each row as arrays; `logits` is a batch [B, …] or a list of tensors."""
    return [values.float().cpu().numpy() for values in logits]


def are_texts(values: Iterable[Any]) -> bool:
    """Return whether all values are texts."""
    return all(isinstance(value, str) for value in values)


def parse_pair(value: Any) -> tuple[str, str] | None:
    """Return `value` where it is a tuple of two texts."""
    return value if isinstance(value, tuple) and len(value) == 2 and are_texts(value) else None


def blocks(
    pipeline: Pipeline[Any, Any], items: Iterable[Any], *, inputs: int, characters: int
) -> Iterator[tuple[int, list[Any]]]:
    """Yield lists of at most `inputs` items that have about `characters` characters, and the number of items before."""
    block: list[Any] = []
    first = size = 0
    for item in items:
        block.append(item)
        size += sum(map(len, pipeline.texts(item)))
        if len(block) == inputs or size >= characters:
            yield first, block
            first, block, size = first + len(block), [], 0
    if block:
        yield first, block
