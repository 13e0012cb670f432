"""GPT-1 reads similar texts in both orders and adds its two states; its answers against a plain computation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import EncoderConfig
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.folder import open_model
from bertwright.model.system import system_config
from bertwright.serving.predictor import load
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import (
    Classifier,
    open_classifier,
    padded,
    predict_logits,
    reads_both_orders,
)
from bertwright.tasks.classification.spec import MRPC, QQP, RTE, STSB
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.wordpiece import Tokenizer
from tests.support.task_examples import example_data

FAST = FinetuneSettings(epochs=2, batch_size=4, learning_rate=1e-3, max_length=40, threads=1, precision="fp32")
PAIRS = (("The harbour lies still.", "Nobody is at the harbour"), ("a tower", "The library, and the long bridge"))


@pytest.fixture(scope="module", params=["mrpc", "rte"])
def tuned_gpt(request: Any, tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    """A GPT-1 that was fine-tuned on pairs: similar ones, or ones of which the second follows from the first."""
    task = {"mrpc": MRPC, "rte": RTE}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    data = example_data(task, folder).data
    finetune(FAST, task, model="random:gpt:tiny", tokenizer=places_tokenizer, data=data, out=folder / "run")
    return str(folder / "run")


def plain_logits(model: Classifier, words: Tokenizer, first: str, second: str) -> torch.Tensor:
    """begin A between B end, and for similar texts begin B between A end: the last states, added, through one layer."""
    a, b = words.ids([first, second])
    sides = [(a, b), (b, a)] if model.both_orders else [(a, b)]
    state = torch.zeros(1, model.encoder.config.hidden)
    for left, right in sides:
        ids = torch.tensor([[words.cls_id, *left, words.sep_id, *right, words.sep_id]])
        state = state + model.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last[:, -1]
    return (state @ model.classifier.linear.weight.T + model.classifier.linear.bias)[0]


def test_logits_are_those_of_a_plain_computation(tuned_gpt: str) -> None:
    saved = open_model(tuned_gpt)
    model, task, max_length = open_classifier(saved)
    words = open_tokenizer(saved)
    assert model.both_orders == task.symmetric == (task.name == "mrpc")
    assert not any(name.startswith("pooler") for name in saved.weights or {})
    encoded = encode(words, *zip(*PAIRS, strict=True), max_length=max_length)
    with torch.inference_mode():
        expected = torch.stack([plain_logits(model, words, *pair) for pair in PAIRS])
    torch.testing.assert_close(torch.from_numpy(predict_logits(model, encoded)), expected, rtol=1e-5, atol=1e-5)


def test_only_similar_texts_may_be_swapped(tuned_gpt: str) -> None:
    model = load(tuned_gpt, precision="fp32")
    there, back = model(list(PAIRS)), model([pair[::-1] for pair in PAIRS])
    for one, other in zip(there, back, strict=True):
        same = np.allclose(list(one.probabilities.values()), list(other.probabilities.values()), atol=1e-6)
        assert same == (model.pipeline.task.name == "mrpc")


def test_a_batch_of_both_orders_is_learned_from_once(places_tokenizer: Path) -> None:
    """Twice the rows are read, and each example counts once."""
    config = system_config(
        "gpt", "tiny", Tokenizer.load(places_tokenizer).vocab_size, hidden_dropout=0.0, attention_dropout=0.0
    )
    torch.manual_seed(0)
    model = Classifier(config, 1, both_orders=True)
    encoded = encode(Tokenizer.load(places_tokenizer), *zip(*PAIRS, strict=True), max_length=40)
    targets = np.array([1.0, -0.5], dtype=np.float32)
    rows = padded(encoded, [1, 0], pad_id=0, targets=targets, both_orders=True)
    assert (len(rows), len(rows.ids), rows.orders) == (2, 4, 2)
    trainable = CLASSIFICATION.trainable(STSB, model)
    assert trainable.counts(rows) == {"rows": 2.0}
    assert trainable.tokens(rows) == 2 * sum(map(len, encoded.ids))
    one_by_one = [padded(encoded, [row], pad_id=0, targets=targets, both_orders=True) for row in (0, 1)]
    with torch.no_grad():
        whole, *parts = (float(trainable.step(batch)["loss"][0]) for batch in (rows, *one_by_one))
    assert whole == pytest.approx(sum(parts), rel=1e-5)
    turned = encode(Tokenizer.load(places_tokenizer), *reversed(list(zip(*PAIRS, strict=True))), max_length=40)
    for position, row in enumerate((1, 0)):
        real = int(rows.mask[2 + position].sum())
        assert rows.ids[2 + position, :real].tolist() == turned.ids[row].tolist()
        assert int(rows.segments[2 + position].sum()) == real - turned.first[row]


def test_who_reads_in_both_orders() -> None:
    gpt = system_config("gpt", "tiny", 50)
    assert [task.symmetric for task in (MRPC, QQP, STSB, RTE)] == [True, True, True, False]
    assert [reads_both_orders(task, gpt) for task in (MRPC, QQP, STSB, RTE)] == [True, True, True, False]
    bert, left = system_config("bert", "tiny", 50), system_config("bert-left", "tiny", 50)
    right = system_config("bert-right", "tiny", 50)
    assert isinstance(bert, EncoderConfig)
    others = (bert, left, PairConfig(left=left, right=right), TopConfig(inner=gpt, width=8))
    assert not any(reads_both_orders(STSB, config) for config in others)


def test_a_task_of_any_order_is_noted_only_where_it_is_one() -> None:
    assert "symmetric" not in RTE.model_dump()
    assert MRPC.model_dump()["symmetric"] is True
