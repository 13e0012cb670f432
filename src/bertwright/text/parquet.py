"""Parquet file → batches of rows: the reader below documents (records.py) and labelled tables (tables/parquet.py)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from bertwright.errors import InputError

if TYPE_CHECKING:
    from pyarrow import parquet

PARQUET_MAGIC: Final = b"PAR1"
"""First and last bytes of a Parquet file."""

# pyarrow is imported inside the functions: commands that read no Parquet start without it.


@contextmanager
def open_parquet(file: Path | IO[bytes], source: str, row: Callable[[], int]) -> Iterator["parquet.ParquetFile"]:
    """Open a Parquet file; errors of reading, also within the block, become InputError.

    source   name of the file in messages
    row      returns the number of the last row that was read
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{source}: after row {row()}: not a readable Parquet file: {first_line(error)}") from None


def check_text_column(schema: Any, column: str | int, source: str) -> None:
    """Raise InputError where a column of an Arrow schema, by name or index, holds something else than text."""
    field = schema.field(column)
    if not _is_text(field.type):
        texts = ", ".join(other.name for other in schema if _is_text(other.type)) or "none"
        raise InputError(
            f"{source}: expected text in column '{field.name}', got {field.type} (columns of text: {texts})"
        )


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
