"""The choice of a compiled step: by settings, by a trial, and in a resumed run; and its messages."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.pretraining import measure as compiling
from bertwright.pretraining.measure import LONG_RUN_SECONDS, choose_compiled, resume_compiled
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.distributed import Ranks
from bertwright.training.hardware import Numerics

NUMERICS = Numerics(precision="fp32", threads=1, peak_flops=1e9)


def run_of(compile: Any, minutes: float) -> Any:
    return SimpleNamespace(settings=PretrainSettings(compile=compile, minutes=minutes))


@pytest.fixture
def step_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[bool, float]:
    """Seconds of a step, compiled (True) and not compiled (False), instead of measured ones."""
    seconds: dict[bool, float] = {}
    monkeypatch.setattr(compiling, "_longest_phase_seconds", lambda _, numerics: seconds[numerics.compiled])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return seconds


def test_a_short_run_is_not_compiled_and_nothing_is_tried(step_seconds: dict[bool, float]) -> None:
    assert not choose_compiled(run_of("auto", LONG_RUN_SECONDS / 60 - 1), NUMERICS).compiled


def test_off_is_off(step_seconds: dict[bool, float]) -> None:
    assert not choose_compiled(run_of("off", 1e6), NUMERICS).compiled


@pytest.mark.parametrize(("compiled", "plain", "chosen"), [(0.5, 1.0, True), (1.0, 1.01, False), (2.0, 1.0, False)])
def test_a_long_run_takes_what_is_faster_and_says_both(
    step_seconds: dict[bool, float], capsys: pytest.CaptureFixture[str], compiled: float, plain: float, chosen: bool
) -> None:
    step_seconds |= {True: compiled, False: plain}
    assert choose_compiled(run_of("auto", LONG_RUN_SECONDS / 60), NUMERICS).compiled == chosen
    said = capsys.readouterr().err
    assert f"{compiled * 1e3:.0f} ms compiled and {plain * 1e3:.0f} ms not compiled" in said
    assert said.rstrip().endswith("not compiled") != chosen


def test_on_is_compiled_however_short(step_seconds: dict[bool, float], capsys: pytest.CaptureFixture[str]) -> None:
    step_seconds[True] = 1.0
    assert choose_compiled(run_of("on", 0.1), NUMERICS).compiled
    assert "torch.compile took" in capsys.readouterr().err


def test_without_a_compiler_the_step_is_not_compiled(
    step_seconds: dict[bool, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not choose_compiled(run_of("on", 0.1), NUMERICS).compiled
    assert "no C++ compiler found" in capsys.readouterr().err


@pytest.mark.parametrize("begun", ["chosen", "resumed"])
def test_earlier_models_of_the_process_do_not_use_up_what_torch_compiles(
    step_seconds: dict[bool, float], monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    """torch compiles a function at most eight times, then runs it as it is. All models have the same step function."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def step(module: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(lambda rows: module(rows), backend=backend, dynamic=True)

    for num_layers in range(1, 11):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(num_layers)))
        if begun == "chosen":
            monkeypatch.setattr(
                compiling, "_longest_phase_seconds", lambda *_, model=model: float(step(model)(torch.ones(2, 2)).sum())
            )
            choose_compiled(run_of("on", 0.1), NUMERICS)
        else:
            resume_compiled(NUMERICS.model_copy(update={"compiled": True}), allow_other=False)
            step(model)(torch.ones(2, 2))
        assert len(graphs) == num_layers


def test_a_failing_compiler_does_not_stop_the_run(
    step_seconds: dict[bool, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> float:
        raise RuntimeError("C++ compile error\nmore of it")

    monkeypatch.setattr(compiling, "_longest_phase_seconds", fails)
    assert not choose_compiled(run_of("on", 0.1), NUMERICS).compiled
    assert "torch.compile failed: C++ compile error;" in capsys.readouterr().err


def test_a_compiled_run_is_not_resumed_in_silence_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = NUMERICS.model_copy(update={"compiled": True})
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match="compiled step"):
        resume_compiled(begun, allow_other=False)
    assert not resume_compiled(begun, allow_other=True).compiled
    assert resume_compiled(NUMERICS, allow_other=False) == NUMERICS


def test_the_expected_time_follows_from_flops(step_seconds: dict[bool, float]) -> None:
    """At 1e9 FLOP/s and the usual MFU of 0.3, 100 steps of 1.08e10 operations take an hour."""
    step_seconds |= {True: 0.5, False: 1.0}
    for work, world, compiled in ((1.07e10, 1, False), (1.09e10, 1, True), (1.09e10, 2, False), (2.18e10, 2, True)):
        settings = PretrainSettings(compile="auto", steps=100)
        trained: Any = SimpleNamespace(
            settings=settings,
            steps=100,
            model=SimpleNamespace(trainable=lambda: SimpleNamespace(flops=lambda rows: rows)),
            phase_rows=("short", "long"),
            micro_batches=lambda _, step, work=work: [work],
            ranks=Ranks(0, world),
        )
        assert choose_compiled(trained, NUMERICS).compiled == compiled
