"""labelled rows of one file → training and validation rows: equal texts on one side, every label in training."""

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from bertwright.errors import InputError
from bertwright.tasks.classification.examples import TextExamples

NUM_BINS: Final = 10  # number of groups of a regression's targets from which validation rows are drawn


class _Spare:
    """Counts of the groups in training by label: a group can be spared if each of its labels is in another one too."""

    def __init__(self, labels: Mapping[str, Collection[Hashable]]) -> None:
        self._labels = {key: set(of_group) for key, of_group in labels.items()}
        self._left = Counter(label for of_group in self._labels.values() for label in of_group)

    def has(self, key: str) -> bool:
        """Return whether training keeps every label without this group."""
        return all(self._left[label] > 1 for label in self._labels[key])

    def take(self, key: str) -> None:
        """Move a group to validation."""
        self._left.subtract(self._labels[key])


def split_rows(
    texts: Sequence[str],
    source: str,
    *,
    labels: Sequence[Collection[Hashable]] | None = None,
    fraction: float = 0.1,
    seed: int = 0,
) -> tuple[list[int], list[int]]:
    """Return the row numbers (train, validation) of texts; equal texts are all in one of the two.

    labels   the labels of each row; a text is not taken for validation where training would lose a label
    """
    groups = _groups([" ".join(text.casefold().split()) for text in texts], source)
    of_rows = labels or [()] * len(texts)
    spare = _Spare({key: {label for row in rows for label in of_rows[row]} for key, rows in groups.items()})
    order = sorted(groups, key=lambda key: _shuffled(key, seed))
    num_chosen = max(1, round(fraction * len(order)))
    chosen: list[str] = []
    for key in order:
        if len(chosen) < num_chosen and spare.has(key):
            spare.take(key)
            chosen.append(key)
    if not chosen:
        raise _nothing_to_spare(source)
    dev = sorted(row for key in chosen for row in groups[key])
    return sorted(set(range(len(texts))) - set(dev)), dev


def split_dev(examples: TextExamples, *, fraction: float = 0.1, seed: int = 0) -> tuple[TextExamples, TextExamples]:
    """Return (train, validation) with `fraction` of the rows of every label for validation.

    Equal texts are all in one of the two; texts that differ only in case and blanks count as equal. The choice depends
    on the seed, the labels and the texts, not on the order of the rows. Raises InputError for fewer than two different
    texts, and where train would lose a label with any text.
    """
    groups = _groups([text_key(examples, row) for row in range(len(examples))], examples.source)
    strata = _strata(examples)
    labels = _labels(examples)
    spare = _Spare({key: {label for row in rows for label in labels[row]} for key, rows in groups.items()})
    order = sorted(groups, key=lambda key: (strata[groups[key][0]], _shuffled(key, seed)))
    # `missing` is the number of rows that validation should have by now and has not. A group of equal texts is chosen
    # when `missing` has reached its size, so that many equal rows do not fill validation. The last group of a label is
    # never chosen, because train needs every label.
    missing, chosen = 0.5, set[str]()
    has_labels = examples.targets is not None and not np.issubdtype(examples.targets.dtype, np.floating)
    groups_left = Counter(strata[rows[0]] for rows in groups.values())
    for key in order:
        stratum = strata[groups[key][0]]
        missing += fraction * len(groups[key])
        is_last = has_labels and (groups_left[stratum] == 1 or not spare.has(key))
        if missing >= len(groups[key]) and len(chosen) < len(groups) - 1 and not is_last:
            missing -= len(groups[key])
            groups_left[stratum] -= 1
            spare.take(key)
            chosen.add(key)
    if not chosen:
        spared = [key for key in order if spare.has(key)]
        if not spared:
            raise _nothing_to_spare(examples.source)
        chosen = {min(spared, key=lambda key: len(groups[key]))}
    dev = sorted(row for key in chosen for row in groups[key])
    train = sorted(row for key in order if key not in chosen for row in groups[key])
    return examples.select(train), examples.select(dev)


def text_key(examples: TextExamples, row: int) -> str:
    """Return the texts of a row in lower case with single blanks: equal keys mean equal texts."""
    sides = [examples.texts_a[row]] if examples.texts_b is None else [examples.texts_a[row], examples.texts_b[row]]
    return "\n".join(" ".join(side.casefold().split()) for side in sides)


def _groups(keys: Sequence[str], source: str) -> dict[str, list[int]]:
    """Return the rows of each text by its key. Raises InputError where all texts are equal."""
    groups: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    if len(groups) < 2:
        raise InputError(f"{source}: expected at least two different texts, to split off validation rows")
    return groups


def _nothing_to_spare(source: str) -> InputError:
    return InputError(
        f"{source}: expected a text that can be kept for validation, but each has a label that no other text has, and "
        "training needs every label; add rows, or give a folder with a train and a dev file"
    )


def _shuffled(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{key}".encode(), digest_size=16).digest()


def _labels(examples: TextExamples) -> list[list[int]]:
    """Return the labels of each row; none for numbers."""
    targets = examples.targets
    if targets is None or np.issubdtype(targets.dtype, np.floating):
        return [[]] * len(examples)
    if targets.ndim == 2:
        return [np.flatnonzero(row).tolist() for row in targets]
    return [[int(target)] for target in targets]


def _strata(examples: TextExamples) -> list[int]:
    """Return the group of each row from which validation rows are drawn.

    It is the label, the rarest of several labels, or the tenth of all targets in which a number lies.
    """
    targets = examples.targets
    if targets is None:
        return [0] * len(examples)
    if np.issubdtype(targets.dtype, np.integer):
        return [int(target) for target in targets]
    if targets.ndim == 2:  # only rare labels could be absent from train or validation
        counts = np.append(targets.sum(axis=0), len(targets) + 1)  # the last stratum: rows without labels
        marked = np.column_stack([targets, np.ones(len(targets), dtype=np.bool_)])
        return [int(stratum) for stratum in np.where(marked, counts, len(targets) + 2).argmin(axis=1)]
    values, inverse = np.unique(targets, return_inverse=True)
    below = np.searchsorted(np.sort(targets), values)
    return [int(stratum) for stratum in (NUM_BINS * below // len(targets))[inverse]]
