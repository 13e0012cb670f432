"""A published GPT-2, fine-tuned for pairs: its rows get a frame, and transformers computes the same from its folder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import open_initial_model
from bertwright.model.folder import open_model
from bertwright.serving.predictor import load
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import open_classifier, predict_logits
from bertwright.tasks.spec import get_spec
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer
from tests.support.task_examples import example_data

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

FAST = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=40, threads=1, precision="fp32")
WORD = "encoder.embeddings.word.weight"
pytestmark = pytest.mark.usefixtures("measured_once")


def test_the_folder_of_a_classifier_gives_the_same_logits_in_transformers(tmp_path: Path) -> None:
    size = write_gpt2_tokenizer(tmp_path / "m")
    publish_gpt2(tmp_path / "m", vocab_size=size, eos_token_id=size - 1, n_positions=64)
    before, (start, framed) = open_model(str(tmp_path / "m")), open_initial_model(str(tmp_path / "m"), None)
    assert before.weights is not None
    assert start.weights is not None
    assert (start.config.vocab_size, start.config.pad_id) == (size + 1, size)
    assert torch.equal(start.weights[WORD][:size], before.weights[WORD])
    assert float(start.weights[WORD][size].std()) > 0
    example = example_data(get_spec("mrpc"), tmp_path)
    finetune(FAST, get_spec("mrpc"), model=str(tmp_path / "m"), data=example.data, out=tmp_path / "run")
    saved = open_model(str(tmp_path / "run"))
    model, task, _ = open_classifier(saved)
    tokenizer = open_tokenizer(saved)
    assert tokenizer.hash == framed.hash
    first, second = ["The harbour.", "Near the old bridge, ships!"], ["A ship.", "It is old"]
    rows = encode(tokenizer, first, second, max_length=40)
    ours = predict_logits(model, rows)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").eval()
    assert type(theirs).__name__ == "GPT2ForSequenceClassification"
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    with torch.inference_mode():
        logits = theirs(**read(first, second, padding=True, return_tensors="pt")).logits
    np.testing.assert_allclose(ours, logits.numpy(), atol=1e-5)
    assert load(tmp_path / "run", precision="fp32")((first[1], second[1])).label == task.labels[int(ours[1].argmax())]
