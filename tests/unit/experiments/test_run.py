"""Parts of an experiment that two processes start, and parts that fail."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.errors import InputError, RunFailed
from bertwright.experiments import run as module
from bertwright.experiments.run import ExperimentRun
from bertwright.experiments.scores import RemainingWork, table_cells
from bertwright.experiments.spec import Arm
from bertwright.experiments.tables.columns import PERPLEXITY
from bertwright.files import write_json
from bertwright.training.run_lock import LOCK, locked


@pytest.fixture
def part(tmp_path: Path) -> Any:
    (tmp_path / LOCK).touch()
    return SimpleNamespace(folder=tmp_path, is_finished=False)


@pytest.fixture
def work() -> ExperimentRun:
    plan: Any = None
    return ExperimentRun(plan, command="", device="cpu", allow_other_numerics=False)


def test_what_another_process_is_at_is_not_begun(work: ExperimentRun, part: Any) -> None:
    begun: list[str] = []
    with locked(part.folder):
        work.attempt(part, lambda: begun.append("it"))
    assert (begun, work.elsewhere, work.failed) == ([], {part.folder}, {})


def test_what_another_process_began_a_moment_earlier_did_not_fail(work: ExperimentRun, part: Any) -> None:
    def refused() -> None:
        with pytest.raises(InputError, match="another process works") as caught, locked(part.folder):
            pass
        raise caught.value

    others = locked(part.folder)

    def both_begin() -> None:
        others.__enter__()
        refused()

    try:
        work.attempt(part, both_begin)
    finally:
        others.__exit__(None, None, None)
    assert (work.elsewhere, work.failed) == ({part.folder}, {})


def test_a_part_that_fails_is_named_with_its_reason(
    work: ExperimentRun, part: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise InputError("no rows")

    work.attempt(part, fail)
    assert (work.elsewhere, work.failed) == (set(), {part.folder: "no rows"})
    work.attempt(part, lambda: None)
    assert work.failed == {part.folder: "no rows"}
    printed = f"{capsys.readouterr().err}\n{chr(10).join(module._incidents(work))}"
    assert (printed.count("no rows"), f"failed: {part.folder}" in printed) == (1, True)


@pytest.mark.parametrize(
    ("seconds", "unknown", "words"),
    [
        (0.0, 2, "; the time is unknown until the first of them is finished"),
        (120.0, 1, "; about 2 min, and an unknown time for 1 of them"),
        (0.0, 0, "; about 0 s"),  # a model that is only begun takes none
    ],
)
def test_the_time_left_is_shown_as_far_as_it_is_known(seconds: float, unknown: int, words: str) -> None:
    left = RemainingWork(models=2, all_models=3, jobs=0, all_jobs=4, seconds=seconds, unknown=unknown)
    counts = "2 of 3 pre-trainings and 0 of 4 measurements on tasks"
    assert left.text() == f"to compute: {counts}{words}"
    assert left.text(is_page=True).startswith(f"missing: {counts}{words.partition(',')[0]}")


def test_what_is_not_trained_is_not_waited_for() -> None:
    arm, other = (Arm(name=name, title=name, is_trained=trained) for name, trained in (("a", False), ("b", True)))
    model: Any = SimpleNamespace(is_trained=False, is_finished=True)
    later: Any = SimpleNamespace(is_trained=True, is_finished=False)
    plan: Any = SimpleNamespace(
        arms=(arm, other), columns=(PERPLEXITY,), models={"a": ((model,),), "b": ((later,),)}, all_jobs=[], rates=None
    )
    cells = table_cells(plan)
    assert (cells["a", "perplexity"].wanted, cells["b", "perplexity"].wanted) == (0, 1)


def test_a_run_whose_shorter_run_another_process_computes_is_skipped(work: ExperimentRun, tmp_path: Path) -> None:
    shorter: Any = SimpleNamespace(folder=tmp_path / "shorter", is_finished=False, extends=None)
    longer: Any = SimpleNamespace(folder=tmp_path / "longer", is_finished=False, is_trained=True, extends=shorter)
    shorter.folder.mkdir()
    (shorter.folder / LOCK).touch()
    with locked(shorter.folder):
        work.attempt(longer, lambda: work._pretrain(longer))
    assert (work.elsewhere, work.waiting, work.failed) == ({shorter.folder}, {longer.folder}, {})
    (line,) = (line for line in module._incidents(work) if str(longer.folder) in line)
    assert "waits for a shorter run, which another process computes; repeat the command after it" in line


def test_a_run_whose_shorter_run_failed_is_not_begun(work: ExperimentRun, tmp_path: Path) -> None:
    shorter: Any = SimpleNamespace(folder=tmp_path / "shorter", is_finished=False, extends=None)
    longer: Any = SimpleNamespace(folder=tmp_path / "longer", is_finished=False, is_trained=True, extends=shorter)
    begun: list[Any] = []

    def diverge() -> None:
        begun.append(shorter)
        raise RunFailed("the loss is not finite")

    work.attempt(shorter, diverge)
    work.attempt(longer, lambda: work._pretrain(longer))
    work.attempt(shorter, diverge)
    assert begun == [shorter]
    assert work.failed[longer.folder] == f"the run that it extends failed: {shorter.folder}"


@pytest.mark.parametrize("noted", ["here", "there"])
def test_a_fine_tuning_of_a_model_that_was_moved_begins_anew(noted: str, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    (folder / "checkpoints").mkdir(parents=True)
    write_json(folder / "run.json", {"data": {"model": str(tmp_path / noted)}})
    module._remove_outdated(folder, tmp_path / "here")
    kept = {"run.json", "checkpoints"} if noted == "here" else set()
    assert {path.name for path in folder.iterdir()} - {LOCK} == kept
    write_json(folder / "run.json", {"data": {"model": "elsewhere"}, "finished": True})
    module._remove_outdated(folder, tmp_path / "here")
    assert (folder / "run.json").is_file()


def test_a_fine_tuning_of_a_model_from_a_store_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "url_of_copy", lambda _: "s3://bucket/model")
    write_json(tmp_path / "run.json", {"data": {"model": "s3://bucket/model"}})
    module._remove_outdated(tmp_path, Path("/cache/model"))
    assert (tmp_path / "run.json").is_file()
