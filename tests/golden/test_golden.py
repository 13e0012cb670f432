"""The golden run: vocabulary and shards to the bit, losses in float64 to 1e-9, in fp32 with dropout to 1e-3."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import renew
from tests.support.tiny_run import deterministic

GOLDEN: dict[str, Any] = json.loads(renew.GOLDEN.read_text("utf-8"))


@pytest.fixture(scope="module")
def golden_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return renew.make_corpus(tmp_path_factory.mktemp("golden"))


def test_vocabulary_and_shards_are_the_same_bytes(golden_corpus: Path) -> None:
    digests = renew.bytes_made(golden_corpus)
    assert digests["vocabulary"] == GOLDEN["vocabulary"], f"the vocabulary {renew.RENEW}"
    assert digests["shards"] == GOLDEN["shards"], f"a shard {renew.RENEW}"


def test_float64_losses_are_the_same(golden_corpus: Path, tmp_path: Path) -> None:
    with deterministic():
        losses = renew.float64_losses(golden_corpus, tmp_path / "run")
    assert_losses_are_golden(losses, GOLDEN["float64"], 1e-9)


def test_fp32_losses_of_a_whole_run_are_the_same(golden_corpus: Path, tmp_path: Path) -> None:
    with deterministic():
        losses = renew.fp32_losses(golden_corpus, tmp_path / "run")
    assert_losses_are_golden(losses, GOLDEN["fp32"], 1e-3)
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def assert_losses_are_golden(losses: list[list[float]], golden: list[list[float]], tolerance: float) -> None:
    assert len(losses) == len(golden) == renew.STEPS
    for step, (mine, old) in enumerate(zip(losses, golden, strict=True), start=1):
        assert mine == pytest.approx(old, abs=tolerance), f"step {step}: [masked LM, next sentence] {renew.RENEW}"
