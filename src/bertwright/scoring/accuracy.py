"""scores of minimal pairs → accuracy by paradigm and phenomenon, and of the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.console import table_lines
from bertwright.scoring.pairs import Paradigm
from bertwright.scoring.paradigms import PHENOMENA, PHENOMENON_OF, PUBLISHED, SOURCE
from bertwright.scoring.settings import ScoreSettings


@dataclass(frozen=True)
class ParadigmAccuracy:
    """Accuracy of a paradigm: the fraction of its pairs whose grammatical sentence has the higher score.

    phenomenon  that of BLiMP's paper; for other paradigms the linguistics_term of the data
    ties        number of pairs with two equal scores, which count as wrong
    """

    uid: str
    phenomenon: str
    pairs: int
    right: int
    ties: int

    @property
    def accuracy(self) -> float:
        """Return the fraction of the pairs."""
        return self.right / self.pairs


@dataclass(frozen=True)
class MinimalPairMetrics:
    """Accuracies of a model on minimal pairs, as fractions.

    accuracy            mean of the paradigms
    phenomena           mean of the paradigms of each phenomenon
    phenomena_accuracy  mean of the phenomena
    same                "UID pairID" of each pair with the same sentence twice; it is a tie
    absent              paradigms of BLiMP that the data lack; empty for other data
    settings            how the sentences were scored; precision: number format of the model
    """

    model: str
    paradigms: tuple[ParadigmAccuracy, ...]
    same: tuple[str, ...]
    absent: tuple[str, ...]
    settings: ScoreSettings
    precision: str

    @property
    def accuracy(self) -> float:
        """Return the mean of the paradigms."""
        return fmean(each.accuracy for each in self.paradigms)

    @property
    def phenomena(self) -> Mapping[str, float]:
        """Return the mean of the paradigms of each phenomenon: those of BLiMP in the order of its paper first."""
        names = dict.fromkeys(PHENOMENA) | {each.phenomenon: None for each in self.paradigms}
        of_name = {name: [each.accuracy for each in self.paradigms if each.phenomenon == name] for name in names}
        return {name: fmean(values) for name, values in of_name.items() if values}

    @property
    def phenomena_accuracy(self) -> float:
        """Return the mean of the phenomena."""
        return fmean(self.phenomena.values())

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""
        return sum(each.pairs for each in self.paradigms)

    @property
    def ties(self) -> int:
        """Return the number of pairs with two equal scores."""
        return sum(each.ties for each in self.paradigms)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as JSON values."""
        settings = {name: value for name, value in asdict(self.settings).items() if value is not None}
        counts = {"pairs": self.pairs, "ties": self.ties, "same": list(self.same), "absent": list(self.absent)}
        paradigms = {
            each.uid: {"accuracy": each.accuracy, "phenomenon": each.phenomenon, "pairs": each.pairs, "ties": each.ties}
            for each in self.paradigms
        }
        whole = {"accuracy": self.accuracy, "phenomena_accuracy": self.phenomena_accuracy}
        described = {"model": self.model, **settings, "precision": self.precision}
        return {**described, **whole, **counts, "phenomena": dict(self.phenomena), "paradigms": paradigms}


def accuracy_of(paradigm: Paradigm, scores: NDArray[np.float64]) -> ParadigmAccuracy:
    """Return the accuracy of a paradigm for the scores [N, 2] of its pairs, the grammatical sentence first."""
    right, ties = int((scores[:, 0] > scores[:, 1]).sum()), int((scores[:, 0] == scores[:, 1]).sum())
    phenomenon = PHENOMENON_OF.get(paradigm.uid, paradigm.term)
    return ParadigmAccuracy(paradigm.uid, phenomenon, len(paradigm.pairs), right, ties)


def minimal_pair_metrics(
    model: str,
    paradigms: Sequence[Paradigm],
    accuracies: Sequence[ParadigmAccuracy],
    settings: ScoreSettings,
    precision: str,
) -> MinimalPairMetrics:
    """Return the metrics of all paradigms together."""
    uids = {paradigm.uid for paradigm in paradigms}
    absent = tuple(sorted(set(PHENOMENON_OF) - uids)) if uids & set(PHENOMENON_OF) else ()
    same = tuple(
        f"{paradigm.uid} {pair.id or pair.location}"
        for paradigm in paradigms
        for pair in paradigm.pairs
        if pair.good == pair.bad
    )
    return MinimalPairMetrics(model, tuple(accuracies), same, absent, settings, precision)


def metrics_text(metrics: MinimalPairMetrics) -> str:
    """Return the metrics as tables: phenomena beside the published figures, paradigms, and notes."""
    has_published = bool(metrics.phenomena.keys() & set(PHENOMENA))
    published = PUBLISHED if has_published else ()
    rows = [("phenomenon", "paradigms", "accuracy", *(each.model for each in published))]
    for name, value in metrics.phenomena.items():
        count = sum(each.phenomenon == name for each in metrics.paradigms)
        others = [each.phenomena[PHENOMENA.index(name)] for each in published] if name in PHENOMENA else []
        cells = [f"{other:.1f}" for other in others] or [""] * len(published)
        rows.append((name, str(count), _percent(value), *cells))
    whole = [f"{each.whole:.1f}" for each in published]
    rows.append(("mean of the paradigms", str(len(metrics.paradigms)), _percent(metrics.accuracy), *whole))
    means = [f"{fmean(each.phenomena):.1f}" for each in published]
    rows.append(("mean of the phenomena", str(len(metrics.phenomena)), _percent(metrics.phenomena_accuracy), *means))
    paradigms = [("paradigm", "pairs", "ties", "accuracy")]
    paradigms += [(each.uid, str(each.pairs), str(each.ties), _percent(each.accuracy)) for each in metrics.paradigms]
    lines = [*table_lines(paradigms, left=1), "", *table_lines(rows, left=1), "", *_notes(metrics)]
    return "\n".join([*lines, f"published: {SOURCE}"] if has_published else lines)


def _notes(metrics: MinimalPairMetrics) -> list[str]:
    way = metrics.settings.masking or f"first token: {metrics.settings.first_token}"
    notes = [f"accuracy in percent of {metrics.pairs:,} pairs; {way}, {metrics.precision}; chance is 50"]
    if metrics.ties:
        notes.append(f"{metrics.ties:,} pairs have two equal scores, and count as wrong")
    if metrics.same:
        notes.append(f"the same sentence twice: {', '.join(metrics.same)}")
    if metrics.absent:
        names = ", ".join(metrics.absent)
        count = len(metrics.paradigms)
        notes.append(f"{len(metrics.absent)} of BLiMP's 67 paradigms are absent, the means are of {count}: {names}")
    return notes


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"
