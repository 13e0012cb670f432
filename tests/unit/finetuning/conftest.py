"""A small table that the tests of searches share."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def search_arguments(tmp_path: Path, own_tokenizer: Path) -> dict[str, Any]:
    """A tokenizer, a table, and the arguments of a fine-tuning."""
    data = tmp_path / "data"
    data.mkdir()
    rows = "".join(f"{'good' if n % 2 else 'bad'} number {n}\t{n % 2}\n" for n in range(24))
    for name in ("train", "dev"):
        (data / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    return {"model": "random:tiny", "data": data, "tokenizer": own_tokenizer}
