"""losses of shorter trials → the learning rate of each arm, and its steps where all arms train for the same minutes.

At equal time an arm with faster steps gets more of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bertwright.experiments.jobs import PretrainedModel
from bertwright.experiments.spec import RateSearch
from bertwright.files import read_object_if_there
from bertwright.model.system import MASKED_LM_SYSTEMS, REPLACED_TOKEN_SYSTEMS
from bertwright.pretraining.measure import Timings

DIVERGED: Final = "diverged.json"
"""File in the folder of a trial whose loss was not finite or jumped up; it has the reason."""
TRIAL_SEED: Final = 100
"""Seed of all trials, which no reported pre-training has."""


def choosing_loss(system: str) -> str:
    """Return the validation loss that chooses the learning rate of a system: for ELECTRA, its discriminator's."""
    if system in REPLACED_TOKEN_SYSTEMS:
        return "rtd_loss"
    return "mlm_loss" if system in MASKED_LM_SYSTEMS else "lm_loss"


@dataclass(frozen=True)
class RateTrial:
    """A shorter pre-training with one learning rate, the scale's times `factor`."""

    factor: float
    model: PretrainedModel

    @property
    def loss(self) -> float | None:
        """Validation loss in nats at the end; infinite where the trial diverged, None where it is not finished."""
        if (self.model.folder / DIVERGED).is_file():
            return math.inf
        if not self.model.is_finished:
            return None
        return float(self.model.result["held_out"][choosing_loss(self.model.settings.system)])

    @property
    def reason(self) -> str:
        """Reason why the trial diverged; empty where it did not."""
        return str(read_object_if_there(self.model.folder / DIVERGED).get("reason", ""))


def choose_factor(losses: Mapping[float, float | None]) -> float | None:
    """Return the factor with the lowest loss, the smallest of equal ones.

    losses: loss of each factor, None where its trial is not finished. None is returned while one is missing, and where
    every trial diverged.
    """
    known = {factor: loss for factor, loss in losses.items() if loss is not None}
    if len(known) < len(losses) or not any(map(math.isfinite, known.values())):
        return None
    return min(sorted(known), key=lambda factor: known[factor])


@dataclass(frozen=True)
class ArmRates:
    """Speed, steps and trials of an arm. In a search at equal time both are None before the speed is measured.

    In a search at the scale's steps no speed is measured.

    factor: factor of the scale's learning rates that the arm gets; None where it was not chosen when the plan was made.
    Another process may finish the last trial later. The arm then has no steps in this plan.
    """

    speed: Timings | None
    steps: int | None
    trials: tuple[RateTrial, ...]
    factor: float | None


@dataclass(frozen=True)
class SearchedRates:
    """The search for learning rates, and speed, steps and trials of each arm by name. threads: by arm."""

    search: RateSearch
    arms: Mapping[str, ArmRates]
    threads: Mapping[str, int]

    @property
    def trials(self) -> list[RateTrial]:
        """All trials that have not diverged."""
        return [trial for searched in self.arms.values() for trial in searched.trials if not trial.reason]

    def is_settled(self, arm: str) -> bool:
        """Return whether the steps and the learning rate of an arm are known; a baseline has neither."""
        searched = self.arms.get(arm)
        return searched is None or (searched.steps is not None and searched.factor is not None)

    def seconds(self, model: PretrainedModel) -> float:
        """Return the seconds of a pre-training or a trial, for a search at equal time."""
        assert self.search.minutes is not None
        is_trial = any(trial.model.folder == model.folder for trial in self.trials)
        return 60 * self.search.minutes * (self.search.rate_share if is_trial else 1.0)
