"""Every system through the command line: a run, its report and card, resumed bytes, metrics, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertwright.cli import main
from bertwright.model.folder import open_model
from bertwright.model.system import MASKED_LM_SYSTEMS, SYSTEMS, System, system_of
from tests.support.commands import run_json
from tests.support.cut_off import cut_off
from tests.support.folders import read_jsonl

LANGUAGE: tuple[System, ...] = tuple(system for system in SYSTEMS if system not in MASKED_LM_SYSTEMS)
ARCHITECTURES = {"bert-left": "BertLMHeadModel", "gpt": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}
TINY = ["--size", "2x128", "--lengths", "16:0.5,32:0.5", "--batch-size", "8", "--threads", "1", "--precision", "fp32"]
TINY += ["--held-out", "0.2", "--evaluations", "2", "--learning-rate", "1e-3", "--log-every", "1"]
TINY += ["--bias-correction"]
Corpora = Callable[[str], Path]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Corpora:
    """The corpus that a system learns from, with its kind of vocabulary."""
    parent = tmp_path_factory.mktemp("corpora")
    kinds = {
        "wordpiece": ["--vocab-size", "400"],
        "bpe": ["--kind", "bpe", "--merges", "300"],
        "byte-bpe": ["--kind", "byte-bpe", "--vocab-size", "400"],
    }

    def of(system: str) -> Path:
        kind = {"gpt": "bpe", "gpt2": "byte-bpe"}.get(system, "wordpiece")
        folder = parent / kind
        if not folder.exists():
            learned = ["tokenizer", "train", str(own_text), "--out", str(folder / "tok"), *kinds[kind]]
            assert main(learned) == 0
            build = ["corpus", "build", str(own_text), "--tokenizer", str(folder / "tok"), "--workers", "1"]
            assert main([*build, "--out", str(folder / "corpus")]) == 0
        return folder / "corpus"

    return of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, corpora: Corpora) -> Corpora:
    """The run of a system, of eight steps; options may follow the system's name."""
    parent = tmp_path_factory.mktemp("runs")

    def of(system: str) -> Path:
        folder = parent / system.replace(" ", "")
        if not folder.exists():
            start = ["pretrain", "--system", *system.split(), "--corpus", str(corpora(system)), "--out", str(folder)]
            assert main([*start, "--steps", "8", *TINY]) == 0
        return folder

    return of


@pytest.mark.parametrize("system", LANGUAGE)
def test_a_run_learns_and_says_how_well(
    system: System, finished: Corpora, corpora: Corpora, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(system)
    record = json.loads((folder / "run.json").read_text("utf-8"))
    assert record["settings"]["system"] == system
    lines = read_jsonl(folder / "metrics.jsonl")
    losses = [line["lm"] for line in lines if "lm" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert all(line["mfu"] > 0 for line in lines if "lm" in line)
    held_out = record["result"]["held_out"]
    assert 1 < held_out["bits_per_character"] < 8
    assert held_out["lm_perplexity"] == pytest.approx(2.718281828 ** held_out["lm_loss"], rel=1e-6)
    page = (folder / "report.html").read_text("utf-8")
    assert "bits per character" in page
    assert "Filled masks" not in page
    assert "It is a language model" in (folder / "model" / "README.md").read_text("utf-8")
    config = json.loads((folder / "model" / "config.json").read_text("utf-8"))
    assert config["architectures"] == [ARCHITECTURES.get(system, "BertwrightLanguageModel")]
    assert system_of(open_model(str(folder)).config) == system
    measured = ["evaluate", "pretraining", "--model", folder, "--corpus", corpora(system), "--rows", "16"]
    figures, _ = run_json(capsys, *measured, "--length", "32")
    assert 1 < figures["bits_per_character"] < 8
    assert figures["rows"] == 16


@pytest.mark.slow
def test_modernbert_learns_masked_lm_alone_unless_told_otherwise(
    finished: Corpora, corpora: Corpora, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished("modernbert")
    settings = json.loads((folder / "run.json").read_text("utf-8"))["settings"]
    assert (settings["system"], settings["start"]) == ("modernbert", "local")
    assert settings["examples"]["second_sentence"] == "none"
    losses = [line["mlm"] for line in read_jsonl(folder / "metrics.jsonl") if "mlm" in line]
    assert losses[-1] < losses[0]
    assert "A ModernBERT encoder: 2 layers" in (folder / "model" / "README.md").read_text("utf-8")
    assert open_model(str(folder)).architecture == "BertForMaskedLM"
    tensors = load_file(folder / "model" / "model.safetensors")
    in_heads = {name for name in tensors if not name.startswith("model.")}
    assert in_heads == {"head.dense.weight", "head.norm.weight", "decoder.bias"}
    num_weights = sum(tensor.numel() for tensor in tensors.values())
    measured = ["evaluate", "pretraining", "--model", folder, "--corpus", corpora("modernbert"), "--rows", "16"]
    assert 1 < run_json(capsys, *measured, "--length", "32")[0]["mlm_loss"] < 8
    assert run_json(capsys, "fill", "a [MASK]", "--model", folder)[0]
    start = ["pretrain", "--system", "modernbert", "--corpus", corpora("modernbert"), "--out", tmp_path / "run"]
    plan, _ = run_json(capsys, *start, "--steps", "8", *TINY, "--plan")
    assert (plan["system"], plan["parameters"]) == ("modernbert", num_weights)
    refused = run_json(capsys, *start, "--steps", "1", *TINY, "--start", "matching", code=2)[1]
    assert "start matching needs at least 3 layers, and this model has 2" in refused
    with_pairs = [*start, "--steps", "2", *TINY, "--second-sentence", "next", "--size", "3x128", "--start", "matching"]
    assert run_json(capsys, *with_pairs)[0]["held_out"]["nsp_loss"] > 0
    measured = ["evaluate", "pretraining", "--model", tmp_path / "run", "--corpus", corpora("modernbert")]
    assert run_json(capsys, *measured, "--rows", "16", "--length", "32")[0]["nsp_loss"] > 0
    assert load_file(tmp_path / "run" / "model" / "model.safetensors").keys() - tensors.keys() >= {"next_sentence.bias"}


@pytest.mark.parametrize(
    "system",
    [
        *LANGUAGE,
        *(
            pytest.param(f"modernbert{options}", marks=pytest.mark.slow)
            for options in ("", " --second-sentence next", " --second-sentence order")
        ),
    ],
)
def test_a_run_that_was_cut_off_ends_in_the_same_bytes(
    system: str, finished: Corpora, corpora: Corpora, tmp_path: Path
) -> None:
    start = ["pretrain", "--system", *system.split(), "--corpus", str(corpora(system)), "--out", str(tmp_path / "run")]
    start += ["--steps", "8", *TINY]
    cut_off(start, after=5, saved=3)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000003"]
    assert main([*start, "--resume"]) == 0
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "run" / "model" / name).read_bytes() == (finished(system) / "model" / name).read_bytes()


@pytest.mark.parametrize(
    "system", ["bert-right", "gpt", "lstm-left", pytest.param("modernbert", marks=pytest.mark.slow)]
)
def test_a_start_from_a_run_of_the_same_system(
    system: System, finished: Corpora, corpora: Corpora, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--system", system, "--corpus", corpora(system), "--steps", "1", *TINY[2:]]
    run_json(capsys, *start, "--init-from", finished(system), "--out", tmp_path / "on", "--learning-rate", "1e-9")
    before, after = (load_file(path / "model" / "model.safetensors") for path in (finished(system), tmp_path / "on"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)
    other = ["pretrain", "--system", "bert", "--corpus", corpora("bert"), "--steps", "1", *TINY[2:]]
    other += ["--out", tmp_path / "other", "--init-from", finished(system)]
    assert "expected a BERT" in run_json(capsys, *other, code=2)[1]
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_plan_of_a_language_model(corpora: Corpora, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["pretrain", "--system", "lstm-left", "--corpus", corpora("lstm-left"), "--out", tmp_path / "run"]
    result, _ = run_json(capsys, *start, "--steps", "8", *TINY, "--plan")
    assert (result["system"], result["steps"]) == ("lstm-left", 8)
    assert result["memory"]["measured_peak"] > 16 * result["parameters"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["bert-left", "gpt", "lstm-right"])
def test_what_needs_both_sides_is_refused(
    system: System, finished: Corpora, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "predicts the next token" in run_json(capsys, "fill", "a [MASK]", "--model", finished(system), code=2)[1]
    pair = ["next-sentence", "It rained.", "The street was wet.", "--model", finished(system)]
    assert "no next-sentence head" in run_json(capsys, *pair, code=2)[1]


def test_options_and_corpora_that_do_not_go_with_a_system(
    corpora: Corpora, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(system: str, *options: str, corpus: str = "bert") -> str:
        start = ["pretrain", "--system", system, "--corpus", corpora(corpus), "--out", tmp_path / "run"]
        return run_json(capsys, *start, "--steps", "1", *options, code=2)[1]

    assert "nothing is masked" in said("bert-left", "--mask-share", "0.3")
    assert "no second sentence" in said("bert-left", "--second-sentence", "order")
    assert "512 positions" in said("gpt", "--lengths", "600", corpus="gpt")
    assert "defined with byte pairs" in said("gpt")
    assert "needs WordPiece" in said("lstm-left", corpus="gpt")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("system", LANGUAGE)
@pytest.mark.parametrize(
    "more", [["--compile", "on"], ["--precision", "bf16"], ["--activation-checkpointing"], ["--minutes", "0.05"]]
)
def test_the_ways_of_computing(
    system: System, more: list[str], finished: Corpora, corpora: Corpora, tmp_path: Path
) -> None:
    start = ["pretrain", "--system", system, "--corpus", str(corpora(system)), "--out", str(tmp_path / "run"), *TINY]
    options = ["--steps", "8"] if "--minutes" not in more else []
    assert main([*start, "--dropout", "0", *options, *more]) == 0
    assert main([*start[:-1], start[-1], "--dropout", "0", *options, *more, "--resume"]) == 0
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    losses = [line["lm"] for line in lines if "lm" in line]
    assert losses[-1] < losses[0]
    if "--minutes" not in more:
        assert main([*start[:-1], start[-1], "--dropout", "0", "--steps", "8", "--out", str(tmp_path / "plain")]) == 0
        plain = read_jsonl(tmp_path / "plain" / "metrics.jsonl")
        near = 0.03 if "bf16" in more else 1e-4
        assert losses == pytest.approx([line["lm"] for line in plain if "lm" in line], abs=near)
