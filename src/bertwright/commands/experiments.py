"""The command paper: the paper's tables and figures as experiments."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from bertwright.errors import InputError

Result = Mapping[str, Any]
Several = Annotated[tuple[str, ...], UseAppendAction]
_PACKAGE = "bertwright.experiments.tables"


def paper(
    name: Positional[str | None] = None,
    /,
    *,
    scale: str = "tiny",
    out: Path = Path("paper"),
    data: Path = Path("data"),
    corpus: Several = (),
    seeds: int | None = None,
    pretraining_seeds: int | None = None,
    arms: str | None = None,
    tasks: str | None = None,
    page: bool = False,
    device: Literal["cpu", "cuda"] = "cpu",
    allow_other_numerics: bool = False,
) -> Result:
    """Carry out an experiment of the paper and write its page; without a name, list the experiments.

    The same command goes on where it was stopped, and several experiments in one folder share what they can.

    Args:
        name: table1 to table8, figure5, gpt-table5, masked-share, document-order, batch-size, length-cost.
        scale: how large everything is: smoke, tiny, mini, small, base or paper.
        out: the folder of everything; the page is OUT/results/NAME.md.
        data: the folder of the tasks' data: glue/SST-2, squad, swag, ner/conll2003, …; what is missing is said.
        corpus: text as corpus build takes it, or a corpus folder; several times for several. What was made of text, a
            repeated command does not need again.
        seeds: fine-tunings of each model (default: the scale's).
        pretraining_seeds: pre-trainings of each arm (default: the scale's).
        arms: some of the arms alone, by their names with commas between.
        tasks: some of the tasks alone, as sst2,rte.
        page: compute nothing: write the page of what is finished, and say what is left.
        device: what computes: the processors (cpu), or a GPU (cuda).
        allow_other_numerics: go on with runs begun on another kind of processor or torch, where the bits differ.
    """
    from bertwright.experiments.spec import Experiment
    from bertwright.registry import find

    found = find(_PACKAGE, Experiment)
    if name is None:
        listed = [{"name": one.name, "title": one.title, "question": one.question} for one in found.values()]
        lines = [f"  {one['name']:16}{one['question']}" for one in listed]
        return {"experiments": listed, "text": "\n".join(lines)}
    if name not in found:
        raise InputError(f"paper {name}: the experiments are {', '.join(found)}")
    for option, number in (("--seeds", seeds), ("--pretraining-seeds", pretraining_seeds)):
        if number is not None and number < 1:
            raise InputError(f"{option} {number}: at least 1")
    from bertwright.experiments.plan import ExperimentRequest
    from bertwright.experiments.run import run_experiment
    from bertwright.experiments.scales import get_scale

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
    options = {
        "--scale": scale,
        "--out": out.name,
        "--seeds": seeds,
        "--pretraining-seeds": pretraining_seeds,
        "--arms": arms,
        "--tasks": tasks,
        "--device": None if device == "cpu" else device,
    }
    said = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    command = f"bertwright paper {name} {shlex.join(said)} --data DATA --corpus TEXT"
    return run_experiment(
        found[name],
        request,
        command=command,
        only_page=page,
        device=device,
        allow_other_numerics=allow_other_numerics,
    )


def _names(option: str, text: str | None) -> tuple[str, ...]:
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InputError(f"{option} {text!r}: names with commas between")
    return names
