"""Corpora of made-up documents."""

from pathlib import Path

import pytest

from tests.support import example_oracle as oracle


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> oracle.FakeCorpus:
    documents = oracle.random_documents(0, num_documents=80)
    return oracle.FakeCorpus(documents, folder=tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def masking_corpus(tmp_path_factory: pytest.TempPathFactory) -> oracle.FakeCorpus:
    """A corpus with enough tokens to count masks in, and 500 pieces."""
    documents = oracle.random_documents(0, num_documents=400, longest=25)
    return oracle.FakeCorpus(documents, folder=tmp_path_factory.mktemp("corpus"), vocab_size=500)


@pytest.fixture
def large_corpus(tmp_path: Path) -> oracle.FakeCorpus:
    """A corpus with enough rows for its plans to be saved."""
    documents: list[oracle.Document] = [[[5, 6, 7]]] * 66_000
    folder = tmp_path / "large"
    folder.mkdir()
    return oracle.FakeCorpus(documents, folder=folder, num_shards=1)
