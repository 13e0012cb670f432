"""bound task → baselines beside the result of a run: computed once, kept in run.json, and compared with the model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bertwright.console import say
from bertwright.finetuning.advice import baseline_advice
from bertwright.finetuning.baselines import Baselines, text_baselines, word_baseline
from bertwright.finetuning.choice_baselines import choice_baselines
from bertwright.finetuning.prepare import Prepared
from bertwright.finetuning.question_baselines import question_baselines
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import initial_model
from bertwright.model.folder import SavedModel
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.embedding.metrics import rounded_cosines
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.finite import NotFinite
from bertwright.tasks.inference import Answerable
from bertwright.tasks.metrics import without_collapsed
from bertwright.tasks.multiple_choice.spec import ChoiceTask
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import resolve_device
from bertwright.training.run_folder import RunFolder

COSINE: Final = "cosine of the frozen model"
"""Name of the baseline of pairs with numbers."""
_PAIRS: Final = 1_000
"""Largest number of validation pairs of which the cosine is computed."""
_computed: dict[str, dict[str, Any]] = {}
"""Baselines that this process has computed: the runs of a search or an experiment share them."""


def note_baselines(run: RunFolder, settings: FinetuneSettings, prepared: Prepared) -> None:
    """Compute the baselines on the first validation file, print them, and keep them in the record of the run.

    A resumed run has them already.
    """
    if "baselines" in run.record or not run.writes:
        return
    bound, saved = prepared.bound, prepared.saved
    # Only the cosine depends on the model.
    depends = bound.kind.contrasts or _has_cosine(settings, bound, saved)
    layers = [settings.new_layers, settings.bilstm]
    model = [saved.source, saved.digest, settings.max_length, settings.first_seed, layers] if depends else []
    key = json.dumps([bound.task.model_dump(mode="json"), bound.digests, len(bound.lengths), model], sort_keys=True)
    if key not in _computed:
        baselines = _baselines(settings, bound, saved, prepared.tokenizer)
        _computed[key] = {"metrics": baselines.metrics, "notes": list(baselines.notes)}
        if baselines.metrics:
            values = {name: next(iter(metrics.items())) for name, metrics in baselines.metrics.items()}
            shown = ", ".join(f"{name} {metric} {value:.4f}" for name, (metric, value) in values.items())
            say("; ".join([f"baselines: {shown}", *baselines.notes]))
    run.note(baselines=_computed[key])


def baseline_lines(result: Mapping[str, Any]) -> list[str]:
    """Return a line with the baselines beside a result, and one with advice where the model is not better than them."""
    metric = result["metric"].rpartition(".")[2]
    baselines = result.get("baselines") or {"metrics": {}}
    values = {name: metrics[metric] for name, metrics in baselines["metrics"].items() if metric in metrics}
    if not values:
        return []
    lines = [f"baselines: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}"]
    lines[0] += "".join(f"; {note}" for note in baselines["notes"])
    best = max(values, key=lambda name: values[name])
    if result["mean"] <= values[best]:
        lines.append(
            f"The model is not better than the baseline '{best}'. {baseline_advice(result, is_cosine=best == COSINE)}"
        )
    return lines


def task_baselines(task: Any, train: Any, validation: Any) -> Baselines:
    """Return the baselines of a task that need no model, on validation rows of its kind."""
    if isinstance(task, TaggingTask):
        return word_baseline(task, train, validation)
    if isinstance(task, ChoiceTask):
        return choice_baselines(train, validation)
    if isinstance(task, SpanTask):
        return question_baselines(validation)
    return text_baselines(task, train, validation)


def _baselines(settings: FinetuneSettings, bound: BoundTask, saved: SavedModel, tokenizer: BaseTokenizer) -> Baselines:
    if isinstance(bound.task, VectorTask):
        return Baselines({COSINE: _untrained(settings, bound, saved)})
    validation = next(iter(bound.validation.values()))[0]
    baselines = task_baselines(bound.task, bound.train[0], validation)
    if not _has_cosine(settings, bound, saved):
        return baselines
    metrics, notes = _cosine(settings, bound.task, validation, saved, tokenizer)
    measured = {COSINE: metrics} if metrics else {}
    return Baselines({**baselines.metrics, **measured}, (*baselines.notes, *notes))


def _untrained(settings: FinetuneSettings, bound: BoundTask, saved: SavedModel) -> dict[str, float]:
    """Return the validation metrics of the vectors with which the first seed starts."""
    model = initial_model(settings, bound, saved, settings.first_seed).to(resolve_device(settings.device))
    return without_collapsed(bound.evaluate(model))


def _has_cosine(settings: FinetuneSettings, bound: BoundTask, saved: SavedModel) -> bool:
    """Return whether the task is numbers for pairs of texts, and the model begins with all of its weights."""
    is_whole = saved.weights is not None and not settings.new_layers and not settings.bilstm
    task = bound.task
    return is_whole and isinstance(task, ClassificationTask) and task.kind == "regression" and len(task.text) == 2


def _cosine(
    settings: FinetuneSettings,
    task: ClassificationTask,
    validation: TextExamples,
    saved: SavedModel,
    tokenizer: BaseTokenizer,
) -> tuple[dict[str, float], Sequence[str]]:
    """Return the metrics of the cosine of the model's vectors of both texts, and a note where only some pairs count."""
    assert validation.texts_b is not None
    assert validation.targets is not None
    total = len(validation.texts_a)
    notes = [f"the cosine is that of the first {_PAIRS:,} of {total:,} pairs"] if total > _PAIRS else []
    encoder = SentenceEncoder(Answerable(**vars(saved), device=settings.device), tokenizer)
    try:
        vectors = [encoder.vectors(texts[:_PAIRS]) for texts in (validation.texts_a, validation.texts_b)]
    except NotFinite as error:
        return {}, [f"there is no cosine of the frozen model: {error}"]
    return score_values(task, rounded_cosines(*vectors), validation.targets[:_PAIRS]), notes
