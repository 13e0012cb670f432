"""text → documents: records with a text each (JSON lines, Parquet, datasets of the Hub), articles of WikiExtractor."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertwright.errors import InputError, MissingExtra, RunFailed, shown
from bertwright.stores.remote import AnyFile
from bertwright.text.decompress import LONGEST_CELL, is_undecoded
from bertwright.text.document import Document, OnError, TextSettings, checked_size, paragraphs_of, tidy
from bertwright.text.parquet import check_text_column, first_line, open_parquet

_EXPECTED_JSON = "expected one JSON object a line, with its text in the field"
_ROWS = 256  # rows of a Parquet file that are decoded at a time
_LINE_END = re.compile(r"\r\n|\r|\n")
_TITLE = re.compile(r' title="(.*)"\s*>$')


def read_json_lines(
    path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings, on_error: OnError
) -> Iterator[Document]:
    """Yield the document of each numbered line that is not blank."""
    for number, line in lines:
        if line.isspace():
            continue
        location = f"{path}:{number}"
        try:
            title, text = _json_record(line, location, settings.field)
        except InputError as error:
            on_error(error)
            continue
        yield from _documents(_LINE_END.split(text), title, location, settings)


def read_table_texts(
    path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings, on_error: OnError, *, delimiter: str
) -> Iterator[Document]:
    """Yield the document of each row of a CSV or TSV table with a header line; a row without text gives none.

    `on_error` is called for rows that are not valid. Raises InputError where the file cannot be read any further, such
    as at a line that is not UTF-8.
    """
    begin = last = size = 0

    def counted() -> Iterator[str]:
        nonlocal begin, last, size
        for number, line in lines:
            begin, last = begin or number, number
            size = checked_size(size + len(line), f"{path}:{begin}")
            yield line

    csv.field_size_limit(LONGEST_CELL)  # the default, for the whole process, is 131,072 characters a cell
    quoting: Any = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL  # as labelled tables are read
    rows = csv.reader(counted(), delimiter=delimiter, quoting=quoting, strict=True)
    names: list[str] | None = None
    while True:
        begin = size = 0  # number of the first line of the next row, and its characters
        try:
            cells = next(rows, None)
            if cells is None:
                return
            location = f"{path}:{begin}"
            if names is None:
                names = cells
                column = _column(names, settings.field, location)
                continue
        except csv.Error as error:
            taken = f"; the quotation mark that opens here takes all lines up to {last}" if last > begin else ""
            problem = InputError(f"{path}:{begin}: not valid csv: {error}{taken}")
            if names is None or "unexpected end" in str(error):
                raise problem from None
            on_error(problem)
            continue
        if cells and len(cells) != len(names):
            expected = f"expected {len(names)} cells, as in the header line"
            on_error(InputError(f"{location}: {expected}, got {len(cells)}"))
            continue
        text = cells[column] if cells else ""
        yield from _documents(_LINE_END.split(text), "", location, settings)


def _column(names: list[str], field: str, location: str) -> int:
    """Return the index of the column of the text. Raises InputError unless there is one."""
    if names.count(field) != 1:
        raise InputError(
            f"{location}: expected one column {field!r}; the columns are: {', '.join(map(shown, names))}; corpus build "
            "and tokenizer train take another column with --field; end the name of a file without columns in .txt"
        )
    return names.index(field)


def read_parquet(path: AnyFile, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
    """Yield the document of each row of a Parquet file, a few rows at a time; a row without text gives none."""
    row = 0
    with open_parquet(path if isinstance(path, Path) else path.open(), str(path), lambda: row) as file:
        if file.schema_arrow.names.count(settings.field) != 1:
            columns = ", ".join(file.schema_arrow.names)
            raise InputError(
                f"{path}: expected one column {settings.field!r}; the columns are: {columns}; name the column of the "
                "text with --field"
            )
        check_text_column(file.schema_arrow, settings.field, str(path))
        for batch in file.iter_batches(batch_size=_ROWS, columns=[settings.field]):
            for value in batch.column(0):
                row += 1
                location = f"{path}: row {row}"
                try:
                    text = value.as_py() or ""
                    checked_size(len(text), location)
                except UnicodeDecodeError as error:
                    on_error(InputError(f"{location}: {settings.field!r} is not UTF-8 text: {error}"))
                    continue
                except InputError as error:
                    on_error(error)
                    continue
                yield from _documents(_LINE_END.split(text), "", location, settings)


@dataclass(frozen=True)
class HubDataset:
    """Split of a dataset on the Hugging Face Hub, at one revision."""

    name: str
    config: str | None
    split: str
    revision: str

    def __str__(self) -> str:
        return ":".join(["hub", self.name, *([self.config] if self.config else []), self.split])


def find_hub_dataset(written: str) -> HubDataset:
    """Return the dataset named `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`, at the Hub's present revision.

    Raises InputError where the Hub has no such dataset, RunFailed where it cannot be reached, MissingExtra without the
    packages.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise MissingExtra("hub", f"reading {written}") from None
    _, name, *rest = written.split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{written}: expected hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    config = rest[0] if len(rest) == 2 else None
    split = rest[-1] if rest else "train"
    try:
        revision = HfApi().dataset_info(name).sha
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(f"{written}: the Hub has no such dataset that you may read: {first_line(error)}") from None
    except Exception as error:  # the errors of a connection are those of the library below, which may change
        raise RunFailed(f"{written}: the Hub cannot be reached: {first_line(error)}") from error
    return HubDataset(name, config, split, revision or "")


def read_hub(dataset: HubDataset, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
    """Yield the document of each row of a dataset; rows are fetched as they are read."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra("hub", f"reading {dataset}") from None
    row = 0
    try:
        rows = load_dataset(
            dataset.name, dataset.config, split=dataset.split, revision=dataset.revision, streaming=True
        )
        for record in rows:
            row += 1
            location = f"{dataset}: row {row}"
            try:
                text = _field_text(record, location, settings.field, may_be_null=True)
                checked_size(len(text), location)
            except InputError as error:
                on_error(error)
                continue
            yield from _documents(_LINE_END.split(text), "", location, settings)
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"{dataset}: after row {row}: {first_line(error)}") from None
    except OSError as error:
        raise RunFailed(f"{dataset}: reading failed after row {row}: {first_line(error)}") from error


def _documents(lines: list[str], title: str, location: str, settings: TextSettings) -> Iterator[Document]:
    """Yield the document of a record, if it has text; a first line of text that repeats the title is left out."""
    for index, line in enumerate(lines):
        if line.strip():
            lines = lines[index + 1 :] if title and tidy(line) == tidy(title) else lines
            break
    paragraphs = paragraphs_of(lines, settings)
    if paragraphs:
        yield Document(paragraphs, location)


def _json_record(line: str, location: str, field: str) -> tuple[str, str]:
    """Return (title, text) of a JSON line; "" as the title unless WikiExtractor wrote it, whose texts begin with it."""
    if is_undecoded(line):
        raise InputError(f"{location}: not UTF-8 text: {_first_undecodable(line)}; convert it to UTF-8")
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{location}: not valid JSON: {error.msg}; {_EXPECTED_JSON} {field!r}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: JSON that cannot be read ({error}); {_EXPECTED_JSON} {field!r}") from None
    if not isinstance(record, dict):
        raise InputError(f"{location}: {_EXPECTED_JSON} {field!r}, got a JSON {type(record).__name__}")
    text = _field_text(record, location, field)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise InputError(
            f"{location}: {field!r} holds half of a surrogate pair (\\u{bad:04x}), which is no text"
        ) from None
    title = record.get("title") if field == "text" and {"id", "url"} <= record.keys() else ""
    return (title if isinstance(title, str) else ""), text


def _first_undecodable(line: str) -> str:
    """Describe the first byte of a line that is not UTF-8."""
    raw = line.encode("utf-8", "surrogateescape")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line ({error.reason})"
    raise AssertionError("every byte is UTF-8")


def _field_text(record: dict[str, Any], location: str, field: str, *, may_be_null: bool = False) -> str:
    if field not in record:
        names = ", ".join(map(repr, record)) or "none"
        raise InputError(
            f"{location}: expected a field {field!r}; the fields are: {names}; name the field of the text with --field"
        )
    text = record[field]
    if text is None and may_be_null:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{location}: expected text in field {field!r}, got {json.dumps(text, default=str)[:40]}")
    return text


def opens_article(line: str) -> bool:
    """Return whether a stripped line is WikiExtractor's `<doc id=… url=… title=…>`, which `</doc>` closes."""
    return line.startswith("<doc ") and line.endswith(">") and 'id="' in line


def read_wikiextractor(path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    """Yield the articles in numbered lines of WikiExtractor; the first line of each is its title."""
    begin = size = 0
    title = ""
    article: list[str] = []
    for number, line in lines:
        bare = line.strip()
        if opens_article(bare):
            if begin:
                raise InputError(f"{path}:{begin}: expected </doc> before the next <doc …> on line {number}")
            match = _TITLE.search(bare)
            begin, size, title, article = number, 0, _unescape(match[1]).replace("&quot;", '"') if match else "", []
        elif bare == "</doc>":
            if not begin:
                raise InputError(f"{path}:{number}: </doc> without a <doc …> before it; remove the line")
            yield from _documents(article, title, f"{path}:{begin}", settings)
            begin = 0
        elif begin:
            size = checked_size(size + len(line), f"{path}:{begin}")
            article.append(_unescape(line) if "&" in line else line)
        elif bare:
            raise InputError(f"{path}:{number}: expected <doc …>, got text outside of an article: {bare[:40]!r}")
    if begin:
        raise InputError(f"{path}:{begin}: expected </doc> after this <doc …>; was the file cut short?")


def _unescape(text: str) -> str:
    """Undo the escapes of WikiExtractor, which escapes these three characters only."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
