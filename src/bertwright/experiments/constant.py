"""rows of a task → metrics of the same answer to every row: the floor that a model must exceed to have learned."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.errors import RunFailed
from bertwright.finetuning.baselines import majority_baseline
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.metrics import by_file
from bertwright.tasks.multiple_choice.spec import Choices, ChoiceTask
from bertwright.tasks.question_answering.data import Questions
from bertwright.tasks.question_answering.score import score_answers, squad_metrics
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import TaggingTask, score_tags


def constant_answer(task: TaskSpec, folder: Path) -> dict[str, float]:
    """Return the validation metrics of the commonest answer of the training rows, under the names of a fine-tuning.

    The answer is the commonest label, the mean number, the commonest position of the right choice, the commonest tag
    for every word, or no answer to a question. Raises InputError for files that cannot be read.
    """
    if isinstance(task, ClassificationTask):
        data = CLASSIFICATION.read(task, folder)
        return by_file({name: majority_baseline(data.task, data.train, part) for name, part in data.validation.items()})
    rows = kind_of(task).read(task, folder)
    (validation,) = rows.validation.values()
    if isinstance(task, ChoiceTask):
        return _constant_choice(rows.train, validation)
    if isinstance(task, TaggingTask):
        return _constant_tag(rows.task, rows.train, validation)
    if isinstance(task, SpanTask):
        return _no_answer(validation)
    raise RunFailed(f"majority: expected a task of the paper, got {task.name}")


def _constant_choice(train: Choices, validation: Choices) -> dict[str, float]:
    assert train.targets is not None
    assert validation.targets is not None
    position = int(np.bincount(train.targets).argmax())
    return {"accuracy": float(np.mean(validation.targets == position))}


def _constant_tag(task: TaggingTask, train: Sentences, validation: Sentences) -> dict[str, float]:
    assert train.tags is not None
    tag = Counter(chain.from_iterable(train.tags)).most_common(1)[0][0]
    metrics = score_tags(task, [[tag] * len(words) for words in validation.words], validation)
    return {name: value for name, value in metrics.items() if "." not in name}


def _no_answer(validation: Questions) -> dict[str, float]:
    scores = score_answers(validation, [""] * len(validation.items))
    metrics: dict[str, Any] = squad_metrics(scores, null=validation.version == "2.0")
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
