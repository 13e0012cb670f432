"""The arithmetic of a plan against the FLOPs that training counts, and the counted rows against the written ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertwright.experiments.data import PAPER_TASKS, find_source, make_subset
from bertwright.experiments.forecast import _Costs
from bertwright.experiments.jobs import PairsJob, PretrainedModel, pretraining_settings
from bertwright.experiments.scales import SCALES
from tests.support.blimp import write_blimp
from tests.support.paper_data import write_data


@pytest.mark.parametrize("system", ["bert", "bert-left", "gpt", "lstm-right"])
@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_the_flops_of_a_run_are_those_that_training_counts(system: str, scale: str) -> None:
    settings = pretraining_settings(SCALES[scale], {"system": system}, 0)
    costs = _Costs(SCALES[scale].vocabulary)
    model: Any = costs.model(settings)
    assert all(parameter.is_meta for parameter in model.parameters())
    flops, rows = 0.0, settings.batch_size
    for phase in settings.phases:
        predictions = round(0.15 * phase.length)
        count = rows * (predictions if system == "bert" else phase.length)
        inputs: Any = SimpleNamespace(
            ids=torch.empty(rows, phase.length), at=torch.empty(rows, predictions), labels=torch.empty(count)
        )
        step = model.flops(inputs)
        flops += phase.share * (settings.steps or 0) * step
    run = PretrainedModel(settings, Path("corpus"), True, Path("run"))
    assert costs.pretraining_flops(run) == pytest.approx(flops, rel=0.02)


def test_a_run_that_extends_another_one_computes_the_rest_of_the_steps() -> None:
    costs, wsd = _Costs(SCALES["tiny"].vocabulary), {"optimizer": {"schedule": "wsd", "decay_share": 0.2}}
    short, long = (pretraining_settings(SCALES["tiny"], {"steps": steps, **wsd}, 0) for steps in (1_600, 4_800))
    shorter = PretrainedModel(short, Path("corpus"), True, Path("short"))
    longer = PretrainedModel(long, Path("corpus"), True, Path("long"), shorter)
    assert longer.computed_fraction == pytest.approx((4_800 - 1_280) / 4_800)
    whole = costs.pretraining_flops(PretrainedModel(long, Path("corpus"), True, Path("long")))
    assert costs.pretraining_flops(longer) == pytest.approx(whole * longer.computed_fraction)
    linear = PretrainedModel(pretraining_settings(SCALES["tiny"], {"steps": 1_600}, 0), Path("c"), True, Path("l"))
    assert costs.final_bytes(shorter) == costs.final_bytes(linear) + costs.checkpoint_bytes(short)


def test_rows_are_counted_as_they_are_written(tmp_path: Path) -> None:
    write_data(tmp_path / "data", without=[])
    for name in ("sst2", "rte", "swag", "squad2", "ner"):
        present = find_source(PAPER_TASKS[name], tmp_path / "data")
        assert present is not None
        counted = make_subset(PAPER_TASKS[name], present[1], (5, 2), tmp_path / "out", write=False)
        assert not (tmp_path / "out").exists()
        written = make_subset(PAPER_TASKS[name], present[1], (5, 2), tmp_path / "written")
        assert (counted.digest, counted.rows) == (written.digest, written.rows)


def test_minimal_pairs_have_the_flops_of_a_row_for_each_masked_piece(tmp_path: Path) -> None:
    costs = _Costs(SCALES["tiny"].vocabulary)
    wide = pretraining_settings(SCALES["tiny"], {"size": "4x256", "start": "random"}, 0)
    jobs = [
        PairsJob(PretrainedModel(settings, tmp_path, True, tmp_path), tmp_path)
        for settings in (pretraining_settings(SCALES["tiny"], {}, 0), wide)
    ]
    assert costs.pairs_flops(jobs, None) == []
    small, large = costs.pairs_flops(jobs, write_blimp(tmp_path / "blimp"))
    # 20 pairs of 8 to 16 words; the matrices of a layer have 12 widths squared, of the head a width times (width + V)
    weights = 4 * 12 * 128**2 + 128 * (128 + 8192) / 14
    tokens = small / (2 * weights)
    assert 20 * 2 * (1.35 * 8) ** 2 < tokens < 20 * 2 * (1.35 * 17 + 2) ** 2
    assert 2.5 < large / small < 4.0
