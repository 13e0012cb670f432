"""What `--precision auto` means."""

import pytest

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
