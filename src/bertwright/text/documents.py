"""text → documents: the front of the line, where files become documents made of paragraphs (paper §3.1).

What is read, each file plain or packed (`.gz`, `.bz2`, `.xz`, `.zst`, told by name or by the first bytes):

- plain text, whose documents are parted by blank lines, or one document per file;
- JSON lines, one object per line, whose text is one field (WikiExtractor's JSON form among them);
- Parquet files, whose text is one column; datasets of the Hugging Face Hub, as `hub:NAME:CONFIG:SPLIT`;
- WikiExtractor's mark-up, told by its first line whatever the file's name;
- MediaWiki's XML dumps, told the same way.

Files are read as a stream: never more than one document is held. Every run of white space inside a line (form feeds
and no-break spaces among them) becomes one space, because a BERT tokenizer deletes control characters and would glue
the words beside a form feed together. Document boundaries are never lost: next-sentence prediction needs them.
"""

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from bertwright.errors import InputError
from bertwright.text.decompress import MAGIC, decoded_lines, open_bytes, read_lines, reading
from bertwright.text.document import Document, OnError, TextSettings, bounded, paragraphs_of, stop, tidy
from bertwright.text.records import (
    PARQUET_MAGIC,
    HubDataset,
    find_hub_dataset,
    opens_article,
    read_hub,
    read_json_lines,
    read_parquet,
    read_wikiextractor,
)
from bertwright.text.wikipedia import Page, is_dump, read_pages
from bertwright.text.wikitext import passages

__all__ = [
    "Document",
    "HubDataset",
    "Input",
    "OnError",
    "Page",
    "TextSettings",
    "find_inputs",
    "in_full",
    "read_all",
    "read_documents",
    "read_sources",
    "stop",
]

Input = Path | HubDataset
"""What text is read from."""

_JSON_NAMES = (".jsonl", ".ndjson", ".json")
_HUB = "hub:"


def find_inputs(inputs: Sequence[str | Path]) -> list[Input]:
    """List what files, folders, globs and `hub:` names mean, in the given order, each once.

    Folders are searched recursively and in sorted order; names that begin with a dot are left out.
    Raises InputError where an input leads to no file; see `find_hub_dataset` for the Hub.
    """
    found: dict[Input, Input] = {}
    if not inputs:
        raise InputError("no input is given; name files, folders or patterns such as 'text/*.txt'")
    for given in inputs:
        if given == "":
            raise InputError("an input is empty; name a file or folder, the current one as '.'")
        if str(given).startswith(_HUB) and not Path(given).exists():
            dataset = find_hub_dataset(str(given))
            found.setdefault(dataset, dataset)
            continue
        files = _expand(str(given))
        if not files:
            kind = "holds no file" if Path(given).is_dir() else "no such file or folder, nor a pattern that fits one"
            raise InputError(f"{given}: {kind}")
        for file in files:
            if any("\ud800" <= letter <= "\udfff" for letter in str(file)):
                raise InputError(f"{str(file)!r}: the name of this file is not UTF-8; rename it")
            if file.exists() and not file.is_file():
                raise InputError(
                    f"{file}: not a regular file (a pipe cannot be read twice); write the text into a file"
                )
            found.setdefault(Path(os.path.realpath(file)), file)  # `resolve` fails on a link that leads to itself
    return list(found.values())


def read_documents(source: Input, settings: TextSettings) -> Iterator[Document]:
    """Yield the documents of one file or dataset in order; a document without text is none.

    `settings.documents` concerns plain text alone: the other layouts say themselves where a document ends.
    Raises InputError, with file and line, for text that is not UTF-8, a broken or truncated archive, one that unpacks
    without end, invalid JSON, XML or Parquet, a missing or non-text field, a line or document beyond `LONGEST`
    characters, a `<doc>` that is never closed and text outside of any `<doc>`.
    """
    return (document for document in map(in_full, read_sources(source, settings)) if document.paragraphs)


def in_full(source: Document | Page) -> Document:
    """A page's markup read as text: the slow part of reading a dump. A document as it is."""
    if isinstance(source, Document):
        return source
    found = (tidy(line) for line in passages(source.wikitext, source.dropped))
    return Document(tuple(line for line in found if line), source.place)


def read_sources(source: Input, settings: TextSettings, on_error: OnError = stop) -> Iterator[Document | Page]:
    """As `read_documents`, but the pages of a dump come as they are: `in_full` of each, in any process, is the rest.

    `on_error` is told of each record that cannot be read; a file that cannot be read any further raises all the same.
    """
    if isinstance(source, HubDataset):
        return read_hub(source, settings, on_error)
    return _read_file(source, settings, on_error)


def read_all(sources: Iterable[Input], settings: TextSettings) -> Iterator[Document]:
    """Yield the documents of several inputs in order; InputError when there is none in all of them."""
    sources = list(sources)
    empty = True
    for source in sources:
        for document in read_documents(source, settings):
            empty = False
            yield document
    if empty:
        names = ", ".join(str(source) for source in sources[:3]) + (", …" if len(sources) > 3 else "")
        raise InputError(f"no document in the {len(sources)} input file(s) ({names}): they hold no text")


def _read_file(path: Path, settings: TextSettings, on_error: OnError) -> Iterator[Document | Page]:
    if _is_parquet(path):
        return read_parquet(path, settings, on_error)
    lines = read_lines(path)
    opening = next(((number, line) for number, line in lines if not line.isspace()), (0, ""))
    first = opening[1].strip()
    if is_dump(first):
        lines.close()
        return _read_dump(path)
    numbered: Iterable[tuple[int, str]] = chain([opening] if first else [], lines)
    if opens_article(first):
        return read_wikiextractor(path, decoded_lines(path, numbered), settings)
    if _is_json(path, first):
        return read_json_lines(path, numbered, settings, on_error)
    numbered = _without_articles(path, decoded_lines(path, numbered))
    if settings.documents == "file":
        return _read_whole(path, numbered, settings)
    if settings.documents == "lines":
        return _read_each_line(path, numbered, settings)
    return _read_blocks(path, numbered, settings)


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
    """Also through links to folders, each folder once; InputError for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {error.strerror}")

    files: list[Path] = []
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        seen.add(os.path.realpath(parent))
        folders[:] = [  # os.walk's own way to prune
            name
            for name in sorted(folders)
            if not name.startswith(".") and os.path.realpath(os.path.join(parent, name)) not in seen
        ]
        files.extend(Path(parent, name) for name in names if not name.startswith("."))
    return sorted(files, key=lambda file: file.parts)


def _read_dump(path: Path) -> Iterator[Page]:
    with open_bytes(path) as binary, reading(path, lambda: 0):
        yield from read_pages(path, binary)


def _without_articles(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of plain text; WikiExtractor's output without its first line would be learned with its mark-up."""
    for number, line in lines:
        if line.startswith("<doc ") and opens_article(line.strip()):
            raise InputError(
                f"{path}:{number}: an article of WikiExtractor begins here, in a file that does not begin with one; "
                "remove the lines before it"
            )
        yield number, line


def _read_each_line(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    for number, line in lines:
        if not line.isspace():
            yield Document(paragraphs_of([line], settings), f"{path}:{number}")


def _read_blocks(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    block: list[str] = []
    begin = size = 0
    for number, line in lines:
        if line.isspace():
            if block:
                yield Document(paragraphs_of(block, settings), f"{path}:{begin}")
                block = []
            continue
        if not block:
            begin, size = number, 0
        block.append(line)
        size = bounded(size + len(line), f"{path}:{begin}")
    if block:
        yield Document(paragraphs_of(block, settings), f"{path}:{begin}")


def _read_whole(path: Path, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    begin = size = 0
    body: list[str] = []
    for number, line in lines:
        begin = begin or (0 if line.isspace() else number)
        body.append(line)
        size = bounded(size + len(line), f"{path}:{begin}")
    if begin:
        yield Document(paragraphs_of(body, settings), f"{path}:{begin}")


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() == ".parquet":
        return True
    with open_bytes(path) as stream, reading(path, lambda: 0):
        if stream.read(len(PARQUET_MAGIC)) != PARQUET_MAGIC:
            return False
    with path.open("rb") as file:
        file.seek(-len(PARQUET_MAGIC), os.SEEK_END)
        return file.read() == PARQUET_MAGIC  # otherwise a text that begins so


def _is_json(path: Path, first: str) -> bool:
    name = Path(path.stem) if path.suffix.lower() in MAGIC else path
    if name.suffix.lower() in _JSON_NAMES:
        return True
    if not first.startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False
