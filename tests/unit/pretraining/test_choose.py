"""The settings that a pre-training without a recipe gets: by its corpus, its machine and its time."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.model.system import system_config
from bertwright.pretraining import dry_run
from bertwright.pretraining.choose import Budget, choose_for_budget
from bertwright.pretraining.measure import Timings
from bertwright.pretraining.settings import PLAIN, RECIPES, TUNED_DROPOUT, PretrainSettings
from bertwright.training import hardware
from tests.support.commands import run_json

WIKI = 100_000_000
TWO_CORES = 80e9
"""FLOP/s of a run on two cores with bf16."""


def chosen(
    typed: dict[str, Any] | None = None, *, tokens: int = WIKI, flops: float = TWO_CORES, **more: Any
) -> PretrainSettings:
    return choose_for_budget(typed or {}, Budget(text_tokens=tokens, vocab_size=8000, flops=flops), **more)[0]


@pytest.mark.parametrize(
    ("minutes", "tokens", "flops", "size"),
    [
        (5, WIKI, TWO_CORES, "tiny"),
        (30, WIKI, TWO_CORES, "4x128"),
        (120, WIKI, TWO_CORES, "4x128"),
        (600, WIKI, TWO_CORES, "mini"),
        (600, WIKI // 100, TWO_CORES, "4x128"),  # a text of 5 MB is too small for more
        (600, WIKI // 1000, TWO_CORES, "tiny"),
        (60, 25 * WIKI, 4e14, "base"),
    ],
)
def test_more_computation_and_text_get_a_larger_model(minutes: float, tokens: int, flops: float, size: str) -> None:
    assert chosen({"minutes": minutes}, tokens=tokens, flops=flops).size == size


def test_a_small_run_has_the_measured_values() -> None:
    settings = chosen({"minutes": 10.0})
    assert settings == PLAIN.model_copy(update={"minutes": 10.0, "size": "tiny", "evaluations": settings.evaluations})


def test_a_short_run_has_more_steps_and_no_head_for_pairs() -> None:
    short = {"minutes": 2.0, "size": "tiny"}
    settings = chosen(short)
    assert ([phase.length for phase in settings.phases], settings.batch_size, settings.start) == ([64], 32, "local")
    assert chosen({**short, "start": "matching", "batch_size": 48}).batch_size == 48
    assert chosen({**short, "start": "matching"}).start == "matching"
    assert chosen({**short, "size": "1x128", "system": "gpt"}).start == "random"
    assert chosen({**short, "size": "2x128", "system": "lstm-left"}).start == "random"
    assert chosen({**short, "size": "base"}).batch_size == 32
    continued = chosen({"minutes": 2.0}, initial=system_config("bert", "4x128", 8000, max_positions=512))
    assert (len(continued.phases), continued.batch_size) == (2, 64)


def test_steps_that_are_typed_make_no_short_run() -> None:
    settings = chosen({"steps": 1000, "size": "tiny"})
    assert (len(settings.phases), settings.batch_size, settings.start) == (2, 64, "matching")


def test_a_small_text_makes_a_short_run() -> None:
    settings = chosen(tokens=100_000)
    assert settings.minutes is not None
    assert settings.minutes < 4.0
    assert (settings.batch_size, settings.start) == (32, "local")
    assert chosen({"minutes": settings.minutes}, tokens=100_000).batch_size == 32


@pytest.mark.parametrize(("minutes", "evaluations"), [(0.2, 1), (2, 2), (5, 6), (600, 20)])
def test_a_short_run_has_few_evaluations(minutes: float, evaluations: int) -> None:
    assert chosen({"minutes": minutes, "size": "tiny"}).evaluations == evaluations
    assert chosen({"minutes": minutes, "evaluations": 9}).evaluations == 9


def test_a_wide_model_has_the_papers_lengths_and_batch_and_a_lower_rate() -> None:
    settings, paper = chosen({"minutes": 60.0}, tokens=25 * WIKI, flops=4e14), RECIPES["paper-base"]
    assert (settings.phases, settings.batch_size, settings.initializer_range) == (paper.phases, 256, 0.02)
    assert settings.optimizer.learning_rate == 3e-4


def test_what_is_typed_stays() -> None:
    typed: dict[str, Any] = {
        "steps": 7,
        "size": "4x256",
        "batch_size": 8,
        "dropout": 0.3,
        "phases": [{"length": 32, "share": 1.0}],
        "optimizer": {"method": "adamw", "learning_rate": 0.5, "bias_correction": False},
        "start": "random",
        "initializer_range": 0.1,
    }
    stored = chosen(typed, tokens=1000).model_dump(mode="json")
    assert {name: stored[name] for name in typed if name != "optimizer"} == {
        name: value for name, value in typed.items() if name != "optimizer"
    }
    assert stored["minutes"] is None
    assert stored["optimizer"] == {**stored["optimizer"], **typed["optimizer"]}
    assert stored["optimizer"]["warmup"] == PLAIN.optimizer.warmup


def test_text_that_is_read_often_gets_dropout_and_an_end() -> None:
    assert chosen({"minutes": 60.0}).dropout == 0.0
    assert chosen({"minutes": 60.0}, tokens=WIKI // 100).dropout == TUNED_DROPOUT
    assert chosen().minutes == 60.0
    short = chosen(tokens=WIKI // 1000)
    assert short.minutes is not None
    assert short.minutes < 10.0
    assert chosen({"minutes": 60.0}, tokens=WIKI // 1000).minutes == 60.0


def test_a_model_to_start_from_decides_the_shape_and_gets_a_lower_rate() -> None:
    config = system_config("bert", "6x384x12", 8000, max_positions=96)
    settings = chosen({"minutes": 30.0}, initial=config)
    assert not {"size", "initializer_range", "start"} & settings.model_fields_set
    assert settings.optimizer.learning_rate == 2e-4
    assert [phase.length for phase in settings.phases] == [64, 96]


@pytest.mark.parametrize(("size", "rate"), [("4x128", 2e-3), ("4x192", 1e-3), ("base", 3e-4)])
def test_modernbert_has_twice_the_rates_of_bert_with_muon(size: str, rate: float) -> None:
    for system, factor in (("bert", 1.0), ("modernbert", 2.0), ("gpt-bert", 1.0)):
        typed: dict[str, Any] = {"system": system, "size": size, "minutes": 60.0}
        rates = chosen(typed).optimizer
        assert (rates.learning_rate, rates.muon_rate) == (rate * factor, PLAIN.optimizer.muon_rate * factor)
        adam = chosen({**typed, "optimizer": {"method": "adamw"}}).optimizer
        assert (adam.learning_rate, adam.muon_rate) == (rate, PLAIN.optimizer.muon_rate)
        assert chosen({**typed, "optimizer": {"muon_rate": 0.5}}).optimizer.muon_rate == 0.5


def test_modernbert_has_these_rates_as_a_student_too_and_not_once_it_was_trained() -> None:
    config = system_config("modernbert", "4x128", 8000)
    student = chosen({"minutes": 60.0}, initial=config, has_weights=False).optimizer
    assert (student.learning_rate, student.muon_rate) == (4e-3, 0.012)
    assert chosen({"minutes": 60.0}, initial=config).optimizer.learning_rate == 5e-4


@pytest.mark.parametrize("system", ["gpt", "bert-left", "lstm-right"])
def test_language_models_get_settings_that_they_can_have(system: str) -> None:
    settings = chosen({"system": system, "minutes": 60.0}, flops=2e14)
    assert settings.system == system
    assert settings.examples.second_sentence == "none"


@pytest.mark.parametrize(
    ("system", "layers", "start"),
    [
        *(("bert", 1, "local"), ("bert", 2, "matching")),
        *(("gpt", 1, "random"), ("gpt", 2, "local"), ("gpt", 3, "matching")),
        *(("gpt2", 1, "local"), ("gpt2", 2, "matching")),
        *(("modernbert", 3, "local"), ("modernbert", 4, "matching")),
    ],
)
def test_the_initialisation_needs_its_layers(system: str, layers: int, start: str) -> None:
    assert chosen({"system": system, "size": f"{layers}x128", "minutes": 60.0}).start == start


def test_a_modernbert_with_narrow_heads_starts_at_neighbours() -> None:
    assert chosen({"system": "modernbert", "size": "6x128x8", "minutes": 60.0}).start == "local"


@pytest.mark.parametrize(
    ("system", "size"), [("bert", "2x64x32"), ("bert", "2x7x1"), ("modernbert", "4x128x16"), ("modernbert", "4x128x1")]
)
def test_heads_that_do_not_suit_it_start_at_random(system: str, size: str) -> None:
    assert chosen({"system": system, "size": size, "minutes": 5.0}).start == "random"


def test_narrow_embeddings_start_at_random() -> None:
    electra = {"system": "electra", "size": "4x128", "minutes": 60.0}
    assert chosen(electra).start == chosen({**electra, "embedding_size": 128}).start == "matching"
    assert chosen({**electra, "embedding_size": 64}).start == "random"


def test_the_line_of_a_continued_run_names_the_model_that_it_continues() -> None:
    budget = Budget(text_tokens=WIKI, vocab_size=8000, flops=TWO_CORES)
    _, line = choose_for_budget({"minutes": 5.0}, budget, initial=system_config("bert", "4x128", 8000))
    assert line.startswith("settings: 4x128, ")


def test_the_line_of_a_run_in_words_has_its_tokens_for_each_token_of_the_text() -> None:
    budget = Budget(text_tokens=1_000_000, vocab_size=8000, flops=TWO_CORES, words_per_token=0.5)
    _, line = choose_for_budget({"words": 1_000_000}, budget)
    # How often the text is read depends on the random second sentences, which a budget does not know.
    assert line.endswith(" and 2 for each token of the text")


def test_the_command_says_what_it_chose_and_resumes_with_it(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = f"pretrain --corpus {own_corpus} --out {tmp_path / 'run'} --steps 3".split()
    shape = "--lengths 32 --batch-size 8 --threads 1 --log-every 1".split()
    result, said = run_json(capsys, *start, *shape)
    (line,) = (line for line in said.splitlines() if line.startswith("settings: "))
    assert "settings: tiny, rows of 32 tokens, 8 rows a step, muon with learning rate 0.002 (matrices: 0.006)" in line
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["size"], settings["optimizer"]["bias_correction"], settings["steps"]) == ("tiny", True, 3)
    # The measured machine, which may choose other settings, is not asked again.
    again, said = run_json(capsys, *start, "--resume")
    assert again == {name: value for name, value in result.items() if name != "signalled"}
    assert "settings: " not in said
    assert main([*start, *shape, "--resume", "--learning-rate", "0.5"]) == 2
    assert "learning_rate" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", [[], "--recipe paper-base --size tiny".split()])
def test_a_resumed_run_keeps_a_value_whose_default_has_changed(
    recipe: list[str], own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A RoBERTa of an earlier version has short rows in its run.json."""
    start = f"pretrain --corpus {own_corpus} --out {tmp_path / 'run'} --system roberta --steps 1 --threads 1".split()
    shape = "--lengths 32 --batch-size 8 --precision fp32".split()
    run_json(capsys, *start, *recipe, *shape, "--short-share", "0.1")
    run_json(capsys, *start, *recipe, *shape, "--resume")
    assert main([*start, *recipe, *shape, "--resume", "--short-share", "0"]) == 2
    assert "settings.examples.short_share is 0.1" in capsys.readouterr().err
    assert main([*start, "--recipe", "paper-gpt", *shape, "--resume"]) == 2  # never the settings of run.json in silence
    assert "settings.optimizer" in capsys.readouterr().err


def test_the_machine_is_measured_once_and_not_for_a_folder_that_is_used(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def counted(*arguments: Any) -> dict[Any, float]:
        measured.append(arguments)
        return {"fp32": 1e11}

    monkeypatch.setattr(hardware, "square_rates", counted)
    monkeypatch.setattr(dry_run, "measure_timings", lambda *_, **__: Timings((0.5,), 0.0, 0.25))
    start = f"pretrain --corpus {own_corpus} --out {tmp_path / 'run'} --steps 1 --precision fp32".split()
    start += "--lengths 32 --batch-size 4 --threads 1".split()
    for more in (["--plan"], [], ["--resume"]):
        measured.clear()
        assert main([*start, *more]) == 0
        assert len(measured) == 1
    capsys.readouterr()
    measured.clear()
    assert main(start) == 2
    said = capsys.readouterr().err
    assert "already holds a run; continue it with --resume or choose another --out" in said
    assert "settings: " not in said
    assert not measured
