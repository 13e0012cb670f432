"""The commands runs, report, track and doctor: run folders → tables, pages and trackers; checks before a long run."""

from pathlib import Path

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import BadRowsOption, LabelColumn, LabelledFormat, TextColumns
from bertwright.errors import InputError
from bertwright.tracking.tracker import TrackerName, refuse_missing_tracker


def runs_command(folder: Positional[Path], /) -> CommandResult:
    """List the runs below a folder: finished, running, stopped, crashed, unfinished (not recorded) or broken.

    The exit code is 1 where a run is broken.

    Args:
        folder: Folder to search.
    """
    from bertwright.reports.runs import list_runs
    from bertwright.reports.runs_table import runs_table

    rows = list_runs(folder)
    text = runs_table(rows) if rows else f"{folder}: no run lies here"
    return {"runs": rows, "text": text, "exit_code": int(any(row["state"] == "broken" for row in rows))}


def report_command(
    run: Positional[Path],
    other: Positional[Path | None] = None,
    /,
    *,
    out: Path | None = None,
    corpus: Path | None = None,
) -> CommandResult:
    """Write an HTML page about a run, finished or not, or about the differences between two runs.

    Evaluations on BLiMP that lie in the folder `blimp` of a pre-training run are drawn over the words seen.

    Args:
        run: Run folder.
        other: Second run folder of the same kind.
        out: File to write (default: report.html in the run folder, or report-against-OTHER.html for two).
        corpus: Corpus folder for the filled masks of a pre-training, where it was moved since the start of the run.
    """
    from bertwright.reports.report import write_report

    return {"report": str(write_report(run, other, out=out, corpus=corpus))}


def track_command(run: Positional[Path], /, *, to: TrackerName) -> CommandResult:
    """Send the metrics of a run to a tracker, each seed of a fine-tuning as a run of its own.

    What the tracker already has of it is left out.

    Args:
        run: Run folder. No process may be training in it.
        to: Tracker.
    """
    refuse_missing_tracker(to)
    from bertwright.reports.runs import read_run
    from bertwright.training.run_lock import locked
    from bertwright.training.tracked_run import send_run

    streams = read_run(run).streams
    if not any(streams.values()):
        raise InputError(f"{run}: has no lines in metrics.jsonl; there is nothing to send")
    with locked(run):
        points = sum(send_run(run / stream, to) for stream in streams)
    runs = {"run": str(run), "to": to, "runs": len(streams), "points": points}
    return {**runs, "text": f"{run}: {points:,} new points of {len(streams)} runs are in {to}"}


def doctor_command(
    *,
    model: str | None = None,
    corpus: Path | None = None,
    data: Path | None = None,
    task: str | None = None,
    text_column: TextColumns = (),
    label_column: LabelColumn = None,
    input_format: LabelledFormat = "auto",
    on_error: BadRowsOption = "stop",
    tokenizer: Path | None = None,
    max_length: int | None = None,
    quick: bool = False,
) -> CommandResult:
    """Search for mistakes that cost weeks: in the machine, and in the model, corpus and data that are named.

    Each finding is ok, a note, a warning or an error, and says what to do. The exit code is 1 where there is an error,
    else 0; warnings do not change it.

    Args:
        model: MODEL: a model folder, a run folder, small-wiki, or random:SIZE (with --tokenizer or --corpus).
        corpus: Corpus folder.
        data: Labelled table, or folder with train and dev files. Of tasks with other files the doctor reads them and
            computes the baselines.
        task: Task of --data: {tasks} (default: the task of the model, else classify).
        tokenizer: Tokenizer or model folder with the vocabulary for random:SIZE, or for --data without a model.
        max_length: Tokens per example (default: the model's own, or 128).
        quick: Skip the checks that compute: speed of matrix products, compiling, predictions of the model, baselines,
            training on one batch, and all but the first tokens of the corpus.
    """
    from bertwright.doctor.examine import Request, examine

    needs_tokenizer = model.startswith("random:") if model else data is not None
    if tokenizer is not None and not needs_tokenizer:
        raise InputError(
            f"--tokenizer {tokenizer}: is for --model random:SIZE, or for --data without --model; leave it out"
        )
    request = Request(
        model=model,
        corpus=corpus,
        data=data,
        task=task,
        text=text_column,
        label=label_column,
        input_format=input_format,
        on_error=on_error,
        tokenizer=tokenizer,
        max_length=max_length,
        quick=quick,
    )
    return examine(request)
