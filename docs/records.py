"""the archives of records, pretrainings.csv and heads.csv in docs/results → matching-head.md, its picture, budget.md.

python docs/records.py
"""

import csv
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from scipy import stats

RESULTS = Path(__file__).resolve().parent / "results"
TASKS = {"stsb": ("STS-B", "spearman"), "qnli": ("QNLI", "accuracy"), "sst2": ("SST-2", "accuracy")}
Records = Mapping[str, Mapping[str, Any]]
"""Path of a run.json in the archive → its content."""
Epoch = Literal["last", "best"]
"""Epoch of a fine-tuning whose score counts."""

HEAD = """\
# The head that looks for the same piece

## Question

Do scores on pairs of texts go together with the hand-made attention head with which all Transformers here begin?

## Answer

Yes, on STS-B and QNLI, among models that learn next sentences. The *fraction* is the part of the head's attention that
goes to the same piece in the other text. Over {count} pre-trainings it explains {explained:.0f} % of the variance of
STS-B (Pearson's r = {stsb:.2f}). For QNLI r is {qnli:.2f}, and for SST-2, which has single sentences, {sst2:.2f}. The
start is `--start matching` in all. Models without next sentences break the relation: their head stays as it was, and
they cannot compare two texts.

![The fraction of the head's attention that goes to the same piece, and the scores of three tasks](matching-head.png)

Dots: the {count} pre-trainings of the first table. Squares: the {bert} BERTs of the second part. Crosses: its {plain}
models without next sentences. r is that of the dots.

## Here

A row is a pre-training. Scores are means over three fine-tuning seeds, of the best epoch, on the dev set. – marks
a task that was not measured.

| arm | pre-training | fraction | STS-B | QNLI | SST-2 |
|---|---|---|---|---|---|
{rows}

| task | pre-trainings | r (Pearson) | r² | Spearman |
|---|---|---|---|---|
{correlations}

## The head removed, and put into another model

A correlation is not a cause, because the arms differ in more than this head. So {bert} BERTs and {plain} models
without next sentences were changed after pre-training and fine-tuned. "With BERT's head": the head of the BERT of
the same seed took the place of the model's own. The start is `--start matching` in all. [The page of that
experiment](head-removal.md) has the verdicts, all of them undecided. Here is each pre-training. "Before" is the
fraction before the first step.

These models differ from those above: a smaller corpus with its own vocabulary, fp32, and scores of one fine-tuning
after the last epoch. Do not compare the points of the two parts.

| model | pre-training seed | before | fraction | STS-B | without the head | without the other head | with BERT's head |
|---|---|---|---|---|---|---|---|
{stsb_removed}

| model | pre-training seed | before | fraction | QNLI | without the head | without the other head | with BERT's head |
|---|---|---|---|---|---|---|---|
{qnli_removed}

- **Where the head had grown, BERT needs it.** In {kept} of {bert} BERTs the fraction grew in pre-training, to
  {lowest:.2f} to {highest:.2f}. Without the head they fall on STS-B from {whole:.1f} to {removed:.1f} points on
  average, the level of the models without next sentences ({no_nsp:.1f}). Without the other head of its layer they have
  {other:.1f}. In one BERT the fraction fell. Its scores are low with the head and without it.
- **The head alone is not enough.** In the models without next sentences the fraction stays near that of the start, and
  they cannot compare two texts. BERT's head in its place does not change that. So next sentences seem to teach more
  than to keep this head. Perhaps the layers above learn to use it; that was not tested.
- **Together with these {added} models the fraction explains less**: {all_stsb:.0f} % of the variance of STS-B and
  {all_qnli:.0f} % of that of QNLI, over {all_count} pre-trainings and by their best epochs.

## The same pre-trainings on a GPU

The BERTs of the second part were also trained on a GPU in bf16, with the same settings, text and seeds ([the
start](start.md)). The numbers are then rounded in another way, and that alone decides which of them learns to compare
two texts. The fractions on the GPU were not measured.

| pre-training seed | next sentence, CPU | next sentence, GPU | STS-B, CPU | STS-B, GPU |
|---|---|---|---|---|
{devices}

Accuracy of the next sentence on validation text, in per cent. A low one goes with a low score on STS-B. So the head and
what is learned of next sentences go together here, and these runs do not separate them.

## How sure

- A head that attends to all tokens alike has a fraction of 0.04.
- The sentences under the tables of the second part are no verdicts. They were written when the scores were known, and
  rest on {kept} BERTs whose fraction grew and one whose fraction fell. A BERT counts as the former if it has more than
  before the first step.
- **The fractions cannot be computed from the published records**, which have no weights. They were measured on the
  weights by `python -m benchmarks.studies.same_piece --data data/glue/STS-B/dev.tsv paper/pretrained/bert-*/model`. It
  prints each head of each layer; the fraction is that of the head that `--start matching` makes, in the second layer.
  For the fractions before the first step, the command got models with the first weights of these runs: those that
  `bertwright.pretraining.setup.prepare_pretraining` makes from the settings in `run.json`.
  [pretrainings.csv](pretrainings.csv) and [heads.csv](heads.csv) have all of them as they were printed, with two
  decimals. To measure them again, train the models again with the commands of [the first page](index.md#the-setting).
- The scores and all correlations are computed from the records and these files:

      python docs/records.py

## What this does not show

- Pre-trainings whose fraction was not measured one by one are not in the first table: 8 layers (between 0.44 and
  0.56), one of 6 layers, and the models without next sentences, the left-to-right models and GPT-1. Theirs was measured
  on other pre-trainings of the same settings. [The log](../log.md#figures-behind-the-pages-of-results) has those
  values; a model without next sentences had 0.18 and another one 0.20.
- The {bert} BERTs of the second part have one fine-tuning each. The other models of [the start](start.md) and [the
  successors](families.md) are not here: their heads were not measured.
"""

REMOVED = {
    "pretrained": "whole",
    "head-matching-removed": "removed",
    "head-other-removed": "other",
    "head-transplanted": "transplanted",
}
"""Folder of a model in the experiment head-removal → what was changed."""

BUDGET = """\
# The time of all runs

Minutes are clock minutes of one processor thread (AVX-512, bf16), from the records. The machines have
two cores, and other runs and programs ran at the same time. So equal runs can differ by a factor of two or more.

| pre-training | number | minutes of each |
|---|---|---|
{models}

All {count} pre-trainings together: {hours:.1f} hours of one thread.

| fine-tuning on | number | hours together |
|---|---|---|
{tasks}

All {tuned} fine-tunings together: {tuned_hours:.1f} hours of one thread. Pre-training and fine-tuning together:
{all_hours:.1f} hours.

## The further pages

An hour is an hour of one process. On the GPU thirteen processes computed at the same time. The scores of minimal pairs
are not in it. The fine-tunings of the published encoder were paused at times; the pauses are in it.

| records | device | pre-trainings | hours | fine-tunings | hours |
|---|---|---|---|---|---|
{further}

    python docs/records.py
"""
DEVICES = {"cpu": "one thread of a processor", "cuda": "NVIDIA H100"}


@cache
def read_records(path: Path) -> Records:
    """Return every run.json of an archive."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive if member.name.endswith("/run.json")]
        return {name: json.load(file) for name, file in files if file}


def read_pretrainings(folder: Path) -> list[dict[str, str]]:
    """Return the rows of pretrainings.csv: folder of a pre-training, its arm, fraction of the head or nothing."""
    with (folder / "pretrainings.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def minutes(record: Mapping[str, Any]) -> float:
    """Return the clock minutes of all sessions of a run that have ended."""
    return sum(
        (datetime.fromisoformat(each["ended"]) - datetime.fromisoformat(each["started"])).total_seconds() / 60
        for each in record["sessions"]
        if "ended" in each
    )


def scores(records: Records, task: str, *, epoch: Epoch = "best") -> dict[str, float]:
    """Return the mean score of each pre-training on a task, in points, over the fine-tunings of its last model."""
    values: dict[str, list[float]] = defaultdict(list)
    for path, record in records.items():
        parts = Path(record["data"].get("model") or "").parts
        if f"/tuned/{task}/" in path and parts[-3:-2] == ("pretrained",) and record.get("finished"):
            values[parts[-2]].append(_score(record, task, epoch))
    return {name: fmean(each) for name, each in values.items()}


def _score(record: Mapping[str, Any], task: str, epoch: Epoch) -> float:
    """Return the score of a finished fine-tuning, in points."""
    result = record["result"]["seeds"][0]
    metrics = result["epochs"][-1] if epoch == "last" else result["scores"]
    return 100 * float(metrics[TASKS[task][1]])


def measured_heads(folder: Path, records: Records) -> list[dict[str, Any]]:
    """Return the pre-trainings whose fraction is known, with their scores; None for a task that was not measured."""
    by_task = {task: scores(records, task) for task in TASKS}
    return [
        {"name": row["pretraining"], "arm": row["arm"], "head": float(row["head"])}
        | {task: by_task[task].get(row["pretraining"]) for task in TASKS}
        for row in read_pretrainings(folder)
        if row["head"]
    ]


def points_of(rows: Sequence[Mapping[str, Any]], task: str) -> tuple[list[float], list[float]]:
    """Return fractions and scores of the pre-trainings that were measured on a task."""
    known = [row for row in rows if row[task] is not None]
    return [row["head"] for row in known], [row[task] for row in known]


def head_page(folder: Path, records: Records) -> str:
    """Return the text of matching-head.md."""
    rows = measured_heads(folder, records)
    pearson = {task: float(stats.pearsonr(*points_of(rows, task)).statistic) for task in TASKS}
    spearman = {task: float(stats.spearmanr(*points_of(rows, task)).statistic) for task in TASKS}
    lines = [
        f"| {row['arm']} | `{row['name']}` | {row['head']:.2f} | {' | '.join(_points(row[task]) for task in TASKS)} |"
        for row in sorted(rows, key=lambda row: -row["head"])
    ]
    correlations = [
        f"| {title} | {len(points_of(rows, task)[0])} | {r:.2f} | {r**2:.2f} | {spearman[task]:.2f} |"
        for (task, (title, _)), r in zip(TASKS.items(), pearson.values(), strict=True)
    ]
    return HEAD.format(
        count=len(rows),
        explained=100 * pearson["stsb"] ** 2,
        rows="\n".join(lines),
        correlations="\n".join(correlations),
        **pearson,
        **removal(folder, rows),
    )


def removal(folder: Path, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tables and numbers of the part on changed heads, by their names in the text.

    measured: the pre-trainings of the first table.
    """
    changed = changed_heads(folder, epoch="last")
    kept = [row for row in changed if row["arm"] == "BERT" and row["head"] > row["start"]]
    plain = [row for row in changed if row["arm"] != "BERT"]
    together = [*measured, *unchanged(folder)]
    explained = {task: 100 * stats.pearsonr(*points_of(together, task)).statistic ** 2 for task in ("stsb", "qnli")}
    return {
        "bert": len(changed) - len(plain),
        "plain": len(plain),
        "lowest": min(row["head"] for row in kept),
        "highest": max(row["head"] for row in kept),
        "kept": len(kept),
        "added": len(changed),
        "all_count": len(together),
        **{f"all_{task}": value for task, value in explained.items()},
        "no_nsp": fmean(row["stsb"]["whole"] for row in plain),
        **{way: fmean(row["stsb"][way] for row in kept) for way in ("whole", "removed", "other")},
        **{f"{task}_removed": "\n".join(_removal_lines(changed, task)) for task in ("stsb", "qnli")},
        "devices": "\n".join(_device_lines(folder, [row for row in changed if row["arm"] == "BERT"])),
    }


def unchanged(folder: Path) -> list[dict[str, Any]]:
    """Return the pre-trainings of head-removal with their fractions and the scores of their best epochs."""
    return [{**row, **{task: row[task]["whole"] for task in TASKS}} for row in changed_heads(folder, epoch="best")]


def _device_lines(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each BERT: its next-sentence accuracy and its STS-B, computed on a processor and on a GPU."""
    records = [read_records(folder / f"records-{name}.tar.xz") for name in ("head", "h100")]
    for row in rows:
        next_sentence, stsb = [], []
        for part in records:
            (record,) = (each for path, each in part.items() if f"/pretrained/{row['pretraining']}/" in path)
            next_sentence.append(f"{100 * record['result']['held_out']['nsp_accuracy']:.1f}")
            stsb.append(_points(scores(part, "stsb", epoch="last").get(row["pretraining"])))
        yield f"| {_seed(row)} | {' | '.join((*next_sentence, *stsb))} |"


def _seed(row: Mapping[str, Any]) -> str:
    """Return the pre-training seed of a row."""
    name: str = row["pretraining"]
    return name.partition("-seed")[2].partition("-")[0]


def changed_heads(folder: Path, *, epoch: Epoch) -> list[dict[str, Any]]:
    """Return arm, seed and fractions of each pre-training of head-removal, with its scores by task and change."""
    by_model: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for path, record in read_records(folder / "records-head.tar.xz").items():
        parts = Path(record.get("data", {}).get("model") or "").parts
        way = next((REMOVED[part] for part in parts if part in REMOVED), None)
        task = path.split("/")[2]
        if way and record.get("finished") and task in TASKS:
            name = parts[-2] if way == "whole" else parts[-1].partition("+")[0]
            by_model[name][task][way] = _score(record, task, epoch)
    with (folder / "heads.csv").open(encoding="utf-8", newline="") as file:
        rows = [{**row, "start": float(row["start"]), "head": float(row["head"])} for row in csv.DictReader(file)]
    return [{**row, **by_model[row["pretraining"]]} for row in rows]


def _removal_lines(rows: Sequence[Mapping[str, Any]], task: str) -> Iterator[str]:
    """Yield a line for each pre-training: its seed, its fraction and its scores on a task."""
    for row in rows:
        cells = " | ".join(_points(row[task].get(way)) for way in ("whole", "removed", "other", "transplanted"))
        yield f"| {row['arm']} | {_seed(row)} | {row['start']:.2f} | {row['head']:.2f} | {cells} |"


def budget_page(folder: Path, records: Records) -> str:
    """Return the text of budget.md."""
    by_arm: dict[str, list[float]] = defaultdict(list)
    for row in read_pretrainings(folder):
        by_arm[row["arm"]].append(minutes(records[f"paper/pretrained/{row['pretraining']}/run.json"]))
    by_task: dict[str, list[float]] = defaultdict(list)
    for path, record in records.items():
        if path.startswith("paper/tuned/"):
            by_task[path.split("/")[2]].append(minutes(record))
    models = [
        f"| {arm} | {len(each)} | {' and '.join(f'{value:.0f}' for value in each)} |" for arm, each in by_arm.items()
    ]
    tasks = [f"| {task} | {len(each)} | {sum(each) / 60:.1f} |" for task, each in sorted(by_task.items())]
    trained, tuned = (sum(map(sum, group.values())) / 60 for group in (by_arm, by_task))
    return BUDGET.format(
        models="\n".join(models),
        count=sum(map(len, by_arm.values())),
        hours=trained,
        tasks="\n".join(tasks),
        tuned=sum(map(len, by_task.values())),
        tuned_hours=tuned,
        all_hours=trained + tuned,
        further="\n".join(further_hours(folder)),
    )


def further_hours(folder: Path) -> Iterator[str]:
    """Yield a row for each further archive and device: numbers and hours of its finished runs."""
    for path in sorted(folder.glob("records-*.tar.xz")):
        hours: dict[tuple[str, bool], list[float]] = defaultdict(list)
        for name, record in read_records(path).items():
            if "/seed-" not in name and record.get("finished"):
                resolved = record["resolved"]
                device = resolved.get("numerics", resolved).get("device", "cpu")
                hours[device, "/pretrained/" in name].append(minutes(record) / 60)
        for device in sorted({device for device, _ in hours}):
            cells = [f"{len(each)} | {sum(each):.1f}" for each in (hours[device, True], hours[device, False])]
            yield f"| [{path.name}]({path.name}) | {DEVICES[device]} | {' | '.join(cells)} |"


def draw_heads(rows: Sequence[Mapping[str, Any]], further: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the score of each task over the fraction of the head; `further`: the models of the second part."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    for panel, (task, (title, _)) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        fractions, values = points_of(rows, task)
        panel.plot(fractions, values, "o", color="#1f4e8c", markersize=5, alpha=0.8, markeredgecolor="white")
        for arm, mark in (("BERT", "s"), ("no next sentences", "x")):
            chosen = [row for row in further if row["arm"] == arm]
            panel.plot(*points_of(chosen, task), mark, color="#b5541c", markersize=5, alpha=0.8, markerfacecolor="none")
        panel.set_title(f"{title}: r = {stats.pearsonr(fractions, values).statistic:.2f}", fontsize=10)
        panel.set_xlim(0.0, 0.55)
        panel.set_ylim(0.0 if task == "stsb" else 50.0, 100.0 if task == "stsb" else 80.0)
        panel.set_xlabel("attention of the head to the same piece", fontsize=8)
        panel.set_ylabel("dev score, points", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    path.write_bytes(buffer.getvalue())


def _points(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def main() -> Iterator[str]:
    """Write both pages and the picture; yield their names."""
    records = read_records(RESULTS / "records.tar.xz")
    for name, text in (("matching-head.md", head_page(RESULTS, records)), ("budget.md", budget_page(RESULTS, records))):
        (RESULTS / name).write_text(text, "utf-8")
        yield name
    draw_heads(measured_heads(RESULTS, records), unchanged(RESULTS), RESULTS / "matching-head.png")
    yield "matching-head.png"


if __name__ == "__main__":
    print("\n".join(main()))
