"""predictions of single rows → standard error of a difference of arms over other validation rows.

Two models that read the same rows often err on the same ones. So the difference varies less over rows than their scores
tell, and is computed row by row.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bertwright.experiments.jobs import Finetuning
from bertwright.experiments.plan import ExperimentPlan, Job
from bertwright.experiments.scores import scores_last_epoch
from bertwright.experiments.spec import Column

_SIGNS: Final = (1.0, -1.0, -1.0, 1.0)
"""Signs of the arms of an interaction; the first two are those of a difference."""


def paired_row_error(plan: ExperimentPlan, column: Column, arms: Sequence[str]) -> float | None:
    """Return the standard error of a difference over other rows, in points; None where the records do not tell it.

    arms: names of two arms, or of the four of an interaction. The metric must be the mean of the scores of the rows,
    the scores must be those of the last epoch, and every finished fine-tuning must have kept its predictions.
    """
    name = column.metric.rpartition(".")[2]
    if not (name == "accuracy" or (name == "f1" and column.factor == 1.0)) or not scores_last_epoch(plan):
        return None
    scores = [_mean_scores(plan.jobs.get((arm, column.name), {}), column) for arm in arms]
    known = [each for each in scores if each is not None]
    if len(known) < len(arms) or len({len(each) for each in known}) > 1:
        return None
    difference = sum(sign * each for sign, each in zip(_SIGNS, known, strict=False))
    return 100 * float(np.std(difference, ddof=1)) / math.sqrt(len(known[0]))


def _mean_scores(jobs: Mapping[tuple[int, int], Job], column: Column) -> NDArray[np.float64] | None:
    """Return the mean score of each row [N] over the finished fine-tunings of an arm; None where one has none."""
    part = column.metric.rpartition(".")[0] or "dev"
    finished = [job for job in jobs.values() if job.is_finished]
    rows = [job.row_scores.get(part) for job in finished if isinstance(job, Finetuning)]
    known = [np.asarray(each, dtype=np.float64) for each in rows if each]
    if not known or len(known) < len(finished) or len({len(each) for each in known}) > 1 or len(known[0]) < 2:
        return None
    means: NDArray[np.float64] = np.mean(known, axis=0)
    return means
