"""Folders of an experiment's jobs keep their names where defaults of fine-tuning change."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.experiments import jobs
from bertwright.experiments.data import Subset
from bertwright.experiments.scales import SCALES
from bertwright.experiments.spec import Arm, Column
from bertwright.finetuning.settings import FinetuneSettings

COLUMN = Column(name="RTE", task="rte", metric="accuracy")


class LaterSettings(FinetuneSettings):
    """Settings of fine-tuning whose defaults are chosen later."""

    epochs: Any = None
    batch_size: Any = None


def job_name(scale: str, arm: Arm) -> str:
    corpora: Any = None
    model: Any = SimpleNamespace(
        name="bert-2x128-seed0-0123", folder=Path("bert-2x128-seed0-0123"), settings=SimpleNamespace(seed=0)
    )
    subset = Subset(Path("rte-4567"), "4567", {})
    workspace = jobs.Workspace(Path("out"), SCALES[scale], corpora, {"rte": subset})
    return workspace.finetuning(arm, COLUMN, (model,), 1).folder.name


@pytest.mark.parametrize(
    ("scale", "changes", "name"),
    [  # names of the time when the defaults were 3 epochs and batches of 32
        ("base", {}, "bert-2x128-seed0.1-335360be923b"),
        ("base", {"learning_rate": 1e-4}, "bert-2x128-seed0.1-a36b5ce0d40a"),
        ("tiny", {}, "bert-2x128-seed0.1-1166643faff8"),
        ("smoke", {"features": "last"}, "bert-2x128-seed0.1-5f297f517c9d"),
    ],
)
def test_names_of_finetunings_do_not_depend_on_defaults(
    scale: str, changes: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = Arm(name="a", title="a", finetuning=changes)
    assert job_name(scale, arm) == name
    monkeypatch.setattr(jobs, "FinetuneSettings", LaterSettings)
    assert job_name(scale, arm) == name
