"""task + labelled data + encoder → a bound task, which the training loop trains and validates.

One class a kind of task does everything that differs between the kinds. Training, `evaluate`, `predict`, the server and
scikit-learn use it: read → encode → collate → model → loss, and logits → metrics and predictions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.config import BackboneConfig, need_segments
from bertwright.model.folder import SavedModel
from bertwright.model.vector_head import VectorHead
from bertwright.tables.writer import PredictRequest
from bertwright.tasks.errors import Errors, EvaluateRequest
from bertwright.tasks.metrics import by_file
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.published_tokenizer import PublishedTokenizer
from bertwright.training.distributed import Trainable


@dataclass(frozen=True)
class LabelledData:
    """The rows of a training file, the validation rows by name, and the sha256 of the files.

    task      the task with its labels and other values from the training data
    digests   {"train": sha256, "dev": {name: sha256}}
    """

    task: Any
    train: Any
    validation: Mapping[str, Any]
    digests: Mapping[str, Any]


def file_digests(train: Path, dev: Path | None) -> dict[str, Any]:
    """Return the digests of LabelledData; `dev` is None where the training file has the validation rows."""
    return {"train": file_digest(train), "dev": {dev.name: file_digest(dev)} if dev else {}}


@dataclass(frozen=True)
class ModelToSave:
    """A trained model, its class in transformers, its label names, and further entries of config.json.

    vectors: the part that makes vectors of texts, for a folder of sentence-transformers; None for other models.
    """

    module: nn.Module
    architecture: str
    labels: tuple[str, ...]
    extra: Mapping[str, Any]
    vectors: VectorHead | None = None


@dataclass(frozen=True)
class ModelComparison:
    """A trained model beside another one: entries of the run's result, and lines of the model card.

    data, numbers: lines of these two parts of the card, without facts about the machine.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


class TaskKind(ABC):
    """A kind of task: reads and encodes its data, builds and trains its model, computes metrics and predictions."""

    spec: ClassVar[type[TaskSpec]]
    """Class of the task specifications of this kind."""
    architecture: ClassVar[str]
    """Class of the model in transformers."""
    head: ClassVar[str] = "classifier"
    """Prefix of the parameters of the new layer, which is trained from scratch."""
    has_pairs: ClassVar[bool] = False
    """True where every row is a pair of texts, which needs an encoder with segments."""
    unit: ClassVar[str] = "rows"
    """Name of the count that divides the summed loss."""
    feature_unit: ClassVar[str | None] = None
    """Unit with a target in the feature-based approach, "row" or "position"; None where it is not supported."""
    calibrates: ClassVar[bool] = False
    """True where `evaluate` fits a temperature."""
    contrasts: ClassVar[bool] = False
    """True where the rows of a batch are each other's negatives: the batch is then computed as a whole."""

    @abstractmethod
    def read(self, task: Any, data: Path) -> LabelledData:
        """Read a folder, or one file, of which a tenth is then kept for validation."""

    def for_model(self, task: Any, saved: SavedModel, max_length: int) -> Any:
        """Return the task with the settings of the model to start from; unchanged where there are none."""
        return task

    @abstractmethod
    def encode(self, task: Any, tokenizer: BaseTokenizer, rows: Any, max_length: int, *, train: bool = False) -> Any:
        """Return the token ids of `rows`; print how many are too long. `train`: include the targets of the loss."""

    def token_ids(self, inputs: Any) -> Iterable[NDArray[np.int32]]:
        """Return the token ids of encoded rows, in parts."""
        ids: Iterable[NDArray[np.int32]] = inputs.ids
        return ids

    @abstractmethod
    def targets(self, task: Any, rows: Any, inputs: Any) -> Any:
        """Return the targets of the training rows for `collate`."""

    @abstractmethod
    def collate(self, bound: "BoundTask", chosen: NDArray[np.int64]) -> Any:
        """Return a padded batch of the chosen training rows."""

    @abstractmethod
    def model(self, task: Any, config: BackboneConfig) -> nn.Module:
        """Build the model, with the encoder as `encoder`."""

    @abstractmethod
    def loss(self, task: Any, model: Any, batch: Any) -> Tensor:
        """Return the summed loss of a batch."""

    @abstractmethod
    def logits(self, model: Any, inputs: Any) -> Any:
        """Return the logits of all inputs, with dropout off."""

    @abstractmethod
    def metrics(self, task: Any, logits: Any, rows: Any, inputs: Any) -> dict[str, float]:
        """Return validation metrics; the first one selects the best epoch.

        A key that ends with "collapsed" is 1.0 where all predictions are equal though the targets differ.
        """

    def errors(self, task: Any, logits: Any, rows: Any, inputs: Any) -> Errors | None:
        """Return the rows of a validation file beside their answers; None for a kind without answers to single rows."""
        return None

    def review(self, task: Any, logits: Any, rows: Any, inputs: Any) -> dict[str, Any]:
        """Return what the report of a run shows of a validation file: the confusion matrix and the worst rows."""
        errors = self.errors(task, logits, rows, inputs)
        return {} if errors is None else {"worst": errors.worst()}

    @abstractmethod
    def evaluate(
        self, task: Any, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return the metrics of a fine-tuned model on the validation files of a folder, or on one file.

        Only kinds with `calibrates` fit a temperature.
        """

    @abstractmethod
    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Predict for everything in a file; return a summary."""

    def row_names(self, rows: Any) -> Sequence[Any]:
        """Return the line, or the id, of each row in its file."""
        return tuple(rows.lines)

    def check(self, data: LabelledData, config: BackboneConfig) -> None:
        """Raise InputError where an encoder of that shape cannot learn the task, before anything is encoded."""
        if self.has_pairs:
            need_segments(config, data.task.name)

    def lengths(self, rows: Any, inputs: Any) -> NDArray[np.int64]:
        """Return the number of tokens of each training row [N]."""
        return np.array([len(ids) for ids in inputs.ids])

    def tokens(self, data: LabelledData, lengths: NDArray[np.int64], config: BackboneConfig) -> NDArray[np.int64]:
        """Return the number of tokens of all inputs of each training row [N]."""
        return lengths

    def count(self, batch: Any) -> float:
        """Return the number of units in a batch; the summed loss is divided by it."""
        return float(len(batch.ids))

    def flops(self, model: Any, batch: Any) -> float:
        """Return the floating-point operations of a forward and backward pass."""
        return 3.0 * len(batch.ids) * float(model.encoder.flops(batch.ids.shape[1], 1))

    def label_names(self, task: Any) -> tuple[str, ...]:
        """Return the label names for the model folder."""
        return ()

    def to_save(self, task: Any, model: Any, metrics: Mapping[str, float], max_length: int) -> ModelToSave:
        """Return the model as it is saved; `metrics` are those of its last validation."""
        extra = {"task": task.model_dump(mode="json"), "max_length": max_length}
        return ModelToSave(model, self.architecture, self.label_names(task), extra)

    def check_features(self, task: Any) -> None:
        """Raise InputError for a task that the feature-based approach cannot learn."""
        if self.feature_unit is None:
            raise InputError(f"--features: {task.name} cannot be learned from features")

    def feature_positions(self, rows: Any, inputs: Any) -> Any:
        """Return the FeaturePositions whose states the feature-based approach reads."""
        raise NotImplementedError

    def feature_targets(self, task: Any, rows: Any) -> NDArray[Any]:
        """Return the targets of the feature-based approach, by row or by position."""
        raise NotImplementedError

    def trainable(self, task: Any, model: Any) -> Trainable[Any]:
        """Return what the training loop trains."""
        return Trainable(
            module=model,
            blocks=model.encoder.blocks(),
            step=lambda batch: {"loss": (self.loss(task, model, batch), self.unit)},
            counts=lambda batch: {self.unit: self.count(batch)},
            flops=lambda batch: self.flops(model, batch),
            tokens=lambda batch: int(batch.mask.sum()),
        )

    def prepare(
        self, task: Any, data: Path, tokenizer: BaseTokenizer, config: BackboneConfig, max_length: int
    ) -> "BoundTask":
        """Read and encode the data of a task."""
        return self.bind(self.read(task, data), tokenizer, config, max_length)

    def bind(
        self,
        data: LabelledData,
        tokenizer: BaseTokenizer,
        config: BackboneConfig,
        max_length: int,
    ) -> "BoundTask":
        """Encode labelled data."""
        self.check(data, config)
        encode = partial(self.encode, data.task, tokenizer, max_length=max_length)
        inputs = encode(data.train, train=True)
        lengths = self.lengths(data.train, inputs)
        validation = {name: (rows, encode(rows)) for name, rows in data.validation.items()}
        return BoundTask(
            kind=self,
            task=data.task,
            digests=data.digests,
            train=(data.train, inputs),
            validation=validation,
            targets=self.targets(data.task, data.train, inputs),
            lengths=lengths,
            tokens=self.tokens(data, lengths, config),
            config=config,
            max_length=max_length,
        )


@dataclass(frozen=True)
class BoundTask:
    """A task with its encoded data.

    train        the training rows and their inputs
    validation   the same of each validation file
    targets      as `TaskKind.targets`
    lengths      [N] tokens of each training row
    tokens       [N] tokens of all inputs of each training row
    """

    kind: TaskKind
    task: Any
    digests: Mapping[str, Any]
    train: tuple[Any, Any]
    validation: Mapping[str, tuple[Any, Any]]
    targets: Any
    lengths: NDArray[np.int64]
    tokens: NDArray[np.int64]
    config: BackboneConfig
    max_length: int

    @property
    def head(self) -> str:
        """Return the prefix of the new layer's parameters."""
        return self.kind.head

    def prepare(self) -> None:
        """Compute values that all seeds share, before the first seed."""

    def compare(self, folder: Path) -> ModelComparison:
        """Return the comparison of the trained model in `folder` with another one; empty where there is none."""
        return ModelComparison()

    def build(self, config: BackboneConfig) -> nn.Module:
        """Build the model for an encoder of this shape."""
        return self.kind.model(self.task, config)

    def batch(self, chosen: NDArray[np.int64]) -> Any:
        """Return a padded batch of the chosen training rows."""
        return self.kind.collate(self, chosen)

    def trainable(self, model: nn.Module) -> Trainable[Any]:
        """Return what the training loop trains."""
        return self.kind.trainable(self.task, model)

    def logits(self, model: nn.Module, name: str) -> Any:
        """Return the logits of a validation file, with dropout off."""
        return self.kind.logits(model, self.validation[name][1])

    def validation_logits(self, model: nn.Module) -> dict[str, Any]:
        """Return the logits of all validation files by name, with dropout off."""
        return {name: self.logits(model, name) for name in self.validation}

    def metrics(self, logits: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of all validation files, as `TaskKind.metrics`; several have their name as prefix."""
        return by_file(
            {
                name: self.kind.metrics(self.task, logits[name], rows, inputs)
                for name, (rows, inputs) in self.validation.items()
            }
        )

    def review(self, logits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return `TaskKind.review` of the validation files by name."""
        return {
            name: self.kind.review(self.task, logits[name], rows, inputs)
            for name, (rows, inputs) in self.validation.items()
        }

    def predictions(self, logits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return `Errors.predictions` of the validation files by name."""
        parts = {
            name: self.kind.errors(self.task, logits[name], rows, inputs)
            for name, (rows, inputs) in self.validation.items()
        }
        return {name: errors.predictions() for name, errors in parts.items() if errors is not None}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of a model on all validation files."""
        return self.metrics(self.validation_logits(model))

    def to_save(self, model: nn.Module, metrics: Mapping[str, float]) -> ModelToSave:
        """Return the model as it is saved; `metrics` are those of its last validation."""
        return self.kind.to_save(self.task, model, metrics, self.max_length)


def open_tokenizer(saved: SavedModel) -> BaseTokenizer:
    """Return the model's tokenizer. Raises InputError where it has more pieces than the model has embeddings."""
    tokenizer = open_tokenizer_folder(saved.tokenizer)
    if tokenizer.vocab_size > saved.config.vocab_size:
        raise InputError(
            f"{saved.tokenizer}: its vocabulary has {tokenizer.vocab_size} pieces, "
            f"but {saved.source} has embeddings for {saved.config.vocab_size}"
        )
    return for_rows_of(saved.config, tokenizer)


def for_rows_of(config: BackboneConfig, tokenizer: BaseTokenizer) -> BaseTokenizer:
    """Return the tokenizer with which rows of a task are made for a model: they may be bare, see `rows_may_be_bare`."""
    if isinstance(tokenizer, PublishedTokenizer) and config.rows_may_be_bare:
        return tokenizer.for_last_token()
    return tokenizer
