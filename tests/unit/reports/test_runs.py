"""Runs from their folders: states from locks and notes, speed from lines, remaining time, broken folders."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError, RunFailed, Stopped
from bertwright.files import read_json
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.runs import list_runs, read_run
from bertwright.reports.runs_table import runs_table
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import LOCK, is_locked, say_finished, session
from tests.golden.renew import GOLDEN

SETTINGS = {"size": "tiny", "phases": [{"length": 32, "share": 0.5}, {"length": 128, "share": 0.5}]}


def log_line(step: int, *, seconds: float = 2.0, tokens: float = 1000.0, **terms: Any) -> dict[str, Any]:
    return {"step": step, "mlm": 5.0, "seconds": seconds, "tokens_per_second": tokens, "mfu": 0.5, **terms}


def started_run(folder: Path, steps: int = 100, **settings: Any) -> RunFolder:
    run = start_run(folder, kind="pretrain", settings=SETTINGS | settings, data={"corpus": "c0"}, resume=True)
    run.note(resolved={"numerics": {}, "steps": steps})
    return run


def state(folder: Path) -> tuple[str, str]:
    run = read_run(folder)
    return run.state, run.detail


def test_states_as_sessions_end(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    assert state(run.folder)[0] == "unfinished"
    with session(run):
        run.log(log_line(10))
        assert state(run.folder) == ("running", "")
    assert state(run.folder) == ("stopped", "")
    with pytest.raises(RunFailed), session(run):
        raise RunFailed("the loss is not finite")
    assert state(run.folder) == ("crashed", "the loss is not finite")
    with pytest.raises(Stopped), session(run):
        raise Stopped("by a person")
    assert state(run.folder)[0] == "stopped"
    with session(run):
        run.note(finished=True, result={})
    assert state(run.folder) == ("finished", "")
    assert [entry["how"] for entry in run.record["sessions"]] == ["stopped", "failed", "stopped", "finished"]


def test_a_number_of_skipped_steps_is_no_loss(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    run.log(log_line(10, nsp=0.5, skipped=3))
    assert read_run(run.folder).losses == {"mlm": 5.0, "nsp": 0.5}


def test_a_refusal_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    with pytest.raises(RunFailed), session(run):
        raise RunFailed("first")
    with pytest.raises(InputError), session(run):
        raise InputError("another processor")
    assert state(run.folder) == ("crashed", "first")


def test_bad_input_after_steps_is_the_end_of_a_session(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")

    def trained() -> None:
        (run.folder / "metrics.jsonl").write_text('{"step": 50}\n')
        raise InputError("a shard was changed")

    with pytest.raises(InputError), session(run):
        trained()
    assert state(run.folder) == ("crashed", "a shard was changed")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    with session(run), pytest.raises(InputError, match="another process works on this run"), session(run):
        pytest.fail("two at once")
    assert not is_locked(run.folder)


def killed(folder: Path) -> None:
    """Start a process that holds a session, and kill it by SIGKILL."""
    code = (
        "import os, signal, sys; from pathlib import Path; from bertwright.training.run_lock import session; "
        "from bertwright.training.run_folder import RunFolder; run = RunFolder(Path(sys.argv[1]), {}); "
        "context = session(run); context.__enter__(); print('in', flush=True); sys.stdin.read()"
    )
    running = subprocess.Popen([sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdin
    assert running.stdout
    with running.stdin, running.stdout:
        assert running.stdout.readline() == b"in\n"
        assert state(folder) == ("running", "")
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL


def test_a_killed_process_is_not_running(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    killed(run.folder)
    assert state(run.folder)[0] == "crashed"
    with session(run):  # who resumes says of the one before that it was killed
        pass
    assert [entry["how"] for entry in run.record["sessions"]] == ["killed", "stopped"]


def test_what_only_the_other_machine_can_tell_is_not_guessed(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    run.note(sessions=[{"started": "2025-01-02T03:04:05Z", "host": "elsewhere", "pid": 1, "locked": True}])
    assert state(run.folder)[0] == "unfinished"
    assert "elsewhere" in state(run.folder)[1]


def test_speed_weighs_lines_by_their_time_and_phases_by_their_rows(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    run.log(log_line(20, seconds=10.0, tokens=1000.0))
    run.log(log_line(40, seconds=30.0, tokens=2000.0))
    speed = read_run(run.folder).speed
    assert speed
    assert speed.tokens_per_second == pytest.approx((10 * 1000 + 30 * 2000) / 40)
    assert speed.seconds == 40.0
    with session(run):  # 40 steps in 40 s; 10 of 32 tokens and 50 of 128, each four times as long, are left
        assert read_run(run.folder).seconds_left == pytest.approx(1.0 * (10 + 50 * 4))
    assert read_run(run.folder).seconds_left is None


def test_the_time_left_follows_the_rows_of_a_step(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r", batch_schedule=[{"rows": 16, "share": 0.2}, {"rows": 64, "share": 0.8}])
    run.log(log_line(10, seconds=10.0))
    run.log(log_line(20, seconds=10.0))
    with session(run):  # 20 steps of 16 rows in 20 s; 30 of 64 rows of 32 tokens and 50 of 64 rows of 128 are left
        assert read_run(run.folder).seconds_left == pytest.approx(30 * 4 + 50 * 4 * 4)


def test_lines_without_times_weigh_by_their_tokens(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    for step, tokens in ((50, 1000.0), (100, 4000.0)):
        run.log({name: value for name, value in log_line(step, tokens=tokens).items() if name != "seconds"})
    speed = read_run(run.folder).speed
    assert speed
    assert speed.seconds is None
    done = 50 * 32 + 50 * 128
    assert speed.tokens_per_second == pytest.approx(done / (50 * 32 / 1000 + 50 * 128 / 4000))


def test_a_torn_last_line_is_left_out_and_a_broken_one_named(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    run.log(log_line(10))
    with (run.folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 20, "ml')
    assert read_run(run.folder).steps_done == 10
    with (run.folder / "metrics.jsonl").open("a") as stream:
        stream.write("\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl:2"):
        read_run(run.folder)
    for broken in ('{"step": -1}', '{"step": true}', '{"step": 1.0}', "[]"):
        (run.folder / "metrics.jsonl").write_text(f"{broken}\n")
        with pytest.raises(InputError, match=r"metrics\.jsonl:1: .* whole number from 0"):
            read_run(run.folder)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[1, 2]"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text('{"kind": "bake"}'),
        lambda path: path.write_text('{"kind": "pretrain", "settings": 3, "data": {}}'),
        lambda path: path.write_text('{"kind": "finetune", "settings": {"seeds": "many"}, "data": {}}'),
        lambda path: path.write_text('{"kind": "pretrain", "settings": {}, "data": {}, "sessions": [7]}'),
    ],
)
def test_broken_runs_are_listed_beside_the_others(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    run = started_run(tmp_path / "b" / "good")
    run.log(log_line(10))
    run.log({"step": 10, "held_out": {"mlm_loss": 4.5, "rows": 3}})
    run.note(finished=True, result={})
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "run.json")
    rows = list_runs(tmp_path)
    assert [(row["name"], row["state"]) for row in rows] == [("a", "broken"), ("b/good", "finished")]
    assert "run.json" in rows[0]["detail"]
    assert rows[1]["held_out"] == {"mlm_loss": 4.5}
    json.dumps(rows)
    table = runs_table(rows)
    assert "10 / 100" in table
    assert "mlm_loss 4.500" in table


def test_the_run_json_of_another_program_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(GOLDEN.parent)]) == 0
    assert "no run lies here" in capsys.readouterr().out
    started_run(tmp_path / "a" / "below").note(finished=True, result={})
    (tmp_path / "a" / "run.json").write_text('{"scripts": ["build"]}')
    assert [(row["name"], row["state"]) for row in list_runs(tmp_path)] == [("a/below", "finished")]
    (tmp_path / "a" / "run.json").write_text('{"settings": {}, "data": {}}')  # a record that lost its kind
    assert [(row["name"], row["state"]) for row in list_runs(tmp_path)] == [("a", "broken")]


def test_a_broken_run_is_a_failure_of_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = started_run(tmp_path / "good")
    run.note(finished=True, result={})
    for more in ([], ["--json"]):
        assert main(["runs", str(tmp_path), *more]) == 0
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    for more in ([], ["--json"]):
        capsys.readouterr()
        assert main(["runs", str(tmp_path), *more]) == 1
        said = capsys.readouterr().out
        assert "bad" in said
        assert "broken" in said
        assert "run.json:1: not valid JSON" in said
        assert "finished" in said


def test_seeds_belong_to_their_run(tmp_path: Path) -> None:
    settings = {"seeds": 3, "first_seed": 1}
    run = start_run(tmp_path / "t", kind="finetune", settings=settings, data={"task": {"name": "x"}}, resume=False)
    for seed, score in ((1, 0.5), (2, 0.75)):
        seed_run = start_run(
            run.folder / f"seed-{seed}", kind="finetune-seed", settings={"seed": seed}, data={}, resume=True
        )
        seed_run.note(resolved={"steps": 20}, finished=True, result={"seed": seed, "epoch": 1, "scores": {"f1": score}})
        seed_run.log(log_line(20, loss=0.5))
    with session(run):
        (row,) = list_runs(tmp_path)
        assert (row["state"], row["steps"], row["planned"]) == ("running", 40, 60)
        assert row["held_out"] == {"f1": 0.625}
        assert row["seconds_left"] == pytest.approx(20 * 2.0 / 20)
    with pytest.raises(InputError, match="one seed of a fine-tuning"):
        read_run(run.folder / "seed-1")


def test_a_stopped_finetuning_has_the_metrics_of_its_best_epoch_and_the_step_of_its_checkpoint(tmp_path: Path) -> None:
    settings = {"seeds": 2}
    run = start_run(tmp_path / "t", kind="finetune", settings=settings, data={"task": {"name": "x"}}, resume=False)
    seed_run = start_run(run.folder / "seed-0", kind="finetune-seed", settings={"seed": 0}, data={}, resume=True)
    seed_run.note(resolved={"steps": 800}, best={"step": 200, "held_out": {"f1": 0.75, "collapsed": 0.0}})
    for step in (100, 200, 300):
        seed_run.log(log_line(step, loss=0.5))
    for step in (300, 324):  # what is saved where a run stops stands between two lines of metrics
        (seed_run.checkpoints / f"step-{step:09}").mkdir(parents=True)
    (row,) = list_runs(tmp_path)
    assert (row["steps"], row["planned"], row["held_out"]) == (324, 1600, {"f1": 0.75})
    assert "f1 0.750" in runs_table([row])


def test_what_a_process_killed_at_the_very_end_left_goes_with_the_next_look(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    with session(run):
        run.note(finished=True)
    left = run.folder / ".run.json.bw-a1b2c3d_.tmp"
    with session(run):
        left.touch()
        say_finished(run)  # as another process would, which the lock keeps from files that may be being written
        assert left.exists()
    say_finished(run)
    assert not left.exists()


def test_only_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    run = started_run(tmp_path / "r")
    moved, replaced = (run.checkpoints / f".step-00000000{step}.bw-a1b2c3d_.old" for step in (1, 2))
    (run.checkpoints / "step-000000002").mkdir(parents=True)
    inside = run.folder / "tuned"
    others = (inside / ".model.bw-a1b2c3d_.tmp", run.folder / ".notes.old", run.folder / ".mine.tmp")
    started_run(inside)
    (inside / LOCK).touch()  # somebody may be working there
    for temporary in (moved, replaced, run.folder / ".model.bw-a1b2c3d_.tmp", *others):
        temporary.mkdir()
        (temporary / "file").touch()
    with session(run):
        run.note(finished=True)
    assert all((temporary / "file").exists() for temporary in others)
    assert not (run.folder / ".model.bw-a1b2c3d_.tmp").exists()
    assert (run.checkpoints / "step-000000001" / "file").exists()  # killed before its successor had its name
    assert [path.name for path in (run.checkpoints / "step-000000002").iterdir()] == []
    assert [path.name for path in run.checkpoints.glob(".*")] == [replaced.name]  # an older one is nobody's to remove


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("sessions", None),
        ("sessions", [1]),
        ("sessions", "a"),
        ("sessions", [{}]),
        ("resolved", []),
        ("resolved", 6),
        ("resolved", {}),
        ("finished", True),
    ],
)
def test_a_damaged_record_is_refused_with_the_place(tmp_path: Path, part: str, value: Any) -> None:
    run = started_run(tmp_path / "r")
    run.note(**{part: value})
    with pytest.raises(InputError, match=r"run\.json: \w+ is .*; expected .*: the file is damaged"):
        started_run(tmp_path / "r")


def test_what_a_run_goes_on_with_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for keep in (3, 1):
        settings = PretrainSettings(steps=6, keep=keep)
        run = start_run(tmp_path / "r", kind="pretrain", settings=settings, data={}, resume=True)
        with session(run):
            pass
        assert read_json(run.folder / "run.json")["settings"]["keep"] == keep
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("part", "value"), [("places", "x"), ("resolved", 5), ("warnings", "x")])
def test_a_record_of_another_kind_is_no_run(tmp_path: Path, part: str, value: Any) -> None:
    run = started_run(tmp_path / "r")
    run.note(**{part: value})
    with pytest.raises(InputError, match=rf"run\.json: expected an? \w+ under '{part}', got"):
        read_run(tmp_path / "r")
