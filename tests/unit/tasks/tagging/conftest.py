"""A tokenizer whose vocabulary has the names of the eight sentences."""

from pathlib import Path

import pytest

from tests.support.eight_sentences import names_vocabulary


@pytest.fixture
def cased_tokenizer(tmp_path: Path, own_text: Path) -> Path:
    names_vocabulary(own_text, cased=True).save(tmp_path / "tok")
    return tmp_path / "tok"
