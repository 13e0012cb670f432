"""The record of a run: a later version of the program with more settings resumes it."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from bertwright.config import Settings
from bertwright.errors import InputError
from bertwright.training.run_files import noted_corpora
from bertwright.training.run_folder import start_run


class Examples(Settings):
    """A group of settings, one of which is new."""

    share: float = 0.15
    new_share: float = 0.5


class RunSettings(Settings):
    """Settings of a run, one of which is new."""

    changeable: ClassVar[frozenset[str]] = frozenset({"steps"})
    steps: int = 10
    rate: float = 0.1
    new: int | None = None
    examples: Examples = Examples()


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """The folder of a run that was started before `new` and `new_share` existed."""
    folder = tmp_path / "run"
    start_run(folder, kind="pretrain", settings=RunSettings(), data={}, resume=False)
    record = json.loads((folder / "run.json").read_text())
    del record["settings"]["new"]
    del record["settings"]["examples"]["new_share"]
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_run_of_before_a_setting_existed_is_resumed_with_its_default(old_run: Path) -> None:
    run = start_run(old_run, kind="pretrain", settings=RunSettings(steps=20), data={}, resume=True)
    assert run.changes == {"steps": 20}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (RunSettings(new=1), "settings.new is None there and 1 here"),
        (RunSettings(examples=Examples(new_share=0.1)), "settings.examples.new_share is 0.5 there and 0.1 here"),
        (RunSettings(rate=0.2), "settings.rate is 0.1 there and 0.2 here"),
    ],
)
def test_another_value_of_a_setting_is_refused(old_run: Path, settings: RunSettings, words: str) -> None:
    with pytest.raises(InputError, match=f"{words}; to train its model further, start another run with --init-from"):
        start_run(old_run, kind="pretrain", settings=settings, data={}, resume=True)


def test_a_setting_that_is_gone_is_named(old_run: Path) -> None:
    record = json.loads((old_run / "run.json").read_text())
    record["settings"]["gone"] = 3
    (old_run / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"settings\.gone is 3 there and None here"):
        start_run(old_run, kind="pretrain", settings=RunSettings(), data={}, resume=True)


def test_a_changed_file_is_named_by_the_digests(old_run: Path) -> None:
    record = json.loads((old_run / "run.json").read_text())
    (old_run / "run.json").write_text(json.dumps({**record, "data": {"train": "a" * 64}}))
    words = r"data\.train has other content here: sha256 bbbbbbbbbbbb…, there aaaaaaaaaaaa…"
    with pytest.raises(InputError, match=words):
        start_run(old_run, kind="pretrain", settings=RunSettings(), data={"train": "b" * 64}, resume=True)


def test_the_corpora_of_a_run_are_one_or_several() -> None:
    assert noted_corpora({"data": {"corpus": "a", "held_out": None}}) == ["a"]
    assert noted_corpora({"data": {"corpus": "a", "held_out": None}}, "held_out") == []
    several = [{"fingerprint": "a", "weight": 0.5}, {"fingerprint": "b", "weight": 0.5}]
    assert noted_corpora({"data": {"corpus": several}}) == ["a", "b"]
