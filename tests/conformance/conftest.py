"""Numerics that are resolved once for all fine-tunings of these tests."""

import pytest

from bertwright.training.hardware import Numerics, resolve_numerics


@pytest.fixture(scope="session")
def numerics() -> Numerics:
    return resolve_numerics("fp32", threads=1)


@pytest.fixture
def measured_once(numerics: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes longer than learning eight records."""
    monkeypatch.setattr("bertwright.finetuning.run.resolve_numerics", lambda *_, **__: numerics)
