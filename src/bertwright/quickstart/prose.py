"""Documentation string → running English sentences: raw text for the quickstart (paper §A.2: whole documents).

A docstring mixes prose with doctests, literal blocks, tables, signatures and two dialects of parameter lists. `prose`
walks its lines once, keeps what a person would read aloud, and hands back sentences: entries of a parameter list lose
their names and types and keep their sentences; every mark-up is replaced by the words it marks.
"""

import inspect
import re
from dataclasses import dataclass, field
from functools import lru_cache

import sentencex

# Directives whose content is prose; the content of every other one (code, maths, pictures, tables) is dropped with it.
_ADMONITIONS = frozenset(
    "note warning tip important attention caution danger error hint seealso admonition topic rubric versionadded "
    "versionchanged deprecated versionremoved".split()
)
_TITLED = frozenset("admonition topic rubric".split())  # what follows the colons is a title, not text
# Sections that list names or literature, not sentences.
_DROPPED_SECTIONS = frozenset(
    {"methods", "see also", "references", "reference", "signature", "authors", "copyright", "shape"}
)
_SECTION = re.compile(r"([A-Z][A-Za-z]*(?: [A-Za-z]+){0,2}):$")

_RULE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}$")
_TABLE = re.compile(r"[-=]{2,}(\s+[-=]{2,})+$|\+[-=]|\|")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\w+:)?([\w-]+)::\s*(.*)$")
_OPTION = re.compile(r":[\w-]+:(\s|$)")
_FIELD = re.compile(
    r"[:@](?:param|parameter|arg|argument|key|keyword|raises?|returns?|yields?|var|ivar|cvar)\b[^:]*:\s*(.*)$"
)
_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)]|#\.)\s+(?=\S)")
_ADMONITION_MARKDOWN = re.compile(r"(?:!!!|\?\?\?\+?)\s")
_SIGNATURE = re.compile(
    r"[\w.]+\s*\(.*\)\s*(?:->.*|:)?$|[\w.]+\(.*->|def |class \w+[(:]|@\w|import \w|from [\w.]+ import "
)
_ENTRY = re.compile(r"[`*\w.,/\[\]\\ ]{1,60}\s:\s\S|[`*\w.,/\\ ]{1,60}\s:$")  # numpy's "name : type"
# "name:", "name (type, default 3):", "first, second -" before a description; possessive, or long lines take seconds.
_LEADING_NAME = re.compile(
    r"[`*\w.\\\[\]'\"/-]++(?:,\s*+[`*\w.\\\[\]'\"/-]++){0,3}+\s*+"
    r"(?:\((?:[^()]++|\([^()]*+\))*+\))?+\s*+(?::|--?|—)\s++(?=\S)"
)
_DIRECTIVE_LIKE = re.compile(r"\.\.(\s|$)|__\s")


@dataclass
class _Walk:
    """The state of one walk over the lines of a docstring."""

    paragraphs: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # the paragraph being gathered
    indent: int = 0  # of the paragraph's first line
    hanging: bool = False  # the paragraph began with a bullet or a name: its other lines are indented more
    drop_over: int | None = None  # lines indented more than this belong to something dropped
    drop_section: int | None = None  # indentation of the heading of a dropped section
    in_fence: bool = False
    in_block: bool = False  # a doctest or a table, which ends with a blank line

    def close(self) -> None:
        """End the paragraph; one that ends with `::` announces a literal block."""
        if not self.lines:
            return
        text = " ".join(self.lines)
        if text.endswith("::"):
            self.drop_over = self.indent
            text = text[:-1].rstrip(" :") + ":"
        self.paragraphs.append(text)
        self.lines, self.hanging = [], False

    def begin(self, text: str, indent: int, *, hanging: bool = False) -> None:
        """Start a new paragraph with its first line."""
        self.close()
        if text:
            self.lines, self.indent, self.hanging = [text], indent, hanging


def paragraphs_of(docstring: str) -> list[str]:
    """The running text of one documentation string: a list of paragraphs, each one line, mark-up still inside."""
    lines = inspect.cleandoc(docstring).splitlines()
    walk = _Walk()
    for number, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if not _dropped(walk, text, indent, following=following):
            _take(walk, text, indent)
    walk.close()
    return walk.paragraphs


def _dropped(walk: _Walk, text: str, indent: int, *, following: str) -> bool:
    """Deal with blank lines, code, tables, headings and directives; False where the line is text to keep."""
    if text.startswith("```"):
        walk.close()
        walk.in_fence = not walk.in_fence
        return True
    if walk.in_fence:
        return True
    if not text:
        walk.close()
        walk.in_block = False
        return True
    if walk.drop_over is not None:
        if indent > walk.drop_over:
            return True
        walk.drop_over = None
    if text.startswith((">>>", "In [")) or _TABLE.match(text):
        walk.in_block = True
    if walk.in_block or _RULE.match(text):
        walk.close()
        return True
    return _heading(walk, text, indent, following=following) or _directive(walk, text, indent)


def _heading(walk: _Walk, text: str, indent: int, *, following: str) -> bool:
    """A title, underlined or (`Args:`) ended by a colon: dropped, with its section where that holds no sentences."""
    section = _SECTION.match(text) if text[-1] == ":" else None
    underlined = following[:3] == following[:1] * 3 and len(text) <= 100 and bool(_RULE.match(following))
    if underlined or (section and len(text) <= 30 and not walk.lines):
        walk.close()
        title = text.rstrip(":").lower()
        if title in _DROPPED_SECTIONS:
            walk.drop_section = indent
        elif walk.drop_section is not None and indent <= walk.drop_section:
            walk.drop_section = None
        if section and walk.drop_section is not None and not underlined:
            walk.drop_over, walk.drop_section = indent, None  # an `Args:`-like section ends with its indentation
        return True
    return walk.drop_section is not None


def _directive(walk: _Walk, text: str, indent: int) -> bool:
    """A directive's line (`.. note::`, `!!! note`): dropped, and its content kept only where it is prose."""
    if text[0] not in ".!?_":
        return False
    directive = _DIRECTIVE.match(text)
    if directive:
        walk.close()
        name, argument = directive[1].lower(), directive[2]
        if name not in _ADMONITIONS:
            walk.drop_over = indent
        elif name not in _TITLED:
            argument = re.sub(r"^v?\d[\w.]*\s*", "", argument)
            walk.begin(argument, indent, hanging=True)
        return True
    if _DIRECTIVE_LIKE.match(text):
        walk.close()
        walk.drop_over = indent
        return True
    return bool(_ADMONITION_MARKDOWN.match(text))


def _take(walk: _Walk, text: str, indent: int) -> None:
    """Add a line of text to the paragraph that it belongs to, or begin a new one."""
    letter = text[0].isalpha()
    described = _FIELD.match(text) if text[0] in ":@" else None
    bullet = None if letter and text[1:2] not in ".)" else _BULLET.match(text)
    if described:
        walk.begin(described[1], indent, hanging=True)
    elif bullet:
        walk.begin(_described(text[bullet.end() :]), indent, hanging=True)
    elif _is_code(text, begins=not walk.lines):
        walk.close()
    elif walk.lines and (indent > walk.indent if walk.hanging else indent == walk.indent):
        walk.lines.append(text)
    else:
        description = _described(text)
        walk.begin(description, indent, hanging=description != text)


def _is_code(text: str, *, begins: bool) -> bool:
    """Whether a line is an option, an entry of a parameter table or, where a paragraph begins, a signature."""
    if text[0] == ":" and _OPTION.match(text):
        return True
    if " :" in text and _ENTRY.match(text):
        return True
    return (
        begins
        and ("(" in text or text[0] == "@" or " import " in text or text.startswith("import "))
        and bool(_SIGNATURE.match(text))
    )


def _described(text: str) -> str:
    """The text without a leading `name (type):`."""
    name = _LEADING_NAME.match(text) if ":" in text or "-" in text or "—" in text else None
    return text[name.end() :] if name else text


_INLINE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),  # markdown picture
    (re.compile(r"\[([^\]]+)\]\[[^\]]*\]|\[([^\]]+)\]\([^)\s]+\)"), r"\1\2"),  # markdown links
    (re.compile(r"\s?\[(?:\d+|#\w*|[A-Z]\w+\d\w*)\]_"), ""),  # footnote and citation marks
    (re.compile(r":[\w:+-]+:`~(?:[^`<>]*\.)?([^`<>]+)`"), r"\1"),  # :class:`~a.b.C` shows C
    (re.compile(r":[\w:+-]+:`!?([^`<>]+?)\s*<[^`>]+>`"), r"\1"),  # :ref:`words <target>` shows the words
    (re.compile(r":[\w:+-]+:`[!.]?([^`]+)`"), r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`~(?:[^`<>]*\.)?([^`<>]+)`"), r"\1"),  # the same without a role, matplotlib's way
    (re.compile(r"`[!.]([^`<>]+)`"), r"\1"),
    (re.compile(r"`([^`<>]+?)\s*<[^`>]+>`_{0,2}"), r"\1"),
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*(?=\S)([^*]+?)(?<=\S)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])"), r"\1"),
    (re.compile(r"\\([*_`|'\" ])"), r"\1"),
)
_MARKED = re.compile(r"[`*\[\\]")


def plain(text: str) -> str:
    """Replace inline mark-up (reStructuredText, markdown) by the words it marks; one space between words."""
    if _MARKED.search(text):
        for pattern, words in _INLINE:
            text = pattern.sub(words, text)
    return " ".join(text.split())


_WORDS = re.compile(r"(?<!\S)[\"'(“‘]*[A-Za-z][A-Za-z'’-]*[\"')”’]*[.,;:!?]*[\"')”’]*(?!\S)")
_LOWER = re.compile(r"(?<!\S)[a-z][a-z'’-]*[.,;:!?]?(?!\S)")
_CODE = re.compile(r"[\\{}|<>@#$^~`]|\*\*|\s=|=\s|==|://|www\.|\.\.\.|\w\(\w|%[sdr(]")
_END = re.compile(r"[.!?:][\"')”’]*$")
_START = re.compile(r"[\"'(“‘-]?[A-Za-z0-9_]")


def is_prose(sentence: str) -> bool:
    """Whether a sentence reads as English: five words or more, mostly letters, closed by punctuation, no code."""
    words = sentence.count(" ") + 1
    return (
        words >= 5
        and 20 <= len(sentence) <= 600
        and _END.search(sentence[-3:]) is not None
        and _START.match(sentence) is not None
        and _CODE.search(sentence) is None
        and sentence.count("(") == sentence.count(")")
        and len(_WORDS.findall(sentence)) >= 0.75 * words
        and len(_LOWER.findall(sentence)) >= 3
    )


@lru_cache(4096)  # overloads and aliases repeat whole docstrings
def prose(docstring: str) -> tuple[str, ...]:
    """The sentences of running English in one documentation string, in their order."""
    found: list[str] = []
    for paragraph in paragraphs_of(docstring):
        text = plain(paragraph)
        if len(text) >= 20:
            found.extend(sentence for sentence in _sentences(text) if is_prose(sentence))
    return tuple(found)


def _sentences(paragraph: str) -> list[str]:
    """Split a paragraph; a boundary without a space behind it is a dotted name (`torch.nn.Linear`), not a boundary."""
    found: list[str] = []
    joined = ""
    for piece in sentencex.segment("en", paragraph):
        joined += piece
        if joined[-1:].isspace():
            found.append(joined.strip())
            joined = ""
    return [*found, joined.strip()] if joined.strip() else found
