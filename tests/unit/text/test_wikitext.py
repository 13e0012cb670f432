"""Wiki markup: what of it is text, what inline templates stand for, and what never-ending markup costs."""

from pathlib import Path

import pytest

from bertwright.text import wikitext
from bertwright.text.wiki_cuts import cut_markup
from bertwright.text.wikipedia import read_pages
from bertwright.text.wikitext import passages

DUMP = Path(__file__).resolve().parents[2] / "fixtures" / "own_dump.xml"


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("Plain ''words'' and '''''more'''''.", "Plain words and more."),
        ("The l'''amour'' of the sea.", "The l'amour of the sea."),
        ("A ''''bold''' and a '''''''double''''' word.", "A 'bold and a ''double word."),
        ("The ''Gull''{{'s}} mast.", "The Gull's mast."),
        ("The [[A|b]]s met [[C]]s and [[D#e|]].", "The bs met Cs and D#e."),
        ("See [http://x.org the page] or [http://x.org] at http://x.org soon.", "See the page or at soon."),
        ("The sea [[fr:Mer]] and [[:fr:Mer]] and [[:fr:Mer|la mer]].", "The sea and fr:Mer and la mer."),
        ("[[Categoria:Towns]] [[Categoria:Ports|Aldermere]]", None),
        ("[[File:A.jpg|thumb|The [[sea|wide sea]] at dawn]]It is wide.", "It is wide."),
        ("It ran{{citation needed}} away.", "It ran away."),
        ("One&mdash;two &lt;three&gt;.", "One—two <three>."),
        ("AT&amp;T sold 35&amp;nbsp;mm film.", "AT&T sold 35 mm film."),
        ("It fell <span style='x'>slowly</span><ref>R</ref>.", "It fell slowly."),
        ("It was<ref name=a>{{cite|[[x]]}}</ref> {{a|{{b|c}}|d={{e}}}}long<ref name='b' /> ago.", "It was long ago."),
        ("A<!-- {{ --> b<!-- <ref> --> c.", "A b c."),
        ("A <nowiki>''b''</nowiki> {{x}} c.", "A b c."),
        ("A <nowiki>{{b}}</nowiki> c.", None),  # braces that are text cannot be told from what an author left broken
        ("A road ({{x}}, ; {{x}}) ( ({{x}}), {{x}}; old) by the sea, {{x}}, {{x}}.", "A road (old) by the sea."),
        (
            "A road ({{x}}, old, {{x}}) by the sea, [...] {{x}} ... it ends.",
            "A road (old) by the sea, [...] ... it ends.",
        ),
        ("鎮は（{{x}}、）海に、{{x}}、ある。", "鎮は海に、ある。"),
        ("鎮（{{x}}、ちん）は海にある。", "鎮（ちん）は海にある。"),
        ("她乘-{zh-hans:缆车; zh-hant:纜車}-上-{山}-。-{H|zh-hans:计; zh-hant:計}-", "她乘缆车上山。"),
        ("<math>x</math>; it is small.", "; it is small."),  # not a list, though its line begins with a list's mark
        ("<poem>One\ntwo</poem><syntaxhighlight lang=c>a = b[[1]];</syntaxhighlight>", None),
        ("{| class=x\n| a\n* {|\n| b\n|}\nc\n|} After the table.", "After the table."),
        ("* item {{x|\n* a\n}} goes on", None),
        ("{|\n| a table left open", None),
        ("Text before a <ref>note left open.", None),
        ("Half a [[link left open.", None),
        ("Half a {{template left open.", None),
        ("| a row of a table", None),
        ("----", None),
        ("1900 (12)", None),
        ("__NOTOC__ {{DEFAULTSORT:Aldermere}}", None),
    ],
)
def test_markup(markup: str, expected: str | None) -> None:
    assert passages(markup) == (() if expected is None else (expected,))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("convert|1,300|mi|km", "1,300 mi"),
        ("convert|5|to|10|km2|sqmi|abbr=on", "5 to 10 km²"),
        ("Convert|5|ft|11|in|m", "5 ft 11 in"),
        ("cvt|3|-|4|C", "3–4 °C"),
        ("lang|la|Mare", "Mare"),
        ("transl|ar|ALA|bahr", "bahr"),
        ("lang-en-short|the sea", "the sea"),
        ("enS|the sea", "the sea"),
        ("nowrap|[[Sea|the sea]] and {{nowrap|1={{lang|fr|la mer}}}}", "the sea and la mer"),
        ("abbr|km|kilometre", "km"),
        ("as of|2014|5|lc=y", "as of 2014"),
        ("circa|1900", "c. 1900"),
        ("frac|3|1|2", "3 1/2"),
        ("val|6.2|e=18|u=C", "6.2×10^18 C"),
        ("chem|H|2|O", "H2O"),
        ("HMS|Gull|22", "HMS Gull"),
        ("US$|5", "US$5"),
        ("formatnum:1234", "1234"),
        ("XIXe_siècle", "XIXe siècle"),
        ("仮リンク|海|en|Sea", "海"),
        ("snd", "–"),
        ("sfn|Book|1900", ""),
        ("IPA|x", ""),
        ("convert", ""),
        ("lang", ""),
    ],
)
def test_inline_templates_leave_no_hole(template: str, expected: str) -> None:
    assert passages(f"It is {{{{{template}}}}} away.") == (" ".join(f"It is {expected} away.".split()),)


def test_quotations_are_passages_of_their_own() -> None:
    markup = "He said: {{quote|text=The sea is ''deep''.|author=A}} Then he left."
    assert passages(markup) == ("He said:", "The sea is deep.", "Then he left.")


def test_what_is_cut_before_parsing_changes_no_passage(monkeypatch: pytest.MonkeyPatch) -> None:
    with DUMP.open("rb") as stream:
        page = next(read_pages(DUMP, stream))
    result = passages(page.wikitext, page.dropped)
    assert len(cut_markup(page.wikitext)) < 0.8 * len(page.wikitext)
    monkeypatch.setattr(wikitext, "cut_markup", lambda text: text)  # the full parser alone
    assert passages(page.wikitext, page.dropped) == result


@pytest.mark.parametrize("opening", ["<ref>", "<!--", "{{", "{{a|", "[[", "[[a|", "{|\n", "(", "-{", "'''"])
def test_markup_that_never_ends_is_cut_in_passes_over_it(opening: str) -> None:
    markup = opening * 200_000  # one search to the end from each of these would take minutes
    assert len(cut_markup(markup + " The end.")) <= len(markup) + 9
