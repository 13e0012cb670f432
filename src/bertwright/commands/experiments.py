"""The command paper: the paper's tables and figures as experiments."""

import shlex
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import DeviceOption, Repeatable, TrackOption
from bertwright.console import table_lines
from bertwright.errors import InputError


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
    page: bool = False,
    plan: bool = False,
    device: DeviceOption = "cpu",
    allow_other_numerics: bool = False,
    track: TrackOption = (),
) -> CommandResult:
    """Run an experiment of the paper and write its page; without a name, list the experiments.

    The same command continues a stopped experiment. Several experiments in one folder share the runs that they can.

    Args:
        name: Experiment: table1 to table8, figure5, gpt-table5, start, masked-share, document-order, batch-size or
            length-cost.
        scale: Size of models, data and training: smoke, tiny, mini, small, base or paper.
        out: Folder for all results; the page is OUT/results/NAME.md.
        data: Folder of the data of the tasks: glue/SST-2, squad, swag, ner/conll2003, …; missing data is reported.
            --page does not need it.
        corpus: Text as corpus build takes it, or a corpus folder; several times for several. Once the corpora are
            built, a repeated command no longer needs their text. --page does not need it.
        seeds: Number of fine-tuning runs of each model (default: the scale's).
        pretraining_seeds: Number of pre-training runs of each arm (default: the scale's).
        arms: Names of the arms to run, with commas between (default: all).
        tasks: Names of the tasks to run, such as sst2,rte (default: all).
        page: Compute nothing; write the page of the finished runs and report what is missing.
        plan: Print the models to train, hours and disk, and compute and write nothing.
        allow_other_numerics: Continue runs from another kind of processor or torch. Results then differ in their last
            bits.
    """
    from bertwright.experiments.spec import Experiment
    from bertwright.registry import find

    experiments = find("bertwright.experiments.tables", Experiment)
    if name is None:
        rows = [{"name": each.name, "title": each.title, "question": each.question} for each in experiments.values()]
        lines = table_lines([(row["name"], row["question"]) for row in rows], left=2)
        return {"experiments": rows, "text": "\n".join(f"  {line}" for line in lines)}
    if name not in experiments:
        raise InputError(f"paper {name}: expected one of {', '.join(experiments)}")
    for option, count in (("--seeds", seeds), ("--pretraining-seeds", pretraining_seeds)):
        if count is not None and count < 1:
            raise InputError(f"{option} {count}: expected at least 1")
    if page and plan:
        raise InputError("--page, --plan: expected one of the two, got both")
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
    )
    typed = {"--scale": scale, "--out": out.name, "--seeds": seeds, "--pretraining-seeds": pretraining_seeds}
    typed |= {"--arms": arms, "--tasks": tasks, "--device": None if device == "cpu" else device}
    command = f"bertwright paper {name} {_command_line(typed)} --data DATA --corpus TEXT"
    with track_with(track):
        return run_experiment(
            experiments[name],
            request,
            command=command,
            use="page" if page else "plan" if plan else "run",
            device=device,
            allow_other_numerics=allow_other_numerics,
        )


def _command_line(options: dict[str, Any]) -> str:
    """Return options and their values as a person would type them; those without a value are left out."""
    return shlex.join(word for option, value in options.items() if value is not None for word in (option, str(value)))


def _names(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names of a text such as 'sst2,rte'."""
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InputError(f"{option} {text!r}: expected names with commas between")
    return names
