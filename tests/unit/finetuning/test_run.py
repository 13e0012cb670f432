"""The start of a fine-tuning run: an output folder that cannot be used is refused first."""

from pathlib import Path

import pytest

from bertwright.errors import InputError
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.spec import get_spec


def test_a_used_folder_is_refused_before_model_and_data_are_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").touch()
    with pytest.raises(InputError, match="out: is not empty and holds no run; choose another --out"):
        finetune(FinetuneSettings(), get_spec("sst2"), model="absent", data=tmp_path / "absent", out=out)
