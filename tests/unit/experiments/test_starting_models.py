"""The model folder from which a fine-tuning starts, and who writes it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.experiments import starting_models


def test_two_models_are_joined_once_and_apart_for_each_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Path] = []

    def join(left: str, right: str, out: Path) -> None:
        out.mkdir(parents=True)  # as another process, which was the first
        joined.append(out)
        raise InputError(f"{out}: is there already")

    monkeypatch.setattr(starting_models, "join", join)

    def at(share: float) -> Path:
        models = [
            SimpleNamespace(name=name, folder_after=lambda share, name=name: tmp_path / name / f"step-{share:g}")
            for name in ("left", "right")
        ]
        job: Any = SimpleNamespace(models=models, fraction=share, head=None)
        return starting_models.starting_model(job, tmp_path)

    assert [at(1.0), at(0.5), at(1.0)] == [joined[0], joined[1], joined[0]]
    assert [path.name for path in joined] == ["left+right", "left+right-step-0.5"]


def test_a_model_with_another_head_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, list[str]]] = []

    def change_head(change: str, models: list[str], out: Path) -> None:
        out.mkdir(parents=True)
        written.append((change, [Path(model).parent.name for model in models]))

    monkeypatch.setattr(starting_models, "change_head", change_head)

    def starting(head: str | None, *names: str) -> Path:
        models = [SimpleNamespace(name=name, folder_after=lambda _, n=name: tmp_path / n / "model") for name in names]
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
