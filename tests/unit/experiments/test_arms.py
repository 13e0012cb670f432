"""Settings that arms change, settings of a scale that their system cannot have, and the order of the arms."""

import pytest

from bertwright.experiments.jobs import pretraining_settings, unsupported_settings
from bertwright.experiments.scales import SCALES, get_scale
from bertwright.experiments.spec import Arm
from bertwright.experiments.tables.arms import NO_NSP
from bertwright.experiments.tables.glue import TABLE_1
from bertwright.experiments.tables.model_size import TABLE_6
from bertwright.experiments.tables.squad import TABLE_2
from bertwright.experiments.tables.swag import TABLE_4
from bertwright.experiments.tables.training_length import BATCH_SIZE, FIGURE_5
from bertwright.model.config import size_config
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


@pytest.mark.parametrize("scale", sorted(SCALES))
def test_sizes_are_in_the_order_of_their_weights(scale: str) -> None:
    """The weights of a layer are 12 squares of its width, however many heads it has."""
    arms = TABLE_6.arms(get_scale(scale))

    def weights(arm: Arm) -> int:
        config = size_config(arm.title, vocab_size=1_000)
        return config.layers * 12 * config.hidden**2

    assert [weights(arm) for arm in arms] == sorted(weights(arm) for arm in arms)
    assert [arm.x for arm in arms] == sorted(arm.x or 0.0 for arm in arms)
    assert len({arm.x for arm in arms}) == len(arms)


def test_left_to_right_is_compared_with_masked_lm_alone_after_the_same_steps() -> None:
    arms = {arm.name: arm for arm in FIGURE_5.arms(get_scale("tiny"))}
    for claim in FIGURE_5.claims[1:]:
        pair = [arms[claim.arm], arms[claim.against]]
        assert {arm.series for arm in pair} == {"masked LM alone", "left-to-right"}
        assert pair[0].fraction == pair[1].fraction
        assert claim.withdrawn
    bert, alone = (
        [arm.fraction for arm in arms.values() if arm.series == name] for name in ("BERT", "masked LM alone")
    )
    assert bert == alone
    settings = arms["no-nsp-40"].pretraining
    assert {name: value for name, value in settings.items() if name != "snapshots"} == NO_NSP.pretraining


def test_where_bert_is_compared_with_gpt_the_verdict_names_next_sentences() -> None:
    claims = [claim for table in (TABLE_1, TABLE_2, TABLE_4) for claim in table.claims if claim.against == "gpt"]
    assert len(claims) == 3
    assert all("BERT learns next sentences in pre-training, and GPT-1 does not" in claim.confound for claim in claims)
