"""The pages of docs/results: one overview of all verdicts, and no number on them that its source does not have."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results"
NO_EXPERIMENT = ("index", "claims", "archive", "matching-head", "budget")
"""Pages of docs/results that no experiment wrote."""
CALLED_NOW = {"supported": "supported", "not supported": "reversed", "not decided": "undecided"}
"""Verdict under the old rule → the name of the same verdict under the current one."""
NOW = ("supported", "reversed", "no difference", "undecided", "cannot be tested here", "no verdict", "withdrawn")


@pytest.fixture(scope="module")
def of_records() -> dict[str, Any]:
    """Functions of docs/records.py, and the published records as `records`."""
    module = runpy.run_path(str(DOCS / "records.py"))
    return {**module, "records": module["read_records"](RESULTS / "records.tar.xz")}


def test_every_verdict_of_the_pages_is_in_the_overview() -> None:
    overview = runpy.run_path(str(DOCS / "claims.py"))["overview"](RESULTS)
    assert overview == (RESULTS / "claims.md").read_text("utf-8"), "python docs/claims.py"
    pages = [page for page in RESULTS.glob("*.md") if page.stem not in NO_EXPERIMENT]
    assert len(pages) == 17
    claims = 0
    for page in pages:
        answers = page.read_text("utf-8").split("## Answer")[1].split("## Here")[0]
        claims += sum(line[:1].isdigit() for line in answers.splitlines())
    assert overview.count("\n| [") == claims > 40
    assert not re.search(r"\b\d+ (supported|reversed|undecided)", overview)  # claims are not independent: no counts


def test_pages_whose_models_begin_with_the_matching_head_begin_with_the_box() -> None:
    without = ("claims", "archive", "matching-head", "budget", "using")  # using: a model that was trained elsewhere
    for page in (page for page in RESULTS.glob("*.md") if page.stem not in without):
        text = page.read_text("utf-8")
        if page.stem == "head-removal":
            assert "**Read this first.** This page is about the hand-made attention head" in text
            continue
        differ = page.stem in ("start", "families")
        starts = "The arms differ in the start" if differ else "All Transformers here begin with one hand-made"
        assert f"**Read this first.** {starts}" in text
        assert re.search(r"explains 87 %[\s>]+of\s+the\s+variance\s+of\s+STS-B", text.replace("\n> ", " ")), page.name


def test_pages_from_the_records_are_those_that_the_records_give(of_records: dict[str, Any]) -> None:
    records = of_records["records"]
    head = of_records["head_page"](RESULTS, records)
    assert head == (RESULTS / "matching-head.md").read_text("utf-8"), "python docs/records.py"
    budget = of_records["budget_page"](RESULTS, records)
    assert budget == (RESULTS / "budget.md").read_text("utf-8"), "python docs/records.py"
    rows = of_records["measured_heads"](RESULTS, records)
    fractions, scores = np.array([(row["head"], row["stsb"]) for row in rows]).T
    r = float(np.corrcoef(fractions, scores)[0, 1])
    assert (len(rows), round(r, 2), round(100 * r**2)) == (21, 0.93, 87)  # as the box and the first page say
    assert f"has r = {r:.2f} with STS-B over {len(rows)}" in " ".join((RESULTS / "index.md").read_text("utf-8").split())


def test_pages_are_written_from_the_published_records_alone(tmp_path: Path) -> None:
    """The archives have neither data nor a corpus; document-order has a corpus of shuffled sentences too."""
    pages = {
        "paper": ["table7", "document-order"],
        "h100": ["start", "families"],
        "head": ["head-removal"],
        "using": ["using"],
    }
    for folder, names in pages.items():
        runpy.run_path(str(DOCS / "pages.py"))["write_pages"](folder, names, tmp_path)
        for name in names:
            page = (tmp_path / f"{name}.md").read_text("utf-8")
            assert page == (RESULTS / f"{name}.md").read_text("utf-8"), "python docs/pages.py"
            assert "docs/results/" not in page
            assert all((RESULTS / link).is_file() for link in re.findall(r"\]\((\S+?)\)", page))


def test_minutes_of_table_6_are_those_of_the_records(of_records: dict[str, Any]) -> None:
    minutes: dict[str, float] = {}
    for path, record in of_records["records"].items():
        folder = path.split("/")[2]
        if path.startswith("paper/pretrained/"):
            size = folder.removeprefix("bert-").partition("-seed")[0]
            minutes[size] = minutes.get(size, 0.0) + of_records["minutes"](record)
    page = (RESULTS / "table6.md").read_text("utf-8")
    for size in ("2x128", "4x128x1", "6x128", "8x128"):
        assert f"| {size} | 2 | 15.7 M | {minutes[size]:.0f} min |" in page


def archive_rows() -> list[list[str]]:
    """Return page, claim, verdict before, verdict after and reason of each row of the archive's last table."""
    text = (RESULTS / "archive.md").read_text("utf-8")
    lines = text[text.index("\n| page | claim |") :].splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]


def word(verdict: str) -> str:
    """Return a verdict without its tasks, its number and its addition."""
    plain = re.sub(" (on .+ alone|on these rows|within \\S+)$", "", re.split("[:,.]", verdict)[0]).lower()
    return "reversed" if plain == "not as good" else plain  # the same outcome of a claim of "as good as"


def test_the_number_of_verdicts_changed_is_that_of_the_table() -> None:
    text = (RESULTS / "archive.md").read_text("utf-8")
    rows = [(word(before), word(after)) for _, _, before, after, _ in archive_rows()]
    assert {after for _, after in rows} <= set(NOW)
    changed = sum(CALLED_NOW[before] != after for before, after in rows)
    assert f"**{changed} of {len(rows)} verdicts changed, and {len(rows) - changed} are the same.**" in text
    for before in CALLED_NOW:
        counts = [rows.count((before, after)) for after in NOW]
        *others, no_verdict, withdrawn = counts
        assert f"| {before} | {' | '.join(map(str, [*others, no_verdict + withdrawn]))} |" in text


def test_the_archive_has_the_verdicts_of_the_current_pages() -> None:
    overview = (RESULTS / "claims.md").read_text("utf-8")
    rows_of_overview = re.findall(r"^\| \[(.+?)\]\(\S+\) \| (.+?) \| .+? \| \*\*(.+?)\*\* \|", overview, flags=re.M)
    current = {(page, claim): verdict for page, claim, verdict in rows_of_overview}
    rows = [
        (page.removesuffix(" on SQuAD"), claim, after)
        for page, claim, _, after, _ in archive_rows()
        if page != "Table 5"  # on GLUE, of which the current page has nothing
    ]
    assert len(rows) == 40
    for page, claim, after in rows:
        assert word(after) == word(current[page, claim]), (page, claim)


def test_numbers_of_the_first_page_are_on_the_pages_it_names() -> None:
    text = (RESULTS / "index.md").read_text("utf-8")
    table = text[text.index("| question | answer here |") :].partition("\n\n")[0]
    checked = 0
    for line in table.splitlines()[2:]:
        _, answer, pages = line.strip("| ").split(" | ")
        texts = [(RESULTS / name).read_text("utf-8") for name in re.findall(r"\]\((\S+?\.md)\)", pages)]
        answers = "".join(each[each.index("## Answer") : each.index("## Here")] for each in texts)
        for number in re.findall(r"[+-]\d+\.\d", answer):
            assert f" {number}" in answers, (number, pages)
            checked += 1
    assert checked >= 12
