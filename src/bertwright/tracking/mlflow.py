"""points → MLflow: the server or store of MLFLOW_TRACKING_URI, otherwise MLflow's own default, mlflow.db here."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from bertwright.tracking.points import TrackedPoint, TrackedRun
from bertwright.tracking.tracker import EndState, read_note, write_note

_DEFAULTS: Final = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Variables that are set where the environment has none: the next attempt is the sender's, and nothing else is sent."""
_MOST_METRICS: Final = 1000
_MOST_PARAMETERS: Final = 100
_LONGEST_PARAMETER: Final = 6000
"""Limits of one request, and of the characters of a parameter."""
_STATUS: Final[Mapping[EndState, str]] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_Item = TypeVar("_Item")


class MLflowTracker:
    """A run of MLflow. Its id and the address of its store are noted, so that a resumed run continues it."""

    def __init__(self) -> None:
        self._client: Any = None
        self._id = ""

    def open(self, run: TrackedRun) -> Mapping[str, int]:
        """Continue the noted run, or create one in the experiment of MLFLOW_EXPERIMENT_NAME (bertwright)."""
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        note = read_note(run, "mlflow")
        stored = self._stored(note["id"]) if note.get("store") == _without_password(uri) else None
        if stored is None:
            tags = {"group": run.group} if run.group else {}
            stored = self._client.create_run(self._experiment(), run_name=run.name, tags=tags)
            write_note(run, "mlflow", id=stored.info.run_id, store=_without_password(uri))
        self._id = stored.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._send_parameters(run, stored.data.params)
        return {
            name: max(metric.step for metric in self._client.get_metric_history(self._id, name))
            for name in stored.data.metrics
        }

    def send(self, points: Sequence[TrackedPoint]) -> None:
        """Store the points."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for part in _parts(points, _MOST_METRICS):
            metrics = [Metric(point.name, point.value, now, point.step) for point in part]
            self._client.log_batch(self._id, metrics=metrics)

    def close(self, state: EndState) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, _STATUS[state])

    def _stored(self, run_id: str) -> Any:
        """Return the run of an id; None where the store has none."""
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bertwright")
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _send_parameters(self, run: TrackedRun, stored: Mapping[str, str]) -> None:
        """Store the parameters that are not there yet; MLflow changes none."""
        from mlflow.entities import Param

        missing = [name for name in run.parameters if name not in stored]
        for part in _parts(missing, _MOST_PARAMETERS):
            parameters = [Param(name, str(run.parameters[name])[:_LONGEST_PARAMETER]) for name in part]
            self._client.log_batch(self._id, params=parameters)


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _without_password(uri: str) -> str:
    """Return an address without name and password, which do not belong into the folder of a run."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
