"""The manual's Python sessions are run, and its overview lists its pages."""

import doctest
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from bertwright.experiments.statistics import ClaimOutcome
from bertwright.model.config import EncoderConfig
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import SST2
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import save_classifier

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    """A model of random weights."""
    vocab_size = Tokenizer.load(own_tokenizer).vocab_size
    config = EncoderConfig(vocab_size=vocab_size, hidden=48, layers=2, heads=4, intermediate=96, max_positions=64)
    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("shown") / "sst2"
    return save_classifier(folder, Classifier(config, 2), SST2, own_tokenizer, 32)


def test_sessions_run_as_shown(classifier: str) -> None:
    results = doctest.testfile(
        str(DOCS / "python.md"),
        module_relative=False,
        globs={"classifier": classifier},
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert results.attempted >= 12
    assert results.failed == 0


@pytest.mark.parametrize("page", ["README.ko.md", "docs/korean.md"])
def test_korean_pages_use_one_spelling(page: str) -> None:
    text = (DOCS.parent / page).read_text("utf-8")
    assert [word for word in ("사전학습", "미세조정", "마스크드", "원문", "평가용") if word in text] == []


def test_pages_name_what_the_source_has() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text("utf-8")
    source = DOCS.parent / "src" / "bertwright"
    paths = set(re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:py|md|toml|txt))`", text))
    assert len(paths) >= 30
    for path in paths:
        assert (DOCS.parent / path).exists() or any(
            True for folder in (source, DOCS.parent / "tests") for _ in folder.rglob(path)
        ), path
    numerics = (DOCS / "numerics.md").read_text("utf-8")
    in_brackets = re.findall(r"`((?:\w+/)+\w+\.py)` \(`(\w+)`", numerics)
    assert len(in_brackets) >= 25
    for path, name in in_brackets:
        assert re.search(rf"\b{name}\b", (source / path).read_text("utf-8")), f"{name} in {path}"
    named = re.findall(r"`(\w+)` in\s+`((?:\w+/)+\w+\.py)`", text)
    assert len(named) >= 8
    for name, path in named:
        assert re.search(rf"\b{name}\b", (source / path).read_text("utf-8")), f"{name} in {path}"
    assert re.findall(r"^\| `([a-z ]+)` \|", text.partition("| outcome |")[2].partition("\n\n")[0], re.MULTILINE) == [
        *get_args(ClaimOutcome)
    ]
