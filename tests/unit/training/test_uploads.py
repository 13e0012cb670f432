"""Uploads of a run: what is copied to the store, in which order, and what happens where the store fails."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import RunFailed, Stopped
from bertwright.training.remote_run import run_by_url, working_folder
from bertwright.training.run_files import IDENTITY
from bertwright.training.uploads import RunUploads, StoredRun
from tests.support.store_runs import URL, begin, checkpoint, stored, work
from tests.support.stores import always_lost, keys, put


class Clock:
    """A clock that stands still, but for `pass_seconds`, which waits until the main thread has read the new time."""

    def __init__(self) -> None:
        self._now, self._was_read = 0.0, threading.Event()

    def __call__(self) -> float:
        if threading.current_thread() is threading.main_thread():
            self._was_read.set()
        return self._now

    def pass_seconds(self, seconds: float) -> None:
        self._was_read.clear()
        self._now += seconds
        assert self._was_read.wait(60)


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
        "model/model.safetensors",
        "model/config.json",
        "checkpoints/step-000000010/model.safetensors",
        "checkpoints/step-000000010/state.json",
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


def test_the_process_that_continues_a_run_is_the_only_one_that_writes_it(store: Any) -> None:
    """Two machines work on one run: the first one notices the second, and changes nothing more."""
    with pytest.raises(RunFailed, match="another process continued this run meanwhile; nothing is lost"):
        work(continued_elsewhere)
    assert "b/run/checkpoints/step-000000020/state.json" not in keys()
    assert "b/run/checkpoints/step-000000030/state.json" in keys()


def continued_elsewhere(folder: Path) -> None:
    begin(folder)
    RunUploads(folder, URL).upload()
    identity = {**json.loads((folder / IDENTITY).read_bytes()), "process": "another"}
    put(f"b/run/{IDENTITY}", json.dumps(identity).encode())
    for name in ("model.safetensors", "state.json"):
        put(f"b/run/checkpoints/step-000000030/{name}", b"{}")
    checkpoint(folder, 20)


def test_checkpoints_after_those_of_this_machine_stay(store: Any) -> None:
    def change(folder: Path) -> None:
        begin(folder)
        for step in (5, 30):
            put(f"b/run/checkpoints/step-{step:09d}/state.json", b"{}")

    work(change)
    assert {key.split("/")[3] for key in keys("b/run/checkpoints/")} == {"step-000000010", "step-000000030"}


def test_a_run_that_appears_without_identity_is_not_overwritten(store: Any) -> None:
    def change(folder: Path) -> None:
        put("b/run/run.json", b"of a colleague")
        begin(folder)

    with pytest.raises(RunFailed, match="another run was started there meanwhile"):
        work(change)
    assert stored("run.json") == b"of a colleague"


def test_a_store_that_was_emptied_gets_everything_again(store: Any) -> None:
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin(folder)
        uploads = RunUploads(folder, URL)
        uploads.upload()
        before = keys()
        store.reset()
        uploads.upload()
    assert keys() == before


def test_a_file_that_grows_or_vanishes_does_not_stop_the_upload(store: Any) -> None:
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin(folder)
        events, report = folder / "tensorboard" / "events", folder / "report.html"
        events.parent.mkdir()
        events.write_bytes(b"a")
        report.write_bytes(b"b")

        def change(name: str, path: str) -> None:
            if name == "write" and path.endswith("/events"):
                events.write_bytes(b"aa")
            elif name == "write" and path.endswith("/state.json"):
                report.unlink(missing_ok=True)

        store.fault = change
        uploads = RunUploads(folder, URL)
        uploads.upload()
        written = list(dict.fromkeys(path for name, path in store.calls if name == "write"))
        assert written[-2:] == ["/b/run/checkpoints/step-000000010/state.json", "/b/run/tensorboard/events"]
        assert (stored("tensorboard/events"), events.read_bytes()) == (b"a", b"aa")
        store.fault = None
        uploads.upload()
    assert stored("tensorboard/events") == b"aa"


def test_a_file_that_vanishes_while_the_folder_is_listed_is_left_out(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(folder: Path) -> Any:
        yield str(folder), [], ["gone"]

    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin(folder)
        with monkeypatch.context() as patch:
            patch.setattr("bertwright.training.uploads.os.walk", walk)
            RunUploads(folder, URL).upload()
    assert "b/run/checkpoints/step-000000010/state.json" in keys()


def test_a_stopped_run_does_not_wait_for_a_slow_store(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertwright.training.uploads._END_SECONDS", 0.0)
    release = threading.Event()

    def slow(name: str, path: str) -> None:
        release.wait(60)

    def change(folder: Path) -> None:
        begin(folder)
        store.fault = slow
        raise Stopped("by a signal")

    with pytest.raises(Stopped):
        work(change)
    assert "the last files could not be uploaded (no end after 0 s); " in capsys.readouterr().err
    release.set()
    for thread in threading.enumerate():
        if thread.name == "uploads":
            thread.join()
    assert "b/run/run.json" in keys()


def test_a_run_that_ends_while_the_store_is_slow_tells_the_way_out(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertwright.training.uploads._END_SECONDS", 0.0)
    monkeypatch.setattr("bertwright.training.uploads._EVERY", 0.0)
    writing, release = threading.Event(), threading.Event()

    def slow(name: str, path: str) -> None:
        writing.set()
        release.wait(60)

    def released(text: str) -> None:
        said.append(text)
        release.set()

    said: list[str] = []
    monkeypatch.setattr("bertwright.training.uploads.say", released)
    with run_by_url(URL, resume=False, pauses=()) as folder:
        store.fault = slow
        begin(folder)
        assert writing.wait(60)
    assert said == [f"{URL}: waiting for the upload; Ctrl-C ends the wait, and {folder} holds all of this run"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the uploads, and looks without a pause between them."""
    made = Clock()
    monkeypatch.setattr("bertwright.training.uploads.monotonic", made)
    monkeypatch.setattr("bertwright.training.uploads._END_SECONDS", 0.0)
    monkeypatch.setattr("bertwright.training.uploads._LOOK_SECONDS", 0.0)
    return made


def test_a_store_that_never_answers_is_given_up_at_the_end(store: Any, clock: Clock) -> None:
    release = threading.Event()

    def silent(name: str, path: str) -> None:
        if not release.is_set():
            clock.pass_seconds(3601)
            release.wait(60)

    def change(folder: Path) -> None:
        begin(folder)
        store.fault = silent

    with pytest.raises(RunFailed, match=r"no answer from the store for 60 minutes\); nothing is lost: .*--resume"):
        work(change)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "uploads":
            thread.join()


def test_a_slow_store_is_waited_for_while_it_takes_files_and_parts_of_files(
    store: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file takes an hour, since the store of the tests counts two calls; each of the two parts of a large one too."""

    def slow(name: str, path: str) -> None:
        if name == "write":
            clock.pass_seconds(1800)

    def put_file(self: Any, lpath: str, rpath: str, *, callback: Any) -> None:
        for _ in range(2):
            clock.pass_seconds(3600)
            callback.relative_update(1)
        put(rpath.lstrip("/"), Path(lpath).read_bytes())

    monkeypatch.setattr(store, "put_file", put_file)
    with run_by_url(URL, resume=False, pauses=()) as folder:
        store.fault = slow
        begin(folder)
    assert stored("checkpoints/step-000000010/model.safetensors") == b"weights"
    assert "b/run/run.json" in keys()


def test_what_the_store_has_with_the_same_digests_is_not_uploaded_again(store: Any, tmp_path: Path) -> None:
    """A size alone proves nothing; a step that was found damaged is uploaded again."""

    def change(folder: Path) -> None:
        begin(folder)
        (folder / "model").mkdir()
        for name in ("config.json", "model.safetensors", "model.safetensors.sha256"):
            (folder / "model" / name).write_bytes(b"first")

    folder = work(change)
    weights = ["checkpoints/step-000000010/model.safetensors", "model/model.safetensors"]
    assert not uploaded(store, weights)
    put("b/run/checkpoints/step-000000010/state.json", stored("checkpoints/step-000000010/state.json")[::-1])
    assert uploaded(store, weights) == weights[:1]
    for name in ("config.json", "model.safetensors", "model.safetensors.sha256"):
        (folder / "model" / name).write_bytes(b"other")
    assert uploaded(store, weights) == weights[1:]
    assert (stored("model/config.json"), stored("model/model.safetensors")) == (b"other", b"other")
    put("b/run/checkpoints/step-000000010/model.safetensors", b"damaged")
    assert not uploaded(store, weights)
    uploads = RunUploads(
        folder,
        URL,
        before=StoredRun(json.loads(stored(IDENTITY)), damaged=frozenset({"checkpoints/step-000000010"})),
    )
    uploads.upload()
    assert stored(weights[0]) == b"weights"


def uploaded(store: Any, names: list[str]) -> list[str]:
    """Return those files that a resumed run writes to the store."""
    store.calls.clear()
    work(lambda _: None, resume=True)
    written = {path for name, path in store.calls if name == "write"}
    return [name for name in names if f"/b/run/{name}" in written]


def test_a_run_in_the_store_finishes_with_its_model(store: Any) -> None:
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin(folder)
        record = (folder / "run.json").read_bytes()

        def finish(name: str, path: str) -> None:
            if name == "write" and path.endswith("/metrics.jsonl"):
                store.fault = None
                (folder / "model").mkdir()
                (folder / "model" / "config.json").write_bytes(b"{}")
                (folder / "run.json").write_bytes(b'{"finished": true}\n')

        store.fault = finish
        RunUploads(folder, URL).upload()
        assert stored("run.json") == record
    assert stored("run.json") == b'{"finished": true}\n'
    assert "b/run/model/config.json" in keys()


def seed(folder: Path, name: str, *, best: int, weights: bytes, **record: Any) -> None:
    """Write the folder of a seed of a fine-tuning with the model of its best epoch."""
    model = folder / name / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "model.safetensors").write_bytes(weights)
    (model / "config.json").write_bytes(b"{}")
    (folder / name / "validation.json").write_bytes(weights)
    new = folder / name / ".run.json.new"
    new.write_text(json.dumps({"best": best, **record}))
    new.replace(folder / name / "run.json")


def test_a_seed_is_uploaded_as_its_model_its_record_and_its_checkpoint(store: Any) -> None:
    """The record is never newer than the model, nor the checkpoint newer than the record."""
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)
        (folder / "report.html").write_bytes(b"page")
        RunUploads(folder, URL).upload()
    written = [path.removeprefix("/b/run/") for name, path in store.calls if name == "write"]
    assert list(dict.fromkeys(written))[2:] == [
        "seed-0/metrics.jsonl",
        "seed-0/model/model.safetensors",
        "seed-0/model/config.json",
        "seed-0/validation.json",
        "seed-0/run.json",
        "seed-0/checkpoints/step-000000010/model.safetensors",
        "seed-0/checkpoints/step-000000010/state.json",
        "report.html",
    ]


def begin_tuning(folder: Path) -> None:
    """Write a fine-tuning with one seed that has a best epoch and a checkpoint."""
    (folder / "run.json").write_bytes(b'{"kind": "finetune"}')
    seed(folder, "seed-0", best=1, weights=b"first")
    (folder / "seed-0" / "metrics.jsonl").write_bytes(b"{}\n")
    checkpoint(folder / "seed-0", 10)


def test_a_model_that_is_replaced_is_incomplete_in_the_store_meanwhile(store: Any) -> None:
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)
        uploads = RunUploads(folder, URL)
        uploads.upload()
        seed(folder, "seed-0", best=2, weights=b"second")

        def lost(name: str, path: str) -> None:
            if name == "write" and path.endswith("seed-0/model/config.json"):
                always_lost(name, path)

        store.fault = lost
        with pytest.raises(RunFailed, match="connection lost"):
            uploads.upload()
        assert "b/run/seed-0/model/config.json" not in keys()
        assert stored("seed-0/run.json") == b'{"best": 1}'
        store.fault = None
        uploads.upload()
    assert (stored("seed-0/model/config.json"), stored("seed-0/model/model.safetensors")) == (b"{}", b"second")
    assert stored("seed-0/run.json") == b'{"best": 2}'


def test_a_better_epoch_during_an_upload_leaves_the_record_older_than_the_model(store: Any) -> None:
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)

        def better(name: str, path: str) -> None:
            if name == "write" and path.endswith("seed-0/metrics.jsonl"):
                store.fault = None
                seed(folder, "seed-0", best=2, weights=b"second")
                checkpoint(folder / "seed-0", 20)

        store.fault = better
        RunUploads(folder, URL).upload()
        assert stored("seed-0/model/model.safetensors") == b"second"
        assert stored("seed-0/run.json") == b'{"best": 1}'
        assert not [key for key in keys("b/run/seed-0/checkpoints") if "step-000000020" in key]
    assert stored("seed-0/run.json") == b'{"best": 2}'
    assert "b/run/seed-0/checkpoints/step-000000020/state.json" in keys()


def test_a_model_that_is_replaced_while_its_weights_are_uploaded_is_no_mixture(store: Any) -> None:
    """Killed at that point, the store has the weights of one epoch and the digest of the next, of equal size."""
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)
        note(folder, b"of one")

        def better(name: str, path: str) -> None:
            if name == "write" and path.endswith("model.safetensors.sha256"):
                store.fault = lost
                seed(folder, "seed-0", best=2, weights=b"other")
                note(folder, b"of two")

        def lost(name: str, path: str) -> None:
            if name == "write" and path.endswith("model/model.safetensors"):
                always_lost(name, path)

        store.fault = better
        with pytest.raises(RunFailed, match="connection lost"):
            RunUploads(folder, URL).upload()
        assert "b/run/seed-0/model/config.json" not in keys()
        store.fault = None
        RunUploads(folder, URL).upload()
    assert stored("seed-0/model/model.safetensors") == b"other"
    assert stored("seed-0/model/model.safetensors.sha256") == b"of two"
    assert "b/run/seed-0/model/config.json" in keys()


def note(folder: Path, digest: bytes) -> None:
    (folder / "seed-0" / "model" / "model.safetensors.sha256").write_bytes(digest)


def test_a_model_that_is_away_for_a_moment_is_waited_for(store: Any) -> None:
    """Between two names of a folder that is replaced there is none."""
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)
        model, old = folder / "seed-0" / "model", folder / "seed-0" / ".model.old"
        model.rename(old)
        uploads = RunUploads(folder, URL)
        with pytest.raises(RunFailed, match="a model was replaced in each of 3 looks"):
            uploads.upload()
        assert "b/run/seed-0/run.json" not in keys()
        old.rename(model)

        def swap(name: str, path: str) -> None:
            if name == "write" and path.endswith("seed-0/metrics.jsonl"):
                store.fault = back
                model.rename(old)

        def back(name: str, path: str) -> None:
            if name == "info" and path.endswith(IDENTITY):
                old.rename(model)
                store.fault = None

        store.fault = swap
        uploads.upload()
        assert stored("seed-0/model/model.safetensors") == b"first"
        assert stored("seed-0/run.json") == b'{"best": 1}'


def test_a_seed_that_has_finished_needs_no_checkpoint(store: Any) -> None:
    """Neither does the store keep what the run removes at its end."""
    with run_by_url(URL, resume=False, pauses=()) as folder:
        begin_tuning(folder)
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "vocab.txt").write_bytes(b"a")
        uploads = RunUploads(folder, URL)
        uploads.upload()
        seed(folder, "seed-0", best=1, weights=b"first", finished=True)
        uploads.upload()
        assert not keys("b/run/seed-0/checkpoints")
        assert "b/run/tokenizer/vocab.txt" in keys()
        (folder / "tokenizer" / "vocab.txt").unlink()
        (folder / "run.json").write_bytes(b'{"finished": true}')
        uploads.upload()
        assert "b/run/tokenizer/vocab.txt" not in keys()
