"""A GPT-1 as it was published has no tokens for the rows of tasks: it gets them, and its folder keeps them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import open_initial_model, with_task_tokens
from bertwright.model.backbones import build_backbone
from bertwright.model.encoder import init_weights
from bertwright.model.families.gpt import GPTConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import system_config
from bertwright.serving.embeddings import features_of
from bertwright.serving.predictor import load
from bertwright.sklearn import BertClassifier
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import open_classifier, predict_logits
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.multiple_choice.spec import Choices, encode_choices
from bertwright.text.bpe import TASK_TOKENS, BPETokenizer, train_bpe
from tests.support.task_examples import example_data
from tests.support.texts import PLACES

FAST = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=60, threads=1, precision="fp32")
WORD = "encoder.embeddings.word.weight"


@pytest.fixture(scope="module")
def published_gpt(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> str:
    """A folder in transformers' own form, its vocabulary without the three tokens."""
    folder = tmp_path_factory.mktemp("gpt")
    words = train_bpe([own_text.read_text("utf-8"), *PLACES * 3], merges=200)
    bare = BPETokenizer(words.pieces[: -len(TASK_TOKENS)], words.merges)
    bare.save(folder / "tok")
    config = system_config("gpt", "tiny", bare.vocab_size, max_positions=64)
    model = nn.ModuleDict({"encoder": build_backbone(config)})
    init_weights(model, 0.3, torch.Generator().manual_seed(4))
    save_model(folder / "m", model, config=config, tokenizer=folder / "tok", architecture="OpenAIGPTLMHeadModel")
    return str(folder / "m")


def test_a_vocabulary_without_the_tokens_grows_and_its_table_with_it(published_gpt: str) -> None:
    before, bare = open_model(published_gpt), open_tokenizer(open_model(published_gpt))
    saved, words = open_initial_model(published_gpt, None)
    assert before.weights is not None
    assert saved.weights is not None
    assert words.pieces == [*bare.pieces, *TASK_TOKENS]
    assert saved.config == before.config.model_copy(update={"vocab_size": words.vocab_size})
    assert torch.equal(saved.weights[WORD][: bare.vocab_size], before.weights[WORD])
    new = saved.weights[WORD][bare.vocab_size :]
    assert new.shape == (3, 128)
    assert abs(float(new.mean())) < 0.005
    assert float(new.std()) == pytest.approx(0.02, rel=0.15)
    again, _ = open_initial_model(published_gpt, None)
    assert again.weights is not None
    assert torch.equal(again.weights[WORD], saved.weights[WORD])
    assert with_task_tokens(saved, words) == (saved, words)


def test_the_tuned_folder_has_them_and_answers(published_gpt: str, tmp_path: Path) -> None:
    task = get_task("mrpc")
    data = example_data(task, tmp_path).data
    result = finetune(FAST, task, model=published_gpt, data=data, out=tmp_path / "run")
    saved = open_model(str(tmp_path / "run"))
    words = open_tokenizer(saved)
    assert words.pieces[-3:] == list(TASK_TOKENS)
    assert not (tmp_path / "run" / ".tokenizer").exists()
    (tmp_path / "run" / "tokenizer").mkdir()  # of a person
    finetune(FAST, task, model=published_gpt, data=data, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "tokenizer").is_dir()
    assert evaluate_task(task, model=str(tmp_path / "run"), data=data)["f1"] == pytest.approx(result["mean"])
    model, _, max_length = open_classifier(saved)
    start, delimiter, classify = words.special_ids[1:]
    encoded = encode(words, ["The tower"], ["a bridge"], max_length=max_length)
    a, b = words.ids(["The tower", "a bridge"])
    assert encoded.ids[0].tolist() == [start, *a, delimiter, *b, classify]
    state = torch.zeros(1, 128)
    with torch.inference_mode():
        for row in ([start, *a, delimiter, *b, classify], [start, *b, delimiter, *a, classify]):
            ids = torch.tensor([row])
            whole = model.encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
            state = state + whole.last[:, -1]
        expected = state @ model.classifier.linear.weight.T + model.classifier.linear.bias
    np.testing.assert_allclose(predict_logits(model, encoded), expected.numpy(), atol=1e-5)
    # a second task takes the three over, and draws none anew
    second, _ = open_initial_model(str(tmp_path / "run"), None)
    assert second.config == saved.config
    assert second.weights is not None
    assert saved.weights is not None
    assert torch.equal(second.weights[WORD], saved.weights[WORD])


def test_choices_are_read_one_by_one_behind_the_context(published_gpt: str) -> None:
    words = open_initial_model(published_gpt, None)[1]
    start, delimiter, classify = words.special_ids[1:]
    rows = Choices(("The tower",), (("falls", "sings a song"),), None, "here", (1,))
    context, falls, sings = words.ids(["The tower", "falls", "sings a song"])
    assert [ids.tolist() for ids in encode_choices(words, rows, max_length=60).ids] == [
        [start, *context, delimiter, *falls, classify],
        [start, *context, delimiter, *sings, classify],
    ]


def test_random_weights_and_estimators_get_them_too(published_gpt: str, tmp_path: Path) -> None:
    saved, words = open_initial_model("random:gpt:tiny", Path(published_gpt))
    assert saved.weights is None
    assert isinstance(saved.config, GPTConfig)
    assert saved.config.vocab_size == words.vocab_size == open_model(published_gpt).config.vocab_size + 3
    texts, labels = [f"{'near' if row % 2 else 'far'} the {noun}" for row, noun in enumerate(PLACES)], [0, 1] * 4
    fitted = BertClassifier(published_gpt, epochs=1, batch_size=32, max_length=30, precision="fp32", threads=1)
    fitted.fit(texts, labels)
    fitted.save(tmp_path / "saved")
    assert open_tokenizer(open_model(str(tmp_path / "saved"))).pieces[-3:] == list(TASK_TOKENS)
    answers = load(tmp_path / "saved", precision="fp32")(texts)
    expected = fitted.predict_proba(texts)
    np.testing.assert_allclose([[one.probabilities[label] for label in "01"] for one in answers], expected, atol=1e-6)


def test_frozen_states_of_a_published_model_are_those_of_the_bare_text(published_gpt: str) -> None:
    saved = open_model(published_gpt)
    words, backbone = open_tokenizer(saved), frozen_encoder(saved)
    texts = ["The tower by the harbour", "", "x" * 80]
    states: list[Any] = list(features_of(backbone, words, texts, layers=[0, 2], max_length=60))
    ids = words.ids(texts)
    assert [one.ids.tolist() for one in states] == [ids[0], [words.unk_id], ids[2][:60]]
    assert [one.truncated for one in states] == [False, False, len(ids[2]) > 60]
    assert [len(one.offsets) for one in states] == [len(one.ids) for one in states]
    ids_row = torch.tensor([ids[0]])
    with torch.inference_mode():
        last = backbone(ids_row, torch.zeros_like(ids_row), torch.ones_like(ids_row, dtype=torch.bool)).last[0]
    np.testing.assert_allclose(states[0].states[1], last.numpy(), atol=1e-5)
