"""model folder → its pipeline: that of the task that it was fine-tuned for, [MASK], or vectors."""

from typing import Any, Final, Literal

from bertwright.model.folder import SavedModel
from bertwright.objectives.masked_lm import has_masked_lm, second_objective
from bertwright.serving.encoder_pipelines import AttentionPipeline, FillPipeline, NextSentencePipeline, VectorPipeline
from bertwright.serving.pipeline import Pipeline
from bertwright.serving.scoring import ScorePipeline
from bertwright.serving.task_pipelines import (
    ChoicePipeline,
    ClassificationPipeline,
    QuestionPipeline,
    TaggingPipeline,
)
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.kinds import task_of
from bertwright.tasks.multiple_choice.spec import ChoiceTask
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.text.base_tokenizer import BaseTokenizer

Use = Literal["fill", "vectors", "next sentence", "inside", "score", "explain"]
"""Use of a model beside its task; all but explain do not depend on the task that it was fine-tuned for."""

_TASKS: Final[dict[type[TaskSpec], Any]] = {
    ClassificationTask: ClassificationPipeline,
    ChoiceTask: ChoicePipeline,
    SpanTask: QuestionPipeline,
    TaggingTask: TaggingPipeline,
}
_USES: Final[dict[Use, Any]] = {
    "fill": FillPipeline,
    "vectors": VectorPipeline,
    "next sentence": NextSentencePipeline,
    "inside": AttentionPipeline,
    "score": ScorePipeline,
}


def open_pipeline(saved: SavedModel, tokenizer: BaseTokenizer) -> Pipeline[Any, Any]:
    """Return the pipeline that a model folder was trained for; an encoder without a head gives vectors."""
    if "task" not in saved.extra:
        return open_use(saved, tokenizer, "fill" if has_masked_lm(saved) else "vectors")
    task = task_of(saved)
    pipeline: Pipeline[Any, Any] = next(kind for spec, kind in _TASKS.items() if isinstance(task, spec))(
        saved, tokenizer
    )
    return pipeline


def open_use(saved: SavedModel, tokenizer: BaseTokenizer, use: Use) -> Pipeline[Any, Any]:
    """Return the pipeline for a use. Raises InputError where the model cannot be used so."""
    pipeline: Pipeline[Any, Any] = _USES[use](saved, tokenizer)
    return pipeline


def has_next_sentence(saved: SavedModel) -> bool:
    """Return whether a model folder has the head that tells whether a text follows another."""
    return "task" not in saved.extra and second_objective(saved) == "next"
