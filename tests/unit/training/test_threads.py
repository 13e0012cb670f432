"""The default number of threads of a process."""

import os

import pytest

from bertwright.cli import SPIN_ROUNDS, main
from bertwright.training import hardware as machine


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process on four cores, without environment variables for threads."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for name in ("LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_by_default_there_is_a_thread_for_each_core(four_cores: pytest.MonkeyPatch) -> None:
    assert machine.usable_cores() == 4


@pytest.mark.parametrize(
    ("said", "threads"), [("1", 1), ("3", 3), ("3,2", 3), ("8", 4), ("0", 1), ("", 4), ("many", 4)]
)
def test_omp_num_threads_is_the_most(four_cores: pytest.MonkeyPatch, said: str, threads: int) -> None:
    four_cores.setenv("OMP_NUM_THREADS", said)
    assert machine.usable_cores() == threads


@pytest.mark.parametrize(
    ("said", "turns"), [({}, SPIN_ROUNDS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_waiting_threads_soon_sleep_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], turns: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards, whatever `main` sets
        monkeypatch.delenv(name)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 0
    assert os.environ.get("GOMP_SPINCOUNT") == turns


def test_processes_of_torchrun_share_the_cores(four_cores: pytest.MonkeyPatch) -> None:
    """torchrun sets OMP_NUM_THREADS to 1 by default, so the variable does not count there."""
    four_cores.setenv("LOCAL_WORLD_SIZE", "2")
    four_cores.setenv("OMP_NUM_THREADS", "1")
    assert machine.usable_cores() == 2


def test_a_run_in_bf16_notes_that_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 compiled steps round differently from torch's; in fp32 those of ModernBERT alone do."""
    numerics = machine.resolve_numerics("fp32", threads=1)
    in_bf16 = numerics.model_copy(update={"precision": "bf16"}).for_model(compiled_steps=False)
    assert numerics.matches_machine
    assert in_bf16.matches_machine
    has_halves = machine.kernels.has_half_products()
    with monkeypatch.context() as patched:  # a compiler too old, or another processor
        patched.setattr(machine.kernels, "has_half_products", lambda: not has_halves)
        assert not in_bf16.matches_machine
        assert numerics.matches_machine
    modern = numerics.for_model(compiled_steps=True)
    assert modern.matches_machine
    assert not numerics.model_copy(update={"compiled_steps": True}).matches_machine  # a run before there were any
    monkeypatch.setattr(machine.kernels, "library", lambda: None)  # no compiler, or one that failed
    assert numerics.matches_machine
    assert not in_bf16.matches_machine
    assert not modern.matches_machine
