"""ELECTRA through the command line: a run, its two models, its card and metrics, resumed bytes, further training."""

import json
from pathlib import Path
from shutil import copy

import pytest
import torch
from safetensors.torch import load_file

from bertwright.cli import main
from bertwright.model.bert import open_architecture
from bertwright.model.folder import open_model
from tests.e2e.test_systems import TINY
from tests.support.commands import run_json
from tests.support.cut_off import cut_off
from tests.support.folders import read_jsonl
from tests.support.parity import padded_batch

FILES = ("model/model.safetensors", "model/config.json", "model/README.md", "generator/model.safetensors")


@pytest.fixture(scope="module")
def electra_run(tmp_path_factory: pytest.TempPathFactory, own_corpus: Path) -> Path:
    """A run of six steps."""
    folder = tmp_path_factory.mktemp("electra") / "run"
    start = ["pretrain", "--system", "electra", "--corpus", str(own_corpus), "--out", str(folder), "--steps", "6"]
    assert main([*start, *TINY]) == 0
    return folder


def test_a_run_keeps_its_discriminator_and_says_how_well_it_learned(
    electra_run: Path, own_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((electra_run / "run.json").read_text("utf-8"))
    masking = record["settings"]["examples"]["masking"]
    assert (masking["share"], masking["mask"], record["settings"]["generator_width"]) == (0.15, 1.0, 0.25)
    lines = [line for line in read_jsonl(electra_run / "metrics.jsonl") if "rtd" in line]
    assert len(lines) == 6
    assert lines[-1]["rtd"] < lines[0]["rtd"] < 2
    assert lines[-1]["mlm"] < lines[0]["mlm"]
    names = {"mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "rtd_precision", "rtd_recall"}
    assert names <= set(record["result"]["held_out"])
    described = {
        name: json.loads((electra_run / name / "config.json").read_text("utf-8")) for name in ("model", "generator")
    }
    assert described["model"]["architectures"] == ["ElectraForPreTraining"]
    assert described["generator"]["architectures"] == ["ElectraForMaskedLM"]
    assert [part["hidden_size"] for part in described.values()] == [128, 32]
    assert [part["embedding_size"] for part in described.values()] == [128, 128]
    card = (electra_run / "model" / "README.md").read_text("utf-8")
    assert "# An ELECTRA encoder: 2 layers of 128" in card
    assert "It is an encoder that finds replaced tokens" in card
    assert "model.fill" not in card
    assert "replaced token accuracy" in (electra_run / "report.html").read_text("utf-8")
    measured = ["evaluate", "pretraining", "--corpus", own_corpus, "--rows", "8", "--length", "32", "--model"]
    metrics, _ = run_json(capsys, *measured, electra_run)
    assert names <= set(metrics)
    assert metrics["rows"] == 8
    assert "got its generator" in run_json(capsys, *measured, electra_run / "generator", code=2)[1]
    assert "finds replaced tokens and fills" in run_json(capsys, "fill", "a [MASK]", "--model", electra_run, code=2)[1]
    assert main(["fill", "It was a [MASK].", "--model", str(electra_run / "generator")]) == 0


def test_a_run_that_was_cut_off_ends_in_the_same_bytes(electra_run: Path, own_corpus: Path, tmp_path: Path) -> None:
    start = ["pretrain", "--system", "electra", "--corpus", str(own_corpus), "--out", str(tmp_path / "run")]
    cut_off([*start, "--steps", "6", *TINY], after=4, saved=2)
    assert main([*start, "--steps", "6", *TINY, "--resume"]) == 0
    for name in FILES:
        assert (tmp_path / "run" / name).read_bytes() == (electra_run / name).read_bytes(), name


def test_a_run_starts_from_both_models_of_another(
    electra_run: Path, own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--corpus", own_corpus, "--steps", "1", *TINY[2:], "--system", "electra", "--init-from"]
    run_json(capsys, *start, electra_run, "--out", tmp_path / "on", "--learning-rate", "1e-9")
    for name in ("model", "generator"):
        before, after = (load_file(run / name / "model.safetensors") for run in (electra_run, tmp_path / "on"))
        assert before.keys() == after.keys()
        assert all(torch.allclose(before[part], after[part], atol=1e-5) for part in before)
    out = ["--out", tmp_path / "other"]
    assert "is 32 wide; leave the" in run_json(capsys, *start, electra_run, *out, "--generator-width", "0.5", code=2)[1]
    assert "got its generator" in run_json(capsys, *start, electra_run / "generator", *out, code=2)[1]


@pytest.mark.slow
def test_options_that_do_not_go_with_electra_and_its_plan(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(system: str, *options: str) -> str:
        start = ["pretrain", "--system", system, "--corpus", own_corpus, "--out", tmp_path / "run", "--steps", "1"]
        return run_json(capsys, *start, *options, code=2)[1]

    assert "system electra: its rows have no second sentence" in said("electra", "--second-sentence", "next")
    assert "system bert: has no generator" in said("bert", "--generator-width", "0.5")
    assert "generator_width" in said("electra", "--generator-width", "2").replace(
        "--generator-width", "generator_width"
    )
    plan, _ = run_json(
        capsys, "pretrain", "--system", "electra", "--corpus", own_corpus, "--out", tmp_path / "run", "--steps", "6",
        *TINY, "--plan",
    )  # fmt: skip
    assert (plan["system"], plan["steps"]) == ("electra", 6)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--compile", "on"], ["--precision", "bf16"], ["--activation-checkpointing"]])
def test_the_ways_of_computing(more: list[str], own_corpus: Path, tmp_path: Path) -> None:
    def losses(name: str, *options: str) -> list[float]:
        start = ["pretrain", "--system", "electra", "--corpus", str(own_corpus), "--out", str(tmp_path / name)]
        assert main([*start, "--steps", "6", *TINY, "--dropout", "0", *options]) == 0
        return [line["mlm"] for line in read_jsonl(tmp_path / name / "metrics.jsonl") if "mlm" in line]

    near = 0.03 if "bf16" in more else 1e-4
    assert losses("other", *more) == pytest.approx(losses("plain"), abs=near)


def test_narrow_embeddings_come_back_in_the_same_bytes_and_open_in_transformers(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator's states are as wide as the embeddings, so that it alone has no layer after them."""
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    start = ["pretrain", "--corpus", str(own_corpus), "--steps", "4", *TINY, "--embedding-size", "32"]
    electra = [*start, "--system", "electra", "--out"]
    assert main([*electra, str(tmp_path / "whole")]) == 0
    cut_off([*electra, str(tmp_path / "cut")], after=3, saved=2)
    assert main([*electra, str(tmp_path / "cut"), "--resume"]) == 0
    for name in FILES:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    lines = [line for line in read_jsonl(tmp_path / "whole" / "metrics.jsonl") if "rtd" in line]
    assert lines[-1]["rtd"] < lines[0]["rtd"]
    for model, kind in (("model", AutoModelForPreTraining), ("generator", AutoModelForMaskedLM)):
        folder, again = tmp_path / "whole" / model, tmp_path / "again" / model
        theirs, ours = kind.from_pretrained(folder).eval(), open_architecture(open_model(str(folder))).eval()
        assert theirs.config.embedding_size == 32
        assert hasattr(theirs.electra, "embeddings_project") == (model == "model")
        ids, segments, mask = padded_batch(theirs.config.vocab_size)
        with torch.inference_mode():
            wanted = theirs(ids, token_type_ids=segments, attention_mask=mask.long()).logits
            torch.testing.assert_close(ours(ids, segments, mask)["logits"][mask], wanted[mask], atol=1e-5, rtol=1e-5)
        theirs.save_pretrained(again)
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            copy(folder / file, again / file)
        mine, back = (open_model(str(path)) for path in (folder, again))
        assert mine.config == back.config
        assert mine.weights
        assert back.weights
        assert all(torch.equal(part, back.weights[name]) for name, part in mine.weights.items())
    more = [*start[:-2], "--system", "electra", "--init-from", str(tmp_path / "whole"), "--out", str(tmp_path / "more")]
    assert "got 32; leave the option out" in run_json(capsys, *more, "--embedding-size", "64", code=2)[1]
    assert main(more) == 0
    described = json.loads((tmp_path / "more" / "generator" / "config.json").read_text("utf-8"))
    assert (described["embedding_size"], described["hidden_size"]) == (32, 32)
    assert main([*start, "--system", "albert", "--out", str(tmp_path / "albert")]) == 0
    assert json.loads((tmp_path / "albert" / "model" / "config.json").read_text("utf-8"))["embedding_size"] == 32
