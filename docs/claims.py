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
NUMBERS = re.compile(r"against `[^`]+`: (\S+) \(95 %: (\S+ to \S+); (p [<=] \S+); (\d+) pairs")
WORDS = {"Supported": "**supported**", "Not supported": "**not supported**", "Not decided at this scale": "not decided"}

ABOVE = """\
# Every claim at a glance

One row for each claim with a verdict. The linked page shows which arms were compared and on which tasks. *Difference*
is the lead of the arm that is claimed to be better: points of the mean over the claim's columns, with the 95 %
interval. Where lower is better, as for the perplexity, it is the amount by which this arm is lower. *Pairs* is the
number of pairs of seeds. [The paper as experiments](../paper.md#the-verdict) explains the verdicts.

{counts}

| page | claim | in the paper | difference here | pairs | verdict |
|---|---|---|---|---|---|
"""
BELOW = "\n    python docs/claims.py\n"


def overview(folder: Path) -> str:
    """Return the text of claims.md, made from the pages in a folder."""
    names = [f"{name}.md" for name in PAGES.split()]
    rows = [(name, *claim) for name in names for claim in claims(folder / name)]
    counts = Counter(row[-1].strip("*") for row in rows)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), reverse=True))
    lines = [f"| [{title}]({name}) | {' | '.join(cells)} |\n" for name, title, *cells in rows]
    return ABOVE.format(counts=f"Of {len(rows)} claims: {summary}.") + "".join(lines) + BELOW


def claims(page: Path) -> Iterator[tuple[str, ...]]:
    """Yield page title, statement, paper's numbers, difference, pairs and verdict of each claim with a verdict."""
    text = page.read_text("utf-8")
    title = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
    if page.parent.name == "squad":
        title += " on SQuAD"
    for statement, paper, verdict, test in CLAIM.findall(text):
        numbers = NUMBERS.search(test)
        if numbers:  # a claim without a verdict has none
            mean, interval, p, pairs = numbers.groups()
            yield title, statement, paper, f"{mean} ({interval}; {p})", pairs, WORDS[verdict]


if __name__ == "__main__":
    (RESULTS / "claims.md").write_text(overview(RESULTS), "utf-8")
