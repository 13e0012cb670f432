"""Points of lines and results, and the description of a run and of a seed."""

import json
from pathlib import Path

from bertwright.tracking.points import TrackedPoint, describe_run, final_points, points_of


def test_every_number_of_a_line_is_a_point() -> None:
    line = {"step": 7, "mlm": 2.5, "skipped": 1, "held_out": {"ndcg@10": 0.5, "collapsed": False}, "note": "text"}
    assert points_of(line) == [
        TrackedPoint("mlm", 7, 2.5),
        TrackedPoint("skipped", 7, 1.0),
        TrackedPoint("held_out/ndcg_10", 7, 0.5),
        TrackedPoint("held_out/collapsed", 7, 0.0),
    ]


def test_the_results_of_a_finished_run_are_points_of_its_last_step() -> None:
    pretrained = {"finished": True, "result": {"held_out": {"loss": 2.0}, "steps": 9}}
    assert final_points(pretrained, 9) == [TrackedPoint("final/loss", 9, 2.0)]
    seed = {"finished": True, "result": {"scores": {"accuracy": 0.75}, "epoch": 2, "seed": 0}}
    assert final_points(seed, 9) == [TrackedPoint("final/accuracy", 9, 0.75), TrackedPoint("final/epoch", 9, 2.0)]
    assert final_points({"finished": False}, 9) == []


def test_a_seed_has_the_settings_of_its_run_and_the_group_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    settings = {"epochs": 3, "optimizer": {"warmup": 0.1}, "lengths": [32, 48]}
    record = {"kind": "finetune", "settings": settings, "data": {"model": "small"}}
    (folder / "seed-1").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    whole = describe_run(folder, record)
    assert (whole.name, whole.group, whole.whole) == ("tuned", None, folder)
    seed = describe_run(folder / "seed-1", {"kind": "finetune-seed", "settings": {"seed": 1}, "data": {}})
    assert (seed.name, seed.group, seed.whole) == ("tuned-seed-1", "tuned", folder)
    flat = {"epochs": 3, "optimizer.warmup": 0.1, "lengths": "[32, 48]", "kind": "finetune", "data.model": "small"}
    assert whole.parameters == flat
    assert seed.parameters == {**flat, "seed": 1}
