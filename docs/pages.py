"""archives of records in docs/results → the pages of all experiments and their pictures, beside them.

The commands are those of the first page, with --page. They need neither data nor corpus.

python docs/pages.py
"""

import contextlib
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bertwright.cli import main as bertwright

RESULTS = Path(__file__).resolve().parent / "results"
ARCHIVES = {
    "paper": "records.tar.xz",
    "h100": "records-h100.tar.xz",
    "head": "records-head.tar.xz",
    "using": "records-using.tar.xz",
}
"""Folder of a command's --out → the archive that has it."""
COMMAND = re.compile(r"^    bertwright (paper (\S+) .+)$", re.MULTILINE)
PAGE_IN_TEXT = re.compile(r"docs/results/([\w-]+\.md)")


def commands(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the arguments that write each page: those of its last command on the first page, with --page."""
    text = (folder / "index.md").read_text("utf-8")
    return {name: [*shlex.split(line.removesuffix(" --page")), "--page"] for line, name in COMMAND.findall(text)}


def write_pages(folder: str, names: Sequence[str], out: Path) -> None:
    """Write pages and their pictures into `out`, from the archive of a folder; raises SystemExit where one fails."""
    arguments = commands(RESULTS)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        with tarfile.open(RESULTS / ARCHIVES[folder]) as archive:
            archive.extractall(temporary, filter="data")
        for name in names:
            if code := bertwright(list(arguments[name])):
                raise SystemExit(code)
        for path in Path(folder, "results").iterdir():
            if path.suffix == ".md":
                (out / path.name).write_text(with_links(path.read_text("utf-8")), "utf-8")
            else:
                shutil.copyfile(path, out / path.name)


def with_links(page: str) -> str:
    """Return a page with links in place of the paths of other pages, which have no address elsewhere."""
    return PAGE_IN_TEXT.sub(r"[\1](\1)", page)


def _out_of(arguments: Sequence[str]) -> str:
    """Return the folder that a command names with --out."""
    return arguments[arguments.index("--out") + 1]


def main() -> Iterator[str]:
    """Write all pages and yield their names."""
    for folder in ARCHIVES:
        names = [name for name, arguments in commands(RESULTS).items() if _out_of(arguments) == folder]
        write_pages(folder, names, RESULTS)
        yield from names


if __name__ == "__main__":
    print("\n".join(main()))
