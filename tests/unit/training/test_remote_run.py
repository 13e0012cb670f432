"""Runs by URL: what is fetched before a run starts, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError, RunFailed
from bertwright.stores.cache import download
from bertwright.stores.remote import RemoteFile
from bertwright.training import remote_run
from bertwright.training.remote_run import run_by_url, working_folder
from bertwright.training.run_files import IDENTITY
from tests.support.store_runs import URL, begin, checkpoint, forget, stored, train, work
from tests.support.stores import keys, put, put_folder


def test_the_run_is_in_the_store_at_the_end(store: Any) -> None:
    folder = train()
    assert folder == working_folder(f"{URL}/")
    names = [IDENTITY, "checkpoints/step-000000010/model.safetensors", "checkpoints/step-000000010/state.json"]
    assert keys("b/run/") == [f"b/run/{name}" for name in (*names, "metrics.jsonl", "run.json")]
    assert stored("metrics.jsonl") == b'{"step": 5}\n{"step": 10}\n'  # a line that is being written waits


def test_another_machine_gets_the_newest_complete_checkpoint(store: Any) -> None:
    folder = train()
    put("b/run/checkpoints/step-000000030/model.safetensors", b"half")  # killed before its state.json
    forget(folder)
    with run_by_url(URL, resume=True) as again:
        assert again == folder
        assert (again / "run.json").read_bytes() == stored("run.json")
        assert (again / "metrics.jsonl").read_bytes() == stored("metrics.jsonl")
        assert [path.name for path in (again / "checkpoints").iterdir()] == ["step-000000010"]


def test_a_damaged_checkpoint_is_left_for_the_one_before(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with run_by_url(URL, resume=False) as folder:
        begin(folder)
        checkpoint(folder, 20)
    put("b/run/checkpoints/step-000000020/model.safetensors", b"damaged")
    forget(folder)
    with run_by_url(URL, resume=True) as again:
        assert [path.name for path in (again / "checkpoints").iterdir()] == ["step-000000010"]
    assert "step-000000020 is damaged; trying the checkpoint before it" in capsys.readouterr().err
    for step in (10, 20):
        put(f"b/run/checkpoints/step-{step:09d}/model.safetensors", b"damaged")
    forget(folder / "checkpoints")
    with pytest.raises(RunFailed, match="every checkpoint in the store is damaged"), run_by_url(URL, resume=True):
        pass


def damage(*steps: int) -> None:
    """Replace the weights of checkpoints in the store."""
    for step in steps:
        put(f"b/run/checkpoints/step-{step:09d}/model.safetensors", b"damaged")


def put_checkpoint(folder: Path, step: int, content: bytes = b"weights") -> None:
    """Put a checkpoint into the store alone."""
    checkpoint(folder / "other", step, content)
    put_folder(folder / "other", "b/run")
    shutil.rmtree(folder / "other")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run folder that do not belong to the machine."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def resume() -> Path:
    return work(lambda _: None, resume=True)


@pytest.mark.parametrize("newer", ["folder", "store"])
def test_the_newer_step_wins(store: Any, tmp_path: Path, newer: str) -> None:
    folder = train()
    if newer == "folder":
        checkpoint(folder, 20, b"newer")
    else:
        put_checkpoint(tmp_path, 20, b"newer")
    resume()
    name = "checkpoints/step-000000020/model.safetensors"
    assert (folder / name).read_bytes() == stored(name) == b"newer"


def test_damaged_checkpoints_of_the_store_replace_nothing(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train()
    put("b/run/metrics.jsonl", b'{"step": 30}\n')
    put_checkpoint(tmp_path, 30)
    damage(10, 30)
    before = contents(folder)
    for _ in range(2):  # and so does the next call
        resume()
        assert contents(folder) == before
        assert "the run continues from step 10 of" in capsys.readouterr().err
    assert stored("checkpoints/step-000000010/model.safetensors") == b"damaged"  # nobody read it
    put_checkpoint(tmp_path, 20)
    resume()
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step-000000010", "step-000000020"}


def test_a_damaged_checkpoint_of_the_folder_is_replaced(store: Any) -> None:
    folder = train()
    (folder / "checkpoints" / "step-000000010" / "model.safetensors").write_bytes(b"damaged")
    resume()
    assert (folder / "checkpoints" / "step-000000010" / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("killed_at", ["metrics.jsonl", "run.json"])
def test_a_fetch_that_was_killed_is_done_again(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    folder = train()
    put_checkpoint(tmp_path, 20)
    put("b/run/run.json", b'{"kind": "pretrain", "sessions": ["of another machine"]}\n')

    def killed(file: RemoteFile, path: Path) -> None:
        if path.name == killed_at:
            raise KeyboardInterrupt
        download(file, path)

    with monkeypatch.context() as patch:
        patch.setattr(remote_run, "download", killed)
        with pytest.raises(KeyboardInterrupt):
            resume()
    resume()
    assert (folder / "run.json").read_bytes() == stored("run.json") != b'{"kind": "pretrain"}\n'
    assert not list(folder.glob(".fetching"))
    assert "b/run/.fetching" not in keys()


def test_a_run_of_unknown_origin_is_taken_by_a_free_folder_alone(store: Any) -> None:
    folder = train()
    del store.store[f"/b/run/{IDENTITY}"]  # as after a copy of the files that one sees
    before = keys()
    with pytest.raises(InputError, match="holds another run than"):
        resume()
    assert keys() == before
    forget(folder)
    resume()
    assert keys() == [f"b/run/{IDENTITY}", *before]


@pytest.mark.parametrize("name", [IDENTITY, "run.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b'{"run": ', b"\xff"])
def test_damaged_json_in_the_store_is_named(store: Any, name: str, content: bytes) -> None:
    train()
    put(f"b/run/{name}", content)
    with pytest.raises(InputError, match=rf"b/run/{name}: expected a JSON object, got \d bytes of other content"):
        resume()


def test_runs_do_not_mix(store: Any) -> None:
    folder = train()
    with pytest.raises(InputError, match="b/run: already holds a run; continue it with --resume"):
        train()
    put(f"b/run/{IDENTITY}", b'{"run": "another"}')
    with pytest.raises(InputError, match=r"b/run: holds another run than .*/run, where this machine trained"):
        train(resume=True)
    store.reset()
    with pytest.raises(InputError, match="holds a run of this URL that is not in the store; --resume continues"):
        train()
    with run_by_url(URL, resume=True):
        pass
    assert "b/run/run.json" in keys()
    forget(folder)
    store.reset()
    put("b/run/notes.txt", b"mine")
    with pytest.raises(InputError, match=r"b/run: is not empty and holds no run \(notes\.txt\)"):
        train()


def test_a_second_process_is_refused_before_it_touches_the_folder(store: Any) -> None:
    with run_by_url(URL, resume=False) as folder:
        before = (folder / IDENTITY).read_bytes()
        begin(folder)
        with pytest.raises(InputError, match=r"b/run: another process works on this run in .*; wait for it or stop it"):
            train(resume=True)
        assert (folder / IDENTITY).read_bytes() == before


def test_a_refused_command_leaves_nothing_in_the_store(store: Any) -> None:
    with pytest.raises(InputError, match="no such setting"), run_by_url(URL, resume=False):
        raise InputError("no such setting")
    assert keys() == []


def tune(folder: Path, *finished: str, current: str, step: int = 10) -> None:
    """Write a fine-tuning: finished seeds, and one with a checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_bytes(b'{"kind": "finetune"}')
    for name in (*finished, current):
        (folder / name / "model").mkdir(parents=True, exist_ok=True)
        (folder / name / "model" / "config.json").write_bytes(name.encode())
        (folder / name / "run.json").write_text(json.dumps({"finished": name in finished, "best": 1}))
    checkpoint(folder / current, step)


def test_another_machine_gets_the_finished_seeds_and_the_checkpoint_of_the_other(store: Any) -> None:
    folder = work(lambda folder: tune(folder, "seed-0", current="seed-1"))
    before = contents(folder)
    forget(folder)
    assert contents(resume()) == before


@pytest.mark.parametrize("newer", ["folder", "store"])
def test_the_side_with_more_finished_seeds_wins(store: Any, tmp_path: Path, newer: str) -> None:
    """A step of a later seed is newer than a larger one of an earlier seed."""
    folder = work(lambda folder: tune(folder, current="seed-0", step=30))
    if newer == "folder":
        tune(folder, "seed-0", current="seed-1", step=10)
    else:
        tune(tmp_path / "other", "seed-0", current="seed-1", step=10)
        put_folder(tmp_path / "other", "b/run")
    resume()
    name = "seed-1/checkpoints/step-000000010/model.safetensors"
    assert (folder / name).read_bytes() == stored(name) == b"weights"
    assert json.loads(stored("seed-0/run.json"))["finished"]
    assert not keys("b/run/seed-0/checkpoints")


def test_a_seed_without_an_undamaged_checkpoint_begins_again(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = work(lambda folder: tune(folder, "seed-0", current="seed-1"))
    put("b/run/seed-1/checkpoints/step-000000010/model.safetensors", b"damaged")
    forget(folder)
    resume()
    assert not list((folder / "seed-1" / "checkpoints").glob("step-*"))
    assert (folder / "seed-0" / "model" / "config.json").read_bytes() == b"seed-0"
    assert "b/run/seed-1: every checkpoint in the store is damaged; the seed begins again" in capsys.readouterr().err
