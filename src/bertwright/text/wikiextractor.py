"""text → documents: WikiExtractor's mark-up, `<doc id=… url=… title=…>` … `</doc>`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bertwright.errors import InputError
from bertwright.text.document import Document, TextSettings, bounded, paragraphs_of, without_title

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
