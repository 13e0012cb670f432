"""A schedule of masks beside one of lengths: the stages of a run, their rows, and a run that is stopped and resumed."""

from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.pretraining.schedules import parse_lengths, parse_mask_schedule
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import prepare_pretraining
from tests.support.cut_off import cut_off


def test_stages_begin_with_each_phase_of_either_schedule(own_corpus: Path, tmp_path: Path) -> None:
    settings = PretrainSettings.model_validate(
        {
            "steps": 20,
            "batch_size": 4,
            "size": "1x64",
            "phases": parse_lengths("16:0.5,32:0.5"),
            "mask_schedule": parse_mask_schedule("0.4:0.5,0.2:0.25,0.1:0.25"),
            "threads": 1,
            "precision": "fp32",
        }
    )
    assert [(stage.length, stage.masked, stage.share) for stage in settings.stages] == [
        (16, 0.4, 0.5),
        (32, 0.2, 0.25),
        (32, 0.1, 0.25),
    ]
    assert [stage.masked for stage in PretrainSettings(steps=1).stages] == [None, None]
    pretraining, _ = prepare_pretraining(settings, corpus=own_corpus, out=tmp_path / "r", held_out=None, init_from=None)
    assert pretraining.phase_bounds(20) == [(0, 10), (10, 15), (15, 20)]
    batches = pretraining.batches(20)
    widths = {step: batches(step)[0].at.shape[1] - 1 for step in (0, 9, 10, 14, 15, 19)}
    assert widths == {0: 6, 9: 6, 10: 6, 14: 6, 15: 3, 19: 3}
    # the rows of the last stage are those after the rows of the stage before it, which has the same length
    ids = [pretraining.phase_rows[index].step_batch(step, 4) for index, step in ((2, 5), (1, 5))]
    assert (ids[0].lengths == ids[1].lengths).all()
    assert pretraining.batches(20)(15)[0].ids.tolist() == ids[0].ids.tolist()


def test_a_run_with_both_schedules_that_was_cut_off_ends_in_the_same_bytes(own_corpus: Path, tmp_path: Path) -> None:
    typed = ["pretrain", "--corpus", str(own_corpus), "--size", "1x64", "--batch-size", "4", "--threads", "1"]
    typed += [
        "--precision",
        "fp32",
        "--steps",
        "4",
        "--lengths",
        "16:0.5,32:0.5",
        "--mask-schedule",
        "0.3:0.75,0.1:0.25",
    ]
    assert main([*typed, "--out", str(tmp_path / "run")]) == 0
    parts = [*typed, "--out", str(tmp_path / "parts")]
    cut_off(parts, after=3, saved=2)
    assert main([*parts, "--resume"]) == 0
    same = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "parts")]
    assert same[0] == same[1]
    with pytest.raises(InputError, match="expected FRACTION-OF-TOKENS:FRACTION-OF-STEPS"):
        parse_mask_schedule("0.3")
