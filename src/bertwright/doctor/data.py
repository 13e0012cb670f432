"""labelled table → findings: labels, duplicates, leaks, contradictions, and the fit of texts and model (paper §4.1)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.doctor.corpus import capitals_finding, unknown_finding
from bertwright.doctor.findings import Finding, Level, name_list, refused
from bertwright.errors import InputError
from bertwright.finetuning.run_baselines import task_baselines
from bertwright.model.folder import SavedModel
from bertwright.tables.bad_rows import is_blank
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.examples import TextExamples, dev_files, read_examples, read_training, train_file
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.split import split_dev, text_key
from bertwright.tasks.spec import TaskSpec, alike_labels
from bertwright.text.base_tokenizer import BaseTokenizer

_MAJORITY: Final = 0.8
"""Fraction of rows with the commonest label from which on accuracy says little."""
_FEWEST: Final = 5
"""Number of rows below which a label is reported as rare."""
_MANY_COPIES: Final = 0.05
_MANY_LEAKS: Final = 0.05
"""Fraction of leaked validation rows above which the metrics of a dev file are worthless."""
_MANY_CUT: Final = 0.1
_SAMPLE: Final = 20_000
"""Number of first rows that are tokenised to measure lengths and unknown pieces."""
TENTH: Final = "a tenth of train"
"""Name of the validation rows where there is no dev file."""
_finding = partial(Finding, "data")


@dataclass(frozen=True)
class Data:
    """A labelled data set: the task with the labels of train, the table train, and the dev tables by name."""

    task: ClassificationTask
    train: TextExamples
    dev: Mapping[str, TextExamples]


def check_data(task: ClassificationTask, path: Path) -> tuple[Data | None, list[Finding]]:
    """Read and check train and the dev tables; a dev table that cannot be read is one more error."""
    try:
        file = train_file(path)
        task, train = read_training(task, file)
        files = dev_files(task, path) if path.is_dir() else {}
    except (InputError, OSError) as error:
        advice = (
            "correct the file or the options that describe it (--task, --text-column, --label-column, --input-format)"
        )
        return None, [refused("data", "reads", error=error, advice=advice)]
    columns = f"{' and '.join(task.text)} → {task.label}"
    findings = [_finding("reads", "ok", len(train), f"{file}: {len(train):,} rows, {columns}")]
    dev = {}
    for name, table in files.items():
        try:
            dev[name] = read_examples(task, table)
        except (InputError, OSError) as error:
            advice = "dev must have the columns and labels of train: correct it, or add rows with that label to train"
            findings.append(refused("data", name, error=error, advice=advice))
    if not files:
        advice = "nothing: finetune keeps a tenth of train for validation; with dev.tsv beside train it uses that"
        findings.append(_finding("dev", "note", 0, "there is no dev file", advice))
    data = Data(task, train, dev)
    left_out = [bad_rows(part) for part in (train, *dev.values()) if part.left_out]
    return data, [*findings, *left_out, *label_findings(data), *text_findings(data)]


def bad_rows(part: Any) -> Finding:
    """Return the numbers of the rows of a file that `--on-error skip` left out."""
    by_reason = ", ".join(f"{count:,} {reason}" for reason, count in part.left_out.items())
    advice = "correct these rows, or give finetune and evaluate --on-error skip too"
    return _finding("bad rows", "warning", dict(part.left_out), f"{part.source}: left out: {by_reason}", advice)


def label_findings(data: Data) -> Iterator[Finding]:
    """Check the distribution of the labels, or of the numbers of a regression."""
    targets = data.train.targets
    assert targets is not None
    if data.task.kind == "regression":
        yield numbers(targets.tolist())
        return
    names = [name for labels in label_sets(data.task, targets) for name in labels]
    counts = dict.fromkeys(data.task.labels, 0) | Counter(names)
    if data.task.kind == "multilabel":
        advice = "judge by macro_f1: micro_f1 and exact_match are high where a model always predicts the common labels"
        yield common_labels(counts, len(data.train), advice=advice)
        yield without_labels(targets)
    else:
        label = max(counts, key=lambda name: counts[name])
        accuracy = f"always predicting {label} gives an accuracy of {counts[label] / len(data.train):.1%}"
        advice = f"{accuracy}: judge by macro_f1, or by f1 of the others"
        yield common_labels(counts, len(data.train), advice=advice)
    yield rare(counts)
    yield alike(counts)
    for name, part in data.dev.items():
        assert part.targets is not None
        yield unseen(counts, name, labels=[name for labels in label_sets(data.task, part.targets) for name in labels])


def label_sets(task: ClassificationTask, targets: NDArray[Any]) -> list[tuple[str, ...]]:
    """Return the labels of each row: one, or any number for `multilabel`."""
    if task.kind == "multilabel":
        return [tuple(task.labels[label] for label in np.flatnonzero(row)) for row in targets]
    return [(task.labels[target],) for target in targets]


def common_labels(counts: Mapping[str, int], rows: int, *, advice: str) -> Finding:
    """Return the fraction of rows with each label; a note with `advice` where a label is that of nearly every row."""
    fractions = name_list([f"{name} {count / rows:.1%}" for name, count in counts.items()], 6)
    common = [name for name, count in counts.items() if count >= _MAJORITY * rows]
    if not common:
        return _finding("labels", "ok", dict(counts), fractions)
    return _finding("labels", "note", dict(counts), f"{fractions}: nearly every row has {name_list(common)}", advice)


def without_labels(targets: NDArray[np.bool_]) -> Finding:
    """Return the number of rows of train without a label."""
    bare = int(np.sum(~targets.any(axis=1)))
    if not bare:
        return _finding("no label", "ok", 0, "every row has a label")
    text = f"rows without a label: {bare:,} of {len(targets):,}"
    advice = "nothing, if no label applies to them; take out rows that nobody labelled: a model learns to find no label"
    return _finding("no label", "note", bare, text, advice)


def rare(counts: Mapping[str, int]) -> Finding:
    """Return the labels with fewer than 5 rows."""
    few = [f"{name} ({count} rows)" for name, count in counts.items() if count < _FEWEST]
    if not few:
        return _finding("rare labels", "ok", [], f"every label has {_FEWEST} rows or more")
    advice = "add rows for them, join them with another label, or leave them out"
    return _finding("rare labels", "warning", few, f"fewer than {_FEWEST} rows: {name_list(few, 6)}", advice)


def alike(counts: Mapping[str, int]) -> Finding:
    """Return the labels that differ only in case or blanks."""
    groups = alike_labels(counts)
    if not groups:
        return _finding("alike labels", "ok", [], "no two labels differ only in case or blanks")
    advice = "correct the table where one label is meant: these are different labels"
    return _finding("alike labels", "warning", groups, f"differ only in case or blanks: {'; '.join(groups)}", advice)


def unseen(counts: Mapping[str, int], name: str, *, labels: Sequence[str]) -> Finding:
    """Return the labels of a dev table that no row of train has."""
    missing = Counter(label for label in labels if not counts[label])
    if not missing:
        return _finding(f"{name}, labels", "ok", [], f"every label of {name} also stands in train")
    text = name_list([f"{label} ({count} rows)" for label, count in missing.items()], 6)
    advice = "a model cannot learn these: add such rows to train, or check how the data were split"
    return _finding(f"{name}, labels", "error", dict(missing), f"not in train: {text}", advice)


def numbers(targets: Sequence[float]) -> Finding:
    """Return range, mean and standard deviation of a regression's targets; an error where all are equal."""
    spread = float(np.std(targets))
    value = {"mean": float(np.mean(targets)), "sd": spread, "least": min(targets), "most": max(targets)}
    text = f"{value['least']:g} to {value['most']:g}, mean {value['mean']:.3g}, standard deviation {spread:.3g}"
    if spread > 0:
        return _finding("numbers", "ok", value, text)
    advice = "there is nothing to learn: check that --label-column names the right column"
    return _finding("numbers", "error", value, f"{text}: all are equal", advice)


def text_findings(data: Data) -> Iterator[Finding]:
    """Look for empty rows, for equal rows, for rows of train in dev, and for equal texts with different labels."""
    yield empty([data.train, *data.dev.values()])
    rows = _rows_by_text(data.train)
    yield copies(data.train, rows)
    if data.task.kind != "regression":
        yield contradictions(data.train, rows, task=data.task)
    for name, part in data.dev.items():
        yield leak(data.train, rows, name=name, dev=part)


def empty(parts: Sequence[TextExamples]) -> Finding:
    """Return the number of rows with an empty text."""
    bare = [
        part.location(row)
        for part in parts
        for row in range(len(part))
        if any(is_blank(side) for side in _sides(part, row))
    ]
    if not bare:
        return _finding("empty texts", "ok", 0, "none")
    advice = "fill in the texts or take the rows out: a model learns the commonest label for them"
    return _finding("empty texts", "warning", len(bare), f"{len(bare):,}, the first at {bare[0]}", advice)


def copies(train: TextExamples, rows: Mapping[str, Sequence[int]]) -> Finding:
    """Return the number of rows of train whose texts equal an earlier row's, case and blanks aside."""
    repeated = [equal[1:] for equal in rows.values() if len(equal) > 1]
    count = sum(map(len, repeated))
    if not count:
        return _finding("duplicates", "ok", 0, "no text stands twice in train")
    first = train.location(min(equal[0] for equal in repeated))
    text = f"rows of train with the texts of an earlier one: {count:,} ({count / len(train):.1%}), first {first}"
    advice = "take them out, unless they show how frequent a text is"
    return _finding("duplicates", "warning" if count > _MANY_COPIES * len(train) else "note", count, text, advice)


def contradictions(train: TextExamples, rows: Mapping[str, Sequence[int]], *, task: ClassificationTask) -> Finding:
    """Return the number of texts that occur with two labels, or with two sets of labels."""
    assert train.targets is not None
    sets = label_sets(task, train.targets)
    both = [equal for equal in rows.values() if len({sets[row] for row in equal}) > 1]
    noun = "two sets of labels" if task.kind == "multilabel" else "two labels"
    if not both:
        return _finding("contradictions", "ok", 0, f"no text has {noun}")
    earliest = min(both, key=lambda equal: equal[0])
    other = next(row for row in earliest if sets[row] != sets[earliest[0]])
    first, second = (f"{train.location(row)} ({', '.join(sets[row]) or 'no label'})" for row in (earliest[0], other))
    text = f"texts with {noun}: {len(both):,}, first {first} and {second}"
    advice = "correct one of the two, or take both rows out"
    return _finding("contradictions", "warning", len(both), text, advice)


def leak(train: TextExamples, rows: Mapping[str, Sequence[int]], *, name: str, dev: TextExamples) -> Finding:
    """Return the number of rows of a dev table whose texts also stand in train."""
    leaked = [(row, rows[key][0]) for row in range(len(dev)) if (key := text_key(dev, row)) in rows]
    if not leaked:
        return _finding(f"{name}, leak", "ok", 0, f"no row of {name} stands in train")
    row, same = leaked[0]
    first = f"{dev.location(row)} and {train.location(same)}"
    text = f"rows that also stand in train: {len(leaked):,} of {len(dev):,}, first {first}"
    level: Level = "error" if len(leaked) > _MANY_LEAKS * len(dev) else "warning"
    advice = "take them out of train: metrics on rows that a model was trained on say nothing about new texts"
    return Finding("data", f"{name}, leak", level, len(leaked), text, advice)


def table_baselines(data: Data) -> Finding:
    """Return the metrics of the baselines on the first dev table, or on a tenth of train without dev."""
    name = next(iter(data.dev), TENTH)
    try:
        train, measured = (data.train, data.dev[name]) if data.dev else split_dev(data.train)
        return baseline_finding(data.task, train, measured, name=name)
    except InputError as error:
        advice = "install the extra, or give more rows; finetune prints the baselines of its own validation rows"
        return _finding("baselines", "note", None, str(error), advice)


def baseline_finding(task: TaskSpec, train: Any, validation: Any, *, name: str) -> Finding:
    """Return the metrics of the baselines that `finetune` prints; name: that of the validation rows."""
    baselines = task_baselines(task, train, validation)
    first = [next(iter(metrics.items())) for metrics in baselines.metrics.values()]
    values = [f"{baseline} {value:.4f}" for baseline, (_, value) in zip(baselines.metrics, first, strict=True)]
    text = "; ".join([f"{first[0][0]} on {name}: {', '.join(values)}", *baselines.notes])
    if len(baselines.metrics) > 1 or not baselines.notes:
        return _finding("baselines", "ok", baselines.metrics, text)
    return _finding("baselines", "note", baselines.metrics, text, "install the extra to see the bag of words")


def fit_findings(data: Data, tokenizer: BaseTokenizer, *, max_length: int) -> Iterator[Finding]:
    """Measure lengths, unknown pieces and capitals in the first rows of train."""
    sample = data.train.select(range(min(_SAMPLE, len(data.train))))
    untruncated = encode(tokenizer, sample.texts_a, sample.texts_b, max_length=1 << 30)
    lengths = np.array([len(ids) for ids in untruncated.ids])
    cut = float(np.mean(lengths > max_length))
    longest = int(np.quantile(lengths, 0.95))
    value = {"share": cut, "mean": float(lengths.mean()), "95%": longest, "largest": int(lengths.max())}
    text = (
        f"train: mean {lengths.mean():.0f} tokens, 95 % of the rows up to {longest:,}, the longest {lengths.max():,}; "
        f"{cut:.1%} exceed {max_length} and are truncated"
    )
    if cut <= _MANY_CUT:
        yield _finding("length", "ok", value, text)
    else:
        advice = f"--max-length {longest} keeps 95 % of the rows whole, if the model has as many positions"
        yield _finding("length", "warning", value, text, advice)
    counts = np.bincount(np.concatenate(untruncated.ids), minlength=tokenizer.vocab_size)
    special = {id for part in tokenizer.row_frame for id in part}
    ordinary = int(counts.sum() - sum(int(counts[id]) for id in special))
    yield unknown_finding("data", tokenizer, int(counts[tokenizer.unk_id]) / max(1, ordinary), tokens="the pieces")
    yield capitals_finding("data", tokenizer, counts)


def labels_of_model(saved: SavedModel, task: ClassificationTask) -> Iterator[Finding]:
    """Compare the labels of a fine-tuned model with those of the data, by name; the model decides their order."""
    if task.kind == "regression" or "classifier.linear.weight" not in (saved.weights or {}):
        return
    labels = list(saved.labels)
    text = f"the model has {name_list(labels, 6) or 'labels without names'}; the data have {name_list(task.labels, 6)}"
    if sorted(labels) == sorted(task.labels):
        yield _finding("labels, model", "ok", labels, "the same names; the model's order is used")
        return
    advice = "evaluate and predict need the model's own labels (--task, --label-column); finetune starts a new head"
    yield _finding("labels, model", "warning", labels, text, advice)


def _rows_by_text(examples: TextExamples) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row in range(len(examples)):
        rows.setdefault(text_key(examples, row), []).append(row)
    return rows


def _sides(examples: TextExamples, row: int) -> Iterator[str]:
    return chain([examples.texts_a[row]], [examples.texts_b[row]] if examples.texts_b else [])
