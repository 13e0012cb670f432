"""The commands runs and report: what run folders say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

Result = Mapping[str, Any]


def runs(folder: Positional[Path], /) -> Result:
    """List the runs below a folder: finished, running, stopped, crashed, unfinished (not recorded) or broken.

    The exit code is 1 where one is broken, so that a script does not take it for one that has nothing to say.

    Args:
        folder: the folder to look through.
    """
    from bertwright.reports.runs import list_runs, runs_table

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
    from bertwright.reports.report import write_report

    return {"report": str(write_report(run, other, out=out, corpus=corpus))}


# The command doctor: what costs people weeks, looked for before they are spent.

Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def doctor(
    *,
    model: str | None = None,
    corpus: Path | None = None,
    data: Path | None = None,
    task: str | None = None,
    text_column: Several = (),
    label_column: str | None = None,
    tokenizer: Path | None = None,
    max_length: int | None = None,
    quick: bool = False,
) -> Result:
    """Look for what costs people weeks: in the machine, and in the model, corpus and data that are named.

    Each finding is ok, a note, a warning or an error, and says what to do. The exit code is 1 where there is an error,
    and 0 otherwise: warnings do not change it.

    Args:
        model: MODEL: a model folder, a run folder, small-wiki, or random:SIZE (with --tokenizer or --corpus).
        corpus: a corpus folder.
        data: a labelled table, or a folder with train and dev files.
        task: how --data is read: sst2, cola, mrpc, qqp, stsb, mnli, qnli, rte, wnli; or classify, multilabel, regress
            (default: as the model was fine-tuned, else classify).
        text_column: the column of the text; twice for pairs.
        label_column: the column of the label or number.
        tokenizer: the tokenizer or model folder whose vocabulary random:SIZE takes.
        max_length: tokens per example (default: the model's own, or 128).
        quick: leave out what computes: matrix rates, compiling, answers of the model, training on one batch, and all
            but the first tokens of the corpus.
    """
    from bertwright.doctor.examine import Request, examine

    request = Request(
        model=model,
        corpus=corpus,
        data=data,
        task=task,
        text=text_column,
        label=label_column,
        tokenizer=tokenizer,
        max_length=max_length,
        quick=quick,
    )
    return examine(request)
