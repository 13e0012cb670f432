"""Random models of several kinds, written once for all tests of the service."""

from pathlib import Path

import pytest

from bertwright.serving.predictor import Predictor, load
from bertwright.tasks.classification.spec import REGRESS
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.support.served import write_models


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> dict[str, str]:
    return write_models(tmp_path_factory.mktemp("models"), own_text.read_text("utf-8"))


@pytest.fixture(scope="module")
def models(folders: dict[str, str]) -> dict[str, Predictor]:
    return {name: load(folder, precision="fp32") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Predictor:
    """A reranker that gives a number."""
    task = REGRESS.model_copy(update={"text": ("query", "document")})
    model = small_classifier(classifier_config(Tokenizer.load(own_tokenizer).vocab_size), 1)
    folder = save_classifier(tmp_path_factory.mktemp("rerank") / "number", model, task, own_tokenizer, 64)
    return load(folder, precision="fp32")
