"""labelled table → findings: labels, duplicates, leaks, contradictions, and how the texts fit a model (paper §4.1)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.corpus.checks import UNKNOWN_LIMIT
from bertwright.doctor.corpus import capitals_of, case_finding
from bertwright.doctor.findings import Finding, Level, place_list, refused
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.examples import TextExamples, dev_files, learn, read_examples, text_key, train_file
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.text.base_tokenizer import BaseTokenizer

_MAJORITY: Final = 0.8
"""Share of the commonest label from which on accuracy says little."""
_FEWEST: Final = 5
"""Rows that a label needs to be learned and measured at all."""
_MANY_COPIES: Final = 0.05
_MANY_LEAKS: Final = 0.05
"""Share of dev from which on its figures are no measurement any more."""
_MANY_CUT: Final = 0.1
_SAMPLE: Final = 20_000
"""Rows, from the first on, that are cut into pieces to see how they fit."""
_finding = partial(Finding, "data")


@dataclass(frozen=True)
class Data:
    """A task with what its training data decide, and its tables."""

    task: ClassificationTask
    train: TextExamples
    dev: Mapping[str, TextExamples]


def look_at_data(task: ClassificationTask, path: Path) -> tuple[Data | None, list[Finding]]:
    """Read train and dev and check them; a dev table that cannot be read is an error of its own."""
    try:
        file = train_file(path)
        task = learn(task, file)
        train = read_examples(task, file)
        files = dev_files(task, path) if path.is_dir() else {}
    except (InputError, OSError) as error:
        advice = "correct the file or the names of the columns (--task, --text-column, --label-column)"
        return None, [refused("data", "reads", error=error, advice=advice)]
    columns = f"{' and '.join(task.text)} → {task.label}"
    found = [_finding("reads", "ok", len(train), f"{file}: {len(train):,} rows, {columns}")]
    dev = {}
    for name, table in files.items():
        try:
            dev[name] = read_examples(task, table)
        except (InputError, OSError) as error:
            advice = "dev must have the columns and labels of train: correct it, or add rows with that label to train"
            found.append(refused("data", name, error=error, advice=advice))
    if not files:
        advice = "nothing: finetune keeps a tenth of train for measuring; dev.tsv beside it would be used instead"
        found.append(_finding("dev", "note", 0, "there is no dev file", advice))
    data = Data(task, train, dev)
    return data, [*found, *label_findings(data), *text_findings(data)]


def label_findings(data: Data) -> Iterator[Finding]:
    """How the labels, or the numbers of a regression, are spread."""
    targets = data.train.targets
    assert targets is not None
    if data.task.kind == "regression":
        yield numbers(targets.tolist())
        return
    given = [name for labels in label_sets(data.task, targets) for name in labels]
    counts = dict.fromkeys(data.task.labels, 0) | Counter(given)
    if data.task.kind == "multilabel":
        yield shares(counts, len(data.train))
        yield without_labels(targets)
    else:
        yield majority(counts)
    yield rare(counts)
    for name, part in data.dev.items():
        assert part.targets is not None
        yield unseen(counts, name, labels=[name for labels in label_sets(data.task, part.targets) for name in labels])


def label_sets(task: ClassificationTask, targets: NDArray[Any]) -> list[tuple[str, ...]]:
    """The labels of each row: one, or of `multilabel` any number."""
    if task.kind == "multilabel":
        return [tuple(task.labels[label] for label in np.flatnonzero(row)) for row in targets]
    return [(task.labels[target],) for target in targets]


def shares(counts: Mapping[str, int], rows: int) -> Finding:
    """The share of the rows that each label has, where any number of them may apply."""
    spread = place_list([f"{name} {count / rows:.1%}" for name, count in counts.items()], 6)
    common = [name for name, count in counts.items() if count >= _MAJORITY * rows]
    if not common:
        return _finding("labels", "ok", dict(counts), spread)
    text = f"{spread}: nearly every row has {place_list(common, 3)}"
    advice = "judge by macro_f1: micro_f1 and exact_match are high where a model always answers what is common"
    return _finding("labels", "note", dict(counts), text, advice)


def majority(counts: Mapping[str, int]) -> Finding:
    """The share of the commonest label."""
    total = sum(counts.values())
    label = max(counts, key=lambda name: counts[name])
    share = counts[label] / total
    spread = place_list([f"{name} {count / total:.1%}" for name, count in counts.items()], 6)
    if share < _MAJORITY:
        return _finding("labels", "ok", dict(counts), spread)
    advice = f"an accuracy of {share:.1%} is that of always answering {label}: judge by macro_f1 or by f1 of the others"
    return _finding("labels", "note", dict(counts), f"{spread}: nearly all is {label}", advice)


def without_labels(targets: NDArray[np.bool_]) -> Finding:
    """Rows of train to which no label applies."""
    bare = int(np.sum(~targets.any(axis=1)))
    if not bare:
        return _finding("no label", "ok", 0, "every row has a label")
    text = f"{bare:,} of {len(targets):,} rows have none"
    advice = "nothing, where none applies to them; where it was not looked, take them out: a model learns to find none"
    return _finding("no label", "note", bare, text, advice)


def rare(counts: Mapping[str, int]) -> Finding:
    """Labels that hardly occur."""
    few = [f"{name} ({count} rows)" for name, count in counts.items() if count < _FEWEST]
    if not few:
        return _finding("rare labels", "ok", [], f"every label has {_FEWEST} rows or more")
    advice = "add rows for them, join them with another label, or leave them out"
    return _finding("rare labels", "warning", few, f"fewer than {_FEWEST} rows: {place_list(few, 6)}", advice)


def unseen(counts: Mapping[str, int], name: str, *, labels: Sequence[str]) -> Finding:
    """Labels of a dev table that train never has."""
    missing = Counter(label for label in labels if not counts[label])
    if not missing:
        return _finding(f"{name}, labels", "ok", [], "train has every label that it has")
    text = place_list([f"{label} ({count} rows)" for label, count in missing.items()], 6)
    advice = "no model can answer what it never saw: add such rows to train, or check how the two were split"
    return _finding(f"{name}, labels", "error", dict(missing), f"train never has {text}", advice)


def numbers(targets: Sequence[float]) -> Finding:
    """The targets of a regression."""
    spread = float(np.std(targets))
    value = {"mean": float(np.mean(targets)), "sd": spread, "least": min(targets), "most": max(targets)}
    text = f"{value['least']:g} to {value['most']:g}, mean {value['mean']:.3g}, deviation {spread:.3g}"
    if spread > 0:
        return _finding("numbers", "ok", value, text)
    advice = "there is nothing to learn: is it the right column (--label-column)?"
    return _finding("numbers", "error", value, f"{text}: all the same", advice)


def text_findings(data: Data) -> Iterator[Finding]:
    """Rows that are empty, alike, in train and dev, or labelled both ways."""
    yield empty([data.train, *data.dev.values()])
    rows = _rows_by_text(data.train)
    yield copies(data.train, rows)
    if data.task.kind != "regression":
        yield contradictions(data.train, rows, task=data.task)
    for name, part in data.dev.items():
        yield leak(data.train, rows, name=name, dev=part)


def empty(parts: Sequence[TextExamples]) -> Finding:
    """Texts without a letter."""
    bare = [
        part.place(row)
        for part in parts
        for row in range(len(part))
        if not all(side.strip() for side in _sides(part, row))
    ]
    if not bare:
        return _finding("empty texts", "ok", 0, "none")
    advice = "give them a text or take the rows out: a model learns the commonest label for them"
    return _finding("empty texts", "warning", len(bare), f"{len(bare):,}, the first at {bare[0]}", advice)


def copies(train: TextExamples, rows: Mapping[str, Sequence[int]]) -> Finding:
    """Rows of train whose texts equal an earlier row's, but for case and blanks."""
    repeated = [some[1:] for some in rows.values() if len(some) > 1]
    count = sum(map(len, repeated))
    if not count:
        return _finding("duplicates", "ok", 0, "no text stands twice in train")
    first = train.place(min(some[0] for some in repeated))
    text = f"{count:,} rows of train ({count / len(train):.1%}) have the texts of an earlier one, first {first}"
    advice = "take them out, unless their number says how frequent they are"
    return _finding("duplicates", "warning" if count > _MANY_COPIES * len(train) else "note", count, text, advice)


def contradictions(train: TextExamples, rows: Mapping[str, Sequence[int]], *, task: ClassificationTask) -> Finding:
    """The same texts with two labels, or two sets of them."""
    assert train.targets is not None
    sets = label_sets(task, train.targets)
    both = [some for some in rows.values() if len({sets[row] for row in some}) > 1]
    what = "two sets of labels" if task.kind == "multilabel" else "two labels"
    if not both:
        return _finding("contradictions", "ok", 0, f"no text has {what}")
    one = min(both, key=lambda some: some[0])
    other = next(row for row in one if sets[row] != sets[one[0]])
    first, second = (f"{train.place(row)} ({', '.join(sets[row]) or 'no label'})" for row in (one[0], other))
    text = f"{len(both):,} texts have {what}, first {first} and {second}"
    advice = "decide on one of them for each, or take both rows out"
    return _finding("contradictions", "warning", len(both), text, advice)


def leak(train: TextExamples, rows: Mapping[str, Sequence[int]], *, name: str, dev: TextExamples) -> Finding:
    """Rows of dev whose texts also stand in train."""
    found = [(row, rows[key][0]) for row in range(len(dev)) if (key := text_key(dev, row)) in rows]
    if not found:
        return _finding(f"{name}, leak", "ok", 0, "none of its rows stands in train")
    row, there = found[0]
    text = f"{len(found):,} of {len(dev):,} rows also stand in train, first {dev.place(row)} and {train.place(there)}"
    level: Level = "error" if len(found) > _MANY_LEAKS * len(dev) else "warning"
    advice = "take them out of train: what a model learned by heart tells nothing about new texts"
    return Finding("data", f"{name}, leak", level, len(found), text, advice)


def fit_findings(data: Data, tokenizer: BaseTokenizer, *, max_length: int) -> Iterator[Finding]:
    """How the texts fit a vocabulary and a length, from the first rows of train."""
    some = data.train.select(range(min(_SAMPLE, len(data.train))))
    whole = encode(tokenizer, some.texts_a, some.texts_b, max_length=1 << 30)
    lengths = np.array([len(ids) for ids in whole.ids])
    cut = float(np.mean(lengths > max_length))
    longest = int(np.quantile(lengths, 0.95))
    value = {"share": cut, "mean": float(lengths.mean()), "95%": longest, "largest": int(lengths.max())}
    text = (
        f"mean {lengths.mean():.0f} tokens, 95 % of the rows up to {longest:,}, the longest {lengths.max():,}; "
        f"{cut:.1%} exceed {max_length} and are cut"
    )
    if cut <= _MANY_CUT:
        yield _finding("length", "ok", value, text)
    else:
        advice = f"--max-length {longest} would keep 95 % whole, where the model has as many positions"
        yield _finding("length", "warning", value, text, advice)
    used = np.bincount(np.concatenate(whole.ids), minlength=tokenizer.vocab_size)
    ordinary = int(used.sum() - used[list({tokenizer.begin_id, tokenizer.between_id, tokenizer.end_id})].sum())
    unknown = int(used[tokenizer.unk_id]) / max(1, ordinary)
    text = f"{unknown:.2%} of the pieces is {tokenizer.pieces[tokenizer.unk_id]} (up to {UNKNOWN_LIMIT:.0%})"
    if unknown <= UNKNOWN_LIMIT:
        yield _finding("unknown", "ok", unknown, text)
    else:
        advice = "take a model of this language and script, or extend its vocabulary: bertwright tokenizer extend"
        yield _finding("unknown", "warning", unknown, text, advice)
    yield case_finding("data", capitals_of(tokenizer, used), cased=tokenizer.cased, what="of the pieces")


def labels_of_model(saved: SavedModel, task: ClassificationTask) -> Iterator[Finding]:
    """The labels of a fine-tuned model against those of the data; its order decides, by name."""
    if task.kind == "regression" or "classifier.linear.weight" not in (saved.weights or {}):
        return
    theirs, ours = saved.labels, task.labels
    text = f"the model answers {place_list(theirs, 6) or 'without names'}; the data have {place_list(ours, 6)}"
    if sorted(theirs) == sorted(ours):
        yield _finding("labels, model", "ok", list(theirs), "the same names; the order is the model's, by name")
        return
    advice = "evaluate and predict need the model's own labels (--task, --label-column); finetune starts a new head"
    yield _finding("labels, model", "warning", list(theirs), text, advice)


def _rows_by_text(examples: TextExamples) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row in range(len(examples)):
        rows.setdefault(text_key(examples, row), []).append(row)
    return rows


def _sides(examples: TextExamples, row: int) -> Iterator[str]:
    return chain([examples.texts_a[row]], [examples.texts_b[row]] if examples.texts_b else [])
