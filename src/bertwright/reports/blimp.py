"""evaluations on BLiMP of a run's models → charts over words seen, and a table, of its report.

They lie in the folder `blimp` of the run, or of the entry that the run belongs to. The digest of the weights says which
model of the run was measured.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from bertwright.errors import InputError
from bertwright.files import digest_note, file_digest
from bertwright.model.folder import WEIGHTS
from bertwright.pretraining.snapshots import words_folders
from bertwright.reports.charts import Chart, Series, short
from bertwright.reports.runs import Run, number
from bertwright.reports.validation import PageTable
from bertwright.scoring.kept_scores import KeptEvaluation, is_evaluation, read_evaluation
from bertwright.text.word_counts import MILLION
from bertwright.training.run_files import ENTRY_RECORD, step_folders

_CHANCE: Final = 50.0
_FINAL: Final = MappingProxyType({"generator": "generator", "model": "final model"})
"""Folders of a run with its models after the last step → their titles; of an ELECTRA the generator alone is scored."""


@dataclass(frozen=True)
class KeptModel:
    """A model folder of a run; words: number of words seen before it was kept, None where unknown."""

    folder: Path
    title: str
    words: float | None


@dataclass(frozen=True)
class BlimpResults:
    """Evaluations of a run's models, in the order of training; notes: sentences about those that are left out."""

    measured: Sequence[tuple[KeptModel, KeptEvaluation]] = ()
    notes: Sequence[str] = ()

    @property
    def curves(self) -> list[list[tuple[float, KeptEvaluation]]]:
        """Groups of (words seen, evaluation) on the same pairs that were scored in the same way."""
        groups: dict[object, dict[float, KeptEvaluation]] = defaultdict(dict)
        for model, evaluation in self.measured:
            if model.words is not None:
                groups[evaluation.way, *sorted(evaluation.digests.items())][model.words] = evaluation
        return [list(group.items()) for group in groups.values()]

    @property
    def last_accuracy(self) -> str:
        """Mean of the paradigms of the last measured model on most pairs, as text; – where none was measured."""
        if not self.measured:
            return "–"
        last = self.measured[-1][0]
        of_last = [evaluation for model, evaluation in self.measured if model is last]
        text = f"{max(of_last, key=lambda evaluation: evaluation.pairs).accuracy:.1%}"
        return text if set(last.title.split(", ")) & set(_FINAL.values()) else f"{text} ({last.title})"


def read_blimp(run: Run) -> BlimpResults:
    """Return the finished evaluations of a run's models; a note for each of the others."""
    if run.kind != "pretrain":
        return BlimpResults()
    paths = [(base, path) for base in _bases(run) for path in (base / "blimp", *sorted(base.glob("blimp/*")))]
    evaluations = [(path.relative_to(base), path) for base, path in paths if is_evaluation(path)]
    if not evaluations:
        return BlimpResults()
    models = _models_by_digest(run)
    measured: dict[str, list[KeptEvaluation]] = {digest: [] for digest in models}
    notes = []
    for name, path in evaluations:
        try:
            evaluation = read_evaluation(path)
        except InputError as error:
            notes.append(f"{name} is left out: {error}.")
            continue
        if evaluation is None:
            notes.append(f"{name} is left out: the evaluation has not finished; the same command continues it.")
        elif evaluation.weights not in measured:
            notes.append(f"{name} is left out: its weights are those of no model in the folder of this run.")
        elif evaluation not in measured[evaluation.weights]:  # the same model may have been measured twice
            measured[evaluation.weights].append(evaluation)
    return BlimpResults([(models[digest], each) for digest, kept in measured.items() for each in kept], notes)


def _models_by_digest(run: Run) -> dict[str, KeptModel]:
    """Return the models of a run in the order of training; equal ones are one with all their titles."""
    models: dict[str, KeptModel] = {}
    for model in _kept_models(run):
        path = model.folder / WEIGHTS
        if path.is_file():
            digest = _digest_of(path)
            equal = models.pop(digest, None)
            models[digest] = model if equal is None else replace(model, title=f"{model.title}, {equal.title}")
    return models


def _digest_of(path: Path) -> str:
    """Return the digest of a file; the one that is noted beside it, if there is one, since files may be large."""
    note = digest_note(path)
    return note.read_text("utf-8", "replace").partition(" ")[0] if note.is_file() else file_digest(path)


def _bases(run: Run) -> list[Path]:
    """Return the run folder and, for the pre-training of an entry, the folder of the entry."""
    parent = run.folder.resolve().parent
    return [run.folder, *([parent] if (parent / ENTRY_RECORD).is_file() else [])]


def _kept_models(run: Run) -> list[KeptModel]:
    """Return the models of a run in the order of training, the final one last.

    The words before a snapshot are interpolated between the lines of metrics.jsonl.
    """
    lines = [(line["step"], words) for line in run.streams[""] if (words := number(line.get("words"))) is not None]
    steps, counts = zip((0, 0), *lines, strict=True)
    models = []
    for step, folder in step_folders(run.folder / "snapshots").items():
        models.append(KeptModel(folder, f"step {step:,}", float(np.interp(step, steps, counts)) if lines else None))
    parents = [base / name for base in _bases(run) for name in ("words", "checkpoints")]
    folders = [path for parent in parents for path in words_folders(parent)]
    models += [KeptModel(folder, f"{folder.name} words", MILLION * int(folder.name[:-1])) for folder in folders]
    models.sort(key=lambda model: model.words or 0.0)
    words = number((run.record.get("result") or {}).get("words"))
    return [*models, *(KeptModel(run.folder / name, title, words) for name, title in _FINAL.items())]


def blimp_charts(results: Sequence[BlimpResults], names: Sequence[str]) -> list[Chart]:
    """Return the mean of every run in one chart, and of one run alone the phenomena; none for a single point."""
    means = []
    for run_number, (result, name) in enumerate(zip(results, names, strict=True)):
        for group_number, curve in enumerate(result.curves):
            label = f"{name}, {curve[0][1].way}" if len(results) > 1 else curve[0][1].way
            points = [(words, 100 * evaluation.accuracy) for words, evaluation in curve]
            colour = run_number + 8 * group_number if len(results) > 1 else group_number  # from 8 on the line is dashed
            means.append(Series(label, points, colour, validation=True))
    if sum(len(series.points) for series in means) < 2:
        return []
    charts = [Chart("BLiMP, mean of the paradigms, over words seen", "%", means, over="words", chance=_CHANCE)]
    for curve in results[0].curves if len(results) == 1 else ():
        if len(curve) > 1:
            series = [
                Series(
                    _spaced_name(name),
                    [(words, 100 * each.phenomena[name]) for words, each in curve if name in each.phenomena],
                    colour,
                    validation=True,
                )
                for colour, name in enumerate(curve[0][1].phenomena)
            ]
            title = f"BLiMP, phenomena, {curve[0][1].pairs:,} pairs, over words seen"
            charts.append(Chart(title, "%", series, over="words", chance=_CHANCE))
    return charts


def blimp_tables(result: BlimpResults, owner: str) -> list[PageTable]:
    """Return a table with a column for each measured model, the last one first; owner: end of the title."""
    measured = result.measured[::-1]
    if not measured and not result.notes:
        return []
    evaluations = [evaluation for _, evaluation in measured]
    rows = [
        [
            "million words seen",
            *("–" if model.words is None else short(model.words / MILLION) for model, _ in measured),
        ],
        ["pairs", *(f"{each.pairs:,}" for each in evaluations)],
        ["scored by", *(each.scored_by for each in evaluations)],
        ["mean of the paradigms", *(f"{each.accuracy:.1%}" for each in evaluations)],
        ["mean of the phenomena", *(f"{each.phenomena_accuracy:.1%}" for each in evaluations)],
    ]
    for name in dict.fromkeys(name for each in evaluations for name in each.phenomena):
        values = [each.phenomena.get(name) for each in evaluations]
        rows.append([_spaced_name(name), *("–" if value is None else f"{value:.1%}" for value in values)])
    head = ["", *(model.title for model, _ in measured)]
    note = " ".join(["Chance is 50 %.", *result.notes])
    return [PageTable(f"BLiMP{owner}", head, rows if measured else [], frozenset({3}), note, whole_words=True)]


def _spaced_name(phenomenon: str) -> str:
    return phenomenon.replace("_", " ")
