"""bertwright paper with models that it did not only pre-train: one that a person names, and those with another head."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from bertwright.cli import main
from bertwright.model.folder import open_model
from tests.support.paper_data import write_data

TEXT = Path(__file__).parents[1] / "fixtures" / "own_text.txt"


@pytest.fixture(scope="module")
def task_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def paper(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["paper", *map(str, arguments), "--scale", "smoke"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.fixture(scope="module")
def two_encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some steps, and beside it another one."""
    folder = tmp_path_factory.mktemp("encoder")
    words, corpus = folder / "words", folder / "corpus"
    assert main(["tokenizer", "train", str(TEXT), "--vocab-size", "400", "--out", str(words)]) == 0
    assert main(["corpus", "build", str(TEXT), "--tokenizer", str(words), "--out", str(corpus)]) == 0
    for seed, name in enumerate(("one", "two")):
        run = ["--size", "2x128", "--steps", "2", "--seed", str(seed), "--out", str(folder / name)]
        assert main(["pretrain", "--corpus", str(corpus), *run]) == 0
    return folder


def test_the_uses_of_one_model(
    two_encoders: Path, task_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arms = ("--arms", "embeddings,last", "--tasks", "sst2,ner", "--seeds", 2, "--out", out)
    model = two_encoders / "one" / "model"
    planned = paper(capsys, "using", *arms, "--model", model, "--data", task_files, "--plan")
    assert "0 of 0 pre-trainings to compute" in planned
    assert "10 of 10 measurements to compute" in planned  # two of them the commonest answers
    assert not out.exists()
    paper(capsys, "using", *arms, "--model", model, "--data", task_files)
    page = (out / "results" / "using.md").read_text("utf-8")
    assert "\nModel: `one`, a BERT of 2 layers of 128. Rows as at scale `smoke`.\n" in page
    assert "\nMeans ± standard deviations over 2 fine-tuning seeds, on the dev set, of the last epoch.\n" in page
    assert "Each fine-tuning counts once: all of them begin with the same model, so a verdict holds for this" in page
    assert "`last` against `embeddings`; model `one`; δ 1.95." in page
    assert "|  | fine-tunings | difference |" in page
    assert "| SST-2 | 2 / 2 |" in page
    assert "pre-trainings" not in page
    assert "Fewer seeds than locked" not in page
    assert "bertwright paper using --scale smoke --out out --seeds 2 --arms embeddings,last" in page
    assert "--data DATA --model MODEL" in page
    lock = json.loads((out / "locks" / "using-smoke.json").read_text())
    assert (lock["seeds"], lock["pretraining_seeds"], lock["model"]["size"]) == (2, 1, "2x128x2")
    tuned = [path.name for path in (out / "tuned" / "sst2").iterdir() if path.name.startswith("used-")]
    assert sorted(name.split("-seed")[1].split("-")[0] for name in tuned) == ["0.0", "0.0", "1.0", "1.0"]

    paper(capsys, "using", *arms, "--page")
    assert (out / "results" / "using.md").read_text("utf-8") == page
    other = two_encoders / "two" / "model"
    message = paper(capsys, "using", *arms, "--model", other, "--data", task_files, code=2)
    assert "using-smoke.json are of another model, one; choose another --out" in message
    assert "name the encoder that is used with --model" in paper(capsys, "using", *arms, "--data", task_files, code=2)
    elsewhere = paper(capsys, "using", "--out", tmp_path / "empty", "--page", code=2)
    assert "empty holds no part of an experiment" in elsewhere
    tuning = ["finetune", "sst2", "--model", str(other), "--data", str(task_files / "glue" / "SST-2"), "--epochs", "1"]
    assert main([*tuning, "--out", str(tmp_path / "tuned")]) == 0
    options = ("--out", tmp_path / "empty", "--model", tmp_path / "tuned" / "model", "--data", task_files)
    message = paper(capsys, "using", *options, code=2)
    assert "expected a pre-trained model, got one that was fine-tuned on a task" in message


def test_sizes_with_a_rate_of_their_own(task_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seeds", 1, "--pretraining-seeds", 1, "--tasks", "sst2", "--arms", "size-1", "--out", tmp_path)
    paper(capsys, "sizes", *options, "--corpus", TEXT, "--data", task_files)
    page = (tmp_path / "results" / "sizes.md").read_text("utf-8")
    assert re.search(r"\n\| 2x128 \| 6 \| 0\.0 M \|( \*?\*?\d\.\d{3}\*?\*? \|){3}\n", page)
    assert "Not finished" not in page
    runs = [json.loads(path.read_text()) for path in (tmp_path / "pretrained").glob("*/run.json")]
    assert sorted((run["settings"]["seed"], run["settings"]["steps"]) for run in runs) == [(0, 6), *[(100, 3)] * 3]
    lock = json.loads((tmp_path / "locks" / "sizes-smoke.json").read_text())
    assert (lock["rate_share"], "minutes" in lock) == (0.5, False)
    assert "sizes have the scale's steps" in paper(capsys, "sizes", "--minutes", 1, "--corpus", TEXT, code=2)
    assert "table5 tries no learning rates" in paper(capsys, "table5", "--rate-share", 0.5, "--corpus", TEXT, code=2)


def test_longer_runs_extend_shorter_ones(task_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seeds", 1, "--pretraining-seeds", 1, "--tasks", "sst2", "--arms", "no-nsp-3", "--out", tmp_path)
    paper(capsys, "learning-curve", *options, "--corpus", TEXT, "--data", task_files)
    runs = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "pretrained").glob("*/run.json")}
    shorter, longer = sorted(runs, key=lambda name: int(runs[name]["result"]["steps"]))
    assert (runs[shorter]["result"]["steps"], runs[longer]["result"]["steps"]) == (6, 18)
    (checkpoint,) = (tmp_path / "pretrained" / shorter / "stable").iterdir()
    state = (checkpoint / "state.json").read_bytes()
    assert runs[longer]["data"]["extends"] == hashlib.sha256(state).hexdigest()
    assert "extends" not in runs[shorter]["data"]
    page = (tmp_path / "results" / "learning-curve.md").read_text("utf-8")
    assert "Not finished" not in page
    assert "3 x the scale's steps, from the run of 1 x on" in page


def test_models_with_another_head(task_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--seeds", 1, "--pretraining-seeds", 1, "--tasks", "stsb", "--out", out)
    paper(capsys, "head-removal", *options, "--corpus", TEXT, "--data", task_files)
    page = (out / "results" / "head-removal.md").read_text("utf-8")
    assert "the lead of `bert` against `no-nsp`, minus that of `bert-without-head`" in page
    assert "head matching-removed" in page
    assert "head transplanted" in page
    assert len([path for path in (out / "tuned" / "stsb").iterdir() if path.name.startswith("bert")]) == 6
    bodies = {path.name: open_model(str(path / "model")).weights for path in (out / "pretrained").iterdir()}
    (both,) = filter(Path.is_dir, (out / "head-transplanted").iterdir())
    recipient, donor = (bodies[name] for name in both.name.split("+"))
    weights = open_model(str(both)).weights
    assert recipient
    assert donor
    assert weights
    name = "encoder.layers.1.attention.output.weight"
    assert torch.equal(weights[name][:, 64:], donor[name][:, 64:])
    assert torch.equal(weights[name][:, :64], recipient[name][:, :64])
    assert sum(path.is_dir() for path in (out / "head-matching-removed").iterdir()) == 2
    assert sum(path.is_dir() for path in (out / "head-other-removed").iterdir()) == 1
