"""Run folders → what their report says: figures, curves, settings, and what differs between two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file, read_object
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports import charts
from bertwright.reports.charts import Chart, Point, Series, short, try_curve
from bertwright.reports.filled_masks import FilledMasks, fill_own_masks
from bertwright.reports.runs import KINDS, NOT_LOSSES, Run, clock, figures_of, moment, number, read_run
from bertwright.training.run_folder import RunFolder
from bertwright.version import __version__

REPORT = "report.html"
_WORDS = {"mlm": "masked LM", "nsp": "next sentence", "lm": "language model"}


@dataclass(frozen=True)
class Table:
    """Rows under a head; `marked` rows differ from the defaults. The first cell of a row is its name."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All that a page shows; `tiles` are the big figures: (name, a value for each run)."""

    runs: Sequence[Run]
    heads: Sequence[Sequence[str]]
    tiles: Sequence[tuple[str, Sequence[str]]]
    charts: Sequence[Chart]
    curves_note: str
    figures: Sequence[Table]
    masks: Sequence[tuple[Run, FilledMasks]]
    facts: Sequence[Table]


def write_report(folder: Path, other: Path | None = None, *, out: Path | None = None, corpus: Path | None) -> Path:
    """Write the page of one run or of two; returns its path. InputError for what is no run, or runs of two kinds."""

    runs = [read_run(path) for path in (folder, other) if path]
    if len({run.kind for run in runs}) > 1:
        kinds = " and ".join(f"{run.folder} is a {KINDS[run.kind]}" for run in runs)
        raise InputError(f"{kinds}: a report compares two runs of one kind")
    target = out or folder / (f"report-against-{runs[1].name}.html" if other else REPORT)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"{target}: --out names a file in a folder that exists")
    written = page(gather(runs, corpus))
    with atomic_file(target) as stream:
        stream.write(written.encode(errors="backslashreplace"))  # names of files need not be UTF-8
    return target


def with_pages(result: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the result of a run that has just ended in `folder` with the paths of its report and its loss curve.

    A search has a report for each combination. A run that was stopped has none, nor has one of several processes that
    is not the main one, whose result is empty.
    """
    if not result or result.get("stopped"):
        return dict(result)
    if "rows" in result:
        for row in result["rows"]:
            try_report(Path(row["model"]).parent)
        return dict(result)
    run = RunFolder(folder, read_object(folder / "run.json"), writes=False)
    curve = {"curve": try_curve(run)} if run.record["kind"] == "pretrain" else {}
    return {**result, **curve, "report": try_report(folder)}


def try_report(folder: Path) -> str | None:
    """The report of a run that has just ended; None, and why, where it cannot be made: the run itself is whole."""
    try:
        return str(write_report(folder, corpus=None))
    except Exception as error:
        say(f"{folder}: its report could not be made ({type(error).__name__}: {error}); the run is whole")
        return None


def gather(runs: Sequence[Run], corpus: Path | None = None) -> Report:
    """Everything that the page of these runs (one or two) says."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    figures = [*([] if len(runs) == 1 else [_side_by_side(runs, names)])]
    for run, name in zip(runs, names, strict=True):
        of = f" of {name}" if len(runs) > 1 else ""
        figures += [*([_seeds(run, of)] if run.seeds else []), *_held_out(run, of)]
    facts = [_settings(runs[0])] if len(runs) == 1 else [_differing(runs, names)]
    facts += [_machine(runs, names), _data(runs, names)]
    masks = [(run, fill_own_masks(run, corpus)) for run in runs if run.kind == "pretrain" and _masks(run)]
    heads = [_head(run, name) for run, name in zip(runs, names, strict=True)]
    return Report(runs, heads, _tiles(runs), _charts(runs, names), _curves_note(runs), figures, masks, facts)


def _masks(run: Run) -> bool:
    """Whether it learned to fill masks, as runs did before there were other systems."""
    return bool(run.record["settings"].get("system", "bert") == "bert")


def _curves_note(runs: Sequence[Run]) -> str:
    """What one must know before comparing curves over steps."""
    sizes = [{name: run.record["settings"].get(name) for name in ("batch_size", "phases")} for run in runs]
    return "A step of the one run is not as large as a step of the other: rows or their lengths differ." * (
        sizes[0] != sizes[-1]
    )


def _head(run: Run, name: str) -> list[str]:
    """Name, kind, state and the rest of a run's headline."""
    settings = run.record["settings"]
    about = str(settings.get("size", "")) if run.kind == "pretrain" else str(_task(run).get("name", ""))
    planned = f" of {run.steps_planned:,}" if run.steps_planned else ""
    parts = [f"{KINDS[run.kind]} {about}".strip(), f"{run.steps_done:,}{planned} steps"]
    parts += [f"begun {moment(run.started)}"] if run.started else []
    parts += [f"about {clock(run.seconds_left)} left"] if run.seconds_left else []
    parts += [run.detail] if run.detail else []
    return [name, run.state, " · ".join(parts)]


def _task(run: Run) -> Mapping[str, Any]:
    task = run.record["data"].get("task")
    return task if isinstance(task, Mapping) else {}


def label(name: str) -> str:
    """A figure's name in words: mlm_loss → masked LM loss."""
    return " ".join(_WORDS.get(part, part) for part in name.replace(".", "_").split("_"))


def value_of(name: str, value: float | None) -> str:
    """A figure as people write it: a share in %, a loss in nats."""
    if value is None:
        return "–"
    if "accuracy" in name:
        return f"{value:.1%}"
    if name.endswith("loss") or name in _WORDS:
        return f"{value:.3f} nats"
    return f"{value:,.1f}" if "perplexity" in name else f"{value:.3f}"


def _names(runs: Sequence[Run]) -> list[str]:
    """Held-out figures that any of the runs has, in their order."""
    return list(dict.fromkeys(name for run in runs for name in _last(run)))


def _last(run: Run) -> dict[str, float]:
    """The last held-out figures; of a fine-tuning none of whose seeds is done, the last measurement."""
    if found := run.last_figures:
        return found
    measured = [figures for stream in run.streams for _, figures in run.held_out(stream)]
    return measured[-1] if measured else {}


def _tiles(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    tiles = []
    for name in _names(runs):
        title = f"{label(name)}, held out" if runs[0].kind == "pretrain" else f"{label(name)} on dev"
        tiles.append((title, [_spread(run, name) for run in runs]))
    if not tiles:
        terms = dict.fromkeys(term for run in runs for term in run.losses)
        tiles = [
            (f"{_loss_name(term)}, training", [value_of(term, run.losses.get(term)) for run in runs]) for term in terms
        ]
    speeds = [run.speed for run in runs]
    tiles.append(("speed, mean", [f"{speed.tokens_per_second:,.0f} tokens/s" if speed else "–" for speed in speeds]))
    tiles.append(("of the matrix rate", [f"{speed.mfu:.0%}" if speed else "–" for speed in speeds]))
    waits = [speed.data_share if speed else None for speed in speeds]
    tiles.append(("waiting for data", ["–" if share is None else f"{share:.1%}" for share in waits]))
    tiles.append(("in training steps", [clock(speed.seconds) or "not recorded" if speed else "–" for speed in speeds]))
    return tiles


def _spread(run: Run, name: str) -> str:
    """A figure; over several seeds with their standard deviation."""
    values = [figures_of(seed["scores"])[name] for seed in run.seeds if name in figures_of(seed["scores"])]
    shown = value_of(name, _last(run).get(name))
    if len(values) < 2:
        return shown
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{shown} ± {value_of(name, deviation)}"


def _side_by_side(runs: Sequence[Run], names: Sequence[str]) -> Table:
    rows = []
    for name in _names(runs):
        values = [_last(run).get(name) for run in runs]
        change = ""
        if values[0] is not None and values[1] is not None:
            moved = values[1] - values[0]
            change = f"{100 * moved:+.1f} points" if "accuracy" in name else f"{moved:+.3f}"
        rows.append([label(name), *(_spread(run, name) for run in runs), change])
    return Table("Last figures side by side", ["", *names, "difference"], rows)


def _seeds(run: Run, of: str) -> Table:
    names = list(dict.fromkeys(name for seed in run.seeds for name in figures_of(seed["scores"])))
    rows = [
        [
            f"seed {seed.get('seed')}",
            str(seed.get("epoch", "")),
            *(value_of(name, figures_of(seed["scores"]).get(name)) for name in names),
            "collapsed: answers the same to everything" if seed.get("collapsed") else "",
        ]
        for seed in run.seeds
    ]
    rows.append(["mean ± sd", "", *(_spread(run, name) for name in names), ""])
    fell = sum(bool(seed.get("collapsed")) for seed in run.seeds)
    note = f"{fell} of {len(run.seeds)} seeds collapsed." if fell else "No seed collapsed."
    return Table(f"Seeds{of}", ["", "best epoch", *map(label, names), ""], rows, note=note)


def _held_out(run: Run, of: str) -> list[Table]:
    """Every measurement, one row each."""
    rows, names = [], list(dict.fromkeys(n for s in run.streams for _, figures in run.held_out(s) for n in figures))
    for stream in run.streams:
        for step, figures in run.held_out(stream):
            place = f"{stream.replace('-', ' ')}, step {step:,}" if stream else f"step {step:,}"
            rows.append([place, *(value_of(name, figures.get(name)) for name in names)])
    what = "Held out" if run.kind == "pretrain" else "Dev set, epoch by epoch"
    return [Table(f"{what}{of}", ["", *map(label, names)], rows)] if rows else []


def _charts(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    lines = [line for run in runs for stream in run.streams.values() for line in stream]
    terms = list(
        dict.fromkeys(name for line in lines for name in line if name not in NOT_LOSSES and number(line[name]))
    )
    measured = list(dict.fromkeys(name for line in lines for name in figures_of(line.get("held_out"))))
    charts = []
    for term in terms:
        series = _series(runs, names, term, f"{term}_loss")
        title = f"{_loss_name(term)}, training{' and held out' if f'{term}_loss' in measured else ''}"
        charts.append(Chart(title, "nats" if term in _WORDS else "", series))
    shown = [name for name in measured if name.removesuffix("_loss") not in terms and "perplexity" not in name]
    for name in shown:
        percent = 100.0 if "accuracy" in name else 1.0
        title = f"{label(name)}, {'held out' if runs[0].kind == 'pretrain' else 'dev'}"
        charts.append(Chart(title, "%" if percent > 1 else "", _series(runs, names, None, name, percent)))
    for key, title, unit in (
        ("learning_rate", "learning rate", ""),
        ("tokens_per_second", "speed", "tokens/s"),
        ("gradient_norm", "gradient norm before clipping", ""),
    ):
        charts.append(Chart(title, unit, _series(runs, names, key, None), from_zero=True))
    return [chart for chart in charts if chart.series]


def _loss_name(term: str) -> str:
    return "loss" if term == "loss" else f"{label(term)} loss"


def _series(
    runs: Sequence[Run], names: Sequence[str], trained: str | None, held_out: str | None, times: float = 1.0
) -> list[Series]:
    """Training lines and held-out dots of every run and seed; colours by run where there are two, by seed otherwise."""
    found = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        for place, (stream, lines) in enumerate(run.streams.items()):
            who = name if len(runs) > 1 else stream.replace("-", " ")
            colour = index if len(runs) > 1 else place
            parts: list[tuple[str, bool, list[Point]]] = []
            if trained:
                points = [(line["step"], y) for line in lines if (y := number(line.get(trained))) is not None]
                parts.append(("training" if held_out else "", False, points))
            if held_out:
                points = [
                    (step, times * values[held_out]) for step, values in run.held_out(stream) if held_out in values
                ]
                parts.append(("held out" if trained else "", True, points))
            if trained and held_out and not parts[1][2]:
                parts = [("training" if not who else "", False, parts[0][2])]
            for kind, dots, points in parts:
                text = ", ".join(part for part in (who, kind) if part)
                found += [Series(text, points, colour, dots)] if points else []
    return found


def _settings(run: Run) -> Table:
    """Every setting; those that differ from the defaults first and marked."""
    values, defaults = _flat(run.record["settings"]), _flat(_defaults(run.kind))
    differing = [name for name in values if name in defaults and values[name] != defaults[name]]
    rest = [name for name in values if name not in differing]
    rows = [[_spaced(name), values[name], f"default: {defaults[name]}"] for name in differing]
    rows += [
        [_spaced(name), values[name], "" if name in defaults else "not a setting of this version"] for name in rest
    ]
    return Table("Settings", ["", "", ""], rows, frozenset(range(len(differing))), "Marked: differs from the default.")


def _differing(runs: Sequence[Run], names: Sequence[str]) -> Table:
    sides = [_flat({**run.record["settings"], **({"task": _task(run)} if _task(run) else {})}) for run in runs]
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [
        [_spaced(key), *(side.get(key, "–") for side in sides)]
        for key in keys
        if sides[0].get(key) != sides[1].get(key)
    ]
    same = len(keys) - len(rows)
    return Table("Settings that differ", ["", *names], rows, note=f"The other {same} settings are the same.")


def _defaults(kind: str) -> Mapping[str, Any]:
    """The settings of a run for which nothing was asked."""
    settings: type[BaseModel] = PretrainSettings if kind == "pretrain" else FinetuneSettings
    return settings.model_construct().model_dump(mode="json")


def _machine(runs: Sequence[Run], names: Sequence[str]) -> Table:
    sides = []
    for run in runs:
        resolved = run.record.get("resolved") or {}
        numerics = dict(resolved.get("numerics", resolved))
        rate = number(numerics.pop("peak_flops", None))
        side = _flat(numerics) | ({"matrix rate": f"{rate / 1e9:,.0f} GFLOP/s"} if rate else {})
        sessions = run.record.get("sessions") or []
        if len(sessions) > 1:
            side["begun or resumed"] = f"{len(sessions)} times"
        sides.append(side | _flat(run.record.get("versions") or {}))
    return _aligned("Machine and versions", sides, names)


def _data(runs: Sequence[Run], names: Sequence[str]) -> Table:
    sides = []
    for run in runs:
        data = {name: value for name, value in run.record["data"].items() if name != "task" and value}
        places = {f"{name} lies in": value for name, value in (run.record.get("places") or {}).items() if value}
        sides.append(_flat({**data, **places}))
    return _aligned("Data: fingerprints and places", sides, names)


def _aligned(title: str, sides: Sequence[Mapping[str, str]], names: Sequence[str]) -> Table:
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [[_spaced(key), *(side.get(key, "–") for side in sides)] for key in keys]
    return Table(title, ["", *(names if len(names) > 1 else [""])], rows)


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace(".", " · ")


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Nested settings as {name.name: text}; the phases as LENGTH: SHARE."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= _flat(inner, f"{name}.{key}" if name else str(key))
        return found
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


# A report → one HTML file that needs nothing else: style and pictures lie in it, and it fetches nothing.
#
# The template escapes all that it is given (jinja2's autoescape), so that no name or text of a run can become markup.


def page(report: Report) -> str:
    """The page of a report."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("bertwright.reports").joinpath("report.html").read_text("utf-8"))
    return template.render(
        report=report,
        title=" against ".join(head[0] for head in report.heads),
        size=charts,
        made=f"bertwright {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )
