"""The choice of a learning rate by the losses of trials, and the loss of a trial that ended, diverged or goes on."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bertwright.experiments.jobs import PretrainedModel, pretraining_settings
from bertwright.experiments.rates import DIVERGED, RateTrial, choose_factor
from bertwright.experiments.scales import SCALES


@pytest.mark.parametrize(
    ("losses", "factor"),
    [
        ({0.5: 3.2, 1.0: 3.1, 2.0: 3.3}, 1.0),
        ({2.0: 3.0, 1.0: 3.0, 0.5: 3.4}, 1.0),  # of equal losses the smaller rate
        ({0.5: 3.2, 1.0: math.inf, 2.0: math.inf}, 0.5),  # diverged
        ({0.5: 3.2, 1.0: None, 2.0: 3.3}, None),  # a trial is missing
        ({0.5: math.inf, 1.0: math.inf}, None),
    ],
)
def test_the_lowest_loss_chooses_when_all_trials_have_ended(
    losses: dict[float, float | None], factor: float | None
) -> None:
    assert choose_factor(losses) == factor


def trial(folder: Path, system: str, record: dict[str, Any] | None) -> RateTrial:
    settings = pretraining_settings(SCALES["smoke"], {"system": system}, seed=100)
    folder.mkdir(exist_ok=True)
    if record is not None:
        (folder / "run.json").write_text(json.dumps(record))
    return RateTrial(1.0, PretrainedModel(settings, Path("wiki"), True, folder))


def test_the_loss_is_that_of_masked_lm_and_for_electra_that_of_its_discriminator(tmp_path: Path) -> None:
    ended = {"finished": True, "result": {"held_out": {"mlm_loss": 4.5, "rtd_loss": 0.4}}}
    assert trial(tmp_path / "bert", "bert", ended).loss == 4.5
    assert trial(tmp_path / "electra", "electra", ended).loss == 0.4
    assert trial(tmp_path / "begun", "bert", {"finished": False}).loss is None
    assert trial(tmp_path / "none", "bert", None).loss is None


def test_a_trial_that_diverged_has_an_infinite_loss_and_its_reason(tmp_path: Path) -> None:
    diverged = trial(tmp_path / "bert", "bert", {"finished": False})
    (tmp_path / "bert" / DIVERGED).write_text(json.dumps({"reason": "step 9: the loss is nan"}))
    assert (diverged.loss, diverged.reason) == (math.inf, "step 9: the loss is nan")
