"""models of an experiment → seconds of their steps on this machine, in a file that all seeds and later runs read.

The file is written before the first pre-training and only grows: an arm that is added later is measured then. With a
copy of the file another machine trains the same steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.experiments.jobs import PretrainedModel
from bertwright.files import read_object, write_json
from bertwright.locks import locked_file
from bertwright.pretraining.measure import Timings, choose_compiled, measure_timings
from bertwright.pretraining.setup import prepare_pretraining
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.settings import Device
from bertwright.version import __version__

ROUNDS: Final = 3
"""Number of times that each model is measured; all models take turns, and the shortest time counts."""


def read_speeds(path: Path) -> Mapping[str, tuple[Timings, int]]:
    """Return timings and number of threads by the name of the model; empty where there is no file.

    Raises InputError for another content.
    """
    if not path.is_file():
        return {}
    try:
        return {
            name: (
                Timings(tuple(map(float, each["steps"])), float(each["evaluation"]), float(each["checkpoint"])),
                int(each["threads"]),
            )
            for name, each in read_object(path)["speeds"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: expected steps, evaluation, checkpoint and threads of each model, got other content ({error!r}); "
            "remove the file to measure again, and the pre-trainings that depend on it"
        ) from None


def measure_speeds(path: Path, models: Mapping[str, PretrainedModel], *, device: Device) -> None:
    """Add the speeds of the models that a file does not have. Raises InputError while another process measures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(path.with_suffix(".lock"), f"{path}: another process measures speeds; repeat the command later"):
        known = read_object(path)["speeds"] if read_speeds(path) else {}
        missing = {name: model for name, model in models.items() if name not in known}
        if not missing:
            return
        say(f"{path}: measuring the speed of {len(missing)} models, which decides their steps")
        rounds: dict[str, list[Timings]] = defaultdict(list)
        numerics: Numerics | None = None
        for _ in range(ROUNDS):
            for name, model in missing.items():
                timings, numerics = _measure(model, numerics, device)
                rounds[name].append(timings)
        assert numerics is not None
        machine: dict[str, Any] = numerics.model_dump(include={"threads", "precision", "device", "processor"})
        machine["program"] = __version__
        new = {name: {**vars(fastest(timings)), **machine} for name, timings in rounds.items()}
        write_json(path, {"speeds": {**known, **new}})


def fastest(rounds: Sequence[Timings]) -> Timings:
    """Return the shortest times of several rounds; other programs on the machine only make a time longer."""
    return Timings(
        steps=tuple(min(seconds) for seconds in zip(*(timings.steps for timings in rounds), strict=True)),
        evaluation=min(timings.evaluation for timings in rounds),
        checkpoint=min(timings.checkpoint for timings in rounds),
    )


def _measure(model: PretrainedModel, numerics: Numerics | None, device: Device) -> tuple[Timings, Numerics]:
    """Return the timings of a model and the numerics of this machine, which are measured where they are None."""
    settings = model.settings.model_copy(update={"device": device})
    pretraining, numerics = prepare_pretraining(
        settings, corpus=model.corpus, out=model.folder, held_out=None, init_from=None, numerics=numerics
    )
    apply_numerics(numerics)
    return measure_timings(pretraining, choose_compiled(pretraining, numerics), out=model.folder), numerics
