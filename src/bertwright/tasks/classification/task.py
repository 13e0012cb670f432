"""sentence or pair → label, labels or number: the kind of task that GLUE's are of, bound to its data (paper §4.1)."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.config import BackboneConfig, need_segments
from bertwright.model.folder import SavedModel
from bertwright.tables.reader import Table
from bertwright.tables.writer import Asked, answer_tables
from bertwright.tasks.binding import Answered, Kind, Work
from bertwright.tasks.classification.encoding import (
    Encoded,
    add_predictions,
    decode,
    encode,
    loss_targets,
    score,
    score_labels,
    score_values,
)
from bertwright.tasks.classification.examples import (
    Examples,
    dev_files,
    examples_of,
    learn,
    read_examples,
    row_weights,
    split_dev,
    train_file,
    weigh,
)
from bertwright.tasks.classification.model import (
    Classifier,
    classifier_task,
    in_natural_units,
    noted_task,
    open_classifier,
    padded,
    predict_logits,
    reads_both_orders,
)
from bertwright.tasks.classification.spec import ClassificationTask, with_columns, with_labels, with_texts_of
from bertwright.tasks.feature_based import FeatureData, open_with_features
from bertwright.tasks.frozen_features import Places
from bertwright.tasks.metrics import collapsed
from bertwright.text.base_tokenizer import BaseTokenizer

Dev = Mapping[str, tuple[Encoded, NDArray[Any]]]


def load_data(task: ClassificationTask, data: Path) -> tuple[ClassificationTask, Examples, dict[str, Examples]]:
    """The task as its training data complete it, train, and dev by name (a tenth of train without a dev file)."""
    path = train_file(data)
    task = learn(task, path)
    train_examples = read_examples(task, path)
    files = dev_files(task, data) if data.is_dir() else {}
    if files:
        dev = {name: read_examples(task, file) for name, file in files.items()}
        return weigh(task, train_examples), train_examples, dev
    say(f"{data}: no dev file; a tenth of {path.name}, chosen by label and text, is kept for measuring")
    train_examples, kept = split_dev(train_examples)
    return weigh(task, train_examples), train_examples, {"dev": kept}


def prepare(
    task: ClassificationTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int
) -> Work[Any]:
    """The task bound to the tables of a folder, or to one table."""
    task, examples, dev = load_data(task, data)
    return bound(task, examples, dev, words, config, max_length, digests=_digests(task, data))


def bound(
    task: ClassificationTask,
    examples: Examples,
    dev: Mapping[str, Examples],
    words: BaseTokenizer,
    config: BackboneConfig,
    max_length: int,
    *,
    digests: Mapping[str, Any],
    weights: NDArray[np.float64] | None = None,
) -> Work[Any]:
    """The task bound to examples, wherever they come from; `weights` [examples] is how much each of them counts."""

    def encoded(part: Examples) -> Encoded:
        rows = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
        say_what_is_long(rows, part, max_length)
        return rows

    if examples.texts_b is not None:
        need_segments(config, task.name)
    rows, both = encoded(examples), reads_both_orders(task, config)
    assert examples.targets is not None
    goals = np.repeat(loss_targets(task, examples.targets), rows.num_rows, axis=0)
    of_rows = row_weights(task, examples.targets, rows, weights)
    lengths = np.array([len(ids) for ids in rows.ids])
    measured = {name: (encoded(part), part.targets) for name, part in dev.items() if part.targets is not None}
    for _, targets in measured.values():
        score_values(task, targets, targets)  # asks for the metrics' libraries before anything is trained

    def answered(model: Any) -> Answered:
        natural, own = in_natural_units(model, task)
        labels = own.labels if own.has_labels else (own.label,)
        extra = {"task": own.model_dump(mode="json"), "max_length": max_length}
        return Answered(natural, "BertForSequenceClassification", labels, extra)

    return Work(
        task=task,
        digests=digests,
        lengths=lengths,
        tokens=2 * lengths if both else None,
        head="classifier",
        build=lambda shape: Classifier(shape, task.num_outputs, both_orders=both),
        batch=lambda chosen: padded(
            rows, chosen, pad_id=config.pad_id, targets=goals, weights=of_rows, both_orders=both
        ),
        trainable=lambda model: classifier_task(_classifier(model), task),
        evaluate=lambda model: _dev_figures(_classifier(model), task, measured),
        answered=answered,
    )


def features(
    task: ClassificationTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int
) -> FeatureData:
    """The task for the feature-based way: all tokens of a row are read, and the row is answered as a whole."""
    if task.kind == "multilabel" or task.class_weights != "none" or task.long == "windows":
        raise InputError(
            f"--features: {task.name} is learned from them with one label or number a row, without class weights and "
            f"without windows; asked for were {task.kind}, class weights {task.class_weights}, long {task.long}"
        )
    task, examples, dev = load_data(task, data)

    def encoded(part: Examples) -> Encoded:
        rows = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
        say_what_is_long(rows, part, max_length)
        return rows

    parts = {name: encoded(part) for name, part in dev.items()}
    train = encoded(examples)
    assert examples.targets is not None

    def figures(logits: Mapping[str, NDArray[np.float32]]) -> dict[str, float]:
        return _figures(task, {name: (logits[name], _known(part.targets)) for name, part in dev.items()})

    return FeatureData(
        task=task,
        digests=_digests(task, data),
        train=places_of(train),
        dev={name: places_of(part) for name, part in parts.items()},
        targets=loss_targets(task, examples.targets),
        outputs=task.num_outputs,
        each=False,
        figures=figures,
        labels=task.labels if task.has_labels else (task.label,),
        extra={"task": task.model_dump(mode="json"), "max_length": max_length},
    )


def places_of(encoded: Encoded) -> Places:
    """Every token of every row."""
    ends = np.cumsum([0, *map(len, encoded.ids)])
    return Places(
        [
            (ids, np.arange(len(ids)), np.arange(begin, begin + len(ids)))
            for ids, begin in zip(encoded.ids, ends[:-1], strict=True)
        ],
        ends,
        first=encoded.first,
    )


def evaluate(task: ClassificationTask, saved: SavedModel, words: BaseTokenizer, data: Path) -> dict[str, Any]:
    """The metrics on the dev files of a folder, or on one file; the task may name other columns than in training."""
    trained, max_length = noted_task(saved)
    asked = with_labels(task, trained.labels) if task.has_labels else task
    if asked.kind != trained.kind:
        raise InputError(
            f"{saved.place}: was fine-tuned for {trained.kind} ({trained.name}); {task.name} is {task.kind}"
        )
    asked = with_texts_of(
        asked.model_copy(update={"centre": trained.centre, "spread": trained.spread}), trained, saved.place
    )
    files = dev_files(asked, data)
    if not files:
        raise InputError(f"{data}: holds no dev file of {task.name}; name a file")
    figures: dict[str, Any] = {}
    for name, path in files.items():
        part = read_examples(asked, path)
        encoded = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=trained.long)
        say_what_is_long(encoded, part, max_length)
        values = decode(asked, open_logits(saved)(encoded)).values
        prefix = "" if len(files) == 1 else f"{name}."
        assert part.targets is not None
        of_part = {**score_values(asked, values, part.targets), "examples": len(part)}
        of_part |= score_labels(asked, values, part.targets)
        figures |= {f"{prefix}{key}": value for key, value in of_part.items()}
    return figures


def predict(saved: SavedModel, words: BaseTokenizer, asked: Asked) -> dict[str, Any]:
    """Answer every row of a table; order and fields are kept, label and probabilities (or score) are added."""
    task, max_length = noted_task(saved)
    if asked.input_format == "lines" and len(task.text) > 1:
        raise InputError(
            f"--input-format lines: is one text a line; {saved.place} is a model of pairs ({task.name}), and a table "
            f"has a column for each: {', '.join(task.text)}"
        )
    task = with_texts_of(with_columns(task, text=asked.text), task, saved.place)
    opened = cache(lambda: open_logits(saved))
    long = LongTexts(max_length)

    def answered(table: Table, written: Table) -> Table:
        part = examples_of(task, table, require_label=False)
        encoded = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
        long.count(encoded, part)
        return add_predictions(task, written, decode(task, opened()(encoded)))

    names = task.text if asked.input_format == "lines" else task.columns
    rows = answer_tables(asked, answered, headerless=names)
    long.say()
    return {"rows": rows}


class LongTexts:
    """How many examples exceed the maximal length, of one or several parts of a file."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._source = ""
        self._examples = self._cut = self._several = self._rows = 0

    def count(self, rows: Encoded, part: Examples) -> None:
        """Count those of a part."""
        self._source = part.source
        self._examples += len(part)
        self._cut += rows.num_truncated
        self._several += int((rows.num_rows > 1).sum())
        self._rows += len(rows)

    def say(self) -> None:
        """Tell the person how many there are, and what becomes of them."""
        exceed = f"of {self._examples} examples exceed {self._max_length} tokens"
        if self._cut:
            say(f"{self._source}: {self._cut} {exceed} and are cut")
        if self._several:
            say(f"{self._source}: {self._several} {exceed}: with their windows, {self._rows} rows")


def say_what_is_long(rows: Encoded, part: Examples, max_length: int) -> None:
    """Tell the person how many examples exceed the maximal length, and what becomes of them."""
    long = LongTexts(max_length)
    long.count(rows, part)
    long.say()


def open_logits(saved: SavedModel) -> Callable[[Encoded], NDArray[np.float32]]:
    """A fine-tuned model, or one on features, ready to answer: rows → logits [examples, L]."""
    if "features" in saved.extra:
        answered = open_with_features(saved)
        return lambda encoded: answered(places_of(encoded))
    model = open_classifier(saved)[0]
    return lambda encoded: predict_logits(model, encoded)


def _classifier(model: Any) -> Classifier:
    assert isinstance(model, Classifier)
    return model


def _dev_figures(model: Classifier, task: ClassificationTask, dev: Dev) -> dict[str, float]:
    return _figures(task, {name: (predict_logits(model, encoded), targets) for name, (encoded, targets) in dev.items()})


def _figures(task: ClassificationTask, dev: Mapping[str, tuple[NDArray[np.float32], NDArray[Any]]]) -> dict[str, float]:
    """Dev figures from logits and targets by name."""
    figures: dict[str, float] = {}
    for name, (logits, targets) in dev.items():
        prefix = "" if len(dev) == 1 else f"{name}."
        figures |= {f"{prefix}{key}": value for key, value in score(task, logits, targets).items()}
        values = decode(task, logits).values
        figures[f"{prefix}collapsed"] = float(collapsed(values, targets, task.labels) is not None)
    return figures


def _digests(task: ClassificationTask, data: Path) -> dict[str, Any]:
    dev = {name: file_digest(path) for name, path in dev_files(task, data).items()} if data.is_dir() else {}
    return {"train": file_digest(train_file(data)), "dev": dev}


def _known(targets: NDArray[Any] | None) -> NDArray[Any]:
    assert targets is not None
    return targets


CLASSIFICATION = Kind(ClassificationTask, prepare, evaluate, predict, features)
