"""text → documents: files and datasets become documents made of paragraphs (paper §3.1).

Each input is plain or packed (`.gz`, `.bz2`, `.xz`, `.zst`, shown by its name or its first bytes). It is one of:

- plain text, with blank lines between documents, or one document a file;
- JSON lines, one object a line, whose text is one field (WikiExtractor's JSON form is one of them);
- a Parquet file, whose text is one column;
- a dataset of the Hugging Face Hub, as `hub:NAME:CONFIG:SPLIT`;
- articles of WikiExtractor, recognised by the first line;
- an XML dump of MediaWiki, recognised by the first line.

Files are read as a stream; memory holds one document at a time. Every run of white space inside a line becomes one
space, form feeds and no-break spaces included. The reason: a BERT tokenizer deletes control characters, and would join
the words on both sides of a form feed. Document boundaries are kept, because next-sentence prediction needs them.
"""

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath

from bertwright.errors import InputError
from bertwright.stores.listing import find_remote
from bertwright.stores.remote import AnyFile, RemoteFile, is_url
from bertwright.text.csv_separator import csv_separator
from bertwright.text.decompress import MAGIC, decoded_lines, is_undecoded, not_utf8, open_bytes, read_lines, reading
from bertwright.text.document import Document, OnError, TextSettings, checked_size, paragraphs_of, raise_error, tidy
from bertwright.text.parquet import PARQUET_MAGIC
from bertwright.text.records import (
    HubDataset,
    find_hub_dataset,
    opens_article,
    read_hub,
    read_json_lines,
    read_parquet,
    read_table_texts,
    read_wikiextractor,
)
from bertwright.text.wikipedia import Page, is_dump, read_pages
from bertwright.text.wikitext import passages

Input = AnyFile | HubDataset
"""A file of this machine or of a store, or a dataset of the Hub."""

_JSON_NAMES = (".jsonl", ".ndjson", ".json")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_HUB = "hub:"


def find_inputs(inputs: Sequence[str | Path]) -> list[Input]:
    """Return the files and datasets that files, folders, globs, URLs and `hub:` names stand for, in order, each once.

    Folders are searched recursively and in sorted order; names that begin with a dot are left out.
    Raises InputError where an input leads to no file; see `find_remote` for URLs and `find_hub_dataset` for the Hub.
    """
    sources: dict[Input, Input] = {}
    if not inputs:
        raise InputError("expected one input or more; name files, folders or patterns such as 'text/*.txt'")
    for name in inputs:
        if name == "":
            raise InputError("an input is empty; name a file or folder, the current one as '.'")
        if str(name).startswith(_HUB) and not Path(name).exists():
            dataset = find_hub_dataset(str(name))
            sources.setdefault(dataset, dataset)
            continue
        if is_url(name):
            sources |= {file: sources.get(file, file) for file in find_remote(str(name))}
            continue
        files = _expand(str(name))
        if not files:
            problem = (
                "the folder holds no file" if Path(name).is_dir() else "no file or folder has this name or pattern"
            )
            raise InputError(f"{name}: {problem}")
        sources |= {target: sources.get(target, file) for target, file in by_target(files).items()}
    return list(sources.values())


def by_target(files: Iterable[Path]) -> dict[Path, Path]:
    """Return files by the paths to which links lead, so that each file is there once, by its first name.

    Raises InputError for a name that is not UTF-8, and for a pipe or a device.
    """
    targets: dict[Path, Path] = {}
    for file in files:
        if any("\ud800" <= letter <= "\udfff" for letter in str(file)):
            raise InputError(f"{str(file)!r}: the name of this file is not UTF-8; rename it")
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: not a regular file (a pipe cannot be read twice); write the text into a file")
        targets.setdefault(Path(os.path.realpath(file)), file)  # `resolve` fails on a link that leads to itself
    return targets


def absolute_name(name: str) -> str:
    """Return the absolute path of a file, folder or pattern; a URL or a dataset of the Hub keeps its name."""
    return name if name.startswith(_HUB) or is_url(name) else str(Path(name).absolute())


def read_documents(source: Input, settings: TextSettings, on_error: OnError = raise_error) -> Iterator[Document]:
    """Yield the documents of one file or dataset in order; a document without text is left out.

    `settings.documents` applies to plain text only: the other formats mark where a document ends. `on_error` is called
    for each text that cannot be read, and for the rest of a file that cannot be read any further.
    Raises InputError, with file and line, for text that is not UTF-8, a broken or truncated archive, one that unpacks
    without end, invalid JSON, XML or Parquet, a field that is missing or holds no text, a line or document of over
    `LONGEST` characters, a `<doc>` without `</doc>`, and text outside of a `<doc>`.
    """
    try:
        for page in read_sources(source, settings, on_error):
            try:
                document = as_document(page)
            except Exception as error:  # the parser of the markup may raise any
                on_error(InputError(f"{page.location}: the markup of this page cannot be read: {error!r}"))
                continue
            if document.paragraphs:
                yield document
    except InputError as error:
        on_error(error)


def as_document(source: Document | Page) -> Document:
    """Return the document of a page of a dump, by removing its markup, which is slow; return a document as it is."""
    if isinstance(source, Document):
        return source
    lines = (tidy(line) for line in passages(source.wikitext, source.dropped))
    return Document(tuple(line for line in lines if line), source.location)


def read_sources(source: Input, settings: TextSettings, on_error: OnError = raise_error) -> Iterator[Document | Page]:
    """Yield what `read_documents` yields, but pages of a dump with their markup, for `as_document` in any process.

    `on_error` is called for each record that cannot be read. A file that cannot be read any further raises InputError.
    """
    if isinstance(source, HubDataset):
        return read_hub(source, settings, on_error)
    if isinstance(source, RemoteFile):
        return _read_remote(source, settings, on_error)
    return _read_file(source, settings, on_error)


def read_all(sources: Iterable[Input], settings: TextSettings, on_error: OnError = raise_error) -> Iterator[Document]:
    """Yield the documents of several inputs in order. Raises InputError where there is none in all of them."""
    sources = list(sources)
    empty = True
    for source in sources:
        for document in read_documents(source, settings, on_error):
            empty = False
            yield document
    if empty:
        names = ", ".join(str(source) for source in sources[:3]) + (", …" if len(sources) > 3 else "")
        raise InputError(f"no document in the {len(sources)} input file(s) ({names}): they hold no text")


def read_paragraphs(sources: Iterable[Input], settings: TextSettings, on_error: OnError = raise_error) -> Iterator[str]:
    """Yield the paragraphs of several inputs in order. Raises InputError where there is none in all of them."""
    return (paragraph for document in read_all(sources, settings, on_error) for paragraph in document.paragraphs)


def _read_remote(file: RemoteFile, settings: TextSettings, on_error: OnError) -> Iterator[Document | Page]:
    """Yield the documents of a file of a store. Raises RunFailed where it was changed meanwhile."""
    yield from _read_file(file, settings, on_error)
    file.refuse_changed()


def _read_file(path: AnyFile, settings: TextSettings, on_error: OnError) -> Iterator[Document | Page]:
    if _is_parquet(path):
        return read_parquet(path, settings, on_error)
    file_lines = read_lines(path)
    opening = next(((number, line) for number, line in file_lines if not line.isspace()), (0, ""))
    first = opening[1].strip()
    if is_dump(first):
        file_lines.close()
        return _read_dump(path)
    lines: Iterable[tuple[int, str]] = chain([opening] if first else [], file_lines)
    if opens_article(first):
        return read_wikiextractor(path, decoded_lines(path, lines), settings)
    if _is_json(path, first):
        return read_json_lines(path, lines, settings, on_error)
    if delimiter := _delimiter(path, first):
        return read_table_texts(path, decoded_lines(path, lines), settings, on_error, delimiter=delimiter)
    decoded = decoded_lines(path, lines) if on_error is raise_error else _decodable(path, lines, on_error)
    lines = _without_articles(path, decoded)
    if settings.documents == "file":
        return _read_whole(path, lines, settings)
    if settings.documents == "lines":
        return _read_each_line(path, lines, settings)
    return _read_blocks(path, lines, settings)


def _decodable(path: AnyFile, lines: Iterable[tuple[int, str]], on_error: OnError) -> Iterator[tuple[int, str]]:
    """Yield the lines of plain text that are UTF-8; `on_error` is called for each other one."""
    is_first = True
    for number, line in lines:
        if not is_undecoded(line):
            yield number, line
            continue
        simple = InputError(f"{path}:{number}: not UTF-8 text; convert it to UTF-8")
        on_error(not_utf8(path, number) if is_first else simple)  # the first one reads the file again
        is_first = False


def _expand(name: str) -> list[Path]:
    """Return the files that the name of a file or folder, or a glob, stands for."""
    path = Path(name)
    if path.is_dir():
        return local_files(path)
    if path.exists():
        return [path]
    files: list[Path] = []
    for match in map(Path, sorted(glob.glob(name, recursive=True))):
        files.extend(local_files(match) if match.is_dir() else [match])
    return files


def local_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted, links to folders included, each folder once.

    Names that begin with a dot are left out. Raises InputError for a folder that cannot be read.
    """

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


def _read_dump(path: AnyFile) -> Iterator[Page]:
    with open_bytes(path) as binary, reading(path, lambda: 0):
        yield from read_pages(path, binary)


def _without_articles(path: AnyFile, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines of plain text. Raises InputError where an article of WikiExtractor begins, which has markup."""
    for number, line in lines:
        if line.startswith("<doc ") and opens_article(line.strip()):
            raise InputError(
                f"{path}:{number}: expected plain text, got an article of WikiExtractor after it; remove the lines "
                "before it"
            )
        yield number, line


def _read_each_line(path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    for number, line in lines:
        if not line.isspace():
            yield Document(paragraphs_of([line], settings), f"{path}:{number}")


def _read_blocks(path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    """Yield the documents of plain text with blank lines between them."""
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
        size = checked_size(size + len(line), f"{path}:{begin}")
    if block:
        yield Document(paragraphs_of(block, settings), f"{path}:{begin}")


def _read_whole(path: AnyFile, lines: Iterable[tuple[int, str]], settings: TextSettings) -> Iterator[Document]:
    """Yield a file of plain text as one document."""
    begin = size = 0
    text: list[str] = []
    for number, line in lines:
        begin = begin or (0 if line.isspace() else number)
        text.append(line)
        size = checked_size(size + len(line), f"{path}:{begin}")
    if begin:
        yield Document(paragraphs_of(text, settings), f"{path}:{begin}")


def _is_parquet(path: AnyFile) -> bool:
    if path.suffix.lower() == ".parquet":
        return True
    with open_bytes(path) as stream, reading(path, lambda: 0):
        if stream.read(len(PARQUET_MAGIC)) != PARQUET_MAGIC:
            return False
    with path.open("rb") as file:
        file.seek(-len(PARQUET_MAGIC), os.SEEK_END)
        return file.read() == PARQUET_MAGIC  # otherwise it is a text that begins with these letters


def _bare_suffix(path: AnyFile) -> str:
    """Return the ending of a file's name in lower case, without that of a packed file."""
    name = path.stem if path.suffix.lower() in MAGIC else path.name
    return PurePath(name).suffix.lower()


def _delimiter(path: AnyFile, first: str) -> str:
    """Return the separator of the cells of a table with this first line; "" where the name is that of no table."""
    delimiter = _DELIMITERS.get(_bare_suffix(path), "")
    return csv_separator(first) if delimiter == "," else delimiter


def _is_json(path: AnyFile, first: str) -> bool:
    if _bare_suffix(path) in _JSON_NAMES:
        return True
    if not first.startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False
