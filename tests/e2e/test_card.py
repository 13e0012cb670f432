"""The README.md of a model folder: the front matter for the Hub, and the text for people."""

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from bertwright.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    assert main(["tokenizer", "train", str(own_text), "--vocab-size", "400", "--out", str(folder / "tok")]) == 0
    build = ["corpus", "build", str(own_text), "--tokenizer", str(folder / "tok"), "--workers", "1"]
    assert main([*build, "--out", str(folder / "corpus")]) == 0
    train = ["pretrain", "--corpus", str(folder / "corpus"), "--size", "2x128", "--steps", "3", "--batch-size", "4"]
    train += ["--lengths", "16:0.5,32:0.5", "--held-out", "0.2", "--evaluations", "1", "--precision", "fp32"]
    train += ["--snapshots", "0.34"]
    assert main([*train, "--threads", "1", "--out", str(folder / "lm")]) == 0
    rows = "".join(f"{word} number {number}\t{number % 2}\n" for number in range(20) for word in ("even", "odd"))
    (folder / "rows.tsv").write_text(f"sentence\tlabel\n{rows}")
    tune = ["finetune", "sst2", "--data", str(folder / "rows.tsv"), "--model", str(folder / "lm"), "--epochs", "1"]
    tune += ["--seeds", "2", "--max-length", "16", "--threads", "1", "--precision", "fp32", "--batch-size", "8"]
    assert main([*tune, "--out", str(folder / "sst2")]) == 0
    return folder


def card_parts(folder: Path) -> tuple[dict[str, object], str]:
    _, front, text = (folder / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def test_an_encoders_card(runs: Path) -> None:
    front, text = card_parts(runs / "lm" / "model")
    assert front == {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["bert", "bertwright"]}
    assert "# A BERT encoder: 2 layers of 128, 400 pieces" in text
    assert re.search(r"- [\d,]+ documents, [\d,]+ sentences, [\d,]+ tokens; share of each step 1; fingerprint `", text)
    assert "- steps: 3\n" in text
    assert "- batch_size: 4\n" in text
    assert "- phases: length 16 share 0.5, length 32 share 0.5\n" in text
    assert re.search(r"- mlm_loss: \d\.\d{4}", text)
    assert (
        "It reads at most 512 tokens at a time; it was trained on rows of up to 32, and later positions are untrained"
        in text
    )
    (early,) = (runs / "lm" / "snapshots").iterdir()
    assert "it was trained on rows of up to 16," in card_parts(early)[1]  # the rows of 32 come after it
    assert "began from" not in text
    assert str(runs) not in text  # the same bytes wherever a run lies


def test_what_a_run_goes_on_from_is_reported(runs: Path) -> None:
    again = ["pretrain", "--corpus", str(runs / "corpus"), "--init-from", str(runs / "lm"), "--steps", "1"]
    again += ["--batch-size", "4", "--lengths", "512", "--precision", "fp32", "--threads", "1"]
    assert main([*again, "--out", str(runs / "again")]) == 0
    digest = hashlib.sha256((runs / "lm" / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]
    text = card_parts(runs / "again" / "model")[1]
    assert f"- began from the model `lm`, its weights' sha256 `{digest}`\n" in text
    assert "It reads at most 512 tokens at a time.\n" in text


def test_a_tasks_card(runs: Path) -> None:
    front, text = card_parts(runs / "sst2" / "model")
    assert front["pipeline_tag"] == "text-classification"
    assert "# A BERT model for sst2: 2 layers of 128, 400 pieces" in text
    assert re.search(r"- accuracy: \d\.\d{4} ± \d\.\d{4} over 2 seeds", text)
    assert re.search(r"- accuracy: \d\.\d{4}, of this model \(seed [01]\)", text)
    assert re.search(r"- \d+ rows of training data, sha256 `[0-9a-f]{16}`", text)
    assert "- began from the model `lm`, its weights' sha256 `" in text
    assert "Its labels are negative, positive; it predicts no others." in text
    assert "It reads at most 16 tokens of an input." in text
    assert str(runs) not in text
