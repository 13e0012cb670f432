"""Python values (lists, columns, tables, iterators) → the inputs of a pipeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from bertwright.errors import InputError, shown
from bertwright.serving.pipeline import Pipeline, parse_input
from bertwright.tables.in_memory import column_names, column_values
from bertwright.tables.reader import refuse_halves

_ENDED: Final = object()


def paired(first: Any, second: Any) -> Any:
    """Return a pair of two inputs, or a column of pairs of two columns. Raises InputError for unequal lengths."""
    left, right = column_of(first), column_of(second)
    if left is None:
        return (first, second)
    if right is None:
        raise InputError(f"{described(first)} and {described(second)}: give two texts, or two columns of one length")
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        if len(left) != len(right):
            raise InputError(f"columns of {len(left)} and {len(right)} values; they must have one length")
        return list(zip(left, right, strict=True))
    return _zipped(left, right)


def _zipped(first: Iterable[Any], second: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for pair in zip_longest(first, second, fillvalue=_ENDED):
        if any(value is _ENDED for value in pair):
            raise InputError("one of the two columns ended before the other; they must have one length")
        yield pair


def column_of(inputs: Any) -> Sequence[Any] | Iterator[Any] | None:
    """Return the values of a list, of a column of pandas, Arrow or numpy, or of an iterator; None for anything else."""
    if isinstance(inputs, list | tuple):
        return inputs
    is_table = column_names(inputs) is not None
    if is_table or isinstance(inputs, set | frozenset):
        what = "a table; give a column, as in model(table['text'])" if is_table else "without an order; give a list"
        raise InputError(f"{type(inputs).__name__}: is {what}")
    for name in ("to_pylist", "tolist"):  # methods of Arrow, and of pandas and numpy
        if callable(convert := getattr(inputs, name, None)):
            values = convert()
            return values if isinstance(values, list) else None
    if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
        return None
    return iter(inputs)


def texts_of(inputs: Any, name: str) -> list[str]:
    """Return the texts of a list or column. Raises InputError for anything else; `name` is that of a text in it."""
    column = column_of(inputs)
    if column is None:
        raise InputError(f"{described(inputs)}: expected a list or column of texts")
    texts = []
    for index, text in enumerate(column):
        if not isinstance(text, str):
            raise InputError(f"{name} {index}: expected a text, got {described(text)}")
        refuse_halves([text], f"{name} {index} ")
        texts.append(text)
    return texts


def values_for(pipeline: Pipeline[Any, Any], inputs: Any) -> Sequence[Any] | Iterator[Any] | None:
    """Return the values as `column_of` does; of a table, those of the pipeline's columns."""
    names = column_names(inputs)
    if names is None or not pipeline.columns:
        return column_of(inputs)
    for name in pipeline.columns:
        if names.count(name) != 1:
            expected, actual = (", ".join(map(str, columns)) for columns in (pipeline.columns, names))
            raise InputError(
                f"{type(inputs).__name__}: expected the columns {expected}, once each, got {shown(actual)}"
            )
    columns = [column_values(inputs, names.index(name)) for name in pipeline.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def items_of(pipeline: Pipeline[Any, Any], values: Iterable[Any]) -> Iterator[Any]:
    """Yield the input of each value. Raises InputError, with its number, for a value that the pipeline cannot take."""
    for index, value in enumerate(values):
        item = parse_input(pipeline, value, index)
        if item is None:
            raise InputError(f"input {index}: expected {pipeline.form}, got {described(value)}")
        yield item


def described(value: Any) -> str:
    """Return the type and the beginning of a value, for a message."""
    return f"{type(value).__name__} {shown(value)}"
