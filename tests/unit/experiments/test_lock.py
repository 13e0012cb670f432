"""The lock of claims, seeds and δ: written once before the first run, and every deviation from it is named."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.experiments.lock import claims_lock_path, lock_lines, write_lock
from bertwright.experiments.spec import Arm, Claim, Column, Experiment, RateSearch
from bertwright.version import __version__

CLAIM = Claim(statement="Larger is better.", paper="", arm="a", against="b", paper_difference=3.0)


def plan(
    out: Path,
    *claims: Claim,
    pretraining_seeds: int = 2,
    finished: Sequence[bool] = (True, True),
    version: str | None = __version__,
    tuned: int = 0,
) -> Any:
    """Return a plan of one arm with two pre-trainings, whose records are in `out`.

    version: of the program in the records, None for records without it. tuned: number of finished fine-tunings of six.
    """
    models = []
    for seed, is_finished in enumerate(finished):
        folder = out / f"model-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        versions = {"versions": {"bertwright": version}} if version else {"settings": {}}
        (folder / "run.json").write_text(json.dumps(versions))
        models.append(SimpleNamespace(folder=folder, is_finished=is_finished))
    experiment = Experiment(
        name="table0",
        title="",
        question="",
        arms=lambda _: (),
        columns=(Column(name="x", task="rte", metric="accuracy"),),
        claims=claims or (CLAIM,),
    )
    pairs = [(pretraining, seed) for pretraining in range(pretraining_seeds) for seed in range(3)]
    jobs = {
        pair: SimpleNamespace(folder=out / f"tuned-{number}", is_finished=number < tuned)
        for number, pair in enumerate(pairs)
    }
    return SimpleNamespace(
        used_model=None,
        experiment=experiment,
        scale=SimpleNamespace(name="tiny"),
        out=out,
        seeds=3,
        pretraining_seeds=pretraining_seeds,
        arms=(Arm(name="a", title="a"), Arm(name="majority", title="", baseline="majority")),
        columns=experiment.columns,
        models={"a": tuple((model,) for model in models)},
        jobs={("a", "x"): jobs},
        all_models=models,
        all_jobs=[],
        rates=None,
    )


def nothing_computed(out: Path, **options: Any) -> Any:
    return plan(out, finished=(False, False), **options)


def test_a_lock_that_was_written_before_the_runs_and_kept(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    lock = json.loads(claims_lock_path(plan(tmp_path)).read_text())
    assert (lock["seeds"], lock["pretraining_seeds"], lock["program"]) == (3, 2, __version__)
    assert [(claim["columns"], claim["delta"]) for claim in lock["claims"]] == [(["x"], 1.5)]
    (line,) = lock_lines(plan(tmp_path, tuned=6))
    assert line.startswith("Claims, seeds and δ were locked before the runs (digest of the claims: ")


def test_the_minutes_of_an_experiment_with_rates_are_locked(tmp_path: Path) -> None:
    before = nothing_computed(tmp_path)
    before.rates = SimpleNamespace(search=RateSearch(minutes=40.0))
    write_lock(before)
    lock = json.loads(claims_lock_path(before).read_text())
    assert (lock["minutes"], lock["rate_share"], lock["factors"]) == (40.0, 0.15, [0.5, 1.0, 2.0])
    assert not [line for line in lock_lines(before) if "minutes" in line]
    before.rates.search = RateSearch(minutes=20.0)
    assert "**Not as locked:** minutes of each pre-training: locked 40.0, here 20.0." in lock_lines(before)


def test_a_lock_is_never_written_again(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    before = claims_lock_path(plan(tmp_path)).read_bytes()
    write_lock(plan(tmp_path, pretraining_seeds=6))
    assert claims_lock_path(plan(tmp_path)).read_bytes() == before


def test_a_lock_that_came_after_the_first_runs_says_so(tmp_path: Path) -> None:
    write_lock(plan(tmp_path))
    line = lock_lines(plan(tmp_path))[0]
    assert line.startswith("**The lock is late:** 2 parts were computed before it was written (digest of the claims: ")


def test_without_a_lock_the_page_says_so(tmp_path: Path) -> None:
    assert lock_lines(plan(tmp_path))[0].startswith("**No lock.**")


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (
            (Claim(statement="Larger is better.", paper="", arm="a", against="b", paper_difference=9.0),),
            "delta was 1.5, is 4.5",
        ),
        (
            (Claim(statement="Larger is better.", paper="", arm="a", against="c", paper_difference=3.0),),
            "against was 'b', is 'c'",
        ),
        (
            (Claim(statement="Smaller is better.", paper="", arm="b", against="a"),),
            "“Larger is better.” was locked and is gone",
        ),
        (
            (CLAIM, Claim(statement="More is better.", paper="", arm="a", against="b")),
            "“More is better.” was not locked",
        ),
    ],
)
def test_claims_that_differ_from_the_lock_are_named(tmp_path: Path, claims: tuple[Claim, ...], words: str) -> None:
    write_lock(nothing_computed(tmp_path))
    lines = lock_lines(plan(tmp_path, *claims))
    assert any(line.startswith("**Not as locked:**") and words in line for line in lines)


def test_other_numbers_of_seeds_and_an_arm_with_fewer_are_named(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    lines = lock_lines(plan(tmp_path, pretraining_seeds=1, finished=(True, False)))
    assert "**Not as locked:** pre-training seeds: locked 2, here 1." in lines
    assert "**Fewer seeds than locked:** pre-trainings, of 2: `a` 1." in lines
    assert "**Fewer seeds than locked:** fine-tunings, of 6: `a` 0." in lines


def test_an_arm_with_fewer_fine_tunings_than_locked_is_named(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    line = "**Fewer seeds than locked:** fine-tunings, of 6: `a` 4."
    assert line in lock_lines(plan(tmp_path, tuned=4))
    assert len(lock_lines(plan(tmp_path, tuned=6))) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1", "table0-tiny.json:1: not valid JSON"),
        ("{}", "table0-tiny.json: expected a list of claims with their statements"),
        ('{"claims": [{"arm": "a"}]}', "table0-tiny.json: expected a list of claims with their statements"),
        ('{"claims": [], "seeds": "3"}', "table0-tiny.json: expected a number as seeds, got '3'"),
    ],
)
def test_a_lock_that_cannot_be_used_is_named(tmp_path: Path, content: str, words: str) -> None:
    write_lock(nothing_computed(tmp_path))
    claims_lock_path(plan(tmp_path)).write_text(content)
    line = lock_lines(plan(tmp_path))[0]
    assert line.startswith("**The lock cannot be used:** ")
    assert words in line


def test_the_lock_of_another_experiment_is_named(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    path = claims_lock_path(plan(tmp_path))
    path.write_text(path.read_text().replace("table0", "table1"))
    assert "**Not as locked:** experiment: locked table1, here table0." in lock_lines(plan(tmp_path))


def test_records_of_another_version_are_named(tmp_path: Path) -> None:
    write_lock(nothing_computed(tmp_path))
    words = "**Records of another version of the program:**"
    lines = lock_lines(plan(tmp_path, version="0.0.9"))
    assert any(line.startswith(f"{words} 0.0.9 (`a`). This page was written by {__version__}.") for line in lines)
    lines = lock_lines(plan(tmp_path, version=None))
    assert any(line.startswith(f"{words} unknown (`a`).") for line in lines)
    assert not any(words in line for line in lock_lines(plan(tmp_path)))
