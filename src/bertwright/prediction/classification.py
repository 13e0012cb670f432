"""sentence or pair → label, labels or number: the kind of task that GLUE's are of, bound to its data (paper §4.1)."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file, file_digest
from bertwright.model.folder import SavedModel
from bertwright.model.sizes import EncoderConfig
from bertwright.prediction.classifier import (
    Classifier,
    classifier_task,
    in_natural_units,
    noted_task,
    open_classifier,
    padded,
    predict_logits,
)
from bertwright.prediction.feature_based import FeatureData, answer_with_features
from bertwright.prediction.frozen import Places
from bertwright.prediction.work import Answered, Kind, Work
from bertwright.tasks.classify import (
    ClassificationTask,
    Encoded,
    add_predictions,
    decode,
    encode,
    loss_targets,
    score,
    score_values,
    with_columns,
    with_labels,
    with_texts_of,
)
from bertwright.tasks.examples import Examples, dev_files, examples_of, learn, read_examples, split_dev, train_file
from bertwright.tasks.metrics import collapsed
from bertwright.tasks.tables import read_table, write_table
from bertwright.tasks.weights import row_weights, weigh
from bertwright.text.tokenizer import Tokenizer

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
    task: ClassificationTask, data: Path, words: Tokenizer, config: EncoderConfig, max_length: int
) -> Work[Any]:
    """The task bound to the tables of a folder, or to one table."""
    task, examples, dev = load_data(task, data)

    def encoded(part: Examples) -> Encoded:
        rows = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
        say_what_is_long(rows, part, max_length)
        return rows

    rows = encoded(examples)
    assert examples.targets is not None
    goals = np.repeat(loss_targets(task, examples.targets), rows.num_rows, axis=0)
    weights = row_weights(task, examples.targets, rows)
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
        digests=_digests(task, data),
        lengths=np.array([len(ids) for ids in rows.ids]),
        head="classifier",
        build=lambda shape: Classifier(shape, task.num_outputs),
        batch=lambda chosen: padded(rows, chosen, pad_id=config.pad_id, targets=goals, weights=weights),
        trainable=lambda model: classifier_task(_classifier(model), task),
        evaluate=lambda model: _dev_figures(_classifier(model), task, measured),
        answered=answered,
    )


def features(
    task: ClassificationTask, data: Path, words: Tokenizer, config: EncoderConfig, max_length: int
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


def evaluate(task: ClassificationTask, saved: SavedModel, words: Tokenizer, data: Path) -> dict[str, Any]:
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
        logits = logits_of(saved, encoded)
        prefix = "" if len(files) == 1 else f"{name}."
        assert part.targets is not None
        figures |= {f"{prefix}{key}": value for key, value in score(asked, logits, part.targets).items()}
        figures[f"{prefix}examples"] = len(part)
    return figures


def predict(saved: SavedModel, words: Tokenizer, source: str, target: str, text: tuple[str, ...]) -> dict[str, Any]:
    """Answer every row of a table; order and fields are kept, label and probabilities (or score) are added."""
    task, max_length = noted_task(saved)
    task = with_texts_of(with_columns(task, text=text), task, saved.place)
    table = read_table(source, headerless=task.columns)
    part = examples_of(task, table, require_label=False)
    encoded = encode(words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
    say_what_is_long(encoded, part, max_length)
    logits = logits_of(saved, encoded)
    answered = add_predictions(task, table, decode(task, logits))
    if target == "-":
        write_table(answered, sys.stdout.buffer)
        sys.stdout.flush()
    else:
        with atomic_file(Path(target)) as stream:
            write_table(answered, stream)
    return {"rows": len(table)}


def say_what_is_long(rows: Encoded, part: Examples, max_length: int) -> None:
    """Tell the person how many examples exceed the maximal length, and what becomes of them."""
    exceed = f"of {len(part)} examples exceed {max_length} tokens"
    if rows.num_truncated:
        say(f"{part.source}: {rows.num_truncated} {exceed} and are cut")
    if several := int((rows.num_rows > 1).sum()):
        say(f"{part.source}: {several} {exceed}: with their windows, {len(rows)} rows")


def logits_of(saved: SavedModel, encoded: Encoded) -> NDArray[np.float32]:
    """What a fine-tuned model, or one on features, says of each row."""
    if "features" in saved.extra:
        return answer_with_features(saved, places_of(encoded))
    return predict_logits(open_classifier(saved)[0], encoded)


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
