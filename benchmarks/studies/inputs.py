"""The same text as each kind of input: how fast it becomes a corpus, and with how much memory.

python -m benchmarks.studies.inputs TEXT... --tokenizer DIR [--megabytes 100] [--repeats 3] [--json]

Megabytes are of the text itself, so the rows can be compared; memory is measured as in `benchmarks.studies.build`.
"""

import argparse
import bz2
import gzip
import json
import lzma
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
from pyarrow import parquet

from benchmarks.studies.build import build
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_all

Texts = list[str]


def plain(texts: Texts) -> bytes:
    return "\n\n".join(texts).encode()


def json_lines(texts: Texts) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def wikiextractor(texts: Texts) -> bytes:
    return "".join(f'<doc id="{n}" title="{n}">\n{escape(text)}\n</doc>\n' for n, text in enumerate(texts)).encode()


def dump(texts: Texts) -> bytes:
    pages = (
        f"<page><title>{n}</title><ns>0</ns><id>{n}</id><revision><text>{marked(escape(text))}</text></revision></page>\n"
        for n, text in enumerate(texts, start=1)
    )
    return f"<mediawiki>\n{''.join(pages)}</mediawiki>\n".encode()


def marked(text: str) -> str:
    """About as much markup as articles have: a link every six words, a reference for each paragraph, a template."""
    paragraphs = []
    for paragraph in text.split("\n"):
        words = [f"[[{word}]]" if n % 6 == 5 else word for n, word in enumerate(paragraph.split(" "))]
        paragraphs.append(" ".join(words) + "&lt;ref&gt;{{cite web|title=A|url=http://example.org}}&lt;/ref&gt;")
    return "{{Infobox thing|name=x|size=3}}\n" + "\n\n".join(paragraphs)


def as_parquet(texts: Texts, path: Path) -> None:
    parquet.write_table(pa.table({"text": texts}), path, row_group_size=1000)


KINDS: dict[str, tuple[str, Callable[[Texts], bytes], Callable[[bytes], bytes] | None]] = {
    "plain text": ("a.txt", plain, None),
    "plain text, gzip": ("a.txt.gz", plain, lambda data: gzip.compress(data, 6)),
    "plain text, bzip2": ("a.txt.bz2", plain, bz2.compress),
    "plain text, xz": ("a.txt.xz", plain, lambda data: lzma.compress(data, preset=2)),
    "plain text, Zstandard": ("a.txt.zst", plain, lambda data: pa.compress(data, "zstd", asbytes=True)),
    "JSON lines": ("a.jsonl", json_lines, None),
    "Parquet": ("a.parquet", plain, None),
    "WikiExtractor": ("wiki_00", wikiextractor, None),
    "MediaWiki XML, bzip2": ("a.xml.bz2", dump, bz2.compress),
}


def texts_of(inputs: list[str], characters: int) -> Texts:
    """The documents of the inputs, up to so many characters."""

    def taken() -> Iterable[str]:
        size = 0
        for document in read_all(find_inputs(inputs), TextSettings()):
            size += document.size
            yield "\n".join(document.paragraphs)
            if size >= characters:
                return

    return list(islice(taken(), None))


def main() -> None:
    """Write each kind, build it, print its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = texts_of(options.inputs, int(options.megabytes * 1e6))
    size = sum(len(text.encode()) for text in texts) / 1e6
    rows = []
    for kind, (name, written, packed) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            if kind == "Parquet":
                as_parquet(texts, path)
            else:
                data = written(texts)
                path.write_bytes(packed(data) if packed else data)
            seconds = [build([str(path)], options.tokenizer, None) for _ in range(options.repeats)]
        rates = [size / row["seconds"] for row in seconds]
        rows.append(
            {
                "input": kind,
                "documents": seconds[0]["documents"],
                "mb_per_second": statistics.median(rates),
                "slowest": min(rates),
                "fastest": max(rates),
                "peak_mib": max(row["peak_mib"] for row in seconds),
            }
        )
        print(
            f"{kind:24}{rows[-1]['mb_per_second']:6.1f} MB/s ({min(rates):.1f} to {max(rates):.1f})"
            f"{rows[-1]['peak_mib']:8.0f} MiB",
            file=sys.stderr,
        )
    if options.json:
        print(json.dumps({"text_mb": size, "rows": rows}))


if __name__ == "__main__":
    main()
