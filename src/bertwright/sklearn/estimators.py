"""texts or pairs → a class or a number: BertClassifier and BertRegressor (paper §4.1)."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.sklearn.base import TextEstimator, Trained, in_order, noted, plain, validated
from bertwright.sklearn.inputs import EstimatorError, Texts, in_python, label_name, labels_of, numbers_of, weights_of
from bertwright.tasks.classification.encoding import Predictions, decode, encode
from bertwright.tasks.classification.examples import Examples, natural, standardised, weigh
from bertwright.tasks.classification.spec import CLASSIFY, REGRESS, ClassificationTask, Long


class _OfTexts(Trained):
    """What a class and a number are learned by alike."""

    _noted = (*Trained._noted, "class_weight", "long")
    _kind: Literal["classification", "regression"]

    def _task(self, task: ClassificationTask, texts: Texts, **more: Any) -> ClassificationTask:
        given = {**task.model_dump(), "text": texts.columns, "long": self.long, **more}
        found: ClassificationTask = validated(ClassificationTask, given)
        return found

    def _fit(
        self,
        task: ClassificationTask,
        texts: Texts,
        targets: NDArray[Any],
        weights: NDArray[np.float64] | None,
        classes: NDArray[Any] | None = None,
    ) -> None:
        """Learn, and note what was learned at the very end: a fit that fails or is stopped changes nothing."""
        from bertwright.tasks.classification.task import bound

        examples = _examples(texts, targets)
        task = weigh(task, examples)
        kind = "text" if classes is None else _kind_of(classes)

        def bind(words: Any, config: Any) -> Any:
            return bound(task, examples, {}, words, config, plain(self.max_length), digests={}, weights=weights)

        learned = self._learn(bind, classes=kind)
        self.learned_ = learned
        if classes is not None:
            self.classes_ = classes
        self._note_columns(texts)

    def _take(self, learned: Any) -> None:
        from bertwright.tasks.kinds import task_of

        task = task_of(learned.saved)
        if not isinstance(task, ClassificationTask) or task.kind != self._kind:
            raise InputError(f"{learned.saved.place}: is a model for {task.name}, and {type(self).__name__} is not")
        self.learned_, self.n_features_in_ = learned, len(task.text)
        self.max_length, self.long = learned.saved.max_length, task.long

    def _answers(self, X: Any) -> tuple[Predictions, NDArray[np.float64]]:
        """The answers and the logits they come from."""
        check_is_fitted(self)
        with in_python(verbose=bool(self.verbose)):
            from bertwright.tasks.classification.model import noted_task
            from bertwright.tasks.classification.task import open_logits, say_what_is_long

            texts = self._as_fitted(X)
            task, max_length = noted_task(self.learned_.saved)
            part = _examples(texts, None)
            encoded = encode(self.learned_.words, part.texts_a, part.texts_b, max_length=max_length, long=task.long)
            say_what_is_long(encoded, part, max_length)
            logits = self.learned_.ready(open_logits)(encoded)
        return decode(task, logits), logits.astype(np.float64)


class BertClassifier(ClassifierMixin, _OfTexts):  # type: ignore[misc]
    """A class for a text or a pair, by a fine-tuned encoder.

    model           a model folder, a run folder, small-wiki, or random:SIZE, which needs `tokenizer`
    learning_rate   None: by the width of the model, as `bertwright finetune` has it
    max_length      tokens of a text, or of a pair together; `long` says what becomes of longer ones: truncate,
                    head-tail or windows
    class_weight    None, "balanced", or {class: weight}, where the classes that are not named weigh 1
    precision       what is trained in: fp32, bf16, or auto, the faster one here; answers are in fp32
    threads         None: as many as torch uses
    random_state    a whole number, None or a RandomState; one number gives one model
    verbose         whether training tells how far it is

    X is a list, an array or a Series of texts; pairs are a list of tuples, an array [N, 2] or two columns of a data
    frame. After `fit` there are `classes_`, sorted and of the type of y, and `n_features_in_`.
    """

    _kind = "classification"

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float | None = None,
        max_length: int = 128,
        long: Long = "truncate",
        class_weight: str | dict[Any, float] | None = None,
        precision: str = "auto",
        threads: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.long = long
        self.class_weight = class_weight
        self.precision = precision
        self.threads = threads
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BertClassifier":
        """Learn the classes `y` [N] of the texts; a text of weight 0 is as if it were not there."""
        with in_python(verbose=bool(self.verbose)):
            texts = self._texts(X)
            labels, weights = labels_of(y, len(texts)), weights_of(sample_weight, len(texts))
            texts, labels, weights = _counted(texts, labels, weights)
            classes, targets = np.unique(labels, return_inverse=True)
            if len(classes) < 2:
                raise EstimatorError(f"y: holds one class alone, {label_name(classes[0])!r}; at least two are due")
            # The outputs are in the order in which `bertwright finetune` puts the labels of a table.
            order = np.array(sorted(range(len(classes)), key=lambda at: natural(label_name(classes[at]))))
            outputs = classes[order]
            task = self._task(CLASSIFY, texts, labels=tuple(map(label_name, outputs)), **self._weighing(outputs))
            self._fit(task, texts, np.argsort(order)[targets].astype(np.int64), weights, classes)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each text [N]."""
        outputs = self._answers(X)[0].values
        found: NDArray[Any] = self._of_outputs()[outputs]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class [N, classes], in the order of `classes_`."""
        found, _ = self._answers(X)
        assert found.probabilities is not None
        return found.probabilities[:, np.argsort(self._of_outputs())]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Its logarithm."""
        found: NDArray[np.float64] = np.log(self.predict_proba(X))
        return found

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits [N, classes]; of two classes their difference [N], positive for the second."""
        logits = self._answers(X)[1][:, np.argsort(self._of_outputs())]
        return logits if len(self.classes_) > 2 else logits[:, 1] - logits[:, 0]

    def _weighing(self, classes: NDArray[Any]) -> dict[str, Any]:
        given: Any = self.class_weight
        if given is None:
            return {}
        if isinstance(given, str) and given == "balanced":
            return {"class_weights": "balanced"}
        if not isinstance(given, dict):
            raise EstimatorError(f"class_weight: {given!r}; None, 'balanced' or a dict of the classes is due")
        known = classes.tolist()
        for label, weight in given.items():
            if plain(label) not in known:
                raise EstimatorError(
                    f"class_weight: {label!r} is no class of y; there are: {', '.join(map(str, known))}"
                )
            if not isinstance(weight, int | float | np.number) or not 0.0 <= float(weight) < np.inf:
                raise EstimatorError(f"class_weight: {weight!r} for {label!r}; a number from 0 on is due")
        named = {plain(label): float(weight) for label, weight in given.items()}
        weights = tuple(named.get(label, 1.0) for label in known)
        if not any(weights):
            raise EstimatorError("class_weight: every class weighs 0; there is nothing to learn")
        return {"weights": weights}

    def _of_outputs(self) -> NDArray[Any]:
        """The class of each output: in a folder made elsewhere they need not be sorted."""
        saved = self.learned_.saved
        found: NDArray[Any] = in_order(saved.labels, noted(self.learned_, "classes", "text"), saved.place)
        return found.astype(self.classes_.dtype) if hasattr(self, "classes_") else found

    def _take(self, learned: Any) -> None:
        super()._take(learned)
        outputs = self._of_outputs()
        self.classes_ = np.sort(outputs)
        task = ClassificationTask.model_validate(learned.saved.extra["task"])
        if task.weights:
            named = dict(zip(outputs.tolist(), task.weights, strict=True))
            self.class_weight = "balanced" if task.class_weights == "balanced" else named


class BertRegressor(RegressorMixin, _OfTexts):  # type: ignore[misc]
    """A number for a text or a pair, by a fine-tuned encoder, which learns it centred and scaled.

    The parameters are those of BertClassifier, but for `class_weight`.
    """

    _kind = "regression"

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float | None = None,
        max_length: int = 128,
        long: Long = "truncate",
        precision: str = "auto",
        threads: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.long = long
        self.precision = precision
        self.threads = threads
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BertRegressor":
        """Learn the numbers `y` [N] of the texts; a text of weight 0 is as if it were not there."""
        with in_python(verbose=bool(self.verbose)):
            texts = self._texts(X)
            numbers, weights = numbers_of(y, len(texts)), weights_of(sample_weight, len(texts))
            texts, numbers, weights = _counted(texts, numbers, weights)
            self._fit(standardised(self._task(REGRESS, texts), numbers), texts, numbers, weights)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number of each text [N]."""
        return self._answers(X)[0].values


def _counted(
    texts: Texts, targets: NDArray[Any], weights: NDArray[np.float64] | None
) -> tuple[Texts, NDArray[Any], NDArray[np.float64] | None]:
    """Without the rows of weight 0: absent ones take part in no batch."""
    if weights is None or weights.all():
        return texts, targets, weights
    rows = np.flatnonzero(weights)
    return texts.select(rows), targets[rows], weights[rows]


def _examples(texts: Texts, targets: NDArray[Any] | None) -> Examples:
    second = texts.sides[1] if len(texts.sides) > 1 else None
    return Examples(texts.sides[0], second, targets, "X", tuple(range(len(texts))))


def _kind_of(classes: NDArray[Any]) -> str:
    return {"i": "int", "u": "int", "f": "float", "b": "bool"}.get(classes.dtype.kind, _kind_of_object(classes))


def _kind_of_object(classes: NDArray[Any]) -> str:
    first = classes[0]
    return next((kind.__name__ for kind in (bool, int, float) if isinstance(first, kind)), "text")


# texts → vectors of a frozen encoder: BertVectorizer (paper §5.3).


class BertVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):  # type: ignore[misc]
    """A dense vector [D] for each text; nothing is trained.

    model        a model folder, a run folder or small-wiki; a fine-tuned one's encoder has learned its task
    pool         mean or max over the tokens of a text, or cls, the state of [CLS]
    layer        0 for the embeddings, then the layers; -1 is the last
    max_length   tokens of a text; None: as many as the model takes
    """

    def __init__(
        self, model: str | Path, *, pool: str = "mean", layer: int = -1, max_length: int | None = None
    ) -> None:
        self.model = model
        self.pool = pool
        self.layer = layer
        self.max_length = max_length

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # texts have none
        return tags

    def fit(self, X: Any, y: Any = None) -> "BertVectorizer":
        """Open the model; of X, only what it is made of is looked at."""
        with in_python():
            from bertwright.sklearn.fit import read
            from bertwright.tasks.embeddings import check_pool

            texts = self._texts(X)
            if len(texts.sides) > 1:
                raise EstimatorError(f"X: {len(texts.sides)} columns; vectors are of single texts")
            if self.pool not in ("mean", "max", "cls"):
                raise EstimatorError(f"pool: {self.pool!r}; allowed are mean, max and cls")
            learned = read(self.model)
            check_pool(learned.saved.config, plain(self.pool))
            layers = learned.saved.config.layers
            if isinstance(self.layer, bool) or plain(self.layer) not in range(-layers - 1, layers + 1):
                raise EstimatorError(f"layer: {self.layer!r}; allowed are {-layers - 1} to {layers}")
            limit = plain(self.max_length)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
                raise EstimatorError(f"max_length: {limit!r}; a whole number or None is due")
            self.learned_ = learned
            self._n_features_out = learned.saved.config.hidden
            self._note_columns(texts)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Vectors [N, D]."""
        check_is_fitted(self)
        with in_python():
            from bertwright.tasks.embeddings import features_of, pooled
            from bertwright.tasks.feature_based import frozen_encoder

            texts = self._as_fitted(X)
            config = self.learned_.saved.config
            pool: Any = self.pool
            encoder = self.learned_.ready(frozen_encoder)
            found = np.empty((len(texts), config.hidden), dtype=np.float32)
            wanted: Any = {
                "layers": [plain(self.layer) % (config.layers + 1)],
                "max_length": plain(self.max_length),
            }
            cut = 0
            for row, one in enumerate(features_of(encoder, self.learned_.words, texts.sides[0], **wanted)):
                found[row] = pooled(one, pool)[0]
                cut += one.truncated
            if cut:
                limit = plain(self.max_length) or config.max_positions
                say(f"X: {cut} of {len(texts)} texts exceed {limit} tokens and are cut")
        return found
