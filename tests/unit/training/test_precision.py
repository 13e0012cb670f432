"""The precision that `--precision auto` chooses."""

from collections.abc import Callable

import pytest
import torch

from bertwright.training import hardware as machine

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


def test_a_precision_that_cannot_be_chosen_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bf16 product takes seconds on a processor without bf16 instructions, and every command measures."""
    measured: list[torch.dtype] = []

    def rates(dtypes: list[torch.dtype], shape: tuple[int, int, int], *, device: torch.device) -> list[float]:
        measured.extend(dtypes)
        return [1e9] * len(dtypes)

    monkeypatch.setattr(machine, "measure_peak_flops", rates)
    monkeypatch.setattr(machine, "has_bf16", lambda device: False)
    assert machine.resolve_numerics("auto", threads=1).precision == "fp32"
    assert machine.resolve_numerics("fp32", threads=1).precision == "fp32"
    assert measured == [torch.float32] * 2
    assert machine.resolve_numerics("bf16", threads=1).precision == "bf16"
    assert measured.pop() == torch.bfloat16
    monkeypatch.setattr(machine, "has_bf16", lambda device: True)
    assert machine.square_rates() == {"fp32": 1e9, "bf16": 1e9}


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[torch.dtype, int], float]) -> list[torch.dtype]:
    """Record dtypes in the order in which products are timed; the n-th product takes `seconds(dtype, n)`."""
    timed: list[torch.dtype] = []
    now = 0.0

    def product(left: torch.Tensor, right: torch.Tensor) -> None:
        nonlocal now
        now += seconds(left.dtype, len(timed))
        timed.append(left.dtype)

    monkeypatch.setattr(machine.time, "perf_counter", lambda: now)
    monkeypatch.setattr(machine.torch, "mm", product)
    return timed


def test_a_slow_product_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = clocked(monkeypatch, lambda kind, _: 2.0 if kind == torch.bfloat16 else 0.01)
    rates = machine.measure_peak_flops([torch.float32, torch.bfloat16], (10, 10, 10))
    assert rates == pytest.approx([2 * 10**3 / 0.01, 2 * 10**3 / 2.0])
    assert timed == [torch.float32, torch.bfloat16, *[torch.float32] * 6]


def test_another_program_does_not_change_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 is twice as fast; from the seventh product on, another program makes all four times as slow."""
    clocked(monkeypatch, lambda kind, done: (0.01 if kind == torch.bfloat16 else 0.02) * (4 if done >= 7 else 1))
    rates = machine.measure_peak_flops([torch.float32, torch.bfloat16], (10, 10, 10))
    assert rates[1] == pytest.approx(2 * rates[0])
