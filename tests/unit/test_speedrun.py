"""Minutes up to a target of the speedrun, from the lines of metrics.jsonl."""

import pytest

from benchmarks.speedrun import minutes_to

LINES = [
    {"step": 50, "seconds": 60.0},
    {"step": 50, "held_out": {"mlm_bits_per_character": 1.4}},
    {"step": 100, "seconds": 30.0},
    {"step": 100, "held_out": {"nsp_accuracy": 0.7}},
    {"step": 125, "held_out": {"mlm_bits_per_character": 1.3}},
    {"step": 150, "seconds": 60.0},
    {"step": 200, "seconds": 30.0},
    {"step": 200, "held_out": {"mlm_bits_per_character": 1.25}},
]


@pytest.mark.parametrize(("target", "minutes"), [(1.5, 1.0), (1.4, 1.0), (1.3, 2.0), (1.29, 3.0), (1.2, None)])
def test_minutes_are_those_up_to_the_first_evaluation_at_the_target(target: float, minutes: float | None) -> None:
    assert minutes_to(target, LINES, bits=1.25) == minutes


def test_minutes_are_those_of_the_whole_run_where_only_its_final_bits_reach_the_target() -> None:
    assert minutes_to(1.2, LINES, bits=1.19) == 3.0
