"""Recipes: the paper's settings, and the options that override them."""

import re
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.pretraining import choose
from bertwright.pretraining import run as pretraining_run
from bertwright.pretraining.settings import PLAIN, RECIPES, PretrainSettings, resolve_settings
from tests.support.commands import CaughtSettings


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Options → the settings with which the command would run; without a recipe, before they are adapted."""

    def not_adapted(typed: dict[str, Any], init_from: str | None, **_: object) -> tuple[PretrainSettings, None]:
        return resolve_settings(None, typed, from_model=init_from is not None), None

    def catch(settings: PretrainSettings, **_: object) -> None:
        raise CaughtSettings(settings)

    monkeypatch.setattr(pretraining_run, "pretrain", catch)
    monkeypatch.setattr(choose, "plain_settings", not_adapted)

    def ask(*options: str) -> PretrainSettings:
        with pytest.raises(CaughtSettings) as caught:
            main(["pretrain", "--corpus", "c", "--out", "o", *options])
        settings: PretrainSettings = caught.value.args[0]
        return settings

    return ask


@pytest.mark.parametrize(("name", "size"), [("paper-base", "base"), ("paper-large", "large")])
def test_the_papers_settings(settings_of: Any, name: str, size: str) -> None:
    """Section A.2 of the paper and, for epsilon, clipping and bias correction, the code it was trained with."""
    settings = settings_of("--recipe", name)
    assert settings.size == size
    assert settings.batch_size == 256
    assert settings.steps == 1_000_000
    assert [(phase.length, phase.share) for phase in settings.phases] == [(128, 0.9), (512, 0.1)]
    optimizer = settings.optimizer
    assert optimizer.learning_rate == 1e-4
    assert int(settings.steps * optimizer.warmup) == 10_000
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.clip, optimizer.bias_correction) == (0.01, 1.0, False)
    assert (settings.dropout, settings.activation, settings.initializer_range) == (0.1, "gelu", 0.02)
    masking = settings.examples.masking
    assert (masking.share, masking.mask, masking.same, masking.random) == (0.15, 0.8, 0.1, 0.1)
    assert masking.units == "piece"
    assert settings.examples.second_sentence == "next"
    assert settings.examples.short_share == 0.1
    assert settings.start == "random"


def test_an_option_beats_the_recipe(settings_of: Any) -> None:
    plain, changed = (
        settings_of("--recipe", "paper-base"),
        settings_of("--recipe", "paper-base", "--batch-size", "32"),
    )
    assert changed == plain.model_copy(update={"batch_size": 32})
    assert settings_of("--recipe", "paper-base", "--size", "large") == settings_of("--recipe", "paper-large")
    # also where what is given is a default of the class
    assert settings_of("--start", "random", "--learning-rate", "1e-4").start == "random"
    assert settings_of("--learning-rate", "1e-4").optimizer.learning_rate == 1e-4
    assert settings_of("--learning-rate", "1e-4").optimizer.warmup == PLAIN.optimizer.warmup
    assert settings_of().optimizer.bias_correction
    assert not settings_of("--no-bias-correction").optimizer.bias_correction


def test_steps_take_the_place_of_minutes_and_the_other_way_round(settings_of: Any) -> None:
    minutes, steps = (
        settings_of("--recipe", "paper-base", "--minutes", "3"),
        settings_of("--steps", "7"),
    )
    assert (minutes.steps, minutes.minutes) == (None, 3.0)
    assert (steps.steps, steps.minutes) == (7, None)


def test_another_system_brings_its_own_second_sentence_and_activation(settings_of: Any) -> None:
    left = settings_of("--recipe", "paper-gpt", "--system", "bert-left")
    assert (left.activation, left.examples.second_sentence, left.batch_size) == ("gelu", "none", 64)
    bert = settings_of("--recipe", "paper-gpt", "--system", "bert")
    assert (bert.activation, bert.examples.second_sentence) == ("gelu", "next")
    gpt = settings_of("--recipe", "paper-base", "--system", "gpt", "--short-share", "0.1")
    assert (gpt.activation, gpt.examples.second_sentence, gpt.size) == ("gelu_tanh", "none", "base")


@pytest.mark.parametrize("recipe", [[], ["--recipe", "paper-base"], ["--recipe", "paper-gpt"]])
def test_the_rows_of_a_roberta_are_full_unless_an_option_says_otherwise(settings_of: Any, recipe: list[str]) -> None:
    assert settings_of(*recipe, "--system", "roberta").examples.short_share == 0.0
    assert settings_of(*recipe, "--system", "roberta", "--short-share", "0.1").examples.short_share == 0.1
    assert settings_of(*recipe, "--system", "bert").examples.short_share == 0.1


def test_a_switch_of_a_recipe_can_be_typed_in_both_directions(settings_of: Any) -> None:
    gpt = settings_of("--recipe", "paper-gpt")
    assert gpt.optimizer.bias_correction
    assert settings_of("--recipe", "paper-gpt", "--bias-correction") == gpt
    assert not settings_of("--recipe=paper-gpt", "--no-bias-correction").optimizer.bias_correction
    assert not settings_of("--steps", "3", "--no-bias-correction").optimizer.bias_correction
    assert settings_of("--recipe", "paper-base", "--bias-correction").optimizer.bias_correction


def test_a_recipe_that_there_is_not_lists_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--corpus", "c", "--out", str(tmp_path / "o"), "--recipe", "paper"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("'paper'", "paper-base", "paper-large", "paper-gpt"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--second-sentence order --no-next-sentence", "--no-next-sentence stands for --second-sentence none"),
        ("--mask-units span --whole-word-mask", "--whole-word-mask stands for --mask-units word"),
        ("--mask-schedule 0.3:0.5,0.15:0.5 --mask-share 0.2", "--mask-share was typed too; leave one of the two out"),
    ],
)
def test_two_options_that_contradict_each_other_are_refused(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pretrain", "--corpus", str(tmp_path), "--out", str(tmp_path / "run"), "--steps", "1"]
    assert main([*command, *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_every_recipe_is_valid_and_frozen() -> None:
    for name, recipe in RECIPES.items():
        assert resolve_settings(name, {}) == recipe == PretrainSettings.model_validate(recipe.model_dump())
    with pytest.raises(TypeError):
        RECIPES["paper-base"] = RECIPES["paper-large"]  # type: ignore[index]
    assert resolve_settings(None, {}) == PLAIN
    share = resolve_settings("two-hours", {"examples": {"masking": {"share": 0.2}}})
    assert (share.mask_schedule, share.examples.masking.share) == ((), 0.2)


def test_the_recipe_of_small_wiki_takes_every_other_option(settings_of: Any) -> None:
    recipe = ("--recipe", "two-hours")
    assert settings_of(*recipe, "--system", "modernbert") == settings_of(*recipe) == RECIPES["two-hours"]
    assert settings_of(*recipe, "--optimizer", "adamw").optimizer.method == "adamw"
    for system in ("gpt", "bert-left", "lstm-left"):
        assert settings_of(*recipe, "--system", system).mask_schedule == ()
    electra = settings_of(*recipe, "--system", "electra")
    assert (electra.mask_schedule, electra.examples.masking.share) == ((), 0.15)
    begun = settings_of(*recipe, "--init-from", "small-wiki")
    assert (begun.optimizer.method, begun.mask_schedule[0].masked) == ("adamw", 0.3)
    assert begun.examples.second_sentence == "next"
    assert ",".join(map(str, RECIPES["two-hours"].mask_schedule)) == "0.3:0.7,0.15:0.3"


def test_a_recipe_leaves_the_shape_to_the_model_that_a_run_begins_from(settings_of: Any) -> None:
    for recipe in (("--recipe", "paper-large"), ()):
        anew, begun = (settings_of(*recipe, *more) for more in ((), ("--init-from", "small-wiki")))
        assert {"minutes", "steps"} & anew.model_fields_set
        assert not {"size", "initializer_range", "activation", "start"} & begun.model_fields_set
        assert begun.optimizer == anew.optimizer.model_copy(update={"method": "adamw"})
        assert settings_of(*recipe, "--init-from", "small-wiki", "--size", "2x128").size == "2x128"


def test_an_lstm_has_no_settings_of_attention(settings_of: Any) -> None:
    lstm = settings_of("--system", "lstm-left")
    assert (lstm.start, lstm.optimizer.method, lstm.examples.second_sentence) == ("random", "adamw", "none")
    assert lstm.optimizer.learning_rate == PLAIN.optimizer.learning_rate


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("steps", "1" + 400 * "0", "--steps 1000.*…: Input should be less than or equal to"),
        ("minutes", "1e307", "--minutes 1e\\+307: Input should be less"),
        ("minutes", "inf", "--minutes inf: Input should be less"),
        ("save-minutes", "1e-320", "--save-minutes 1e-320: Input should be greater"),
        ("save-minutes", "nan", "--save-minutes nan: Input should be a finite"),
        ("evaluations", "1000000000", "--evaluations 1000000000: Input should be less"),
        ("batch-size", "0", "--batch-size 0: Input should be greater than 0"),
        ("warmup", "2", "--warmup 2.0: Input should be less than or equal to 1"),
    ],
)
def test_what_no_run_can_have_is_named_with_its_value(
    option: str, value: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [] if option in ("steps", "minutes") else ["--steps", "4"]
    command = ["pretrain", "--corpus", str(tmp_path), "--out", str(tmp_path / "run"), f"--{option}", value, *more]
    assert main(command) == 2
    assert re.search(words, capsys.readouterr().err)
