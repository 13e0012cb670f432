"""What `--precision auto` means."""

import itertools

import pytest
import torch

from bertwright.training import machine

RATES = {"fp32": 100.0, "bf16": 400.0}


@pytest.mark.parametrize(("has", "rates", "chosen"), [
    (True, RATES, "bf16"),
    (False, RATES, "fp32"),  # the measurement was disturbed
    (True, {"fp32": 100.0, "bf16": 110.0}, "fp32"),
])  # fmt: skip
def test_bf16_is_chosen_where_the_processor_has_it_and_is_faster(
    monkeypatch: pytest.MonkeyPatch, has: bool, rates: dict[machine.Precision, float], chosen: str
) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine.torch.cpu, "_is_avx512_bf16_supported", lambda: has)
    monkeypatch.setattr(machine.torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert machine.choose_precision(rates) == chosen


def test_elsewhere_the_measurement_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    assert machine.choose_precision(RATES) == "bf16"


def test_what_cannot_be_chosen_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in bf16 takes seconds on a processor without instructions for it, and every command measures."""
    asked: list[torch.dtype] = []

    def rate(kind: torch.dtype, shape: tuple[int, int, int], *, place: torch.device) -> float:
        asked.append(kind)
        return 1e9

    monkeypatch.setattr(machine, "matrix_rate", rate)
    monkeypatch.setattr(machine, "has_bf16", lambda device: False)
    assert machine.resolve_numerics("auto", threads=1).precision == "fp32"
    assert machine.resolve_numerics("fp32", threads=1).precision == "fp32"
    assert asked == [torch.float32] * 2
    assert machine.resolve_numerics("bf16", threads=1).precision == "bf16"
    assert asked.pop() == torch.bfloat16
    monkeypatch.setattr(machine, "has_bf16", lambda device: True)
    assert machine.square_rates() == {"fp32": 1e9, "bf16": 1e9}


def test_a_slow_product_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=2.0)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    assert machine.matrix_rate(torch.float32, (10, 10, 10)) == 2 * 10**3 / 2.0
    assert next(clock) == 4.0
