"""Settings that arms change, and settings of a scale that their system cannot have."""

import pytest

from bertwright.experiments.jobs import pretraining_settings, unsupported_settings
from bertwright.experiments.scales import SCALES, get_scale
from bertwright.experiments.tables.training_length import BATCH_SIZE
from bertwright.training.settings import MUON_RATE


@pytest.mark.parametrize("scale", sorted(SCALES))
def test_every_rate_goes_with_the_root_of_the_rows(scale: str) -> None:
    base = get_scale(scale)
    settings = {arm.name: pretraining_settings(base, arm.pretraining, 0) for arm in BATCH_SIZE.arms(base)}
    one, four = settings["batch-1"], settings["batch-4"]
    assert four.batch_size == 4 * one.batch_size
    assert four.optimizer.learning_rate == pytest.approx(2 * one.optimizer.learning_rate)
    times = 2 if one.optimizer.method == "muon" else 1
    assert four.optimizer.muon_rate == pytest.approx(times * one.optimizer.muon_rate)
    assert four.steps == pytest.approx(one.steps / 4, abs=1)


def test_an_lstm_takes_what_it_can_of_the_scale() -> None:
    scale = get_scale("tiny")
    lstm = {"system": "lstm-left"}
    assert unsupported_settings(scale, {}) == []
    assert unsupported_settings(scale, lstm) == [("start",), ("optimizer", "method")]
    settings = pretraining_settings(scale, lstm, 0)
    assert (settings.optimizer.method, settings.start) == ("adamw", "random")
    assert settings.optimizer.learning_rate == scale.pretraining["optimizer"]["learning_rate"]
    bert = pretraining_settings(scale, {}, 0)
    assert (bert.optimizer.method, bert.start) == ("muon", "matching")
    assert bert.optimizer.muon_rate == MUON_RATE
