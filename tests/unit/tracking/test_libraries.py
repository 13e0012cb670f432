"""Each tracker's own library reads all points of metrics.jsonl, of a run that was resumed too, and none twice."""

import json
import math
import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertwright.tracking.points import describe_run
from bertwright.training.run_folder import read_metrics, start_run
from bertwright.training.tracked_run import send_run, track_with, tracked

Points = dict[tuple[str, int], float]
Reader = Callable[[Path], list[Points]]
STEPS = 40


def metrics_line(step: int) -> dict[str, Any]:
    return {"step": step, "mlm": 9 / step, "gradient_norm": math.nan if step == 15 else 0.25 * step, "skipped": 3}


def measured_line(step: int) -> dict[str, Any]:
    return {"step": step, "held_out": {"mlm_loss": 7 / step, "recall@5": 0.5}}


def train_in_two_sessions(folder: Path, tracker: str) -> None:
    """A run of 40 steps that ends by itself after 25, goes back to step 20, and finishes."""
    settings: Any = {"kind": "pretrain", "settings": {"learning_rate": 0.5, "size": "tiny"}, "data": {}}
    with track_with([tracker]):
        run = start_run(folder, **settings, resume=False)
        with tracked(run):
            write_lines(run, range(5, 26, 5))
        run = start_run(folder, **settings, resume=True)
        with tracked(run):
            run.truncate_metrics(20)
            write_lines(run, range(25, STEPS + 1, 5))
            run.note(finished=True, result={"held_out": {"mlm_loss": 0.125}})


def write_lines(run: Any, steps: range) -> None:
    for step in steps:
        run.log(metrics_line(step))
        if step % 10 == 0:
            run.log(measured_line(step))


def expected(folder: Path) -> Points:
    values: Points = {}
    for line in read_metrics(folder):
        step = line.pop("step")
        flat = {f"held_out/{name.replace('@', '_')}": value for name, value in line.pop("held_out", {}).items()}
        values |= {(name, step): float(value) for name, value in {**line, **flat}.items()}
    return values | {("final/mlm_loss", STEPS): 0.125}


def from_tensorboard(folder: Path) -> list[Points]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    assert b"| learning_rate | 0.5 |" in events.Tensors("settings")[0].tensor_proto.string_val[0]
    started = HParamsPluginData.FromString(events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content)
    assert started.session_start_info.hparams["size"].string_value == "tiny"
    tags = events.Tags()["scalars"]
    assert {tag.partition("/")[0] for tag in tags} == {"train", "held_out", "final"}
    return [{(tag.removeprefix("train/"), each.step): each.value} for tag in tags for each in events.Scalars(tag)]


def from_mlflow(folder: Path) -> list[Points]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("bertwright").experiment_id])
    assert (run.info.status, run.info.run_name, run.data.params["learning_rate"]) == ("FINISHED", "run", "0.5")
    histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
    return [{(each.key, each.step): each.value} for history in histories for each in history]


def from_trackio(folder: Path) -> list[Points]:
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_run_records("bertwright")
    (path,) = (folder.parent / "trackio").glob("*.db")
    ((config,),) = sqlite3.connect(path).execute("SELECT config FROM configs").fetchall()
    assert (run["name"], json.loads(config)["learning_rate"]) == ("run", 0.5)
    rows = SQLiteStorage.get_logs("bertwright", run_id=run["id"])
    return [{(name, row["step"]): row[name]} for row in rows for name in row.keys() - {"step", "timestamp"}]


def from_wandb(folder: Path) -> list[Points]:
    """The records of its files in the form of LevelDB's log: blocks of 32 kB, records in up to several fragments."""
    from wandb.proto.wandb_internal_pb2 import Record

    points, configured = [], ""
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = Record.FromString(data)
            configured += str(record.run.config)
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            points += [
                {(name, items["_step"]): float(value)} for name, value in items.items() if not name.startswith("_")
            ]
    assert re.search(r'key: "learning_rate"\s+value_json: "0.5"', configured)
    return points


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the form of LevelDB's log, behind its header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield record
            record = b""


LIBRARIES: dict[str, tuple[str, Reader]] = {
    "tensorboard": ("tensorboard", from_tensorboard),
    "mlflow": ("mlflow", from_mlflow),
    "wandb": ("wandb", from_wandb),
    "trackio": ("trackio", from_trackio),
}


@pytest.mark.filterwarnings("ignore")  # of the libraries, not of ours
@pytest.mark.parametrize("name", LIBRARIES)
def test_its_own_reader_has_every_point_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, read = LIBRARIES[name]
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_DIR", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip(package, reason=f"needs the package {package}: pip install 'bertwright[{name}]'")
    folder = tmp_path / "run"
    train_in_two_sessions(folder, name)
    assert send_run(folder, name) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "warning" not in captured.err
    points = [item for part in read(folder) for item in part.items()]
    wanted = expected(folder)
    assert max(Counter(key for key, _ in points).values()) == 1
    assert sorted(key for key, _ in points) == sorted(wanted)
    for key, value in points:
        assert value == pytest.approx(wanted[key], rel=1e-7 if name == "tensorboard" else 0, nan_ok=True), key
    assert describe_run(folder, {"kind": "pretrain"}).group is None
