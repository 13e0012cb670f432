"""text → documents: the front of the line, where files become documents made of paragraphs (paper §3.1).

Four layouts are read, each plain or compressed (`.gz`, `.bz2`, `.xz`, told by name or by the first bytes):

- plain text, whose documents are parted by blank lines, or one document per file;
- JSON lines, one object per line, whose text is one field (WikiExtractor's JSON form among them);
- WikiExtractor's mark-up, `<doc id=… url=… title=…>` … `</doc>`, told by its first line whatever the file's name;
- MediaWiki's XML dumps, told the same way.

Files are read as a stream: never more than one document is held. Every run of white space inside a line (form feeds
and no-break spaces among them) becomes one space, because a BERT tokenizer deletes control characters and would glue
the words beside a form feed together. Document boundaries are never lost: next-sentence prediction needs them.
"""

import bz2
import glob
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, cast

from pydantic import Field

from bertwright.config import Settings
from bertwright.errors import InputError, RunFailed
from bertwright.text.wikipedia import Page, is_dump, read_pages
from bertwright.text.wikitext import passages

_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00"}
_JSON_NAMES = (".jsonl", ".ndjson", ".json")
_LINE_END = re.compile(r"\r\n|\r|\n")
_TITLE = re.compile(r' title="(.*)"\s*>$')
_WANTED_JSON = "each line must be one JSON object with its text in the field"


class TextSettings(Settings):
    """How plain text is cut into documents and paragraphs, and which language's rules part its sentences."""

    documents: Literal["blank-lines", "file"] = Field(
        default="blank-lines",
        description="what parts the documents of plain text: blank lines, or nothing (one document per file)",
    )
    lines: Literal["text", "wrapped", "sentences"] = Field(
        default="text",
        description="what a line is: a paragraph of running text, a piece of a wrapped block, or one sentence",
    )
    field: str = Field(default="text", min_length=1, description="the field of JSON lines that holds the text")
    language: str = Field(
        default="en",
        pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]+)*$",
        description="language code of the text, such as en or ko, for the sentence rules",
    )


LONGEST = 20_000_000
"""Characters of one document, which is held in memory as a whole."""


@dataclass(frozen=True)
class Document:
    """One document: its paragraphs in order, none empty, and the "file:line" where it begins."""

    paragraphs: tuple[str, ...]
    place: str

    @property
    def size(self) -> int:
        """Characters of text."""
        return sum(map(len, self.paragraphs))


def find_inputs(inputs: Sequence[str | Path]) -> list[Path]:
    """List the files meant by files, folders and globs, in the given order, each file once.

    Folders are searched recursively and in sorted order; names that begin with a dot are left out.
    Raises InputError where an input leads to no file.
    """
    found: dict[Path, Path] = {}
    if not inputs:
        raise InputError("no input is given; name files, folders or patterns such as 'text/*.txt'")
    for given in inputs:
        files = _expand(str(given))
        if not files:
            kind = "holds no file" if Path(given).is_dir() else "no such file or folder, nor a pattern that fits one"
            raise InputError(f"{given}: {kind}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def read_documents(path: Path, settings: TextSettings) -> Iterator[Document]:
    """Yield the documents of one file in order; a document without text is none.

    `settings.documents` concerns plain text alone: the other layouts say themselves where a document ends.
    Raises InputError, with file and line, for text that is not UTF-8, a broken or truncated archive, invalid JSON or
    XML, a missing or non-text field, a `<doc>` that is never closed and text outside of any `<doc>`.
    """
    return (document for document in map(in_full, read_sources(path, settings)) if document.paragraphs)


def in_full(source: Document | Page) -> Document:
    """A page's markup read as text: the slow part of reading a dump. A document as it is."""
    if isinstance(source, Document):
        return source
    found = (_tidy(line) for line in passages(source.wikitext, source.dropped))
    return Document(tuple(line for line in found if line), source.place)


def read_sources(path: Path, settings: TextSettings) -> Iterator[Document | Page]:
    """As `read_documents`, but the pages of a dump come as they are: `in_full` of each, in any process, is the rest."""
    lines = _lines(path)
    leading: list[tuple[int, str]] = []
    first = ""
    for item in lines:
        leading.append(item)
        first = item[1].strip()
        if first:
            break
    if is_dump(first):
        lines.close()
        return _read_dump(path)
    numbered = chain(leading, lines)
    if _opens_article(first):
        return _read_wikiextractor(path, numbered, settings)
    if _is_json(path, first):
        return _read_json_lines(path, numbered, settings)
    if settings.documents == "file":
        return _read_whole(path, numbered, settings)
    return _read_blocks(path, numbered, settings)


def read_all(paths: Iterable[Path], settings: TextSettings) -> Iterator[Document]:
    """Yield the documents of several files in order; InputError when there is none in all of them."""
    paths = list(paths)
    empty = True
    for path in paths:
        for document in read_documents(path, settings):
            empty = False
            yield document
    if empty:
        names = ", ".join(str(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
        raise InputError(f"no document in the {len(paths)} input file(s) ({names}): they hold no text")


def _expand(given: str) -> list[Path]:
    path = Path(given)
    if path.is_dir():
        return _files_below(path)
    if path.exists():
        return [path]
    files: list[Path] = []
    for name in sorted(glob.glob(given, recursive=True)):
        files.extend(_files_below(Path(name)) if Path(name).is_dir() else [Path(name)])
    return files


def _files_below(folder: Path) -> list[Path]:
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # os.walk's own way to prune
        files.extend(Path(parent, name) for name in names if not name.startswith("."))
    return sorted(files, key=lambda file: file.parts)


def _open_bytes(path: Path) -> BinaryIO:
    try:
        with path.open("rb") as stream:
            begin = stream.read(6)
        kind = path.suffix.lower()
        if kind not in _MAGIC:
            kind = next((name for name, magic in _MAGIC.items() if begin.startswith(magic)), "")
        if kind == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        if kind == ".bz2":
            return cast(BinaryIO, bz2.open(path, "rb"))
        if kind == ".xz":
            return cast(BinaryIO, lzma.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from None


def _lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield (line number from 1, line); any of the three usual line ends, a leading byte order mark dropped."""
    number = 0
    binary = _open_bytes(path)
    with _reading(path, lambda: number), io.TextIOWrapper(binary, encoding="utf-8-sig", newline=None) as text:
        for line in text:
            number += 1
            yield number, line


def _read_dump(path: Path) -> Iterator[Page]:
    with _open_bytes(path) as binary, _reading(path, lambda: 0):
        yield from read_pages(path, binary)


@contextmanager
def _reading(path: Path, line: Callable[[], int]) -> Iterator[None]:
    """Turn what goes wrong while reading into errors that name the file and the last whole line."""
    try:
        yield
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _broken_archive(path, line(), error) from None
    except OSError as error:
        # the decompressors raise OSError without a number for bad data; a number means the disk or the system failed
        if error.errno is None:
            raise _broken_archive(path, line(), error) from None
        raise RunFailed(f"{path}: reading failed after line {line()}: {error.strerror}") from error


def _broken_archive(path: Path, number: int, error: Exception) -> InputError:
    return InputError(f"{path}:{number + 1}: the compressed file is broken or cut short: {error}")


def _not_utf8(path: Path) -> InputError:
    """Find the line by reading again in bytes, since the decoder works in blocks.

    The whole file is read: an archive that breaks also gives wrong bytes, and its end tells which it was.
    """
    offset = number = 0
    found = ""
    try:
        with _open_bytes(path) as binary:
            for number, line in enumerate(binary, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    where = f"byte 0x{line[error.start]:02x} at byte {offset + error.start} of the text"
                    found = found or f"{path}:{number}: not UTF-8 text: {where} ({error.reason}); convert it to UTF-8"
                offset += len(line)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        return _broken_archive(path, number, error)
    return InputError(found or f"{path}: not UTF-8 text; convert it to UTF-8")


def _tidy(line: str) -> str:
    return " ".join(line.split())


def _paragraphs(lines: Iterable[str], settings: TextSettings) -> tuple[str, ...]:
    """Make paragraphs of lines: each line one, or with wrapped lines each run of lines without a blank one."""
    tidy = [_tidy(line) for line in lines]
    if settings.lines != "wrapped":
        return tuple(line for line in tidy if line)
    blocks: list[list[str]] = [[]]
    for line in tidy:
        if line:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return tuple(" ".join(block) for block in blocks if block)


def _bounded(size: int, place: str) -> int:
    """The size of a document so far, in characters; InputError beyond what fits into memory beside everything else."""
    if size > LONGEST:
        raise InputError(
            f"{place}: a document of over {LONGEST // 10**6} million characters; blank lines part the documents of "
            "plain text (or there is one a file, with --documents file): put them where documents end"
        )
    return size


def _read_blocks(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    block: list[str] = []
    begin = size = 0
    for number, line in lines:
        if line.isspace():
            if block:
                yield Document(_paragraphs(block, settings), f"{path}:{begin}")
                block = []
            continue
        if not block:
            begin, size = number, 0
        block.append(line)
        size = _bounded(size + len(line), f"{path}:{begin}")
    if block:
        yield Document(_paragraphs(block, settings), f"{path}:{begin}")


def _read_whole(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    begin = size = 0
    body: list[str] = []
    for number, line in lines:
        begin = begin or (0 if line.isspace() else number)
        body.append(line)
        size = _bounded(size + len(line), f"{path}:{begin}")
    if begin:
        yield Document(_paragraphs(body, settings), f"{path}:{begin}")


def _is_json(path: Path, first: str) -> bool:
    name = Path(path.stem) if path.suffix.lower() in _MAGIC else path
    if name.suffix.lower() in _JSON_NAMES:
        return True
    if not first.startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _read_json_lines(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    for number, line in lines:
        if line.isspace():
            continue
        place = f"{path}:{number}"
        title, text = _record_text(line, place, settings.field)
        body = _LINE_END.split(text)
        paragraphs = _paragraphs(_without_title(body, title), settings)
        if paragraphs:
            yield Document(paragraphs, place)


def _record_text(line: str, place: str, field: str) -> tuple[str, str]:
    """Give (title or "", text) of one JSON line."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg}; {_WANTED_JSON} {field!r}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not usable JSON ({error}); {_WANTED_JSON} {field!r}") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}: a JSON {type(record).__name__}; {_WANTED_JSON} {field!r}")
    if field not in record:
        raise InputError(f"{place}: no field {field!r}; its fields are {', '.join(map(repr, record)) or 'none'}")
    text = record[field]
    if not isinstance(text, str):
        raise InputError(f"{place}: the field {field!r} holds {json.dumps(text)[:40]}; it must hold text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise InputError(f"{place}: the field {field!r} holds half a surrogate pair, \\u{bad:04x}") from None
    title = record.get("title")
    return (title if isinstance(title, str) else ""), text


def _opens_article(line: str) -> bool:
    return line.startswith("<doc ") and line.endswith(">") and 'id="' in line


def _read_wikiextractor(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    begin = 0
    title = ""
    body: list[str] = []
    for number, line in lines:
        bare = line.strip()
        if _opens_article(bare):
            if begin:
                raise InputError(f"{path}:{begin}: not closed by </doc> before line {number} opens another <doc>")
            match = _TITLE.search(bare)
            begin, title, body = number, _unescape(match[1]).replace("&quot;", '"') if match else "", []
        elif bare == "</doc>":
            if not begin:
                raise InputError(f"{path}:{number}: </doc> without a <doc …> before it")
            paragraphs = _paragraphs(_without_title(body, title), settings)
            if paragraphs:
                yield Document(paragraphs, f"{path}:{begin}")
            begin = 0
        elif begin:
            body.append(_unescape(line) if "&" in line else line)
        elif bare:
            raise InputError(f"{path}:{number}: text outside of <doc …> … </doc>: {bare[:40]!r}")
    if begin:
        raise InputError(f"{path}:{begin}: this <doc> is never closed by </doc>; was the file cut short?")


def _unescape(text: str) -> str:
    """Undo WikiExtractor's HTML-safe output, which escapes these three and nothing else."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _without_title(body: list[str], title: str) -> list[str]:
    """Drop the first line with text where it only repeats the title."""
    for index, line in enumerate(body):
        if line.strip():
            return body[index + 1 :] if title and _tidy(line) == _tidy(title) else body
    return body
