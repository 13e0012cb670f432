"""GPT-BERT through the command line: a run, its metrics and card, resumed bytes, its uses, refused options."""

import json
from pathlib import Path

import pytest

from bertwright.cli import main
from tests.e2e.test_systems import TINY
from tests.support.commands import run_json
from tests.support.cut_off import cut_off
from tests.support.folders import read_jsonl

START = ["pretrain", "--system", "gpt-bert", "--causal-share", "0.25", "--steps", "6", *TINY]


@pytest.fixture(scope="module")
def gpt_bert_run(tmp_path_factory: pytest.TempPathFactory, own_corpus: Path) -> Path:
    """A run of six steps."""
    folder = tmp_path_factory.mktemp("gpt-bert") / "run"
    assert main([*START, "--corpus", str(own_corpus), "--out", str(folder)]) == 0
    return folder


def test_a_run_says_how_well_both_uses_were_learned(
    gpt_bert_run: Path, own_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((gpt_bert_run / "run.json").read_text("utf-8"))
    examples = record["settings"]["examples"]
    assert (examples["causal_share"], examples["second_sentence"], examples["masking"]["share"]) == (0.25, "none", 0.3)
    lines = [line for line in read_jsonl(gpt_bert_run / "metrics.jsonl") if "lm" in line]
    assert len(lines) == 6
    assert all(lines[-1][name] < lines[0][name] for name in ("lm", "mlm"))
    names = {"mlm_loss", "mlm_accuracy", "mlm_bits_per_character", "lm_loss", "lm_accuracy", "bits_per_character"}
    assert names <= set(record["result"]["held_out"])
    described = json.loads((gpt_bert_run / "model" / "config.json").read_text("utf-8"))
    assert (described["model_type"], described["architectures"]) == ("bertwright-gpt-bert", ["BertForMaskedLM"])
    card = (gpt_bert_run / "model" / "README.md").read_text("utf-8")
    assert "# A GPT-BERT encoder: 2 layers of 128" in card
    assert all(
        text in card for text in ("is a language model too", "model.fill", "model.generate", "causal_share: 0.25")
    )
    measured = ["evaluate", "pretraining", "--corpus", own_corpus, "--rows", "8", "--length", "32", "--model"]
    metrics, _ = run_json(capsys, *measured, gpt_bert_run)
    assert names <= set(metrics)
    assert metrics["rows"] == 8
    assert "masked" in (gpt_bert_run / "report.html").read_text("utf-8")
    assert main(["fill", "It was a [MASK].", "--model", str(gpt_bert_run)]) == 0
    assert main(["generate", str(gpt_bert_run), "--prompt", "It was", "--tokens", "3"]) == 0


def test_a_run_that_was_cut_off_ends_in_the_same_bytes(gpt_bert_run: Path, own_corpus: Path, tmp_path: Path) -> None:
    start = [*START, "--corpus", str(own_corpus), "--out", str(tmp_path / "run")]
    cut_off(start, after=4, saved=2)
    assert main([*start, "--resume"]) == 0
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "run" / "model" / name).read_bytes() == (gpt_bert_run / "model" / name).read_bytes(), name


@pytest.mark.slow
def test_its_plan_and_what_it_is_refused_for(
    own_corpus: Path, gpt_bert_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--system", "bert", "--corpus", own_corpus, "--out", tmp_path / "run", "--steps", "1"]
    assert "got a GPT-BERT" in run_json(capsys, *start, "--init-from", gpt_bert_run, code=2)[1]
    assert "--causal-share" in run_json(capsys, *START, *start[3:], "--causal-share", "1.5", code=2)[1]
    plan, _ = run_json(capsys, *START, "--corpus", own_corpus, "--out", tmp_path / "run", "--plan")
    assert (plan["system"], plan["steps"]) == ("gpt-bert", 6)
    assert not (tmp_path / "run").exists()
    teach = ["distill", "--teacher", gpt_bert_run, "--corpus", own_corpus, "--out", tmp_path / "student"]
    teach += ["--steps", "1", "--layers", "1"]
    assert "is a GPT-BERT, whose states predict" in run_json(capsys, *teach, code=2)[1]


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--precision", "bf16"], ["--activation-checkpointing"]])
def test_the_ways_of_computing(more: list[str], own_corpus: Path, tmp_path: Path) -> None:
    def losses(name: str, *options: str) -> list[float]:
        out = ["--corpus", str(own_corpus), "--out", str(tmp_path / name), "--dropout", "0"]
        assert main([*START, *out, *options]) == 0
        lines = read_jsonl(tmp_path / name / "metrics.jsonl")
        return [line[term] for line in lines if "mlm" in line for term in ("mlm", "lm")]

    near = 0.03 if "bf16" in more else 1e-4
    assert losses("other", *more) == pytest.approx(losses("plain"), abs=near)
