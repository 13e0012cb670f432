"""Variances between pre-trainings, read from the records of runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.experiments.records import read_spread


def write_run(
    out: Path,
    system: str,
    seeds: tuple[int, int],
    score: float,
    *,
    snapshot: str = "model",
    finished: bool = True,
    version: str = "1.0",
    corpus: str = "wiki",
    rows: str = "all",
    **tuned: Any,
) -> None:
    pretraining, seed = seeds
    body = out / "pretrained" / f"{system}-seed{pretraining}-{abs(hash((version, corpus)))}"
    body.mkdir(parents=True, exist_ok=True)
    (body / "run.json").write_text(
        json.dumps(
            {
                "settings": {"system": system, "seed": pretraining},
                "data": {"corpus": corpus},
                "versions": {"bertwright": version},
            }
        )
    )
    digest = abs(hash((snapshot, body.name, rows, *tuned.items())))
    folder = out / "tuned" / "rte" / f"{system}-seed{pretraining}.{seed}-{digest}"
    folder.mkdir(parents=True)
    record = {
        "finished": finished,
        "versions": {"bertwright": version},
        "settings": {"epochs": 2, "first_seed": seed, **tuned},
        "data": {"model": f"/elsewhere/pretrained/{body.name}/{snapshot}", "train": rows},
        "result": {"seeds": [{"scores": {"accuracy": score}, "epochs": [{"accuracy": 0.0}, {"accuracy": score / 2}]}]},
    }
    (folder / "run.json").write_text(json.dumps(record))


def test_the_unit_is_the_mean_of_a_pre_training(tmp_path: Path) -> None:
    for seeds, score in (((0, 0), 0.5), ((0, 1), 0.6), ((1, 0), 0.7), ((1, 1), 0.8)):
        write_run(tmp_path, "bert", seeds, score)
    write_run(tmp_path, "gpt", (0, 0), 0.9)  # one pre-training tells nothing
    write_run(tmp_path, "gpt", (1, 0), 0.1, finished=False)
    variance = read_spread(tmp_path, last_epoch=False).pooled("rte", "accuracy", share_pretrainings=False, factor=100.0)
    assert variance is not None
    assert (variance.value, variance.degrees) == (pytest.approx((75 - 55) ** 2 / 2), 1)


def test_the_last_epoch_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path, "bert", (0, 0), 0.4)
    write_run(tmp_path, "bert", (1, 0), 0.8)
    variance = read_spread(tmp_path, last_epoch=True).pooled("rte", "accuracy", share_pretrainings=False, factor=100.0)
    assert variance is not None
    assert variance.value == pytest.approx((40 - 20) ** 2 / 2)


def test_models_before_the_end_do_not_count_as_further_arms(tmp_path: Path) -> None:
    for seed, score in ((0, 0.5), (1, 0.7)):
        write_run(tmp_path, "bert", (seed, 0), score)
        write_run(tmp_path, "bert", (seed, 0), 0.1 * seed, snapshot="snapshots/step-000000480")
    spread = read_spread(tmp_path, last_epoch=False)
    apart = spread.pooled("rte", "accuracy", share_pretrainings=False, factor=100.0)
    together = spread.pooled("rte", "accuracy", share_pretrainings=True, factor=100.0)
    assert apart is not None
    assert together is not None
    assert (apart.value, apart.degrees) == (pytest.approx(200.0), 1)
    assert (together.value, together.degrees) == (pytest.approx((50 - 60) ** 2 / 2), 1)  # of 50 - 0 and 70 - 10


def test_other_corpora_and_other_versions_are_arms_of_their_own(tmp_path: Path) -> None:
    """Two seeds of one recipe on two corpora, on other rows or by two versions, tell nothing of the variance."""
    for change in ({"corpus": "books"}, {"rows": "other"}, {"version": "0.9"}):
        out = tmp_path / str(change)
        write_run(out, "bert", (0, 0), 0.5)
        write_run(out, "bert", (1, 0), 0.9, **change)
        spread = read_spread(out, last_epoch=False)
        assert spread.pooled("rte", "accuracy", share_pretrainings=False, factor=1.0) is None
    assert spread.versions == {"1.0", "0.9"}


def test_records_without_each_epoch_are_left_out_of_last_epochs(tmp_path: Path) -> None:
    write_run(tmp_path, "bert", (0, 0), 0.4)
    write_run(tmp_path, "bert", (1, 0), 0.8)
    write_run(tmp_path, "gpt", (0, 0), 0.9, version="0.9")
    (path,) = (tmp_path / "tuned/rte").glob("gpt*/run.json")
    record = json.loads(path.read_text())
    del record["result"]["seeds"][0]["epochs"]
    path.write_text(json.dumps(record))
    spread = read_spread(tmp_path, last_epoch=True)
    assert spread.versions == {"1.0"}
    assert spread.pooled("rte", "accuracy", share_pretrainings=False, factor=1.0) is not None


def test_a_task_without_two_pre_trainings_has_no_variance(tmp_path: Path) -> None:
    write_run(tmp_path, "bert", (0, 0), 0.5)
    spread = read_spread(tmp_path, last_epoch=False)
    assert spread.pooled("rte", "accuracy", share_pretrainings=False, factor=1.0) is None
    assert spread.pooled("sst2", "accuracy", share_pretrainings=True, factor=1.0) is None


@pytest.mark.parametrize(
    "model", ["/elsewhere/minilm", "/pretrained", "/pretrained/wiki", "/elsewhere/pretrained/bert-4x128-seed0-ab/model"]
)
def test_each_fine_tuning_of_a_used_model_is_an_observation(model: str, tmp_path: Path) -> None:
    for way, values in (("last", (0.5, 0.7)), ("embeddings", (0.2, 0.2))):
        for seed, score in enumerate(values):
            folder = tmp_path / "tuned" / "rte" / f"used-0123456789ab-seed{seed}.0-{way}"
            folder.mkdir(parents=True)
            record = {
                "finished": True,
                "versions": {"bertwright": "1.0"},
                "settings": {"features": way, "first_seed": seed},
                "data": {"model": model},
                "result": {"seeds": [{"scores": {"accuracy": score}}]},
            }
            (folder / "run.json").write_text(json.dumps(record))
    variance = read_spread(tmp_path, last_epoch=False).pooled("rte", "accuracy", share_pretrainings=False, factor=100.0)
    assert variance is not None
    assert (variance.value, variance.degrees) == (pytest.approx((70 - 50) ** 2 / 2 / 2), 2)


@pytest.mark.parametrize("changed", ["head-matching-removed/{model}", "head-transplanted/{model}+{donor}"])
def test_models_with_a_changed_head_are_compared_in_pairs(changed: str, tmp_path: Path) -> None:
    scores = {"model": (0.8, 0.6, 0.7), "removed": (0.3, 0.3, 0.3)}
    for seed in range(3):
        write_run(tmp_path, "bert", (seed, 0), scores["model"][seed])
        write_run(tmp_path, "donor", (seed, 0), 0.5)
        pretrained = tmp_path / "pretrained"
        model, donor = (next(pretrained.glob(f"{name}-seed{seed}-*")).name for name in ("bert", "donor"))
        folder = tmp_path / "tuned" / "rte" / f"bert-seed{seed}.0-removed"
        folder.mkdir()
        record = {
            "finished": True,
            "versions": {"bertwright": "1.0"},
            "settings": {"epochs": 2, "first_seed": 0},
            "data": {"model": f"/elsewhere/{changed.format(model=model, donor=donor)}"},
            "result": {"seeds": [{"scores": {"accuracy": scores["removed"][seed]}}]},
        }
        (folder / "run.json").write_text(json.dumps(record))
    spread = read_spread(tmp_path, last_epoch=False)
    apart = spread.pooled("rte", "accuracy", share_pretrainings=False, factor=100.0)
    together = spread.pooled("rte", "accuracy", share_pretrainings=True, factor=100.0)
    assert apart is not None
    assert together is not None
    assert (apart.value, apart.degrees) == (pytest.approx(50.0), 4)  # two arms; the changed models do not lower it
    assert (together.value, together.degrees) == (pytest.approx(100.0), 2)  # differences of 50, 30 and 40 points
