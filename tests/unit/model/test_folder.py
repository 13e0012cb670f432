"""Weights that were changed after they were written: every writer notes their digest, and every reader checks it."""

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForPreTraining

import bertwright as bw
from bertwright.cli import main
from bertwright.doctor.model import check_model
from bertwright.errors import Damaged, InputError
from bertwright.files import check_digest, digest_note, note_digest
from bertwright.finetuning.grid import parse_grid, search_grid
from bertwright.finetuning.run import TuneRequest, finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import read_weights
from bertwright.interop.import_model import import_model
from bertwright.model.folder import WEIGHTS, open_model, weights_digest
from bertwright.pretraining.elmo import join
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.shipped import folder_of
from bertwright.sklearn.estimators import BertClassifier
from bertwright.tasks.classification.spec import get_task
from tests.support.doctor_patients import levels, named, write_model

FAST = FinetuneSettings(epochs=1, batch_size=8, learning_rate=1e-3, max_length=16, threads=1)


def flip(path: Path, share: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_flipped_bit_of_the_weights_is_refused(tmp_path: Path, share: float) -> None:
    path = write_model(tmp_path / "m") / WEIGHTS
    whole = sha256(path)
    assert open_model(str(tmp_path / "m")).digest == whole
    flip(path, share)
    with pytest.raises(Damaged) as caught:
        open_model(str(tmp_path / "m"))
    message = str(caught.value)
    assert message.startswith(f"{path}: expected the sha256 {whole[:12]}… that {WEIGHTS}.sha256 beside it notes")
    assert f"got {sha256(path)[:12]}…" in message
    assert message.endswith(f"remove {path}.sha256")
    digest_note(path).unlink()
    if share:  # the first byte says how long the header is
        assert open_model(str(tmp_path / "m")).digest is None


def ship(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run .ci/ship.py, which writes into the sources otherwise."""
    described = importlib.util.spec_from_file_location("ship", Path(__file__).parents[3] / ".ci" / "ship.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    monkeypatch.setattr(module, "SHIPPED", out.parent)
    options = ["--title", "A model", "--license", "mit", "--language", "en"]
    monkeypatch.setattr(sys, "argv", ["ship.py", str(folder), out.name, *options])
    module.main()


def test_whoever_reads_a_model_refuses_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(folder_of("small-wiki"), tmp_path / "m"))
    flip(folder / WEIGHTS)
    readers: dict[str, Callable[[], Any]] = {
        "load": lambda: bw.load(folder),
        "import": lambda: import_model(str(folder), tmp_path / "imported"),
        "ship": lambda: ship(folder, tmp_path / "shipped", monkeypatch),
        "estimator": lambda: BertClassifier(str(folder), epochs=3, batch_size=32).fit(["a", "b"], ["x", "y"]),
    }
    for name, read in readers.items():
        with pytest.raises(InputError, match=re.escape(f"{folder / WEIGHTS}: expected the sha256 ")):
            read()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m"], name
    assert main(["fill", "--model", str(folder), "the [MASK] ."]) == 2
    assert "expected the sha256 " in capsys.readouterr().err
    assert main(["doctor", "--model", str(folder), "--quick"]) == 1
    assert "weights, as written" in capsys.readouterr().out


def test_shards_are_checked_too(tmp_path: Path) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for number, name in enumerate(names):
        save_file({f"part.{number}": torch.ones(3)}, tmp_path / name)
        note_digest(tmp_path / name)
    places = {f"part.{number}": name for number, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert len(read_weights(tmp_path)[0]) == 2
    flip(tmp_path / names[1], 1.0)
    with pytest.raises(Damaged, match=re.escape(f"{names[1]}: expected the sha256 ")):
        read_weights(tmp_path)


def test_every_writer_notes_the_digest(
    tmp_path: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: Any = {"phases": (Phase(length=16, share=1.0),), "steps": 2, "batch_size": 4, "threads": 1}
    settings |= {"precision": "fp32", "compile": "off", "snapshots": (0.5,)}
    for system in ("bert", "bert-left", "bert-right"):
        resolved = PretrainSettings.model_validate({**settings, "system": system})
        pretrain(resolved, corpus=own_corpus, out=tmp_path / system)
    join(str(tmp_path / "bert-left"), str(tmp_path / "bert-right"), tmp_path / "joined")
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev"):
        rows = "".join(f"{'good' if n % 2 else 'bad'} number {n}\t{n % 2}\n" for n in range(16))
        (data / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    start: Any = {"model": str(tmp_path / "bert"), "data": data}
    finetune(FAST, get_task("sst2"), out=tmp_path / "tuned", **start)
    search_grid(FAST, get_task("sst2"), parse_grid("epochs=1,2", FAST), TuneRequest(out=tmp_path / "searched", **start))
    learned = BertClassifier(str(tmp_path / "bert"), epochs=1, batch_size=32).fit(["good", "bad"] * 4, [1, 0] * 4)
    for _ in range(2):  # the second one takes the place of the first
        learned.save(tmp_path / "estimator")
    import_model(str(tmp_path / "bert" / "model"), tmp_path / "imported")
    ship(folder_of("small-wiki"), tmp_path / "shipped", monkeypatch)
    folders = [path.parent for path in sorted(tmp_path.rglob(WEIGHTS)) if "checkpoints" not in path.parts]
    written = {str(folder.relative_to(tmp_path)) for folder in folders}
    assert {"bert/model", "bert/snapshots/step-000000001", "tuned/model", "tuned/seed-0/model"} <= written
    assert {"searched/model", "estimator", "imported", "joined", "shipped"} <= written
    for folder in [*folders, folder_of("small-wiki")]:
        assert check_digest(folder / WEIGHTS) == sha256(folder / WEIGHTS), folder
        noted = digest_note(folder / WEIGHTS).read_text()
        assert noted == f"{sha256(folder / WEIGHTS)}  {WEIGHTS}\n"  # as sha256sum writes it
    capsys.readouterr()


def test_a_folder_without_a_digest_opens_and_weights_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m") / WEIGHTS
    really, hashed = hashlib.file_digest, []

    def counting(stream: Any, kind: Any) -> Any:
        hashed.append(Path(stream.name).name)
        return really(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    saved = open_model(str(tmp_path / "m"))
    assert weights_digest(saved) == saved.digest == sha256(path)
    assert hashed == [WEIGHTS]
    digest_note(path).unlink()
    saved = open_model(str(tmp_path / "m"))
    assert saved.digest is None
    assert hashed == [WEIGHTS]
    assert weights_digest(saved) == sha256(path)


def test_a_folder_saved_anew_by_transformers_opens(tmp_path: Path) -> None:
    """Elsewhere its weights are others under the notes of config.json; in the same folder they are a change."""
    write_model(tmp_path / "m", extra={"second_sentence": "next"})
    theirs = AutoModelForPreTraining.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        theirs.bert.pooler.dense.weight.mul_(2.0)
    theirs.save_pretrained(tmp_path / "again")
    saved = open_model(str(tmp_path / "again"))
    assert saved.extra == {"second_sentence": "next"}  # which is why the digest does not stand there
    assert saved.digest is None
    theirs.save_pretrained(tmp_path / "m")
    with pytest.raises(Damaged, match=r"changed it on purpose, remove .*\.sha256"):
        open_model(str(tmp_path / "m"))
    digest_note(tmp_path / "m" / WEIGHTS).unlink()
    weights = open_model(str(tmp_path / "m")).weights or {}
    torch.testing.assert_close(weights["pooler.dense.weight"], theirs.bert.pooler.dense.weight.detach())


@pytest.mark.parametrize("noted", ["", "no digest", "0" * 63, "g" * 64, "\n", "\xff" * 70, "0" * 100_000])
def test_a_note_that_is_none_is_refused(tmp_path: Path, noted: str) -> None:
    path = write_model(tmp_path / "m") / WEIGHTS
    digest_note(path).write_text(noted)
    with pytest.raises(InputError, match=r"\.sha256: expected the sha256 of model\.safetensors"):
        open_model(str(tmp_path / "m"))


def test_other_programs_write_the_note_alike(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m") / WEIGHTS
    for noted in (sha256(path), sha256(path).upper(), f"{sha256(path)} *{WEIGHTS}\r\n", f"{sha256(path)}\n"):
        digest_note(path).write_text(noted)
        assert open_model(str(tmp_path / "m")).digest == sha256(path)


def test_missing_weights_are_called_so(tmp_path: Path) -> None:
    (write_model(tmp_path / "m") / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"model\.safetensors: there is no such file"):
        open_model(str(tmp_path / "m"))


def test_the_doctor_reports_weights_that_are_not_as_written(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m") / WEIGHTS
    _, findings = check_model(str(tmp_path / "m"), tokenizer_folder=None)
    assert named(findings, "weights, as written").value == sha256(path)
    digest_note(path).rename(tmp_path / "note")
    _, findings = check_model(str(tmp_path / "m"), tokenizer_folder=None)
    assert levels(findings) == {"weights, as written": "note"}
    (tmp_path / "note").rename(digest_note(path))
    flip(path)
    opened, findings = check_model(str(tmp_path / "m"), tokenizer_folder=None)
    assert levels(findings) == {"weights, as written": "error"}
    assert opened.saved is None
