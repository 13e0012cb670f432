"""Runs whose data and run folder are URLs: stopped, continued on another machine, and used as models."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from bertwright.cli import main
from bertwright.training.loop import Loop
from bertwright.training.remote_run import working_folder
from tests.support.commands import run_json
from tests.support.stores import FaultyStore, always_lost, keys, put, put_folder

OPTIONS = ["--lengths", "32", "--batch-size", "8", "--log-every", "5", "--learning-rate", "1e-3"]
OPTIONS += ["--threads", "1", "--precision", "fp32", "--compile", "off", "--size", "2x32x2"]

TUNING = ["--text-column", "text", "--label-column", "label", "--seeds", "2", "--epochs", "2", "--batch-size", "4"]
TUNING += ["--max-length", "16", "--threads", "1", "--precision", "fp32"]
REVIEWS = b"text\tlabel\n" + b"".join(
    f"{word} film {n}\t{word}\n".encode() for n in range(20) for word in ("good", "bad")
)


def losses(folder: Path) -> dict[int, Any]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line.get("loss") for line in lines}


@pytest.mark.slow
def test_a_run_in_a_store_is_continued_on_another_machine_bit_for_bit(
    store: Any, own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_folder(own_corpus, "b/corpus")
    corpus, out, calm = "faulty://b/corpus", "faulty://b/run", tmp_path / "calm"
    assert main(["pretrain", "--corpus", str(own_corpus), "--out", str(calm), "--steps", "30", *OPTIONS]) == 0
    monkeypatch.setattr("bertwright.training.uploads._EVERY", 0.01)

    def stop(name: str, path: str) -> None:
        if (
            name == "write"
            and path.endswith("/metrics.jsonl")
            and (working_folder(out) / "metrics.jsonl").stat().st_size
        ):
            store.fault = None
            os.kill(os.getpid(), signal.SIGINT)

    store.fault = stop
    command = ["pretrain", "--corpus", corpus, "--out", out, "--steps", "30", *OPTIONS]
    main(command)
    assert "b/run/model/config.json" not in keys()
    assert [key for key in keys("b/run/checkpoints") if key.endswith("state.json")]
    shutil.rmtree(tmp_path / "cache")
    result, _ = run_json(capsys, *command, "--resume")
    assert (result["store"], result["steps"]) == (out, 30)
    folder = working_folder(out)
    assert losses(folder) == losses(calm)
    weights = (calm / "model" / "model.safetensors").read_bytes()
    assert (folder / "model" / "model.safetensors").read_bytes() == weights
    assert FaultyStore.store["/b/run/model/model.safetensors"].getvalue() == weights
    filled, _ = run_json(capsys, "fill", "the [MASK]", "--model", out)
    assert filled == run_json(capsys, "fill", "the [MASK]", "--model", calm)[0]


@pytest.mark.slow
def test_a_finetuning_outlives_its_store_and_is_continued_on_another_machine_bit_for_bit(
    store: Any, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is away for some steps of the first seed; the run is stopped in the second seed."""
    assert (
        main(["finetune", "classify", "--model", "random:tiny", "--tokenizer", str(own_tokenizer), *local(tmp_path)])
        == 0
    )
    put_folder(tmp_path / "first" / "model", "b/first")
    put("b/reviews.tsv", REVIEWS)
    task = ["finetune", "classify", "--model", "faulty://b/first", "--data", "faulty://b/reviews.tsv", *TUNING]
    calm, out = tmp_path / "calm", "faulty://b/tuned"
    assert main([*task, "--out", str(calm)]) == 0
    monkeypatch.setattr("bertwright.training.uploads._EVERY", 0.01)
    plain_step, lost, count = Loop.step, threading.Event(), []

    def away(name: str, path: str) -> None:
        lost.set()
        always_lost(name, path)

    def step(self: Any, number: int, batches: Any) -> None:
        plain_step(self, number, batches)
        count.append(number)
        if len(count) == 4:
            store.fault = away
        elif len(count) == 8:
            assert lost.wait(60)
            store.fault = None
        elif len(count) == 22:  # of 18 a seed
            until = time.monotonic() + 60
            while b'"finished": true' not in content_of("b/tuned/seed-0/run.json") and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", step)
        assert main([*task, "--out", out]) == 0
    message = capsys.readouterr().err
    assert "uploading works again" in message
    assert "stopped with 1 of 2 seeds done" in message
    assert [key.split("/")[2] for key in keys("b/tuned/") if key.endswith("state.json")] == ["seed-1"]
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "another"))
    assert main([*task, "--out", out, "--resume"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"uploaded to {out}"
    assert "seed 0:" not in printed.err  # it is not trained again
    for name in ("model", "seed-0/model", "seed-1/model"):
        assert content_of(f"b/tuned/{name}/model.safetensors") == (calm / name / "model.safetensors").read_bytes()
    assert content_of("b/tuned/model/README.md") == (calm / "model" / "README.md").read_bytes()
    assert losses(working_folder(out) / "seed-1") == losses(calm / "seed-1")
    kept = {key.removeprefix("b/tuned/").split("/")[0] for key in keys("b/tuned/")}
    assert kept == {".store.json", "model", "report.html", "run.json", "seed-0", "seed-1"}
    assert not [key for key in keys("b/tuned/") if "checkpoints" in key]
    evaluated, _ = run_json(capsys, "evaluate", "--model", out, "--data", "faulty://b/reviews.tsv")
    assert evaluated == run_json(capsys, "evaluate", "--model", calm, "--data", "faulty://b/reviews.tsv")[0]


def local(folder: Path) -> list[str]:
    """The options of a fine-tuning on this machine that makes the first model."""
    (folder / "reviews.tsv").write_bytes(REVIEWS)
    return ["--data", str(folder / "reviews.tsv"), "--out", str(folder / "first"), *TUNING, "--seeds", "1"]


def content_of(key: str) -> bytes:
    """The content of a file of the store; empty where there is none."""
    return bytes(FaultyStore.store[f"/{key}"].getvalue()) if f"/{key}" in FaultyStore.store else b""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of a bucket `texts` on an S3 server of this machine."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs 'moto[server]'")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed: pip install s3fs 'moto[server]'")
    import s3fs

    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"KEY": "k", "SECRET": "s", "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setitem(defaults().setdefault("s3", {}), name.lower(), value)
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()  # of the servers before it
    try:
        system = s3fs.S3FileSystem()
        system.mkdir("texts")
        yield system
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()


def defaults() -> dict[str, Any]:
    """The defaults of fsspec for each scheme."""
    from fsspec.config import conf

    return conf


@pytest.mark.slow
def test_a_server_of_s3_holds_texts_corpora_and_runs(
    s3: Any, own_corpus: Path, own_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.put(str(own_corpus), "texts/corpus", recursive=True)
    s3.put_file(str(own_text), "texts/plain/a.txt")
    s3.put_file(str(own_text), "texts/plain-2/b.txt")
    learned, _ = run_json(
        capsys, "tokenizer", "train", "s3://texts/plain*", "--vocab-size", "400", "--out", tmp_path / "tok"
    )
    assert learned["vocab_size"] == 400
    command = ["pretrain", "--corpus", "s3://texts/corpus", "--out", "s3://texts/run", "--steps", "5", *OPTIONS]
    result, _ = run_json(capsys, *command)
    shutil.rmtree(tmp_path / "cache")
    again, message = run_json(capsys, *command, "--resume")
    assert (again["steps"], result["store"]) == (5, "s3://texts/run")
    assert "this run has finished" in message
    assert s3.info("texts/run/model/model.safetensors")["size"] > 0
    assert main(["corpus", "verify", "s3://texts/absent"]) == 2
    assert "s3://texts/absent: not a corpus" in capsys.readouterr().err
    assert main(["corpus", "verify", "s3://no-such-bucket/corpus"]) == 2
    assert "bertwright: s3://no-such-bucket/corpus: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_of_s3_holds_a_finetuning(
    s3: Any, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stop in the second seed, and a resume with an empty cache."""
    s3.pipe_file("texts/reviews.tsv", REVIEWS)
    s3.put(str(own_tokenizer), "texts/tok", recursive=True)
    command = ["finetune", "classify", "--model", "random:tiny", "--tokenizer", "s3://texts/tok"]
    command += ["--data", "s3://texts/reviews.tsv", "--out", "s3://texts/tuned", *TUNING]
    plain_step, count = Loop.step, []

    def step(self: Any, number: int, batches: Any) -> None:
        plain_step(self, number, batches)
        count.append(number)
        if len(count) == 22:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", step)
        assert main(command) == 0
    assert s3.exists("texts/tuned/seed-0/model/config.json")
    assert s3.glob("texts/tuned/seed-1/checkpoints/*/state.json")
    shutil.rmtree(tmp_path / "cache")
    again, message = run_json(capsys, *command, "--resume")
    assert (len(again["seeds"]), again["store"]) == (2, "s3://texts/tuned")
    assert "seed 0:" not in message
    assert not s3.glob("texts/tuned/seed-*/checkpoints/*/*")
    measured, _ = run_json(capsys, "evaluate", "--model", "s3://texts/tuned", "--data", "s3://texts/reviews.tsv")
    assert 0 <= measured["accuracy"] <= 1
