"""texts or pairs → a class, a number or a vector: BertClassifier, BertRegressor, BertVectorizer (paper §4.1, §5.3)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertwright.console import say
from bertwright.sklearn.base import TextEstimator, Trained, in_order, python_scalar, refuse_other_order, validated
from bertwright.sklearn.inputs import (
    EstimatorError,
    Texts,
    check_labels,
    check_numbers,
    check_weights,
    label_name,
)
from bertwright.sklearn.notes import noted
from bertwright.tasks.classification.encoding import Predictions, decode
from bertwright.tasks.classification.examples import TextExamples, natural, standardised, weigh
from bertwright.tasks.classification.spec import CLASSIFY, REGRESS, ClassificationTask, Long
from bertwright.tasks.spec import TaskSpec


@dataclass(kw_only=True, eq=False, repr=False)
class _OfTexts(Trained):
    """Common part of BertClassifier and BertRegressor."""

    _noted = (*Trained._noted, "class_weight", "long")
    _kind: ClassVar[Literal["classification", "regression"]]

    long: Long = "truncate"

    def _task(self, task: ClassificationTask, texts: Texts, **more: Any) -> ClassificationTask:
        values = {**task.model_dump(), "text": texts.columns, "long": self.long, **more}
        completed: ClassificationTask = validated(ClassificationTask, values)
        return completed

    def _fit(
        self,
        task: ClassificationTask,
        texts: Texts,
        targets: NDArray[Any],
        weights: NDArray[np.float64] | None,
        classes: NDArray[Any] | None = None,
    ) -> None:
        """Fine-tune, then set the attributes: a fit that fails or is interrupted changes nothing."""
        examples = _examples(texts, targets, weights)
        kind = "text" if classes is None else _type_of(classes)
        self.learned_ = self._learn(weigh(task, examples), examples, classes=kind)
        if classes is not None:
            self.classes_ = classes
        self._note_columns(texts)

    def _can_predict(self, task: TaskSpec) -> bool:
        return isinstance(task, ClassificationTask) and task.kind == self._kind

    def _set_fitted(self, learned: Any, task: Any) -> None:
        super()._set_fitted(learned, task)
        self.n_features_in_, self.long = len(task.text), task.long

    def _as_fitted(self, X: Any) -> Texts:
        """Return the texts of X; a loaded model refuses the columns of its training in another order."""
        from bertwright.tasks.kinds import task_of

        texts = super()._as_fitted(X)
        task: Any = task_of(self.learned_.saved)
        refuse_other_order(task.text, texts.names)
        return texts

    def _predictions(self, X: Any) -> tuple[Predictions, NDArray[np.float64]]:
        """Return the predictions and their logits, which are divided by the temperature of a calibrated model."""
        check_is_fitted(self)
        with self._in_python():
            from bertwright.tasks.classification.model import noted_task
            from bertwright.tasks.classification.task import CLASSIFICATION, open_logits

            texts = self._as_fitted(X)
            task, max_length = noted_task(self.learned_.saved)
            encoded = CLASSIFICATION.encode(task, self.learned_.tokenizer, _examples(texts, None), max_length)
            logits = self.learned_.ready(open_logits)(encoded)
            predictions = decode(task, logits, "X[{}]".format)
        return predictions, logits.astype(np.float64) / task.temperature


@dataclass(kw_only=True, eq=False, repr=False)
class BertClassifier(ClassifierMixin, _OfTexts):  # type: ignore[misc]
    """Classify a text or a pair with a fine-tuned encoder.

    model           a model folder, a run folder, small-wiki, or random:SIZE, which needs `tokenizer`
    learning_rate   None: from the width of the model, as in `bertwright finetune`
    max_length      tokens of a text, or of both texts of a pair; `long` says how longer ones are encoded: truncate,
                    head-tail or windows
    class_weight    None, "balanced", or {class: weight}; other classes weigh 1
    precision       of training: fp32, bf16, or auto, the faster one here; predictions use fp32
    threads         None: as many as torch uses
    random_state    a whole number, None or a RandomState; equal numbers give equal models
    verbose         True: show training progress

    X is a list, an array or a Series of texts; pairs are a list of tuples, an array [N, 2] or two columns of a data
    frame. `fit` sets `classes_`, sorted and of the type of y, and `n_features_in_`.
    """

    _kind = "classification"

    class_weight: str | dict[Any, float] | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BertClassifier":
        """Fine-tune on the classes `y` [N] of the texts; a text of weight 0 is left out."""
        with self._in_python():
            texts = self._texts(X)
            labels, weights = check_labels(y, len(texts)), check_weights(sample_weight, len(texts))
            texts, labels, weights = _with_weight(texts, labels, weights)
            classes, targets = np.unique(labels, return_inverse=True)
            if len(classes) < 2:
                raise EstimatorError(f"y: expected at least two classes, got one class, {label_name(classes[0])!r}")
            # The outputs are in the order in which `bertwright finetune` puts the labels of a table.
            order = np.array(sorted(range(len(classes)), key=lambda number: natural(label_name(classes[number]))))
            outputs = classes[order]
            task = self._task(CLASSIFY, texts, labels=tuple(map(label_name, outputs)), **self._weights(outputs))
            self._fit(task, texts, np.argsort(order)[targets].astype(np.int64), weights, classes)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each text [N]."""
        outputs = self._predictions(X)[0].values
        classes: NDArray[Any] = self._classes_of_outputs()[outputs]
        return classes

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class [N, classes], in the order of `classes_`."""
        predictions, _ = self._predictions(X)
        assert predictions.probabilities is not None
        return predictions.probabilities[:, np.argsort(self._classes_of_outputs())]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`."""
        logarithms: NDArray[np.float64] = np.log(self.predict_proba(X))
        return logarithms

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return logits [N, classes]; of two classes their difference [N], positive for the second."""
        logits = self._predictions(X)[1][:, np.argsort(self._classes_of_outputs())]
        return logits if len(self.classes_) > 2 else logits[:, 1] - logits[:, 0]

    def _weights(self, classes: NDArray[Any]) -> dict[str, Any]:
        option: Any = self.class_weight
        if option is None:
            return {}
        if isinstance(option, str) and option == "balanced":
            return {"class_weights": "balanced"}
        if not isinstance(option, dict):
            raise EstimatorError(f"class_weight: expected None, 'balanced' or a dict of classes, got {option!r}")
        known = classes.tolist()
        for label, weight in option.items():
            if python_scalar(label) not in known:
                raise EstimatorError(
                    f"class_weight: {label!r} is not a class of y; the classes are: {', '.join(map(str, known))}"
                )
            if not isinstance(weight, int | float | np.number) or not 0.0 <= float(weight) < np.inf:
                raise EstimatorError(f"class_weight: expected a number from 0 on for {label!r}, got {weight!r}")
        named = {python_scalar(label): float(weight) for label, weight in option.items()}
        weights = tuple(named.get(label, 1.0) for label in known)
        if not any(weights):
            raise EstimatorError("class_weight: expected a class with a weight above 0, got none")
        return {"weights": weights}

    def _classes_of_outputs(self) -> NDArray[Any]:
        """Return the class of each output; imported folders may have them unsorted."""
        saved = self.learned_.saved
        classes: NDArray[Any] = in_order(saved.labels, noted(self.learned_, "classes", "text"), saved.source)
        return classes.astype(self.classes_.dtype) if hasattr(self, "classes_") else classes

    def _set_fitted(self, learned: Any, task: Any) -> None:
        super()._set_fitted(learned, task)
        outputs = self._classes_of_outputs()
        self.classes_ = np.sort(outputs)
        if task.weights:
            named = dict(zip(outputs.tolist(), task.weights, strict=True))
            self.class_weight = "balanced" if task.class_weights == "balanced" else named


@dataclass(kw_only=True, eq=False, repr=False)
class BertRegressor(RegressorMixin, _OfTexts):  # type: ignore[misc]
    """Predict a number for a text or a pair with a fine-tuned encoder, trained on centred and scaled numbers.

    The parameters are those of BertClassifier, without `class_weight`.
    """

    _kind = "regression"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BertRegressor":
        """Fine-tune on the numbers `y` [N] of the texts; a text of weight 0 is left out."""
        with self._in_python():
            texts = self._texts(X)
            numbers, weights = check_numbers(y, len(texts)), check_weights(sample_weight, len(texts))
            texts, numbers, weights = _with_weight(texts, numbers, weights)
            self._fit(standardised(self._task(REGRESS, texts), numbers), texts, numbers, weights)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number of each text [N]."""
        return self._predictions(X)[0].values


def _with_weight(
    texts: Texts, targets: NDArray[Any], weights: NDArray[np.float64] | None
) -> tuple[Texts, NDArray[Any], NDArray[np.float64] | None]:
    """Return the rows with a weight above 0."""
    if weights is None or weights.all():
        return texts, targets, weights
    rows = np.flatnonzero(weights)
    return texts.select(rows), targets[rows], weights[rows]


def _examples(texts: Texts, targets: NDArray[Any] | None, weights: NDArray[np.float64] | None = None) -> TextExamples:
    second = texts.sides[1] if len(texts.sides) > 1 else None
    return TextExamples(texts.sides[0], second, targets, "X", tuple(range(len(texts))), factors=weights)


def _type_of(classes: NDArray[Any]) -> str:
    """Return the name of the Python type of the classes; "text" for any other type."""
    first = python_scalar(classes[0])
    return next((kind.__name__ for kind in (bool, int, float) if isinstance(first, kind)), "text")


class BertVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):  # type: ignore[misc]
    """Return a dense vector [D] for each text, from a frozen encoder; nothing is trained.

    model        a model folder, a run folder or small-wiki; also a fine-tuned model
    pool         mean or max over the tokens of a text, or cls, the state of [CLS]; None: what the folder describes,
                 and the mean where it describes nothing and for another layer than the last
    layer        0 for the embeddings, then the layers; -1 is the last
    max_length   tokens of a text; None: the model's positions
    precision    fp32, bf16, int8, or auto, which is bf16 where this machine multiplies it faster, else fp32
    """

    def __init__(
        self,
        model: str | Path,
        *,
        pool: str | None = None,
        layer: int = -1,
        max_length: int | None = None,
        precision: str = "auto",
    ) -> None:
        self.model = model
        self.pool = pool
        self.layer = layer
        self.max_length = max_length
        self.precision = precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # texts have none
        return tags

    def fit(self, X: Any, y: Any = None) -> "BertVectorizer":
        """Open the model and check the type of X."""
        with self._in_python():
            from bertwright.sklearn.fit import read

            texts = self._texts(X)
            if len(texts.sides) > 1:
                raise EstimatorError(f"X: expected single texts, got {len(texts.sides)} columns")
            learned = read(self.model)
            config = learned.saved.config
            self._check(config)
            self.learned_ = learned
            self._note_columns(texts)
        return self

    @property
    def _n_features_out(self) -> int:
        """Number of components of a vector, with the parameters of now; scikit-learn names the columns by it."""
        config = self.learned_.saved.config
        head = self.learned_.head
        return head.size if head and self._as_described(config.layers) else int(config.hidden)

    def _check(self, config: Any) -> None:
        """Raise EstimatorError for a parameter that a model of this shape cannot have."""
        from bertwright.serving.embeddings import check_pool
        from bertwright.tasks.inference import PRECISIONS

        if self.pool not in (None, "mean", "max", "cls"):
            raise EstimatorError(f"pool: expected mean, max or cls, or None, got {self.pool!r}")
        if self.precision not in PRECISIONS:
            raise EstimatorError(f"precision: expected one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        check_pool(config, python_scalar(self.pool) or "mean")
        layers = config.layers
        if isinstance(self.layer, bool) or python_scalar(self.layer) not in range(-layers - 1, layers + 1):
            raise EstimatorError(f"layer: expected {-layers - 1} to {layers}, got {self.layer!r}")
        limit = python_scalar(self.max_length)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise EstimatorError(f"max_length: expected a whole number or None, got {limit!r}")

    def _as_described(self, layers: int) -> bool:
        """Return True where vectors are to be those that the model folder describes, if it describes any."""
        return self.pool is None and python_scalar(self.layer) in (-1, layers)

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return vectors [N, D]."""
        check_is_fitted(self)
        with self._in_python():
            from bertwright.serving.embeddings import features_of, pooled
            from bertwright.sklearn.fit import open_sentences
            from bertwright.tasks.finite import check_finite
            from bertwright.tasks.sentence_vectors import prompt_of

            texts = self._as_fitted(X)
            config = self.learned_.saved.config
            self._check(config)  # parameters may have been set since `fit`
            sentences = open_sentences(self.learned_, precision=str(self.precision))
            limit = python_scalar(self.max_length)
            limit = sentences.max_length if limit is None else limit
            if self.learned_.head and self._as_described(config.layers):
                rows, is_cut = sentences.rows(texts.sides[0], max_length=limit)
                vectors, cut = sentences.of_rows(rows), sum(is_cut)
                check_finite(vectors, "X[{}]".format)
            else:
                vectors, cut = np.empty((len(texts), config.hidden), dtype=np.float32), 0
                prompt = prompt_of(sentences.settings, "text")
                features = features_of(
                    sentences.encoder,
                    self.learned_.tokenizer,
                    [prompt + text for text in texts.sides[0]],
                    layers=[python_scalar(self.layer) % (config.layers + 1)],
                    max_length=limit,
                    location="X[{}]".format,
                )
                pool: Any = self.pool or "mean"
                for row, of_text in enumerate(features):
                    vectors[row] = pooled(of_text.states, pool)[0]
                    cut += of_text.truncated
            if cut:
                say(f"X: {cut} of {len(texts)} texts exceed {limit} tokens and are cut")
        return vectors
