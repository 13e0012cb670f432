"""Text of MediaWiki dumps beside WikiExtractor's on the same pages: markup left in it, words lost, and speed.

    python -m benchmarks.studies.wikipedia DUMP... [--wikiextractor COMMAND] [--json]

Lines with remnants of markup are told by one list of patterns, whichever tool wrote them. Lost are the words of
WikiExtractor's text, headings left out, that ours lacks, counted page by page; gained are the words that it lacks. One
process reads a dump; its rate counts the XML's bytes, its memory is the greatest resident set.
"""

import argparse
import json
import multiprocessing
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bertwright.text.document import TextSettings
from bertwright.text.documents import as_document, read_sources
from bertwright.text.wikipedia import Page

from .build import text_bytes

PATTERNS = {
    "links": r"\[\[|\]\]",
    "templates": r"\{\{|\}\}",
    "tables": r"\{\||\|\}|^\s*[|!]|\|-|\b(?:col|row)span\s*=|\b(?:style|class|align|bgcolor|valign)\s*=",
    "tags": r"<\s*/?\s*[a-zA-Z]+\b[^<>]*>|<!--|-->",
    "broken tags": r"</?(?:ref|br|div|span|small|su[bp]|math|gallery|table|t[dhr]|nowiki)\b",
    "quotes": r"'''|''",
    "headings": r"==|^=.*=$",
    "entities": r"&(?:[a-zA-Z]+|#\d+|#x[0-9a-fA-F]+);",
    "media": r"\|\s*(?:thumb|mini|right|left|\d+px)\b|\.(?:jpe?g|png|svg|gif|ogg|webm|tiff?)\|",
    "magic words": r"__[A-Z]{3,}__|\b(?:DEFAULTSORT|PAGENAME|CURRENTYEAR|UNIQ|QINU)\b",
    "bare addresses": r"https?://|\bwww\.\w",
    "list items": r"^\s*[*#:;•]",
    "empty brackets": r"[(（\[]\s*[,;:、，；–—-]*\s*[)）\]]|[(（]\s*[,;:、，；]|[,;、，；]\s*[)）]",
    "lost marks": r"\s[,.;:](?=\s|$)|[,;:]\s*[,;:](?=\s|$)|[,;]\s*\.(?=\s|$)|、、|。。|、。",
    "holes (English)": r"\b(?:of|from|the|an|by|with|is|are|was|were|and|or|approximately|about)\s*[,.;:)](?=\s|$)",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^=+[ \t]*(.+?)[ \t]*=+\s*(?:<!--.*)?$", re.MULTILINE)
_PLACE = re.compile(r"page (\d+) ")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.wikipedia", description=__doc__.splitlines()[0])
    parser.add_argument("dumps", nargs="+", type=Path)
    parser.add_argument("--wikiextractor", help="the command that starts WikiExtractor; without it, ours alone")
    parser.add_argument("--json", action="store_true", help="print the result as one line on standard output")
    options = parser.parse_args()
    rows = [measure(dump, options.wikiextractor) for dump in options.dumps]
    for row in rows:
        report(row)
    if options.json:
        print(json.dumps({"rows": rows}))


def measure(dump: Path, wikiextractor: str | None) -> dict[str, Any]:
    """Return the row of a dump: ours, and theirs on the pages that both keep."""
    with tempfile.TemporaryDirectory() as folder:
        ours, cost = extract(dump, Path(folder))
        theirs = run_wikiextractor(dump, wikiextractor, Path(folder)) if wikiextractor else None
    row: dict[str, Any] = {"dump": dump.name, "pages": len(ours), **cost}
    if theirs is None:
        return {**row, "ours": cleanliness(ours.values())}
    both = ours.keys() & theirs.keys()
    headings = {name: headings_of(page) for name, page in pages(dump) if name in both}
    lost = gained = of_theirs = of_ours = heading_lines = 0
    for name in both:
        text = [line for line in theirs[name] if line.rstrip(".").casefold() not in headings[name]]
        heading_lines += len(theirs[name]) - len(text)
        mine, other = words(ours[name]), words(text)
        lost, of_theirs = lost + (other - mine).total(), of_theirs + other.total()
        gained, of_ours = gained + (mine - other).total(), of_ours + mine.total()
    return {
        **row,
        "pages_both_keep": len(both),
        "pages_of_theirs": len(theirs),
        "ours": cleanliness(ours[name] for name in both),
        "theirs": {**cleanliness(theirs[name] for name in both), "heading lines": heading_lines},
        "words_lost": lost / max(1, of_theirs),
        "words_gained": gained / max(1, of_ours),
    }


def pages(dump: Path) -> list[tuple[str, Page]]:
    """The articles of a dump by their numbers."""
    articles = (source for source in read_sources(dump, TextSettings()) if isinstance(source, Page))
    return [(number[1], page) for page in articles if (number := _PLACE.search(page.location))]


def extract(dump: Path, folder: Path) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Our text of each page, read in a process of its own, and what that cost."""
    out = folder / "ours.jsonl"
    process = multiprocessing.get_context("spawn").Process(target=_extract, args=(dump, out))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)
    *lines, cost = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    megabytes = text_bytes([str(dump)]) / 1e6
    cost["pages_per_second"], cost["mb_per_second"] = cost["read"] / cost["seconds"], megabytes / cost["seconds"]
    cost["mb_per_cpu_second"] = megabytes / cost["cpu_seconds"]
    return dict(lines), {"xml_mb": megabytes, **cost}


def _extract(dump: Path, out: Path) -> None:
    begin, read = time.perf_counter(), 0
    with out.open("w", encoding="utf-8") as stream:
        for source in read_sources(dump, TextSettings()):
            document = as_document(source)
            read += 1
            number = _PLACE.search(document.location)
            if number and document.paragraphs:
                stream.write(json.dumps((number[1], document.paragraphs)) + "\n")
        cost = {"read": read, "seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        stream.write(json.dumps({**cost, "peak_mib": peak}) + "\n")


def run_wikiextractor(dump: Path, command: str, folder: Path) -> dict[str, list[str]]:
    """WikiExtractor's lines of each page by its number; pages without any are left out."""
    out = folder / "theirs"
    subprocess.run(
        [*shlex.split(command), str(dump), "--json", "-q", "--processes", "1", "-o", str(out)], check=True, stdout=2
    )
    lines_by_page = {}
    for file in sorted(out.rglob("wiki_*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if lines := [text for text in record["text"].split("\n") if text.strip()]:
                lines_by_page[str(record["id"])] = lines
    return lines_by_page


def headings_of(page: Page) -> frozenset[str]:
    """The headings of a page as their bare words."""
    return frozenset(match[1].replace("'", "").casefold() for match in _HEADING.finditer(page.wikitext))


def words(lines: list[str]) -> Counter[str]:
    """Return the number of occurrences of each word in the lines."""
    return Counter(word for line in lines for word in _WORD.findall(line))


def cleanliness(texts: Any) -> dict[str, Any]:
    """Lines, characters and how many lines each pattern is found in."""
    lines = [line for text in texts for line in text]
    counts: Counter[str] = Counter()
    dirty = 0
    for line in lines:
        hits = [name for name, pattern in _COMPILED.items() if pattern.search(line)]
        counts.update(hits)
        dirty += bool(hits)
    remnants = {name: counts[name] for name in PATTERNS}
    return {"lines": len(lines), "characters": sum(map(len, lines)), "dirty_lines": dirty, "remnants": remnants}


def report(row: dict[str, Any]) -> None:
    """Print one dump's row for people."""
    out = sys.stderr
    rates = f"{row['pages_per_second']:.1f} pages/s, {row['mb_per_second']:.2f} MB/s, {row['peak_mib']:.0f} MiB"
    rates += f"; {row['mb_per_cpu_second']:.2f} MB for each second of the processor's"
    print(f"\n{row['dump']}: {row['xml_mb']:.1f} MB of XML, {row['pages']} pages with text; {rates}", file=out)
    sides = [row["ours"], *([row["theirs"]] if "theirs" in row else [])]
    if "theirs" in row:
        print(f"on the {row['pages_both_keep']} pages that both keep (of theirs {row['pages_of_theirs']})", file=out)
    print(f"{'':24}{'ours':>12}{'theirs' if len(sides) > 1 else '':>14}", file=out)
    for name in ("lines", "characters", "dirty_lines"):
        print(f"{name:24}" + "".join(f"{side[name]:>13,}" for side in sides), file=out)
    for name in PATTERNS:
        print(f"  {name:22}" + "".join(f"{side['remnants'][name]:>13,}" for side in sides), file=out)
    if "theirs" in row:
        print(f"{'heading lines':24}{0:>13}{row['theirs']['heading lines']:>13,}", file=out)
        print(f"words lost {row['words_lost']:.2%}, gained {row['words_gained']:.2%}", file=out)


if __name__ == "__main__":
    main()
