"""the pages of docs/results → claims.md beside them, every claim with its verdict: `python docs/claims.py`."""

import re
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
PAGES = """
    table1 table2 table3 table4 table5 table6 table7 table8 figure5 gpt-table5 masked-share document-order length-cost
    start head-removal families using
"""
ANSWER = re.compile(r"^(\d+)\. (.+?) \*\*(.+?)\.\*\* (.*)$", re.MULTILINE)
PAPER = re.compile(r"^\*\*Claim (\d+)\.\*\* .+? In the paper: (.+)\.$", re.MULTILINE)

ABOVE = """\
# Every claim at a glance

One row for each claim. A number is the lead of the model that is better according to the claim. The unit is a point,
but a lead in perplexity, in seconds per million tokens or in hundredths of a bit a character is in that unit. The
condition of a verdict is in brackets: the start of attention. *On these rows*: with other dev rows the lead may be on
the other side. *Visible from*: the pre-trainings are too few to show a smaller difference. *Also different*: the two
models differ in more than the claim says. The claims are not independent: many of them compare the same two
pre-trainings of BERT, and some ask one question twice. So they are not counted. [The verdict](../paper.md#the-verdict)
has the rules, [the first page](index.md) the condition of all verdicts, and [how the verdicts changed](archive.md)
those of earlier versions.

| page | claim | in the paper | verdict | by task |
|---|---|---|---|---|
"""
BELOW = "\n    python docs/claims.py\n"


def overview(folder: Path) -> str:
    """Return the text of claims.md, made from the pages in a folder."""
    names = [f"{name}.md" for name in PAGES.split()]
    rows = [(name, *claim) for name in names for claim in claims(folder / name)]
    lines = [f"| [{title}]({name}) | {' | '.join(cells)} |\n" for name, title, *cells in rows]
    return ABOVE + "".join(lines).replace("on this page", "on its page") + BELOW


def claims(page: Path) -> Iterator[tuple[str, ...]]:
    """Yield page title, statement, paper's numbers, verdict and outcomes by task of each claim of a page."""
    text = page.read_text("utf-8")
    title = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
    answers = text[text.index("## Answer") : text.index("## Here")]
    paper = dict(PAPER.findall(text))
    for number, statement, verdict, by_task in ANSWER.findall(answers):
        yield title, statement, paper.get(number, "–"), f"**{verdict}**", by_task


if __name__ == "__main__":
    (RESULTS / "claims.md").write_text(overview(RESULTS), "utf-8")
