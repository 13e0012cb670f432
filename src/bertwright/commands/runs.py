"""The commands runs and report: what run folders say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tyro.conf import Positional

Result = Mapping[str, Any]


def runs(folder: Positional[Path], /) -> Result:
    """List the runs below a folder: finished, running, stopped, crashed, unfinished (not recorded) or broken.

    The exit code is 1 where one is broken, so that a script does not take it for one that has nothing to say.

    Args:
        folder: the folder to look through.
    """
    from bertwright.recipes.runs import list_runs
    from bertwright.recipes.runs_table import runs_table

    found = list_runs(folder)
    text = runs_table(found) if found else f"{folder}: no run lies here"
    return {"runs": found, "text": text, "exit_code": int(any(row["state"] == "broken" for row in found))}


def report(
    run: Positional[Path],
    other: Positional[Path | None] = None,
    /,
    *,
    out: Path | None = None,
    corpus: Path | None = None,
) -> Result:
    """Write a run, finished or not, on one HTML page; with a second one: what differs between the two.

    Args:
        run: a run folder.
        other: a second run folder of the same kind.
        out: the file to write (default: report.html in the run folder, or report-against-OTHER.html for two).
        corpus: for the filled masks of a pre-training: the corpus folder, where it lies elsewhere than at the start.
    """
    from bertwright.recipes.report import write_report

    return {"report": str(write_report(run, other, out=out, corpus=corpus))}
