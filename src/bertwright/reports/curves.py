"""lines of metrics.jsonl → the charts of a report: losses and metrics over steps and, where known, over words."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertwright.reports.charts import Axis, Chart, Series
from bertwright.reports.runs import NOT_LOSSES, Run, metrics_of, number

OBJECTIVES = {"mlm": "masked LM", "nsp": "next sentence", "lm": "language model", "rtd": "replaced token"}
"""Names of the losses of pre-training → those of the objectives."""


def metric_title(name: str) -> str:
    """Return the name of a metric in words: mlm_loss → masked LM loss."""
    return " ".join(OBJECTIVES.get(part, part) for part in name.replace(".", "_").split("_"))


def loss_name(term: str) -> str:
    """Return the name of a training loss in words."""
    return "loss" if term == "loss" else f"{metric_title(term)} loss"


def run_charts(runs: Sequence[Run], names: Sequence[str], pairs: Sequence[Chart] = ()) -> list[Chart]:
    """Return the charts of one run or of two; pairs: charts about minimal pairs, which follow the other metrics.

    Losses and bits per character are drawn again over the words seen, for the runs whose lines have them.
    """
    lines = [line for run in runs for stream in run.streams.values() for line in stream]
    terms = list(
        dict.fromkeys(name for line in lines for name in line if name not in NOT_LOSSES and number(line[name]))
    )
    measured = list(dict.fromkeys(name for line in lines for name in metrics_of(line.get("held_out"))))
    charts = [*_losses(runs, names, terms, measured)]
    for name in measured:
        if name.removesuffix("_loss") not in terms and "perplexity" not in name:
            factor, unit = (100.0, "%") if "accuracy" in name else (1.0, "")
            title = f"{metric_title(name)}, validation"
            charts.append(Chart(title, unit, _series(runs, names, metric=name, factor=factor)))
    if any(number(line.get("words")) for line in lines):
        charts += _losses(runs, names, terms, measured, over="words")
        for name in measured:
            if name.endswith("bits_per_character"):
                series = _series(runs, names, metric=name, over="words")
                charts.append(Chart(f"{metric_title(name)}, validation, over words seen", "", series, over="words"))
    charts += [
        *pairs,
        Chart("learning rate", "", _series(runs, names, key="learning_rate"), from_zero=True),
        Chart("speed", "tokens/s", _series(runs, names, key="tokens_per_second"), from_zero=True),
        Chart("gradient norm before clipping", "", _series(runs, names, key="gradient_norm"), from_zero=True),
    ]
    return [chart for chart in charts if chart.series]


def _losses(
    runs: Sequence[Run], names: Sequence[str], terms: Sequence[str], measured: Sequence[str], *, over: Axis = "step"
) -> list[Chart]:
    """Return a chart for each training loss, with the validation loss of the same name."""
    charts = []
    for term in terms:
        series = _series(runs, names, key=term, metric=f"{term}_loss", over=over)
        validation = " and validation" if f"{term}_loss" in measured else ""
        words = ", over words seen" if over == "words" else ""
        unit = "nats" if term in OBJECTIVES else ""
        charts.append(Chart(f"{loss_name(term)}, training{validation}{words}", unit, series, over=over))
    return charts


def _series(
    runs: Sequence[Run],
    names: Sequence[str],
    *,
    key: str = "",
    metric: str = "",
    factor: float = 1.0,
    over: Axis = "step",
) -> list[Series]:
    """Return the lines of a chart, for every run and seed; two runs have a colour each, else each seed has one.

    key: of the training lines, empty for none. metric: of the validations, empty for none; multiplied by `factor`.
    over: key of the horizontal axis, `step` or `words`.
    """
    series = []
    for run_number, (run, name) in enumerate(zip(runs, names, strict=True)):
        for seed_number, (stream, lines) in enumerate(run.streams.items()):
            owner = name if len(runs) > 1 else stream.replace("-", " ")
            colour = run_number if len(runs) > 1 else seed_number
            placed = [(x, line) for line in lines if (x := number(line.get(over))) is not None]
            training = [(x, y) for x, line in placed if (y := number(line.get(key))) is not None]
            validation = [(x, factor * value) for x, line in placed if (value := _validated(line, metric)) is not None]
            both = bool(key and metric) and (bool(validation) or not owner)
            for kind, points in (("training", training), ("validation", validation)):
                text = ", ".join(part for part in (owner, kind if both else "") if part)
                series += [Series(text, points, colour, kind == "validation")] if points else []
    return series


def _validated(line: Mapping[str, Any], metric: str) -> float | None:
    """Return a validation metric of a line; None where the line does not have it."""
    return metrics_of(line.get("held_out")).get(metric)
