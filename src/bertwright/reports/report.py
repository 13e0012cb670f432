"""run folders → report.html: metrics, curves, filled masks and settings of one run, or of two side by side.

The page is one file: it holds its style and its pictures, and it fetches nothing. jinja2 escapes every value, so that
no name or text of a run can become markup.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel

from bertwright.console import say
from bertwright.distillation.settings import default_distillation
from bertwright.errors import InputError
from bertwright.files import atomic_file, is_stream, read_object
from bertwright.finetuning.schedule import CHOSEN
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.system import MASKED_LM_SYSTEMS
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports import charts
from bertwright.reports.blimp import BlimpResults, blimp_charts, blimp_tables, read_blimp
from bertwright.reports.charts import Chart, short, try_curve
from bertwright.reports.curves import OBJECTIVES, loss_name, metric_title, run_charts
from bertwright.reports.filled_masks import FilledMasks, fill_own_masks
from bertwright.reports.runs import KIND_TITLES, Run, duration, metrics_of, moment, number, read_run
from bertwright.reports.trials import try_trials
from bertwright.reports.validation import PageTable, validation_tables
from bertwright.training.run_folder import RunFolder
from bertwright.version import __version__

REPORT = "report.html"


@dataclass(frozen=True)
class Report:
    """Content of a page; tiles: the large numbers at the top, (title, one text per run) each."""

    runs: Sequence[Run]
    heads: Sequence[Sequence[str]]
    tiles: Sequence[tuple[str, Sequence[str]]]
    charts: Sequence[Chart]
    curves_note: str
    metrics: Sequence[PageTable]
    masks: Sequence[tuple[Run, FilledMasks]]
    facts: Sequence[PageTable]


def write_report(folder: Path, other: Path | None = None, *, out: Path | None = None, corpus: Path | None) -> Path:
    """Write the page of one run or of two and return its path.

    corpus: folder for the sentences with masks, None for the run's own. Raises InputError for a folder that is no run,
    for runs of two kinds, and for an `out` that cannot be written.
    """
    runs = _runs_of_one_kind(folder, other)
    target = out or folder / (f"report-against-{runs[1].name}.html" if other else REPORT)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"{target}: --out names a file in a folder that exists")
    if target.is_file() and not is_stream(target) and not _is_page(target):
        raise InputError(f"--out {target}: is no report and would be lost; name another file")
    html = _html(_content(runs, corpus))
    with atomic_file(target) as stream:
        stream.write(html.encode(errors="backslashreplace"))  # names of files need not be UTF-8
    return target


def _is_page(path: Path) -> bool:
    """Return True for an empty file or a page of HTML."""
    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))


def report_page(folder: Path, other: Path | None = None, *, corpus: Path | None = None) -> str:
    """Return the page that `write_report` writes; raises the same errors about the runs."""
    return _html(_content(_runs_of_one_kind(folder, other), corpus))


def _runs_of_one_kind(folder: Path, other: Path | None) -> list[Run]:
    runs = [read_run(path) for path in (folder, other) if path]
    if len({run.kind for run in runs}) > 1:
        kinds = " and ".join(f"{run.folder} is a {KIND_TITLES[run.kind]}" for run in runs)
        raise InputError(f"{kinds}: a report compares two runs of one kind")
    return runs


def with_pages(result: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the result of a run that has just ended in `folder`, with the paths of its report and its loss curve.

    A search gets a report for each combination whose folder is kept, and one with trials a picture of them. A stopped
    run gets no report. A process that is not the main one gets none either: its result is empty. `signalled`, which is
    for programs that start several runs, is left out.
    """
    result = {name: value for name, value in result.items() if name != "signalled"}
    if not result or result.get("stopped"):
        return result
    if "rows" in result:
        for row in result["rows"]:
            if row.get("model"):
                try_report(Path(row["model"]).parent)
        return {**result, "picture": try_trials(result, folder)} if "trial" in result["rows"][0] else result
    run = RunFolder(folder, read_object(folder / "run.json"), writes=False)
    curve = {"curve": try_curve(run)} if run.record["kind"] == "pretrain" else {}
    return {**result, **curve, "report": try_report(folder)}


def try_report(folder: Path) -> str | None:
    """Write the report of a run that has just ended; print a message and return None where that fails.

    A fault of the report must not end the command: the run itself is complete.
    """
    try:
        return str(write_report(folder, corpus=None))
    except Exception as error:
        say(f"{folder}: the report could not be written ({type(error).__name__}: {error}); the run itself is complete")
        return None


def _content(runs: Sequence[Run], corpus: Path | None) -> Report:
    """Return the content of the page of one run or of two."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    metrics = [] if len(runs) == 1 else [_metrics_side_by_side(runs, names)]
    blimp = [read_blimp(run) for run in runs]
    for run, name, results in zip(runs, names, blimp, strict=True):
        owner = f" of {name}" if len(runs) > 1 else ""
        metrics += [_seeds(run, owner)] if run.seeds else []
        metrics += [*validation_tables(run, owner), *_validation(run, owner), *blimp_tables(results, owner)]
    facts = [_settings(runs[0])] if len(runs) == 1 else [_settings_that_differ(runs, names)]
    facts = [*_warnings(runs, names), *facts]
    facts += [_machine(runs, names), _data(runs, names)]
    pretrained = [run for run in runs if run.kind == "pretrain"]
    masked_lm = [run for run in pretrained if run.record["settings"].get("system", "bert") in MASKED_LM_SYSTEMS]
    if corpus is not None and not masked_lm:
        raise InputError(
            f"--corpus {corpus}: expected a pre-training with masked LM, whose masks are filled; leave it out"
        )
    masks = [(run, fill_own_masks(run, corpus)) for run in masked_lm]
    heads = [_head(run, name) for run, name in zip(runs, names, strict=True)]
    curves = run_charts(runs, names, blimp_charts(blimp, names))
    return Report(runs, heads, _tiles(runs, blimp), curves, _curves_note(runs), metrics, masks, facts)


def _curves_note(runs: Sequence[Run]) -> str:
    """Return a warning where the steps of two runs are not equally large; else an empty text."""
    names = ("batch_size", "batch_schedule", "phases")
    sizes = [{name: run.record["settings"].get(name) or None for name in names} for run in runs]
    if sizes[0] == sizes[-1]:
        return ""
    return "The steps of the two runs are not equally large: the number of rows or their lengths differ."


def _head(run: Run, name: str) -> list[str]:
    """Return name, state, and a line with kind, steps, start and remaining time of a run."""
    settings = run.record["settings"]
    about = str(settings.get("size", "")) if run.kind == "pretrain" else str(_task(run).get("name", ""))
    planned = f" of {run.steps_planned:,}" if run.steps_planned else ""
    parts = [f"{KIND_TITLES[run.kind]} {about}".strip(), f"{run.steps_done:,}{planned} steps"]
    parts += [f"started {moment(run.started)}"] if run.started else []
    parts += [f"about {duration(run.seconds_left)} left"] if run.seconds_left else []
    parts += [run.detail] if run.detail else []
    return [name, run.state, " · ".join(parts)]


def _task(run: Run) -> Mapping[str, Any]:
    task = run.record["data"].get("task")
    return task if isinstance(task, Mapping) else {}


def metric_text(name: str, value: float | None) -> str:
    """Return a metric as text: an accuracy in %, a loss in nats; – for None."""
    if value is None:
        return "–"
    if "accuracy" in name:
        return f"{value:.1%}"
    if name.endswith("loss") or name in OBJECTIVES:
        return f"{value:.3f} nats"
    return f"{value:,.1f}" if "perplexity" in name else f"{value:.3f}"


def _metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the validation metrics that any of the runs has."""
    return list(dict.fromkeys(name for run in runs for name in _last_metrics(run)))


def _last_metrics(run: Run) -> dict[str, float]:
    """Return the last validation metrics; of a fine-tuning without a finished seed, those of the last epoch."""
    if metrics := run.last_metrics:
        return metrics
    measured = [metrics for stream in run.streams for _, metrics in run.validation(stream)]
    return measured[-1] if measured else {}


def _tiles(runs: Sequence[Run], blimp: Sequence[BlimpResults]) -> list[tuple[str, list[str]]]:
    tiles = [
        (f"{metric_title(name)}, validation", [_with_deviation(run, name) for run in runs])
        for name in _metric_names(runs)
    ]
    if not tiles:
        terms = dict.fromkeys(term for run in runs for term in run.losses)
        tiles = [
            (f"{loss_name(term)}, training", [metric_text(term, run.losses.get(term)) for run in runs])
            for term in terms
        ]
    if any(results.measured for results in blimp):
        tiles.append(("BLiMP, mean of the paradigms", [results.last_accuracy for results in blimp]))
    speeds = [run.speed for run in runs]
    waits = [speed.data_share if speed else None for speed in speeds]
    seen = [_words_seen(run) for run in runs]
    words = [("words of text seen", [f"{count:,}" if count else "–" for count in seen])] if any(seen) else []
    return [
        *tiles,
        *words,
        ("speed, mean", [f"{speed.tokens_per_second:,.0f} tokens/s" if speed else "–" for speed in speeds]),
        ("MFU, of the measured peak", [f"{speed.mfu:.0%}" if speed else "–" for speed in speeds]),
        ("waiting for data", ["–" if wait is None else f"{wait:.1%}" for wait in waits]),
        ("in training steps", [duration(speed.seconds) or "not recorded" if speed else "–" for speed in speeds]),
    ]


def _words_seen(run: Run) -> int | None:
    """Return the number of words of text in the last line of a run; None where it is unknown."""
    lines = [line for stream in run.streams.values() for line in stream]
    words = number(lines[-1].get("words")) if lines else None
    return None if words is None else round(words)


def _with_deviation(run: Run, name: str) -> str:
    """Return a metric as text; over several seeds with their standard deviation."""
    values = [metrics_of(seed["scores"])[name] for seed in run.seeds if name in metrics_of(seed["scores"])]
    shown = metric_text(name, _last_metrics(run).get(name))
    if len(values) < 2:
        return shown
    return f"{shown} ± {metric_text(name, statistics.stdev(values))}"


def _metrics_side_by_side(runs: Sequence[Run], names: Sequence[str]) -> PageTable:
    rows = []
    for name in _metric_names(runs):
        values = [_last_metrics(run).get(name) for run in runs]
        text = ""
        if values[0] is not None and values[1] is not None:
            difference = values[1] - values[0]
            text = f"{100 * difference:+.1f} points" if "accuracy" in name else f"{difference:+.3f}"
        rows.append([metric_title(name), *(_with_deviation(run, name) for run in runs), text])
    return PageTable("Last metrics side by side", ["", *names, "difference"], rows)


def _seeds(run: Run, owner: str) -> PageTable:
    names = list(dict.fromkeys(name for seed in run.seeds for name in metrics_of(seed["scores"])))
    rows = [
        [
            f"seed {seed.get('seed')}",
            str(seed.get("epoch", "")),
            *(metric_text(name, metrics_of(seed["scores"]).get(name)) for name in names),
            "collapsed: predicts the same for every input" if seed.get("collapsed") else "",
        ]
        for seed in run.seeds
    ]
    rows.append(["mean ± sd", "", *(_with_deviation(run, name) for name in names), ""])
    collapsed = sum(bool(seed.get("collapsed")) for seed in run.seeds)
    note = f"{collapsed} of {len(run.seeds)} seeds collapsed." if collapsed else "No seed collapsed."
    return PageTable(f"Seeds{owner}", ["", "best epoch", *map(metric_title, names), ""], rows, note=note)


def _validation(run: Run, owner: str) -> list[PageTable]:
    """Return the table of all validations, a row each; no table where there are none."""
    measured = [(stream, step, metrics) for stream in run.streams for step, metrics in run.validation(stream)]
    names = list(dict.fromkeys(name for _, _, metrics in measured for name in metrics))
    rows = []
    for stream, step, metrics in measured:
        title = f"{stream.replace('-', ' ')}, step {step:,}" if stream else f"step {step:,}"
        rows.append([title, *(metric_text(name, metrics.get(name)) for name in names)])
    return [PageTable(f"Validation{owner}", ["", *map(metric_title, names)], rows)] if rows else []


def _settings(run: Run) -> PageTable:
    """Return all settings; those that differ from the defaults, or from the paper's, come first and are marked.

    Settings that the program chose come next and are not marked. A schedule is not marked where the record does not
    tell who chose it.
    """
    values, defaults = _flat(run.record["settings"]), _flat(_defaults(run))
    chosen = [name for name in values if name in run.record.get("chosen", ())]
    not_marked = CHOSEN if run.kind == "finetune" and "chosen" not in run.record else chosen
    differing = [name for name in values if name not in not_marked and values[name] != defaults.get(name, values[name])]
    rest = [name for name in values if name not in differing and name not in chosen]
    origin = "the paper" if run.kind == "pretrain" else "the default"
    rows = [[_spaced(name), values[name], f"{origin}: {defaults[name]}"] for name in differing]
    rows += [[_spaced(name), values[name], "chosen for the task, the rows and the model"] for name in chosen]
    rows += [
        [_spaced(name), values[name], "" if name in defaults else "not a setting of this version"] for name in rest
    ]
    marked = frozenset(range(len(differing)))
    return PageTable("Settings", ["", "", ""], rows, marked, f"Marked: differs from {origin}.")


def _settings_that_differ(runs: Sequence[Run], names: Sequence[str]) -> PageTable:
    sides = [_flat({**run.record["settings"], **({"task": _task(run)} if _task(run) else {})}) for run in runs]
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [
        [_spaced(key), *(side.get(key, "–") for side in sides)]
        for key in keys
        if sides[0].get(key) != sides[1].get(key)
    ]
    same = len(keys) - len(rows)
    return PageTable("Settings that differ", ["", *names], rows, note=f"The other {same} settings are the same.")


def _defaults(run: Run) -> Mapping[str, Any]:
    """Return the default settings of a run of that kind."""
    settings: type[BaseModel] = PretrainSettings if run.kind == "pretrain" else FinetuneSettings
    chosen = dict.fromkeys(CHOSEN, "chosen by the program") if run.kind == "finetune" else {}
    defaults = settings.model_construct().model_dump(mode="json")
    return defaults | chosen | default_distillation(run.record["settings"])


def _machine(runs: Sequence[Run], names: Sequence[str]) -> PageTable:
    sides = []
    for run in runs:
        resolved = run.record.get("resolved") or {}
        numerics = dict(resolved.get("numerics", resolved))
        rate = number(numerics.pop("peak_flops", None))
        side = _flat(numerics) | ({"peak FLOP/s, measured": f"{rate / 1e9:,.0f} GFLOP/s"} if rate else {})
        sessions = run.record.get("sessions") or []
        if len(sessions) > 1:
            side["started or resumed"] = f"{len(sessions)} times"
        sides.append(side | _flat(run.record.get("versions") or {}))
    return _side_by_side_facts("Machine and versions", sides, names)


def _warnings(runs: Sequence[Run], names: Sequence[str]) -> list[PageTable]:
    """Return a table of the warnings that the runs printed before step 0; none where there are no warnings."""
    rows = [[name, text] for run, name in zip(runs, names, strict=True) for text in run.record.get("warnings") or []]
    return [PageTable("Warnings", ["", "printed before step 0"], rows)] if rows else []


def _data(runs: Sequence[Run], names: Sequence[str]) -> PageTable:
    sides = []
    for run in runs:
        data = {name: value for name, value in run.record["data"].items() if name != "task" and value}
        paths = {f"path of {name}": value for name, value in (run.record.get("places") or {}).items() if value}
        sides.append(_flat({**data, **paths}))
    return _side_by_side_facts("Data: fingerprints and paths", sides, names)


def _side_by_side_facts(title: str, sides: Sequence[Mapping[str, str]], names: Sequence[str]) -> PageTable:
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [[_spaced(key), *(side.get(key, "–") for side in sides)] for key in keys]
    return PageTable(title, ["", *(names if len(names) > 1 else [""])], rows)


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace(".", " · ")


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return nested settings as {name.name: text}."""
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= _flat(inner, f"{name}.{key}" if name else str(key))
        return flat
    if isinstance(value, list | tuple):
        return {name: ", ".join(_item(item) for item in value) or "none"}
    return {name: _item(value)}


def _item(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) == {"length", "share"} and number(value["share"]) is not None:
        return f"{value['length']} tokens: {value['share']:.0%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    return short(value) if isinstance(value, float) and number(value) is not None else str(value)


def _html(report: Report) -> str:
    """Return the HTML of a report."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("bertwright.reports").joinpath("report.html").read_text("utf-8"))
    return template.render(
        report=report,
        title=" against ".join(head[0] for head in report.heads),
        size=charts,
        author=f"bertwright {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )
