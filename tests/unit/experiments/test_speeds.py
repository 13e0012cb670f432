"""The file of speeds: measured once in rounds, then only read; a later model is added beside the others."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.experiments import speeds
from bertwright.experiments.speeds import ROUNDS, fastest, measure_speeds, read_speeds
from bertwright.pretraining.measure import Timings
from bertwright.training.hardware import Numerics

NUMERICS = Numerics(precision="fp32", threads=2, peak_flops=1e9)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that are measured, in their order; each measurement is shorter by a second than before."""
    names: list[str] = []

    def measure(model: Any, numerics: Numerics | None, device: str) -> tuple[Timings, Numerics]:
        names.append(model.name)
        return Timings((10.0 - len(names), 20.0 - len(names)), 1.0, 0.5), NUMERICS

    monkeypatch.setattr(speeds, "_measure", measure)
    return names


def models(*names: str) -> Any:
    return {name: SimpleNamespace(name=name) for name in names}


def test_the_shortest_time_of_each_phase_counts() -> None:
    rounds = [Timings((0.3, 0.5), 2.0, 0.2), Timings((0.2, 0.9), 3.0, 0.1)]
    assert fastest(rounds) == Timings((0.2, 0.5), 2.0, 0.1)


def test_models_take_turns_and_what_is_measured_stays(tmp_path: Path, measured: list[str]) -> None:
    path = tmp_path / "locks" / "speeds.json"
    measure_speeds(path, models("a", "b"), device="cpu")
    assert measured == ["a", "b"] * ROUNDS
    first = read_speeds(path)
    assert first == {"a": (Timings((5.0, 15.0), 1.0, 0.5), 2), "b": (Timings((4.0, 14.0), 1.0, 0.5), 2)}
    measure_speeds(path, models("a", "b"), device="cpu")  # another seed, or a resumed run
    assert len(measured) == 2 * ROUNDS
    measure_speeds(path, models("a", "c"), device="cpu")
    assert measured[2 * ROUNDS :] == ["c"] * ROUNDS
    assert {name: each for name, each in read_speeds(path).items() if name != "c"} == first
    assert json.loads(path.read_text())["speeds"]["a"]["precision"] == "fp32"


def test_a_file_with_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    assert read_speeds(path) == {}
    path.write_text('{"speeds": {"a": {"steps": [0.1]}}}')
    with pytest.raises(InputError, match=r"speeds.json: expected steps, evaluation, checkpoint and threads of each"):
        read_speeds(path)
