"""A pre-training whose corpus and run folder are URLs: stopped, continued on another machine, and used as a model."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.training.remote_run import working_folder
from tests.support.commands import run_json
from tests.support.stores import FaultyStore, keys, put_folder

OPTIONS = ["--lengths", "32", "--batch-size", "8", "--log-every", "5", "--learning-rate", "1e-3"]
OPTIONS += ["--threads", "1", "--precision", "fp32", "--compile", "off", "--size", "2x32x2"]


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
