"""The command paper: the paper's tables and figures as experiments."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import DeviceOption, Repeatable, TrackOption
from bertwright.console import table_lines
from bertwright.errors import InputError

if TYPE_CHECKING:
    from bertwright.experiments.jobs import UsedModel
    from bertwright.experiments.spec import Experiment, RateSearch


def paper_command(
    name: Positional[str | None] = None,
    /,
    *,
    scale: str = "tiny",
    out: Path = Path("paper"),
    data: Path = Path("data"),
    corpus: Repeatable = (),
    seeds: int | None = None,
    pretraining_seeds: int | None = None,
    arms: str | None = None,
    tasks: str | None = None,
    minutes: float | None = None,
    rate_share: float | None = None,
    blimp: Path | None = None,
    model: str | None = None,
    page: bool = False,
    plan: bool = False,
    device: DeviceOption = "cpu",
    allow_other_numerics: bool = False,
    track: TrackOption = (),
) -> CommandResult:
    """Run an experiment of the paper and write its page; without a name, list the experiments.

    The same command continues a stopped experiment. Several experiments in one folder share the runs that they can.

    Args:
        name: Experiment: table1 to table8, figure5, gpt-table5, start, head-removal, families, masked-share,
            document-order, batch-size, length-cost, learning-curve, sizes or using.
        scale: Size of models, data and training: smoke, tiny, mini, small, base or paper.
        out: Folder for all results; the page is OUT/results/NAME.md.
        data: Folder of the data of the tasks: glue/SST-2, squad, swag, ner/conll2003, …; missing data is reported.
            --page does not need it.
        corpus: Text as corpus build takes it, or a corpus folder; several times for several. Once the corpora are
            built, a repeated command no longer needs their text. --page does not need it.
        seeds: Number of fine-tuning runs of each model (default: the scale's; for using the experiment's).
        pretraining_seeds: Number of pre-training runs of each arm (default: the experiment's, or the scale's).
        arms: Names of the arms to run, with commas between (default: all).
        tasks: Names of the tasks to run, such as sst2,rte (default: all).
        minutes: For families: minutes of each pre-training on all cores (default: 40).
        rate_share: For families and sizes: fraction of each trial of a learning rate (default: 0.15 and 0.5).
        blimp: For families, sizes and learning-curve: folder of BLiMP's paradigms; without it BLiMP is left out. --page
            does not need it.
        model: For using: pre-trained encoder whose uses are compared, a model folder, a shipped name or a URL. --page
            does not need it.
        page: Compute nothing; write the page of the finished runs and report what is missing.
        plan: Print the models to train, hours and disk, and compute and write nothing.
        allow_other_numerics: Continue runs from another kind of processor or torch. Results then differ in their last
            bits.
    """
    if name is None:
        if any((page, plan, seeds, pretraining_seeds, corpus, arms, tasks, minutes, rate_share, blimp, model)):
            raise InputError("paper: expected the name of an experiment; bertwright paper alone lists them")
        return _listed(_experiments().values())
    counts = {"--seeds": seeds, "--pretraining-seeds": pretraining_seeds}
    experiment = _chosen(name, counts, page=page, plan=plan)
    from bertwright.experiments.lock import lock_of
    from bertwright.experiments.plan import ExperimentRequest
    from bertwright.experiments.run import run_experiment
    from bertwright.experiments.scales import get_scale
    from bertwright.training.tracked_run import track_with

    request = ExperimentRequest(
        scale=get_scale(scale),
        out=out.resolve(),
        data=data,
        corpus=corpus,
        seeds=seeds,
        pretraining_seeds=pretraining_seeds,
        arms=_names("--arms", arms),
        tasks=_names("--tasks", tasks),
        rate_search=_rate_search(experiment, minutes, rate_share),
        blimp=_blimp(experiment, blimp),
        used_model=_used_model(experiment, model, corpus, lock_of(out, name, scale), page=page),
    )
    typed: dict[str, Any] = {"--scale": scale, "--out": out.name, **counts, "--arms": arms, "--tasks": tasks}
    typed |= {"--device": None if device == "cpu" else device, "--minutes": minutes, "--rate-share": rate_share}
    with track_with(track):
        return run_experiment(
            experiment,
            request,
            command=_command_line(experiment, typed),
            use="page" if page else "plan" if plan else "run",
            device=device,
            allow_other_numerics=allow_other_numerics,
        )


def _chosen(name: str, counts: Mapping[str, int | None], *, page: bool, plan: bool) -> "Experiment":
    """Return the experiment of that name.

    Raises InputError where there is none, for a number of seeds below 1, for one that it cannot have, and for a page
    and a plan at once.
    """
    if name not in (experiments := _experiments()):
        raise InputError(f"paper {name}: expected one of {', '.join(experiments)}")
    experiment = experiments[name]
    if experiment.uses_model and counts["--pretraining-seeds"] is not None:
        raise InputError(
            f"--pretraining-seeds: {name} pre-trains nothing; set the fine-tunings of each arm with --seeds"
        )
    for option, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{option} {count}: expected at least 1")
    if page and plan:
        raise InputError("--page, --plan: expected one of the two, got both")
    return experiment


def _experiments() -> "dict[str, Experiment]":
    from bertwright.experiments.spec import Experiment
    from bertwright.registry import find

    return find("bertwright.experiments.tables", Experiment)


def _listed(experiments: Iterable["Experiment"]) -> CommandResult:
    """Return the experiments with their questions."""
    rows = [{"name": each.name, "title": each.title, "question": each.question} for each in experiments]
    lines = table_lines([(row["name"], row["question"]) for row in rows], left=2)
    return {"experiments": rows, "text": "\n".join(f"  {line}" for line in lines)}


def _rate_search(experiment: "Experiment", minutes: float | None, rate_share: float | None) -> "RateSearch | None":
    """Return the search for learning rates; None for an experiment whose arms have the scale's rate.

    Raises InputError for an option that the experiment does not have, and for a value outside of its range.
    """
    search = experiment.rate_search
    if minutes is not None and (search is None or search.minutes is None):
        raise InputError(f"--minutes {minutes:g}: the arms of {experiment.name} have the scale's steps, not minutes")
    if rate_share is not None and search is None:
        raise InputError(f"--rate-share {rate_share:g}: {experiment.name} tries no learning rates")
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"--minutes {minutes:g}: expected a number above 0")
    if rate_share is not None and not 0 < rate_share <= 1:
        raise InputError(f"--rate-share {rate_share:g}: expected a fraction above 0 and at most 1")
    if search is None:
        return None
    return replace(
        search,
        minutes=search.minutes if minutes is None else minutes,
        rate_share=search.rate_share if rate_share is None else rate_share,
    )


def _blimp(experiment: "Experiment", folder: Path | None) -> Path | None:
    """Return the folder of minimal pairs. Raises InputError where it is not there or the experiment scores none."""
    if folder is None:
        return None
    if not _has_blimp(experiment):
        raise InputError(f"--blimp {folder}: {experiment.name} scores no minimal pairs")
    if not folder.exists():
        raise InputError(f"--blimp {folder}: there is no such file or folder")
    return folder.resolve()


def _used_model(
    experiment: "Experiment", model: str | None, corpus: Sequence[str], lock: Path, *, page: bool
) -> "UsedModel | None":
    """Return the used model; None for an experiment that trains its own. A page takes the model that its lock notes.

    Raises InputError where a model is missing or is not that of the lock, and for an option that the experiment does
    not have.
    """
    if not experiment.uses_model:
        if model is not None:
            raise InputError(f"--model {model}: {experiment.name} pre-trains its own models; leave --model out")
        return None
    if corpus:
        raise InputError(f"--corpus: {experiment.name} pre-trains nothing; leave --corpus out")
    from bertwright.experiments.inputs import refuse_empty
    from bertwright.experiments.used_model import noted_model, open_used_model

    if model is not None:
        return open_used_model(model, lock)
    if not page:
        raise InputError(f"paper {experiment.name}: name the encoder that is used with --model")
    refuse_empty(lock.parents[1])
    return noted_model(lock)


def _has_blimp(experiment: "Experiment") -> bool:
    return any(column.metric == "blimp" for column in experiment.columns)


def _command_line(experiment: "Experiment", options: dict[str, Any]) -> str:
    """Return the command as a person would type it, with placeholders; options without a value are left out."""
    typed = shlex.join(word for option, value in options.items() if value is not None for word in (option, str(value)))
    blimp = " --blimp BLIMP" if _has_blimp(experiment) else ""
    source = " --model MODEL" if experiment.uses_model else " --corpus TEXT"
    return f"bertwright paper {experiment.name} {typed} --data DATA{source}{blimp}"


def _names(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names of a text such as 'sst2,rte'."""
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InputError(f"{option} {text!r}: expected names with commas between")
    return names
