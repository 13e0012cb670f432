"""run and measurements of an entry → its budget, learning curve, model card and the table that is printed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.babylm.request import EntryRequest
from bertwright.console import say, table_lines
from bertwright.corpus.manifest import read_manifest
from bertwright.files import copy_folder, read_object_if_there
from bertwright.model.folder import CARD, model_folder, open_model
from bertwright.model.hf_weights import num_parameters
from bertwright.model.system import NAMES
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.figures import new_figure, save_figure
from bertwright.reports.runs import metrics_of, read_run
from bertwright.text.word_counts import MILLION

RESULTS, CURVE = "results.json", "curve.png"
_BITS = "mlm_bits_per_character"
_TITLES = {"blimp": "BLiMP", "supplement": "supplement"}
_AXES = {
    **{kind: f"accuracy, {title}" for kind, title in _TITLES.items()},
    "phenomena": "accuracy, phenomena of BLiMP",
    "bits_per_character": "bits per character",
}
"""Quantities of the learning curve → names of their axes."""
_PHENOMENON_COLOURS = ("#1f4e8c", "#c2571a", "#2a7d4f", "#8a2f6b", "#7a6a00", "#444444")
"""Colours of the lines of phenomena; those after the sixth are dashed."""
_Points = Sequence[Sequence[float]]


def with_earlier(request: EntryRequest, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results on minimal pairs with those of checkpoints that were measured and whose folders are gone."""
    path = request.out / RESULTS
    earlier = read_object_if_there(path)
    merged = {part: {**earlier.get(part, {}), **results[part]} for part in ("checkpoints", "checkpoint_phenomena")}
    by_words = {
        part: dict(sorted(values.items(), key=lambda item: int(item[0].rstrip("M")))) for part, values in merged.items()
    }
    if gone := [name for name in by_words["checkpoints"] if name not in results["checkpoints"]]:
        say(f"checkpoints {', '.join(gone)}: are no longer there; what was measured of them before is kept")
    return {**results, **by_words}


def budget_of(request: EntryRequest, corpus: Path) -> dict[str, Any]:
    """Return all that an entry spent: words, documents and tokens of its text, words seen, parameters and minutes.

    corpus: its corpus folder. The minutes are those of the training steps, evaluations left out. The tokens of the run
    have padding.
    """
    manifest, run = read_manifest(corpus), read_run(request.run)
    result, settings = run.record["result"], PretrainSettings.model_validate(run.record["settings"])
    seconds = run.speed.seconds if run.speed else None
    weights = open_model(str(request.run)).weights or {}
    return {
        "text": {
            **{name: getattr(manifest, name) for name in ("words", "documents", "tokens")},
            "sources": [each.model_dump() for each in manifest.sample.drawn] if manifest.sample else [],
            "held_out": settings.held_out_share,
            "vocabulary": manifest.vocab_size,
        },
        "words": result.get("words"),
        "epochs": result["epochs"],
        "steps": result["steps"],
        "tokens": round(result["steps"] * settings.tokens_per_step),
        "system": settings.system,
        "size": settings.size,
        "parameters": num_parameters(weights),
        "minutes": None if seconds is None else round(seconds / 60, 1),
        "validation": result["held_out"],
    }


def learning_curve(request: EntryRequest, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: [[words seen, value], …]}: accuracies on minimal pairs, and bits per character of validation.

    `phenomena` has a curve for each phenomenon of BLiMP: {phenomenon: [[words seen, accuracy], …]}.
    """
    words = {name: int(name.rstrip("M")) * MILLION for name in results["checkpoints"]}
    curve: dict[str, Any] = {
        kind: [[words[name], values[kind]] for name, values in results["checkpoints"].items() if kind in values]
        for kind in request.pairs
    }
    of_phenomena: Mapping[str, Mapping[str, float]] = results["checkpoint_phenomena"]
    curve["phenomena"] = {
        phenomenon: [[words[name], values[phenomenon]] for name, values in of_phenomena.items() if phenomenon in values]
        for phenomenon in next(iter(of_phenomena.values()), {})
    }
    lines = read_run(request.run).streams[""]
    measured = [(line["words"], metrics_of(line["held_out"])) for line in lines if "held_out" in line]
    curve["bits_per_character"] = [[seen, metrics[_BITS]] for seen, metrics in measured if _BITS in metrics]
    return {name: points for name, points in curve.items() if points}


def draw_learning_curve(path: Path, curve: Mapping[str, Any]) -> None:
    """Draw the learning curve, a panel for each quantity; print a message where matplotlib is absent."""
    if not curve:
        return
    if not (figure := new_figure("a learning curve", 7, 3 * len(curve))):
        return
    panels = figure.subplots(len(curve), squeeze=False)[:, 0]
    for axes, (name, points) in zip(panels, curve.items(), strict=True):
        lines: Mapping[str, _Points] = points if isinstance(points, Mapping) else {"": points}
        for number, (phenomenon, line) in enumerate(lines.items()):
            colour = _PHENOMENON_COLOURS[number % len(_PHENOMENON_COLOURS)] if phenomenon else "#1f4e8c"
            style = "-" if number < len(_PHENOMENON_COLOURS) else "--"
            axes.plot(*zip(*line, strict=True), style, color=colour, marker="o", markersize=3, label=phenomenon)
        if len(lines) > 1:
            axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set(xlabel="words seen", ylabel=_AXES[name])
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def write_model(request: EntryRequest, results: Mapping[str, Any]) -> None:
    """Write the folder `model` of an entry: that of the run, and a card with budgets and measurements."""
    with model_folder(request.out / "model") as folder:
        copy_folder(request.run / "model", folder)
        card = (folder / CARD).read_text("utf-8")
        (folder / CARD).write_text(f"{card}\n{_card_sections(request, results)}", "utf-8", newline="\n")


def _card_sections(request: EntryRequest, results: Mapping[str, Any]) -> str:
    """Return the sections of the card about the budget and the measurements."""
    lines = ["## Budget", "", *(f"- {line}" for line in _budget_lines(request, results["budget"]))]
    if rows := _measured(results):
        lines += ["", "## Measurements", "", "| data | value |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in rows]
        lines += [line for note in _notes(request, results) for line in ("", note)]
    if checkpoints := {name: values for name, values in results.get("checkpoints", {}).items() if values}:
        limit = request.entry.checkpoint_pairs
        part = f"the first {limit:,} pairs of each paradigm" if limit else "all pairs"
        kinds = list(dict.fromkeys(kind for values in checkpoints.values() for kind in values))
        head = ["words seen", *(_TITLES[kind] for kind in kinds)]
        lines += ["", f"Checkpoints, measured on {part}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name, values in checkpoints.items():
            lines.append(f"| {name} | {' | '.join(_percent(values.get(kind)) for kind in kinds)} |")
    return "\n".join(lines) + "\n"


def _budget_lines(request: EntryRequest, budget: Mapping[str, Any]) -> list[str]:
    """Return a line for each budget."""
    text = budget["text"]
    sources = [
        f"text of {each['name'] or ', '.join(request.corpus)}: {each['words']:,} of its {each['of_words']:,} words, "
        f"{each['documents']:,} documents"
        + (f"; {each['words'] / text['words']:.1%} of the text" if len(text["sources"]) > 1 else "")
        for each in text["sources"]
    ]
    sources = sources or [f"text: the corpus {', '.join(request.corpus)}"]
    minutes = "not measured" if budget["minutes"] is None else f"{budget['minutes']:,} minutes"
    return [
        f"words of text: {text['words']:,} in {text['documents']:,} documents; {text['held_out']:.2%} of the documents "
        "are validation data",
        *sources,
        f"words seen, repeats counted: {budget['words']:,}; the text was read {budget['epochs']:g} times",
        f"tokens: {text['tokens']:,} of the text, {budget['tokens']:,} in all steps with padding",
        f"vocabulary: {text['vocabulary']:,} pieces"
        + ("" if request.built_corpus else ", learned from the words of text alone"),
        f"parameters: {budget['parameters']:,}; {NAMES[budget['system']]} {budget['size']}",
        f"training: {budget['steps']:,} steps, {minutes}",
    ]


def _measured(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) of each measurement of the final model."""
    rows = []
    for kind, title in _TITLES.items():
        if metrics := results.get(kind):
            rows.append((f"{title}, mean of the paradigms", _percent(metrics["accuracy"])))
    for name, result in results.get("glue", {}).items():
        spread = f" ± {result['sd']:.4f}" if len(result["scores"]) > 1 else ""
        rows.append((f"{name}, {result['metric']}", f"{result['mean']:.4f}{spread}"))
    if _BITS in (validation := results["budget"]["validation"]):
        rows.append(("bits per character, masked LM, validation", f"{validation[_BITS]:.3f}"))
    return rows


def _notes(request: EntryRequest, results: Mapping[str, Any]) -> list[str]:
    """Return sentences about the measurements of the final model that there are."""
    notes = []
    if kinds := [kind for kind in _TITLES if results.get(kind)]:
        notes.append(f"Minimal pairs: masking `{request.entry.masking}`, fp32.")
    for kind in kinds:
        title, metrics, ids = _TITLES[kind], results[kind], request.pairs[kind][1]
        notes.append(f"{title}: {metrics['pairs']:,} pairs{f', those that {ids.name} names' if ids else ''}.")
        if absent := metrics["absent"]:
            notes.append(f"{title}: its mean lacks the paradigms {', '.join(absent)}, which the data do not have.")
        if ties := metrics["ties"]:
            notes.append(f"{title}: {ties:,} pairs have two equal scores, and count as wrong.")
        if same := metrics["same"]:
            notes.append(f"{title}: these pairs have the same sentence twice: {', '.join(same)}.")
    if results.get("glue"):
        notes.append(
            "GLUE: on the dev files, where the best epoch was chosen, so that the numbers are a little too good."
        )
    others = {name: result["data"] for name, result in results.get("glue", {}).items() if "data" in result}
    notes += [f"{name}: other data than GLUE's: {note}." for name, note in others.items()]
    return notes


def entry_text(request: EntryRequest, results: Mapping[str, Any]) -> str:
    """Return the budget, the measurements and the list of outputs for a terminal."""
    kinds = [*request.pairs]
    table = [("words seen", *(_TITLES[kind] for kind in kinds))]
    table += [
        (name, *(_percent(values.get(kind)) for kind in kinds)) for name, values in results["checkpoints"].items()
    ]
    lines = [*_budget_lines(request, results["budget"]), "", *table_lines(_measured(results), left=1)]
    lines += ["", *notes] if (notes := _notes(request, results)) else []
    if kinds and len(table) > 1:
        lines += ["", *table_lines(table, left=1)]
    names = ("checkpoints/", RESULTS, CURVE, "pretraining/")
    folders = ["model/ (final)", *(name for name in names if (request.out / name).exists())]
    return "\n".join([*lines, "", f"{request.out} has {', '.join(folders)}"])


def _percent(fraction: float | None) -> str:
    """Return a fraction in percent; – where it was not measured."""
    return "–" if fraction is None else f"{100 * fraction:.2f}"
