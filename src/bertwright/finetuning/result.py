"""results of all seeds → the run's model with its card, its record, and the text that is printed."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.files import copy_folder, read_object
from bertwright.finetuning.advice import calibration_lines, validation_lines
from bertwright.finetuning.prepare import Prepared
from bertwright.finetuning.run_baselines import baseline_lines
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.card import finetuning_card, origin
from bertwright.model.folder import CARD, model_folder
from bertwright.model.hf_config import read_description
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.errors import VALIDATION
from bertwright.training.run_folder import RunFolder


def finish_run(
    run: RunFolder,
    settings: FinetuneSettings,
    prepared: Prepared,
    seeds: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Copy the best seed's model, with a model card, to the run folder; return the result of all seeds."""
    bound = prepared.bound
    metric = next(iter(seeds[0]["scores"]))
    values = [result["scores"][metric] for result in seeds]
    best = max(seeds, key=lambda result: result["scores"][metric])
    result = {
        "task": bound.task.name,
        "metric": metric,
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
        "scores": values,
        "collapsed": [seed["seed"] for seed in seeds if seed["collapsed"]],
        "seeds": list(seeds),
        "start": run.record["data"]["model"],
        "unit": bound.kind.unit,
        "validation_rows": len(next(iter(bound.validation.values()))[0]),
        "calibration_error": _calibration_error(run.folder / f"seed-{best['seed']}" / VALIDATION),
        "baselines": run.record["baselines"],
        "model": str(run.model),
        "out": str(run.folder),
    }
    with model_folder(run.model) as folder:
        copy_folder(run.folder / f"seed-{best['seed']}" / "model", folder)
        described = read_description(folder / "config.json")
        comparison = bound.compare(folder)
        card = finetuning_card(
            settings,
            described.config,
            chosen=run.record["chosen"],
            task=bound.task.name,
            predicts_number=isinstance(bound.task, ClassificationTask) and bound.task.kind == "regression",
            architecture=described.architecture or "",
            labels=described.labels,
            digests=bound.digests,
            rows=len(bound.lengths),
            max_length=settings.max_length,
            result=result,
            began=origin(prepared.saved.source, prepared.digests["weights"]),
            more_data=comparison.data,
            more_numbers=(*_early_ends(seeds, settings), *validation_lines(result), *comparison.numbers),
        )
        (folder / CARD).write_text(card, "utf-8", newline="\n")
    result |= comparison.result
    run.note(finished=True, result=result)
    return {**result, "text": _text(result)}


def finished_result(run: RunFolder) -> dict[str, Any]:
    """Return the result of a finished run with its present paths: the folder may have been moved."""
    stored = run.record["result"]
    seeds = [{**seed, "model": str(run.folder / f"seed-{seed['seed']}" / "model")} for seed in stored["seeds"]]
    result = {**stored, "seeds": seeds, "model": str(run.model), "out": str(run.folder)}
    return {**result, "text": _text(result)}


def _early_ends(seeds: Sequence[Mapping[str, Any]], settings: FinetuneSettings) -> list[str]:
    """Return the line of the model card on seeds that ended before their last epoch; none where all were trained."""
    trained = [len(seed["epochs"]) for seed in seeds]
    if settings.patience is None or min(trained) == settings.epochs:
        return []
    return [
        f"epochs trained, by seed: {', '.join(map(str, trained))} of {settings.epochs} (patience {settings.patience})"
    ]


def _calibration_error(review: Path) -> float | None:
    """Return the calibration error of the best epoch of a seed; None for a task without labels."""
    first = next(iter(read_object(review).values()))
    return first.get("calibration_error") if isinstance(first, dict) else None


def _text(result: Mapping[str, Any]) -> str:
    value = f"{result['mean']:.4f}"
    if len(result["scores"]) > 1:
        value += f" ± {result['sd']:.4f} ({', '.join(f'{score:.4f}' for score in result['scores'])})"
    else:
        value += " (one seed; --seeds 3 shows how much it varies)"
    lines = [
        f"{result['task']} dev {result['metric']}: {value}",
        *validation_lines(result),
        *baseline_lines(result),
        *calibration_lines({"calibration_error": result.get("calibration_error") or 0.0}, model=result["model"]),
        f"best seed's model: {result['model']}",
    ]
    return "\n".join(lines)
