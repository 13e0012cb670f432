"""text → documents: records that hold a text each: JSON lines, Parquet files, datasets of the Hugging Face Hub."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertwright.errors import InputError, MissingExtra, RunFailed
from bertwright.text.decompress import is_undecoded
from bertwright.text.document import LINE_END, Document, OnError, TextSettings, bounded, paragraphs_of, without_title

if TYPE_CHECKING:
    import pyarrow.parquet

PARQUET_MAGIC = b"PAR1"
_WANTED_JSON = "each line must be one JSON object with its text in the field"
_ROWS = 256  # of a Parquet file decoded at a time


def read_json_lines(
    path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings, on_error: OnError
) -> Iterator[Document]:
    """Yield the document of each numbered line that is not blank."""
    for number, line in lines:
        if line.isspace():
            continue
        place = f"{path}:{number}"
        try:
            title, text = _json_record(line, place, settings.field)
        except InputError as error:
            on_error(error)
            continue
        yield from _documents(text, title, place, settings)


def read_parquet(path: Path, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
    """Yield the document of each row of a Parquet file, a few rows at a time; a row without a text is no document."""
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            _check_column(path, file, settings.field)
            for batch in file.iter_batches(batch_size=_ROWS, columns=[settings.field]):
                for value in batch.column(0):
                    row += 1
                    place = f"{path}: row {row}"
                    try:
                        text = value.as_py() or ""
                        bounded(len(text), place)
                    except UnicodeDecodeError as error:
                        on_error(InputError(f"{place}: the column {settings.field!r} is not UTF-8 text: {error}"))
                        continue
                    except InputError as error:
                        on_error(error)
                        continue
                    yield from _documents(text, "", place, settings)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: after row {row}: not a readable Parquet file: {error}") from None


@dataclass(frozen=True)
class HubDataset:
    """A split of a dataset on the Hugging Face Hub, at one revision."""

    name: str
    config: str | None
    split: str
    revision: str

    def __str__(self) -> str:
        return ":".join(["hub", self.name, *([self.config] if self.config else []), self.split])


def find_hub_dataset(given: str) -> HubDataset:
    """`hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`, at the revision that the Hub has now.

    InputError where the Hub has no such dataset, RunFailed where it cannot be asked, MissingExtra without the packages.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise MissingExtra("hub", f"reading {given}") from None
    _, name, *rest = given.split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{given}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    config, split = ([None, "train"] if not rest else [None, *rest])[-2:] if len(rest) < 2 else rest
    try:
        found = HfApi().dataset_info(name)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(f"{given}: the Hub has no such dataset that you may read: {_first_line(error)}") from None
    except (HfHubHTTPError, OSError) as error:
        raise RunFailed(f"{given}: the Hub cannot be asked: {_first_line(error)}") from error
    return HubDataset(name, config, split or "train", found.sha or "")


def read_hub(dataset: HubDataset, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
    """Yield the document of each row, as a stream; nothing but what is being read is fetched."""
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
            place = f"{dataset}: row {row}"
            try:
                text = _field_text(record, place, settings.field, may_be_null=True)
                bounded(len(text), place)
            except InputError as error:
                on_error(error)
                continue
            yield from _documents(text, "", place, settings)
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"{dataset}: after row {row}: {_first_line(error)}") from None
    except OSError as error:
        raise RunFailed(f"{dataset}: reading failed after row {row}: {_first_line(error)}") from error


def _documents(text: str, title: str, place: str, settings: TextSettings) -> Iterator[Document]:
    paragraphs = paragraphs_of(without_title(LINE_END.split(text), title), settings)
    if paragraphs:
        yield Document(paragraphs, place)


def _json_record(line: str, place: str, field: str) -> tuple[str, str]:
    """Give (title or "", text) of one JSON line; WikiExtractor's form alone begins with its title."""
    if is_undecoded(line):
        raise InputError(f"{place}: not UTF-8 text: {_first_undecodable(line)}; convert it to UTF-8")
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg}; {_WANTED_JSON} {field!r}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not usable JSON ({error}); {_WANTED_JSON} {field!r}") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}: a JSON {type(record).__name__}; {_WANTED_JSON} {field!r}")
    text = _field_text(record, place, field)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise InputError(f"{place}: the field {field!r} holds half a surrogate pair, \\u{bad:04x}") from None
    title = record.get("title") if field == "text" and {"id", "url"} <= record.keys() else ""
    return (title if isinstance(title, str) else ""), text


def _first_undecodable(line: str) -> str:
    """Which byte of such a line is not UTF-8."""
    raw = line.encode("utf-8", "surrogateescape")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte 0x{raw[error.start]:02x} at byte {error.start} of the line ({error.reason})"
    raise AssertionError("every byte is UTF-8")


def _field_text(record: dict[str, Any], place: str, field: str, *, may_be_null: bool = False) -> str:
    if field not in record:
        names = ", ".join(map(repr, record)) or "none"
        raise InputError(f"{place}: no field {field!r}; its fields are {names}; corpus build --field NAME reads one")
    text = record[field]
    if text is None and may_be_null:
        return ""
    if not isinstance(text, str):
        shown = json.dumps(text, default=str)[:40]
        raise InputError(f"{place}: the field {field!r} holds {shown}; it must hold text")
    return text


def _check_column(path: Path, file: "pyarrow.parquet.ParquetFile", field: str) -> None:
    import pyarrow as pa

    schema = file.schema_arrow
    if schema.names.count(field) != 1:
        names = ", ".join(schema.names)
        raise InputError(
            f"{path}: no column {field!r}, or several; its columns are {names}; corpus build --field NAME reads one"
        )
    kind = schema.field(field).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)):
        texts = [name for name in schema.names if pa.types.is_string(schema.field(name).type)]
        raise InputError(
            f"{path}: the column {field!r} holds {kind}; it must hold text "
            f"(such columns here: {', '.join(texts) or 'none'})"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# text → documents: WikiExtractor's mark-up, `<doc id=… url=… title=…>` … `</doc>`.

_TITLE = re.compile(r' title="(.*)"\s*>$')


def opens_article(line: str) -> bool:
    """Whether a stripped line is a `<doc …>`."""
    return line.startswith("<doc ") and line.endswith(">") and 'id="' in line


def read_wikiextractor(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    """Yield the articles of numbered lines; the first line of each is its title."""
    begin = size = 0
    title = ""
    body: list[str] = []
    for number, line in lines:
        bare = line.strip()
        if opens_article(bare):
            if begin:
                raise InputError(f"{path}:{begin}: not closed by </doc> before line {number} opens another <doc>")
            match = _TITLE.search(bare)
            begin, size, title, body = number, 0, _unescape(match[1]).replace("&quot;", '"') if match else "", []
        elif bare == "</doc>":
            if not begin:
                raise InputError(f"{path}:{number}: </doc> without a <doc …> before it")
            paragraphs = paragraphs_of(without_title(body, title), settings)
            if paragraphs:
                yield Document(paragraphs, f"{path}:{begin}")
            begin = 0
        elif begin:
            size = bounded(size + len(line), f"{path}:{begin}")
            body.append(_unescape(line) if "&" in line else line)
        elif bare:
            raise InputError(f"{path}:{number}: text outside of <doc …> … </doc>: {bare[:40]!r}")
    if begin:
        raise InputError(f"{path}:{begin}: this <doc> is never closed by </doc>; was the file cut short?")


def _unescape(text: str) -> str:
    """Undo WikiExtractor's HTML-safe output, which escapes these three and nothing else."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
