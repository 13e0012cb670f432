"""wiki markup → passages of running text ("only the text passages" of Wikipedia, paper §3.1).

Lists, tables, headings, references, templates, media and formulas are dropped. A line in which broken markup remains is
dropped too: half a template is worse than a missing sentence.

`passages` works in three steps. wiki_cuts.py cuts out most of the markup with patterns. mwparserfromhell parses the
rest, and `_words` walks over the parsed nodes. wiki_lines.py removes the traces of markup from each line.
"""

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from bertwright.errors import MissingExtra
from bertwright.text.wiki_cuts import count_unclosed, cut_markup
from bertwright.text.wiki_lines import HEADING, LANGUAGE_CODE, LIST_ITEM, clean_line
from bertwright.text.wiki_templates import name_of, renderer_of

_KEPT_TAGS = frozenset(
    "abbr b bdi bdo big blockquote br center cite code div em font i ins kbd noinclude nowiki onlyinclude p q s samp "
    "section small span strong sub sup time tt u var".split()
)
"""Tags whose contents are part of the sentence around them; the contents of other tags are dropped."""
_MEDIA = re.compile(r"\.(jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|mp3|mid|wav|flac|pdf|djvu|xcf)$", re.IGNORECASE)
_HIDDEN_NAMESPACES = ("file", "image", "media", "category")
# A line of links with a namespace: categories, or the article in other languages, under names that the dump lacks.
_LINE_OF_LINKS = re.compile(r"^[ \t]*(?:\[\[[^\[\]|:\n]+:[^\[\]\n]*\]\][ \t]*)+$", re.MULTILINE)
_MOST_UNCLOSED, _MOST_IN_A_LINE = 100, 5  # openings without an end, in a page and in a line


def passages(wikitext: str, dropped: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paragraphs of running text in `wikitext`, in order, without markup.

    `dropped` are the wiki's names of namespaces whose links stand for no text: files and categories.
    Where over a hundred openings have no end, each line is parsed alone, and a line with more than five is dropped.
    Raises MissingExtra where mwparserfromhell is not installed.
    """
    hidden = frozenset({*_HIDDEN_NAMESPACES, *(name.lower() for name in dropped)})
    markup = _LINE_OF_LINKS.sub("", cut_markup(wikitext))
    parts = [markup]
    if count_unclosed(markup) > _MOST_UNCLOSED:
        parts = [line for line in markup.split("\n") if count_unclosed(line) <= _MOST_IN_A_LINE]
    parsed = (_parser().parse(part, skip_style_tags=True) for part in parts)
    lines = "\n".join("".join(_words(code, hidden)) for code in parsed).split("\n")
    return tuple(line for line in map(clean_line, lines) if line)


def _words(code: Any, hidden: frozenset[str]) -> Iterator[str]:
    """Yield the words of each node of parsed markup (a Wikicode, or None); `hidden` are namespaces without text."""
    nodes = _parser().nodes
    for node in code.nodes if code is not None else ():
        if isinstance(node, nodes.Text):
            yield node.value
        elif isinstance(node, nodes.HTMLEntity):
            yield html.unescape(str(node))
        elif isinstance(node, nodes.Wikilink):
            yield from _words_of_link(node, hidden)
        elif isinstance(node, nodes.ExternalLink):
            yield from _words(node.title, hidden)
        elif isinstance(node, nodes.Heading):
            yield f"\n{HEADING}\n"
        elif isinstance(node, nodes.Template):
            render = renderer_of(name_of(str(node.name)))
            if render:
                yield render({str(each.name).strip(): "".join(_words(each.value, hidden)) for each in node.params})
        elif isinstance(node, nodes.Tag):
            yield from _words_of_tag(node, hidden)


def _words_of_link(link: Any, hidden: frozenset[str]) -> Iterator[str]:
    title = str(link.title).strip()
    namespace, colon, rest = title.partition(":")
    if colon and namespace:
        is_hidden = namespace.strip().lower() in hidden
        # [[fr:Paris]] at an article's end names the article in French; [[:fr:Paris]] inside a sentence is text.
        is_other_language = not link.text and LANGUAGE_CODE.fullmatch(namespace.strip())
        if is_hidden or is_other_language or _MEDIA.search(rest.strip()):
            return
    yield from _words(link.text, hidden) if link.text else (title.removeprefix(":"),)


def _words_of_tag(tag: Any, hidden: frozenset[str]) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if name in ("li", "dt", "dd") and tag.wiki_markup:
        yield LIST_ITEM  # the item's text follows on the same line
    elif name in ("br", "p"):
        yield " "
    elif name == "hr":
        yield "\n"
    if name in _KEPT_TAGS:
        yield from _words(tag.contents, hidden)


@cache
def _parser() -> ModuleType:
    try:
        import mwparserfromhell
    except ImportError:
        raise MissingExtra("wikipedia", "wiki markup") from None
    return mwparserfromhell
