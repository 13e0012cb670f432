"""Random models of several kinds, written once for all tests of the service."""

from pathlib import Path

import pytest

from bertwright.serving.predictor import Predictor, load
from tests.support.served import write_models


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> dict[str, str]:
    return write_models(tmp_path_factory.mktemp("models"), own_text.read_text("utf-8"))


@pytest.fixture(scope="module")
def models(folders: dict[str, str]) -> dict[str, Predictor]:
    return {name: load(folder, precision="fp32") for name, folder in folders.items()}
