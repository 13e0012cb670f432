"""The model folder from which a fine-tuning starts, and who writes it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.experiments import starting_models
from bertwright.model.folder import WEIGHTS


def model_of(folder: Path, name: str, weights: str = "") -> Any:
    """Return a pre-training with a file of weights in each folder from which a model is taken."""

    def folder_after(fraction: float) -> Path:
        taken = folder / name / ("model" if fraction == 1.0 else f"step-{fraction:g}")
        taken.mkdir(parents=True, exist_ok=True)
        (taken / WEIGHTS).write_text(weights)
        return taken

    return SimpleNamespace(name=name, folder_after=folder_after)


def test_two_models_are_joined_once_for_each_fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Path] = []

    def join(left: str, right: str, out: Path) -> None:
        out.mkdir(parents=True)  # as another process, which was the first
        joined.append(out)
        raise InputError(f"{out}: is there already")

    monkeypatch.setattr(starting_models, "join", join)

    def at(fraction: float) -> Path:
        models = [model_of(tmp_path, name) for name in ("left", "right")]
        job: Any = SimpleNamespace(models=models, fraction=fraction, head=None)
        return starting_models.starting_model(job, tmp_path)

    assert [at(1.0), at(0.5), at(1.0)] == [joined[0], joined[1], joined[0]]
    assert [path.name for path in joined] == ["left+right", "left+right-step-0.5"]


def test_a_model_with_another_head_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, list[str]]] = []

    def change_head(change: str, models: list[str], out: Path) -> None:
        out.mkdir(parents=True)
        written.append((change, [Path(model).parent.name for model in models]))

    monkeypatch.setattr(starting_models, "change_head", change_head)

    def starting(head: str | None, *names: str, weights: str = "") -> Path:
        models = [model_of(tmp_path, name, weights) for name in names]
        job: Any = SimpleNamespace(models=models, fraction=1.0, head=head)
        return starting_models.starting_model(job, tmp_path)

    folders = [
        starting(None, "a"),
        *(starting("transplanted", "a", "b") for _ in range(2)),
        starting("other-removed", "a"),
    ]
    assert [str(folder.relative_to(tmp_path)) for folder in folders] == [
        "a/model",
        "head-transplanted/a+b",
        "head-transplanted/a+b",
        "head-other-removed/a",
    ]
    assert written == [("transplanted", ["a", "b"]), ("other-removed", ["a"])]
    assert starting("transplanted", "a", "b", weights="trained again") == folders[1]
    assert written[2:] == [("transplanted", ["a", "b"])]
    (folders[1].parent / "a+b.sources.json").unlink()  # killed before it was written
    assert starting("transplanted", "a", "b", weights="trained again") == folders[1]
    assert len(written) == 4
