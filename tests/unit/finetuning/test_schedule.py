"""The schedule of a fine-tuning, where no option sets it: by the number of rows and the model."""

import pytest

from bertwright.finetuning.schedule import scheduled
from bertwright.finetuning.settings import FINETUNE_RECIPES, FinetuneSettings
from bertwright.model.config import BackboneConfig
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.system import system_config

TINY = system_config("bert", "tiny", 50)


def rate(config: BackboneConfig, **settings: object) -> float:
    return scheduled(FinetuneSettings.model_validate(settings), config, 1000).learning_rate


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs"),
    [
        (1, 8, 20),
        (50, 8, 20),
        (199, 8, 20),
        (200, 16, 20),
        (600, 16, 20),
        (1500, 16, 14),
        (5749, 16, 4),
        (67_349, 32, 3),
    ],
)
def test_few_rows_get_small_batches_and_many_epochs(rows: int, batch_size: int, epochs: int) -> None:
    settings = scheduled(FinetuneSettings(), TINY, rows)
    assert (settings.batch_size, settings.epochs) == (batch_size, epochs)


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs"),
    [
        (2, 4, 10),
        (50, 4, 10),
        (919, 64, 10),
        (5177, 128, 10),
        (19_501, 128, 8),
        (50_000, 128, 3),
        (100_000, 128, 1),
        (10**6, 128, 1),
    ],
)
def test_rows_that_are_each_others_negatives_get_large_batches(rows: int, batch_size: int, epochs: int) -> None:
    settings = scheduled(FinetuneSettings(), TINY, rows, contrasts=True)
    assert (settings.batch_size, settings.epochs) == (batch_size, epochs)


def test_what_is_set_stays() -> None:
    typed = FinetuneSettings(epochs=1, batch_size=5, learning_rate=0.25, warmup=0.0, seeds=4)
    assert scheduled(typed, TINY, 50).model_dump() == typed.model_dump()
    assert scheduled(FinetuneSettings(batch_size=100), TINY, 1000).epochs == 20


@pytest.mark.parametrize(
    ("size", "expected"),
    [("tiny", 5e-4), ("4x256", 2e-4), ("6x384x12", 1e-4), ("4x512", 6e-5), ("base", 3e-5), ("large", 2e-5)],
)
def test_narrow_models_get_higher_rates(size: str, expected: float) -> None:
    assert rate(system_config("bert", size, 50)) == expected


def test_the_rates_of_gpt_and_of_frozen_encoders() -> None:
    gpt = system_config("gpt", "base", 50)
    assert rate(gpt) == 6.25e-5
    assert rate(system_config("gpt", "mini", 50)) == rate(system_config("bert", "mini", 50))
    assert rate(TINY, features="last") == 1e-3
    warmups = [scheduled(FinetuneSettings(features=way), gpt, 100).warmup for way in (None, "last")]
    assert warmups == [0.002, 0.1]
    assert scheduled(FinetuneSettings(), TopConfig.model_validate({"inner": gpt, "width": 16}), 100).warmup == 0.002


def test_the_width_is_that_of_the_model_below() -> None:
    """A BiLSTM on top changes no rate, and a pair is as wide as one of its halves."""
    base, tiny = (system_config("bert-left", size, 50) for size in ("base", "tiny"))
    left, right = (system_config(system, "8x512", 50) for system in ("bert-left", "bert-right"))
    assert rate(TopConfig(inner=base, width=8)) == rate(base)
    assert rate(TopConfig(inner=tiny, width=2048)) == rate(tiny)
    assert rate(PairConfig(left=left, right=right)) == rate(left)


def test_the_papers_recipe() -> None:
    settings = scheduled(FINETUNE_RECIPES["paper"], TINY, 50)
    assert (settings.epochs, settings.batch_size, settings.learning_rate, settings.warmup) == (3, 32, 3e-5, 0.1)
