"""models of an entry → accuracies on minimal pairs, and scores on the tasks of GLUE."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertwright.babylm.request import EntryRequest
from bertwright.babylm.results import RESULTS
from bertwright.console import say
from bertwright.errors import InputError, Stopped
from bertwright.experiments.data import PAPER_TASKS, find_source, make_subset
from bertwright.files import atomic_file, read_object_if_there
from bertwright.finetuning.glue_submission import TASKS
from bertwright.finetuning.run import TuneRequest, tune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.scoring.evaluate import measure_minimal_pairs
from bertwright.scoring.pairs import Paradigm
from bertwright.scoring.settings import ScoreSettings
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.training.run_files import run_record

STOPPED = "stopped; the same command continues the entry"
_KEPT = ("accuracy", "phenomena_accuracy", "phenomena", "pairs", "ties", "same", "absent", "masking", "precision")


def measure_pairs(
    request: EntryRequest, model: Path, checkpoints: Mapping[str, Path], paradigms: Mapping[str, list[Paradigm]]
) -> dict[str, Any]:
    """Return the metrics of the final model by name, and those of the checkpoints.

    They are {"blimp": metrics, …}, {"checkpoints": {"1M": {"blimp": accuracy}, …}} and {"checkpoint_phenomena": {"1M":
    {"anaphor agreement": accuracy, …}, …}}, the last one of BLiMP alone.
    checkpoints: model folders by name. paradigms: those of `check_request`. The scores of each model are kept in a
    folder of its own, from which a stopped evaluation continues.
    """
    results: dict[str, Any] = {"checkpoints": {name: {} for name in checkpoints}, "checkpoint_phenomena": {}}
    for kind, (data, ids) in request.pairs.items():
        say(f"{kind}: the final model, {sum(len(each.pairs) for each in paradigms[kind]):,} pairs")
        metrics = _measure(request, model, data, ids, request.out / kind / "final")
        results[kind] = {name: metrics[name] for name in _KEPT if name in metrics}
        if not checkpoints:
            continue
        part = _write_part(request, kind, paradigms[kind]) if request.entry.checkpoint_pairs else data
        for name, folder in checkpoints.items():
            say(f"{kind}: the model after {name} words")
            part_ids = None if request.entry.checkpoint_pairs else ids
            metrics = _measure(request, folder, part, part_ids, request.out / kind / name)
            results["checkpoints"][name][kind] = metrics["accuracy"]
            if kind == "blimp":
                results["checkpoint_phenomena"][name] = metrics["phenomena"]
    return results


def first_pairs(paradigms: list[Paradigm], limit: int) -> list[Paradigm]:
    """Return the paradigms with their first pairs, at most `limit` of each; 0: all."""
    return [Paradigm(each.uid, each.term, each.pairs[: limit or None]) for each in paradigms]


def check_glue(request: EntryRequest) -> None:
    """Read the files of GLUE's tasks before anything is computed, and say which tasks have none.

    Raises InputError for a file that cannot be read, and for one that was changed since the entry was fine-tuned on it.
    """
    tasks = request.glue_tasks()
    for task, files in tasks:
        subset = make_subset(task, files, (request.entry.glue_rows, None), request.glue_data, write=False)
        run = request.task_run(task)
        used = run_record(run).get("places", {}).get("data", subset.folder)
        if Path(used).name != subset.folder.name:
            raise InputError(
                f"{run}: was fine-tuned on other files of {task.title} than those below {request.glue}; name the "
                f"earlier ones, or remove {run} to fine-tune again"
            )
    names = [task.name for task, _ in tasks]
    absent = [name for name in TASKS if name in PAPER_TASKS and name not in names]
    if tasks and absent:
        say(f"--glue {request.glue}: fine-tunes {', '.join(names)}; it lacks files of {', '.join(absent)}")


def fine_tune(request: EntryRequest, model: Path) -> dict[str, Any]:
    """Return {task: {"metric", "mean", "sd", "scores", "rows"}} of all tasks of GLUE whose files are there.

    Where the files are not those of GLUE, "data" says what they are.
    The rows of a task are drawn once. A finished task is read from its run folder, and from the earlier results where
    its files are not there any more. Raises Stopped where a person stops it; the same call continues.
    """
    printed: set[str] = set()
    results = {}
    settings = FinetuneSettings(seeds=request.entry.glue_seeds, device=request.settings.device)
    for task, files in request.glue_tasks():
        out = request.task_run(task)
        subset = make_subset(task, files, (request.entry.glue_rows, None), request.glue_data)
        record = run_record(out)
        if record.get("finished"):
            result = record["result"]
        else:
            say(f"{task.title}: fine-tuning on {subset.rows['train'][0]:,} rows")
            how: Any = {"resume": True, "allow_other_numerics": request.allow_other_numerics}
            where = TuneRequest(model=str(model.absolute()), data=subset.folder, out=out, **how)
            result = _tune(settings, get_spec(task.task), where, printed)
        names = ("metric", "mean", "sd", "scores")
        results[task.name] = {**{name: result[name] for name in names}, "rows": subset.rows["train"][0]}
        if request.glue and (used := find_source(task, request.glue)) and used[0].note:
            results[task.name]["data"] = used[0].note
    earlier = read_object_if_there(request.out / RESULTS).get("glue", {})
    return {**earlier, **results}


def _tune(settings: FinetuneSettings, task: TaskSpec, request: TuneRequest, printed: set[str]) -> Mapping[str, Any]:
    """Fine-tune on one task, or continue; raises Stopped with the message of an entry."""
    try:
        result, signalled = tune(settings, task, request, printed=printed)
    except Stopped:
        raise Stopped(STOPPED) from None
    if signalled:
        raise Stopped(STOPPED)
    return result


def _measure(request: EntryRequest, model: Path, data: Path, ids: Path | None, out: Path) -> dict[str, Any]:
    """Return the metrics of a model on minimal pairs, in fp32, as published figures are."""
    settings = ScoreSettings(masking=request.entry.masking)
    device = request.settings.device
    return measure_minimal_pairs(
        str(model), data, pair_ids=ids, settings=settings, out=out, precision="fp32", device=device
    ).as_json()


def _write_part(request: EntryRequest, kind: str, paradigms: list[Paradigm]) -> Path:
    """Write the pairs on which the checkpoints are measured, in the layout of BLiMP, and return the file."""
    path = request.out / kind / "part.jsonl"
    with atomic_file(path) as stream:
        for paradigm in first_pairs(paradigms, request.entry.checkpoint_pairs):
            for pair in paradigm.pairs:
                fields = {"sentence_good": pair.good, "sentence_bad": pair.bad, "UID": paradigm.uid}
                fields |= {"linguistics_term": paradigm.term, **({"pairID": pair.id} if pair.id else {})}
                stream.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
    return path
