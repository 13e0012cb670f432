"""Families of models: what the registry finds, what a family must have, and that another family is one file."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright.model.config import EncoderConfig
from bertwright.model.families import TransformersFamily, families
from bertwright.model.system import MASKED_LM_SYSTEMS, NAMES, SYSTEMS
from tests.support import sixth_family

ANOTHER = Path(sixth_family.__file__)
PROGRAM = """
import json, sys
from pathlib import Path

import bertwright.model.families

folder, corpus = Path(sys.argv[1]), sys.argv[2]
bertwright.model.families.__path__.append(str(folder / "families"))
from bertwright.cli import main
from bertwright.model.system import MASKED_LM_SYSTEMS, NAMES, SYSTEMS, system_of

assert NAMES["ernie"] == "ERNIE" and "ernie" in SYSTEMS and "ernie" in MASKED_LM_SYSTEMS
assert "torch" not in sys.modules

# pre-training by masked LM, from the command line
run = folder / "run"
shape = ["--system", "ernie", "--size", "2x128", "--lengths", "32:1", "--second-sentence", "none"]
fast = ["--learning-rate", "3e-3", "--warmup", "0.1", "--batch-size", "16", "--threads", "1", "--precision", "fp32"]
measured = ["--held-out", "0.2", "--evaluations", "1", "--log-every", "1", "--bias-correction"]
trained = main(["pretrain", "--corpus", corpus, "--out", str(run), "--steps", "15", *shape, *fast, *measured])
assert trained == 0
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
losses = [line["mlm"] for line in lines if "mlm" in line]
assert len(losses) == 15 and losses[-1] < losses[0] - 0.3, losses

# the folder: names of transformers in config.json, and the same weights when it is opened and saved again
import torch
from transformers import AutoModelForMaskedLM

from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import open_pretrained

described = json.loads((run / "model" / "config.json").read_text())
assert described["architectures"] == ["ErnieForMaskedLM"] and described["hidden_size"] == 128
saved = open_model(str(run))
assert type(saved.config).__name__ == "ErnieConfig" and system_of(saved.config) == "ernie"
ours = open_pretrained(saved)
save_model(folder / "again", ours, config=saved.config, tokenizer=saved.tokenizer, architecture=saved.architecture)
again = open_model(str(folder / "again"))
assert again.config == saved.config
assert all(torch.equal(again.weights[name], tensor) for name, tensor in saved.weights.items())

# the logits that transformers computes
ids = torch.arange(5, 25)[None]
theirs = AutoModelForMaskedLM.from_pretrained(run / "model").eval()
with torch.inference_mode():
    states = ours.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
    logits = ours.masked_lm(states, ours.encoder.embeddings.word.weight)
    torch.testing.assert_close(logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)

# a run that begins from the model, and its validation
onwards = [*shape, *fast, "--init-from", str(run), "--steps", "1"]
assert main(["pretrain", "--corpus", corpus, "--out", str(folder / "more"), *onwards]) == 0
assert main(["evaluate", "pretraining", "--model", str(run), "--corpus", corpus, "--rows", "8", "--length", "32"]) == 0
random = open_model("random:ernie:tiny", tokenizer=saved.tokenizer, vocab_size=30)
assert random.config.num_segments == 2
"""


def test_the_families_and_their_systems() -> None:
    assert {"bert", "distilbert", "gpt", "lstm", "pair", "roberta", "top"} <= set(families())
    assert tuple(NAMES) == SYSTEMS
    assert {"bert", "bert-left", "bert-right", "gpt", "gpt2", "lstm-left", "lstm-right"} <= set(SYSTEMS)
    assert {"bert", "distilbert", "roberta"} <= set(MASKED_LM_SYSTEMS)
    assert not {"bert-left", "gpt", "gpt2", "lstm-left"} & set(MASKED_LM_SYSTEMS)


@pytest.mark.slow
def test_another_family_is_one_file(tmp_path: Path, own_corpus: Path) -> None:
    """Pre-train such a family, store it, open it in transformers, open it again and train it further."""
    (tmp_path / "families").mkdir()
    shutil.copy(ANOTHER, tmp_path / "families" / "ernie.py")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(own_corpus)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_a_family_that_lacks_a_method_fails_at_import() -> None:
    class Lacking(TransformersFamily[EncoderConfig]):
        """A family without methods."""

    with pytest.raises(TypeError, match=r"abstract class Lacking .*build.*config_from_json"):
        Lacking(name="lacking", config_class=EncoderConfig, systems={}, model_types=())  # type: ignore[abstract]
