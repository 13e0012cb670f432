"""The manual's Python sessions are run, and its overview lists its pages."""

import doctest
import re
import runpy
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


def test_every_verdict_of_the_pages_is_in_the_overview() -> None:
    results = DOCS / "results"
    overview = runpy.run_path(str(DOCS / "claims.py"))["overview"](results)
    assert overview == (results / "claims.md").read_text("utf-8"), "python docs/claims.py"
    pages = [page for page in results.glob("*.md") if page.name not in ("index.md", "claims.md", "archive.md")]
    assert len(pages) == 13
    claims = 0
    for page in pages:
        answers = page.read_text("utf-8").split("## Answer")[1].split("## Here")[0]
        claims += sum(line[:1].isdigit() for line in answers.splitlines())
    assert overview.count("\n| [") == claims > 40
    assert not re.search(r"\b\d+ (supported|reversed|undecided)", overview)  # claims are not independent: no counts


def test_pages_whose_models_begin_with_the_matching_head_begin_with_the_box() -> None:
    pages = [page for page in (DOCS / "results").glob("*.md") if page.name not in ("claims.md", "archive.md")]
    for page in pages:
        assert "**Read this first.** All Transformers here begin with one hand-made head" in page.read_text("utf-8")


@pytest.mark.parametrize("page", ["README.ko.md", "docs/korean.md"])
def test_korean_pages_use_one_spelling(page: str) -> None:
    text = (DOCS.parent / page).read_text("utf-8")
    assert [word for word in ("사전학습", "미세조정", "마스크드", "원문", "평가용") if word in text] == []


def test_contributing_names_what_the_source_has() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text("utf-8")
    source = DOCS.parent / "src" / "bertwright"
    paths = set(re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:py|md|toml|txt))`", text))
    assert len(paths) >= 30
    for path in paths:
        assert (DOCS.parent / path).exists() or any(
            True for folder in (source, DOCS.parent / "tests") for _ in folder.rglob(path)
        ), path
    named = re.findall(r"`(\w+)` in\s+`((?:\w+/)+\w+\.py)`", text)
    assert len(named) >= 8
    for name, path in named:
        assert re.search(rf"\b{name}\b", (source / path).read_text("utf-8")), f"{name} in {path}"
    assert re.findall(r"^\| `([a-z ]+)` \|", text.partition("| outcome |")[2].partition("\n\n")[0], re.MULTILINE) == [
        *get_args(ClaimOutcome)
    ]
