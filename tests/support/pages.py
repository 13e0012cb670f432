"""The manual's code blocks: commands, other lines of the shell, and Python."""

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BEFORE = re.compile(r"(\$ |[A-Z_]+=\S+ ?|torchrun .* -m ?|python -m ?|srun .*|\w+ [^|]* \| )*")
"""Pattern of the text that may stand before a command on its line."""
ENDS = {"|", ">", "<", ">>", "&&", ";", "#", "2>", "&"}
PROGRAMS = re.compile(
    r"(\$ )?(bertwright|python|torchrun|srun|ssh|make|source|eval|xzcat|zcat|tail|printf|mkdir|cp|cat|curl|docker|pip) "
)


def blocks(text: str) -> Iterator[str]:
    """The lines of code blocks, fenced or indented, those that go on joined."""
    inside, lines = False, []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            lines.append(line.strip())
    yield from re.sub(r" *\\\n", " ", "\n".join(lines)).splitlines()


def commands(text: str) -> Iterator[list[str]]:
    """The words of each bertwright command, up to a pipe or a comment."""
    for line in blocks(text):
        words = command(line)
        if words:
            yield words


def command(line: str) -> list[str]:
    """The words behind `bertwright` on a line of the shell; none where it holds no such command."""
    match = re.search(r"(?:^|(?<=\s))bertwright (?=[a-z])", line)
    if not match or not BEFORE.fullmatch(line[: match.start()]):
        return []
    try:
        words = shlex.split(line[match.end() :], comments=True)
    except ValueError:  # prose with an apostrophe
        return []
    ends = [position for position, word in enumerate(words) if word in ENDS]
    return words[: min(ends, default=len(words))]


def shell_lines(text: str) -> Iterator[str]:
    """The lines of code blocks that a person types into a shell."""
    yield from (line.removeprefix("$ ") for line in blocks(text) if PROGRAMS.match(line))


def is_excerpt(line: str) -> bool:
    """Return True if a line leaves something out."""
    shown = re.sub(r"\s#.*", "", line)
    return "…" in shown or "[--" in shown


def python_blocks(text: str) -> Iterator[str]:
    """The code blocks that are Python: those that can be parsed and begin with an import or a name; no sessions."""
    fenced = re.compile(r"^```python\n((?s:.*?))^```$|((?:^(?: {4}.*)?\n)+)", flags=re.M)
    for match in fenced.finditer(text):
        code = textwrap.dedent(match[1] or match[2]).strip("\n")
        try:
            first = ast.parse(code).body[:1]
        except SyntaxError:
            continue
        if first and isinstance(first[0], ast.Import | ast.ImportFrom | ast.Assign):
            yield code
