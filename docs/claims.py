"""the pages of docs/results → claims.md beside them, every claim with its verdict: `python docs/claims.py`."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
PAGES = """
    table1 table2 table3 table4 table5 squad/table5 table6 table7 table8 figure5 gpt-table5
    masked-share document-order length-cost
"""
CLAIM = re.compile(r"^\d+\. (.+?) In the paper: (.+)\.\n {3}\*\*(.+?)\.\*\* (.*)$", re.MULTILINE)
FIGURES = re.compile(r"against `[^`]+`: (\S+) \(95 %: (\S+ to \S+); (p [<=] \S+); (\d+) pairs")
WORDS = {"Supported": "**supported**", "Not supported": "**not supported**", "Not decided at this scale": "not decided"}

ABOVE = """\
# Every claim at a glance

One row for each claim that has a verdict on one of the pages; what was compared with what, and on which tasks, stands
there. *Difference*: by how much the arm that the claim says is better is ahead, in points of the mean over the claim's
columns, with its 95 % interval; where less is better, as of a perplexity, by how much it is lower. *Pairs* are of
seeds. How the verdicts come about: [The paper as experiments](../paper.md#the-verdict).

{counts}

| page | claim | in the paper | difference here | pairs | verdict |
|---|---|---|---|---|---|
"""
BELOW = "\n    python docs/claims.py\n"


def overview(folder: Path) -> str:
    """The page, of the pages in a folder."""
    names = [f"{name}.md" for name in PAGES.split()]
    rows = [(name, *found) for name in names for found in claims(folder / name)]
    counts = Counter(row[-1].strip("*") for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), reverse=True))
    lines = [f"| [{title}]({name}) | {' | '.join(cells)} |\n" for name, title, *cells in rows]
    return ABOVE.format(counts=f"Of {len(rows)} claims: {said}.") + "".join(lines) + BELOW


def claims(page: Path) -> Iterator[tuple[str, ...]]:
    """Of each claim with a verdict: the page's title, the claim, the paper, the difference, the pairs, the verdict."""
    text = page.read_text("utf-8")
    title = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
    if page.parent.name == "squad":
        title += " on SQuAD"
    for words, paper, verdict, figures in CLAIM.findall(text):
        found = FIGURES.search(figures)
        if found:  # where there is no verdict, there are none
            mean, interval, p, pairs = found.groups()
            yield title, words, paper, f"{mean} ({interval}; {p})", pairs, WORDS[verdict]


if __name__ == "__main__":
    (RESULTS / "claims.md").write_text(overview(RESULTS), "utf-8")
