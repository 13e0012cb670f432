"""Runs by URL: what is fetched before a run starts, what is uploaded, in which order, and what is refused."""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError, RunFailed, Stopped
from bertwright.training.remote_run import run_by_url, working_folder
from bertwright.training.uploads import IDENTITY, RunUploads
from tests.support.stores import FaultyStore, always_lost, keys, put

URL = "faulty://b/run"


def checkpoint(folder: Path, step: int, content: bytes = b"weights") -> None:
    """Write a checkpoint as training does: under another name first."""
    new = folder / "checkpoints" / ".new"
    new.mkdir(parents=True)
    (new / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (new / "state.json").write_text(json.dumps({"step": step, "sha256": {"model.safetensors": digest}}))
    new.rename(folder / "checkpoints" / f"step-{step:09d}")


def begin(folder: Path, step: int = 10, **record: Any) -> None:
    """Write a run with one checkpoint."""
    (folder / "run.json").write_text(json.dumps({"kind": "pretrain", **record}) + "\n")
    (folder / "metrics.jsonl").write_text('{"step": 5}\n{"step": 10}\n{"st')
    checkpoint(folder, step)


def train(step: int = 10, *, resume: bool = False, **record: Any) -> Path:
    with run_by_url(URL, resume=resume, pauses=()) as folder:
        begin(folder, step, **record)
    return folder


def work(change: Callable[[Path], None], *, resume: bool = False, pauses: Sequence[float] = ()) -> Path:
    """A run whose work is a change of its folder."""
    with run_by_url(URL, resume=resume, pauses=pauses) as folder:
        change(folder)
    return folder


def forget(folder: Path) -> None:
    """The folder as on another machine, where it does not exist."""
    folder.rename(folder.with_name("elsewhere"))


def stored(name: str) -> bytes:
    return bytes(FaultyStore.store[f"/b/run/{name}"].getvalue())


def test_the_run_is_in_the_store_at_the_end(store: Any) -> None:
    folder = train()
    assert folder == working_folder(f"{URL}/")
    names = [IDENTITY, "checkpoints/step-000000010/model.safetensors", "checkpoints/step-000000010/state.json"]
    assert keys("b/run/") == [f"b/run/{name}" for name in (*names, "metrics.jsonl", "run.json")]
    assert stored("metrics.jsonl") == b'{"step": 5}\n{"step": 10}\n'  # a line that is being written waits


def test_what_makes_a_checkpoint_or_run_complete_goes_last(store: Any) -> None:
    with run_by_url(URL, resume=False) as folder:
        begin(folder, finished=True)
        (folder / "model").mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / "model" / name).write_bytes(b"{}")
        (folder / ".lock").write_bytes(b"")
        (folder / ".report.html.bw-abcdefgh.tmp").write_bytes(b"half")
    written = [path.removeprefix("/b/run/") for name, path in store.calls if name == "write"]
    assert list(dict.fromkeys(written)) == [
        IDENTITY,
        "metrics.jsonl",
        "checkpoints/step-000000010/model.safetensors",
        "model/model.safetensors",
        "checkpoints/step-000000010/state.json",
        "model/config.json",
        "run.json",
    ]


def test_old_checkpoints_leave_the_store_after_a_new_one_is_there(store: Any) -> None:
    with run_by_url(URL, resume=False) as folder:
        begin(folder)
        uploads = RunUploads(folder, URL)
        uploads.upload()
        checkpoint(folder, 20)
        for path in (folder / "checkpoints" / "step-000000010").iterdir():
            path.unlink()
        (folder / "checkpoints" / "step-000000010").rmdir()
        uploads.upload()
    steps = {key.split("/")[3] for key in keys("b/run/checkpoints/")}
    assert steps == {"step-000000020"}
    removed = [path for name, path in store.calls if name == "remove"]
    assert removed[0].endswith("step-000000010/state.json")


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


@pytest.mark.parametrize("newer", ["folder", "store"])
def test_the_newer_step_wins(store: Any, newer: str) -> None:
    folder = train()
    if newer == "folder":
        checkpoint(folder, 20, b"ours")
    else:
        for name in ("model.safetensors", "state.json"):
            content = stored(f"checkpoints/step-000000010/{name}").replace(b"10", b"20")
            put(f"b/run/checkpoints/step-000000020/{name}", content)
    with run_by_url(URL, resume=True):
        assert (folder / "checkpoints" / "step-000000020").is_dir()
    assert "b/run/checkpoints/step-000000020/state.json" in keys()


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


def test_another_run_that_starts_meanwhile_is_not_overwritten(store: Any) -> None:
    def change(folder: Path) -> None:
        put(f"b/run/{IDENTITY}", b'{"run": "another"}')
        begin(folder)

    with pytest.raises(
        RunFailed, match=r"another run was started there meanwhile; nothing is lost: .*/run holds all of this run"
    ):
        work(change, pauses=(60.0,))  # there is no second try
    assert keys("b/run/") == [f"b/run/{IDENTITY}"]


def test_a_store_that_is_away_at_the_end_fails_and_loses_nothing(
    store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(folder: Path) -> None:
        begin(folder)
        store.fault = always_lost

    with pytest.raises(RunFailed, match=r"connection lost.*nothing is lost: .*/run holds all.*--resume"):
        work(change, pauses=(0.0, 0.0))
    assert capsys.readouterr().err.count("uploading failed") == 1
    store.fault = None
    with run_by_url(URL, resume=True):
        pass
    assert stored("run.json") == (working_folder(URL) / "run.json").read_bytes()


@pytest.mark.parametrize("begins", [0, 2, 5, 8, 11])
def test_a_store_that_comes_back_gets_everything(store: Any, capsys: pytest.CaptureFixture[str], begins: int) -> None:
    """The store vanishes at some call, for two tries."""
    calls = []

    def away(name: str, path: str) -> None:
        calls.append(name)
        if begins < len(calls) <= begins + 2:
            always_lost(name, path)

    with run_by_url(URL, resume=False, pauses=(0.0, 0.0, 0.0)) as folder:
        begin(folder)
        store.fault = away
    assert "uploading works again" in capsys.readouterr().err
    for name in ("run.json", "checkpoints/step-000000010/model.safetensors", "checkpoints/step-000000010/state.json"):
        assert stored(name) == (folder / name).read_bytes()


def test_half_an_upload_is_done_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, halves = store.put_file, []

    def put_file(self: Any, lpath: str, rpath: str, **options: Any) -> None:
        whole(self, lpath, rpath, **options)
        if not halves:
            halves.append(rpath)
            put(rpath.lstrip("/"), Path(lpath).read_bytes()[:3])

    monkeypatch.setattr(store, "put_file", put_file)
    with run_by_url(URL, resume=False, pauses=(0.0,)) as folder:
        begin(folder)
    assert halves == ["/b/run/checkpoints/step-000000010/model.safetensors"]
    assert stored("checkpoints/step-000000010/model.safetensors") == b"weights"


def test_a_stopped_or_failed_run_is_uploaded_too(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def first(folder: Path) -> None:
        begin(folder)
        raise Stopped("by a signal")

    def second(folder: Path) -> None:
        checkpoint(folder, 20)
        store.fault = always_lost
        raise Stopped("by a signal")

    with pytest.raises(Stopped):
        work(first)
    assert "b/run/run.json" in keys()
    with pytest.raises(Stopped):
        work(second, resume=True)
    assert "the last files could not be uploaded" in capsys.readouterr().err


def test_a_refused_command_leaves_nothing_in_the_store(store: Any) -> None:
    with pytest.raises(InputError, match="no such setting"), run_by_url(URL, resume=False):
        raise InputError("no such setting")
    assert keys() == []


def test_the_thread_uploads_while_the_run_goes_on(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.training.uploads._EVERY", 0.0)
    complete = {f"/b/run/checkpoints/step-{step:09d}/state.json": threading.Event() for step in (10, 20)}

    def note(name: str, path: str) -> None:
        if name == "info" and path in complete:
            complete[path].set()

    store.fault = note
    with run_by_url(URL, resume=False) as folder:
        for step, event in zip((10, 20), complete.values(), strict=True):
            if step == 10:
                begin(folder)
            else:
                checkpoint(folder, step)
            assert event.wait(60)
