"""sentence or pair → label, labels or number: the kind of task of GLUE (paper §4.1)."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.config import BackboneConfig, need_segments
from bertwright.model.folder import SavedModel, note_task
from bertwright.model.heads import for_loss
from bertwright.tables.reader import Table
from bertwright.tables.writer import PredictRequest, answer_tables
from bertwright.tasks.binding import BoundTask, LabelledData, ModelToSave, TaskKind
from bertwright.tasks.classification.calibration import fit_temperature
from bertwright.tasks.classification.encoding import (
    Encoded,
    add_predictions,
    decode,
    encode,
    loss_targets,
    score_labels,
    score_values,
)
from bertwright.tasks.classification.errors import assess, errors_of, evaluation_text
from bertwright.tasks.classification.examples import (
    TextExamples,
    dev_files,
    examples_of,
    read_examples,
    read_training,
    row_weights,
    train_file,
    weigh,
)
from bertwright.tasks.classification.model import (
    Classifier,
    TextBatch,
    in_natural_units,
    noted_task,
    open_classifier,
    padded,
    predict_logits,
    reads_both_orders,
)
from bertwright.tasks.classification.spec import ClassificationTask, with_columns, with_labels, with_texts_of
from bertwright.tasks.classification.split import split_dev
from bertwright.tasks.errors import Errors, EvaluateRequest, write_errors
from bertwright.tasks.feature_based import open_with_features
from bertwright.tasks.frozen_features import FeaturePositions, every_position
from bertwright.tasks.metrics import by_file, collapsed
from bertwright.text.base_tokenizer import BaseTokenizer

Targets = tuple[NDArray[Any], NDArray[np.float32] | None]
"""Targets of the loss and weights of all rows."""


class ClassificationKind(TaskKind):
    """Sentence, pair and regression tasks."""

    spec = ClassificationTask
    architecture = "BertForSequenceClassification"
    feature_unit = "row"
    calibrates = True

    def read(self, task: ClassificationTask, data: Path) -> LabelledData:
        """Read the tables of a folder, or one table; without a validation file a tenth of the rows is kept."""
        path = train_file(data)
        task, train = read_training(task, path)
        files = dev_files(task, data) if data.is_dir() else {}
        validation = {name: read_examples(task, file) for name, file in files.items()}
        if not files:
            rows = len(train)
            train, kept = split_dev(train)
            say(
                f"{data}: there is no dev file, so {len(kept):,} of the {rows:,} rows of {path.name}, chosen by label "
                "and text, are kept for validation"
            )
            validation = {"dev": kept}
        digests = {"train": file_digest(path), "dev": {name: file_digest(file) for name, file in files.items()}}
        return LabelledData(weigh(task, train), train, validation, digests)

    def check(self, data: LabelledData, config: BackboneConfig) -> None:
        """Raise InputError for pairs without segments, and MissingExtra without the libraries of the metrics."""
        if data.train.texts_b is not None:
            need_segments(config, data.task.name)
        for rows in data.validation.values():
            score_values(data.task, rows.targets, rows.targets)

    def encode(
        self,
        task: ClassificationTask,
        tokenizer: BaseTokenizer,
        rows: TextExamples,
        max_length: int,
        *,
        train: bool = False,
    ) -> Encoded:
        encoded = encode(tokenizer, rows.texts_a, rows.texts_b, max_length=max_length, long=task.long)
        long = LongTexts(max_length)
        long.count(encoded, rows)
        long.say()
        return encoded

    def targets(self, task: ClassificationTask, rows: TextExamples, inputs: Encoded) -> Targets:
        """Return targets and weights of all rows."""
        assert rows.targets is not None
        of_rows = np.repeat(self.feature_targets(task, rows), inputs.num_rows, axis=0)
        return of_rows, row_weights(task, rows.targets, inputs, rows.factors)

    def tokens(self, data: LabelledData, lengths: NDArray[np.int64], config: BackboneConfig) -> NDArray[np.int64]:
        """Return the number of tokens of each row, twice where both orders of a pair are read."""
        return 2 * lengths if reads_both_orders(data.task, config) else lengths

    def collate(self, bound: BoundTask, chosen: NDArray[np.int64]) -> TextBatch:
        targets, weights = bound.targets
        inputs, pad_id, both = bound.train[1], bound.config.pad_id, reads_both_orders(bound.task, bound.config)
        return padded(inputs, chosen, pad_id=pad_id, targets=targets, weights=weights, both_orders=both)

    def model(self, task: ClassificationTask, config: BackboneConfig) -> Classifier:
        return Classifier(config, task.num_outputs, both_orders=reads_both_orders(task, config))

    def loss(self, task: ClassificationTask, model: nn.Module, batch: TextBatch) -> Tensor:
        """Return the loss summed over rows, each times its weight: `loss_of_logits` of the model's logits."""
        return self.loss_of_logits(task, model(batch), batch)

    def loss_of_logits(self, task: ClassificationTask, logits: Tensor, batch: TextBatch) -> Tensor:
        """Return the loss of logits [B, L], summed over rows, each times its weight.

        It is the cross entropy, the squared error of a regression, or the sum of all labels' binary cross entropies.
        """
        logits = for_loss(logits)
        assert batch.targets is not None
        reduction = "sum" if batch.weights is None else "none"
        if task.kind == "regression":
            loss = F.mse_loss(logits[:, 0], batch.targets, reduction=reduction)
        elif task.kind == "multilabel":
            loss = F.binary_cross_entropy_with_logits(logits, batch.targets, reduction=reduction)
        else:
            loss = F.cross_entropy(logits, batch.targets, reduction=reduction)
        # [B, L] or [B] → [B] → a sum
        return loss if batch.weights is None else torch.sum(loss.view(len(logits), -1).sum(1) * batch.weights)

    def count(self, batch: TextBatch) -> float:
        """Return the number of rows, or the sum of their weights."""
        return float(len(batch) if batch.weights is None else batch.weights.sum())

    def logits(self, model: Classifier, inputs: Encoded) -> NDArray[np.float32]:
        """Return logits [examples, L]."""
        return predict_logits(model, inputs)

    def metrics(
        self, task: ClassificationTask, logits: NDArray[np.float32], rows: TextExamples, inputs: Encoded
    ) -> dict[str, float]:
        assert rows.targets is not None
        values = decode(task, logits, rows.location).values
        is_collapsed = collapsed(values, rows.targets, task.labels) is not None
        return {**score_values(task, values, rows.targets), "collapsed": float(is_collapsed)}

    def errors(
        self, task: ClassificationTask, logits: NDArray[np.float32], rows: TextExamples, inputs: Encoded
    ) -> Errors:
        return errors_of(task, rows, decode(task, logits, rows.location))

    def review(
        self, task: ClassificationTask, logits: NDArray[np.float32], rows: TextExamples, inputs: Encoded
    ) -> dict[str, Any]:
        assert rows.targets is not None
        assessed = assess(task, decode(task, logits, rows.location), rows.targets)
        return {**assessed, **super().review(task, logits, rows, inputs)}

    def label_names(self, task: ClassificationTask) -> tuple[str, ...]:
        """Return the labels, or the name of the number."""
        return task.labels if task.has_labels else (task.label,)

    def to_save(
        self, task: ClassificationTask, model: nn.Module, metrics: Mapping[str, float], max_length: int
    ) -> ModelToSave:
        """Return the model as it is saved: a regression predicts numbers in the unit of the data."""
        if isinstance(model, Classifier):
            model, task = in_natural_units(model, task)
        return super().to_save(task, model, metrics, max_length)

    def check_features(self, task: ClassificationTask) -> None:
        if task.kind == "multilabel" or task.class_weights != "none" or task.long == "windows":
            raise InputError(
                "--features: expected a task with one label or number per row, without class weights and windows; "
                f"{task.name} has {task.kind}, class weights {task.class_weights}, long {task.long}"
            )

    def feature_positions(self, rows: TextExamples, inputs: Encoded) -> FeaturePositions:
        return positions_of(inputs)

    def feature_targets(self, task: ClassificationTask, rows: TextExamples) -> NDArray[Any]:
        """Return the targets of the loss by example."""
        assert rows.targets is not None
        return loss_targets(task, rows.targets)

    def evaluate(
        self, task: ClassificationTask, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return the metrics on the validation files; their columns may have other names than in training."""
        trained, max_length = noted_task(saved)
        task = with_labels(task, trained.labels) if task.has_labels else task
        if task.kind != trained.kind:
            raise InputError(
                f"{saved.source}: expected a model for {task.kind} ({task.name}), got one for {trained.kind} "
                f"({trained.name})"
            )
        if request.calibrate and not task.has_labels:
            raise InputError(f"--calibrate: expected a task with labels, got {task.name}, which predicts a number")
        learned = {name: getattr(trained, name) for name in ("centre", "spread", "long", "temperature")}
        task = task.model_copy(update=learned)
        files = {} if request.rows else dev_files(task, request.data)
        examples = {"dev": request.rows} if request.rows else {key: read_examples(task, files[key]) for key in files}
        if not examples:
            raise InputError(f"{request.data}: expected a dev file of {task.name}, found none; give the path of a file")
        for rows in examples.values():
            request.refuse_breaks(chain(rows.texts_a, rows.texts_b or ()), rows.source)
        logits_of = open_logits(saved)
        logits = {name: logits_of(self.encode(task, tokenizer, rows, max_length)) for name, rows in examples.items()}
        metrics: dict[str, Any] = {}
        if request.calibrate:
            before = _measured(task, examples, logits)
            targets = np.concatenate([rows.targets for rows in examples.values() if rows.targets is not None])
            temperature = fit_temperature(task, np.concatenate(list(logits.values())), targets)
            task = task.model_copy(update={"temperature": temperature})
            metrics = {"temperature": temperature}
            metrics |= {f"{name}.before": before[name] for name in before if name.endswith("calibration_error")}
        if request.errors:
            answers = {name: decode(task, logits[name], rows.location) for name, rows in examples.items()}
            write_errors(request.errors, {name: errors_of(task, examples[name], answers[name]) for name in examples})
        metrics = _measured(task, examples, logits) | metrics
        if request.calibrate:
            note_task(saved, {"temperature": task.temperature})
            say(f"{saved.source}: its config.json has the temperature {task.temperature:.4f} now")
        return {**metrics, "text": evaluation_text(metrics)}

    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Predict for every row of a table: the label and the probabilities, or the score, are new columns."""
        task, max_length = noted_task(saved)
        if request.input_format == "lines" and len(task.text) > 1:
            raise InputError(
                f"--input-format lines: {saved.source} is a model for pairs ({task.name}), which need a table with the "
                f"columns {', '.join(task.text)}"
            )
        task = with_texts_of(with_columns(task, text=request.text), task, saved.source)
        logits_of = cache(lambda: open_logits(saved))
        long = LongTexts(max_length)
        say_columns = cache(
            lambda source: say(f"{source}: has no header line: its columns are taken for {', '.join(task.columns)}")
        )

        read_rows = partial(examples_of, task, require_label=False)

        def answered(table: Table, written: Table) -> Table:
            if not table.header and request.input_format != "lines":
                say_columns(table.source)
            rows = read_rows(table)
            encoded = encode(tokenizer, rows.texts_a, rows.texts_b, max_length=max_length, long=task.long)
            long.count(encoded, rows)
            answers = add_predictions(task, written, decode(task, logits_of()(encoded), rows.location))
            pairs = zip(rows.texts_a, rows.texts_b or (), strict=False)
            return request.with_explanations(answers, rows.texts_a if rows.texts_b is None else pairs)

        names = task.text if request.input_format == "lines" else task.columns
        num_rows = answer_tables(request, answered, check=read_rows, headerless=names)
        long.say()
        return {"rows": num_rows}


def _measured(
    task: ClassificationTask, examples: Mapping[str, TextExamples], logits: Mapping[str, NDArray[np.float32]]
) -> dict[str, Any]:
    """Return the metrics of validation files by name; several have their name as prefix."""
    metrics: dict[str, dict[str, Any]] = {}
    for name, rows in examples.items():
        assert rows.targets is not None
        predictions = decode(task, logits[name], rows.location)
        of_file: dict[str, Any] = {**score_values(task, predictions.values, rows.targets), "examples": len(rows)}
        of_file |= score_labels(task, predictions.values, rows.targets)
        of_file |= {"left_out": sum(rows.left_out.values())} if rows.left_out else {}
        metrics[name] = of_file | assess(task, predictions, rows.targets)
    return by_file(metrics)


def positions_of(encoded: Encoded) -> FeaturePositions:
    """Return every token of every row."""
    return every_position(encoded.ids, encoded.first)


class LongTexts:
    """Counts the examples of a file that exceed the maximal length."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._source = ""
        self._examples = self._cut = self._several = self._rows = 0

    def count(self, rows: Encoded, part: TextExamples) -> None:
        """Add the examples of a part of the file."""
        self._source = part.source
        self._examples += len(part)
        self._cut += rows.num_truncated
        self._several += int((rows.num_rows > 1).sum())
        self._rows += len(rows)

    def say(self) -> None:
        """Print the numbers, and how the examples are encoded."""
        exceed = f"of {self._examples} examples exceed {self._max_length} tokens"
        if self._cut:
            say(f"{self._source}: {self._cut} {exceed} and are cut; finetune has --max-length and --long for them")
        if self._several:
            say(f"{self._source}: {self._several} {exceed}: with their windows, {self._rows} rows")


def open_logits(saved: SavedModel) -> Callable[[Encoded], NDArray[np.float32]]:
    """Return a function rows → logits [examples, L] of a fine-tuned or a feature-based model."""
    if "features" in saved.extra:
        logits_of = open_with_features(saved)
        return lambda encoded: logits_of(positions_of(encoded))
    model = open_classifier(saved)[0]
    return lambda encoded: predict_logits(model, encoded)


CLASSIFICATION = ClassificationKind()
