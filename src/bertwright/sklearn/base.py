"""parameters → settings; a fitted estimator ↔ a model folder: base classes of the estimators."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import ValidationError
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bertwright.errors import InputError
from bertwright.sklearn.inputs import EstimatorError, Texts, check_texts, in_python
from bertwright.sklearn.notes import NOTES, noted
from bertwright.tasks.spec import TaskSpec

_WARNED_BY_COPIES: set[str] = set()
"""Warnings that estimators from a pickle have given, as in the processes of a search with `n_jobs`."""


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators with texts as input.

    An estimator and its clones give a warning once, so a search does not repeat it for each candidate and fold.
    """

    n_features_in_: int
    feature_names_in_: Any
    _warned: set[str]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        return tags

    def __sklearn_clone__(self) -> Self:
        clone: Self = super().__sklearn_clone__()
        clone._warned = self._warnings()
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the warnings, which would make other names in the cache of a pipeline."""
        return {name: value for name, value in super().__getstate__().items() if name != "_warned"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._warned = _WARNED_BY_COPIES

    def _warnings(self) -> set[str]:
        """Return the warnings that this estimator and its clones have given."""
        if not hasattr(self, "_warned"):
            self._warned = set()
        return self._warned

    def _in_python(self) -> AbstractContextManager[None]:
        return in_python(self._warnings(), verbose=bool(getattr(self, "verbose", False)))

    def _texts(self, X: Any) -> Texts:
        """Return the texts of X."""
        return check_texts(X)

    def _as_fitted(self, X: Any) -> Texts:
        """Return the texts of X. Raises EstimatorError where its columns differ from those of `fit`."""
        texts = self._texts(X)
        if len(texts.sides) != self.n_features_in_:
            expected = f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise EstimatorError(f"X has {len(texts.sides)} features, but {expected}")
        fitted = getattr(self, "feature_names_in_", None)
        if texts.names is not None and fitted is not None and list(texts.names) != list(fitted):
            raise _other_columns(fitted, texts.names)
        return texts

    def _note_columns(self, texts: Texts) -> None:
        """Store the columns of `fit`. Called last, so that a failed fit leaves an earlier one intact."""
        self.n_features_in_ = len(texts.sides)
        if texts.names is not None:
            self.feature_names_in_ = np.array(texts.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_


@dataclass(kw_only=True, eq=False, repr=False)
class Trained(TextEstimator):
    """Base class of estimators that are fine-tuned; its fields are the parameters that all of them have."""

    _settings: ClassVar = ("epochs", "batch_size", "learning_rate", "max_length", "precision", "threads")
    _noted: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "learning_rate", "precision", "random_state")

    model: str | Path = field(kw_only=False)
    tokenizer: str | Path | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    max_length: int = 128
    precision: str = "auto"
    threads: int | None = None
    random_state: Any = 0
    verbose: bool = False

    def save(self, folder: str | Path) -> None:
        """Write a model folder for `bertwright.load`, `bertwright predict` and `load`."""
        check_is_fitted(self)
        with self._in_python():
            self.learned_.save(Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted estimator of a saved estimator, or of a model folder or run of `bertwright finetune`.

        A further `fit` starts from this model.
        """
        from bertwright.sklearn.fit import read
        from bertwright.tasks.kinds import task_of

        with in_python():
            learned = read(folder)
            estimator = cls(model=str(folder))
            values = noted(learned, "parameters", {})
            names = set(cls._noted) & set(estimator.get_params())
            estimator.set_params(**{name: value for name, value in values.items() if name in names})
            task = task_of(learned.saved)
            if not estimator._can_predict(task):
                raise InputError(f"{folder}: expected a model for {cls.__name__}, got one for {task.name}")
            estimator._set_fitted(learned, task)
        return estimator

    def _can_predict(self, task: TaskSpec) -> bool:
        """Return whether the estimator predicts the answers of this task."""
        raise NotImplementedError

    def _set_fitted(self, learned: Any, task: Any) -> None:
        """Set the attributes of a fitted estimator from a model folder and its task."""
        self.learned_, self.max_length = learned, learned.saved.max_length

    def _notes(self, **more: Any) -> dict[str, Any]:
        values = {name: python_scalar(getattr(self, name)) for name in self._noted if hasattr(self, name)}
        kept = {name: value for name, value in values.items() if value is None or isinstance(value, str | int | float)}
        return {NOTES: {"parameters": kept, **more}}

    def _learn(self, task: TaskSpec, rows: Any, **notes: Any) -> Any:
        """Return the model fine-tuned on labelled rows; `notes` are stored in its folder beside the parameters."""
        from bertwright.finetuning.settings import FinetuneSettings
        from bertwright.sklearn.fit import fit_model

        values = {name: python_scalar(getattr(self, name)) for name in self._settings}
        settings = validated(FinetuneSettings, {**values, "first_seed": seed_of(self.random_state)})
        return fit_model(
            task,
            rows,
            settings,
            model=self.model,
            tokenizer=self.tokenizer,
            notes=self._notes(**notes),
            verbose=bool(self.verbose),
        )


def _other_columns(fitted: Sequence[Any], columns: Sequence[Any]) -> EstimatorError:
    """Return the error for columns of texts that differ from those of `fit`, or have another order."""
    names = f"{', '.join(map(str, fitted))} in fit, {', '.join(map(str, columns))} now"
    return EstimatorError(f"The feature names should match those that were passed during fit, in their order: {names}")


def refuse_other_order(trained: Sequence[str], columns: Sequence[Any] | None) -> None:
    """Raise EstimatorError for the columns of the training in another order; other names are no error."""
    names = [str(column) for column in columns or ()]
    if names != [*trained] and sorted(names) == sorted(trained):
        raise _other_columns(trained, names)


def validated(settings: Any, values: dict[str, Any]) -> Any:
    """Return the settings with these values. Raises EstimatorError for the first invalid value."""
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "the parameters"
        name = "random_state" if name == "first_seed" else name
        raise EstimatorError(f"{name}: {first['input']!r}: {first['msg']}") from None


def python_scalar(value: Any) -> Any:
    """Return a numpy scalar, as parameter searches draw them, as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def seed_of(random_state: Any) -> int:
    """Return the seed: a whole number itself, as `bertwright finetune --first-seed`; None draws one."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise EstimatorError(f"random_state: {error}") from None


def in_order(labels: Sequence[str], kind: str, source: str) -> Any:
    """Return the classes of a model folder in their original type."""
    types: dict[str, Any] = {"int": int, "float": float, "bool": lambda text: {"true": True, "false": False}[text]}
    try:
        return np.array([types.get(kind, str)(label) for label in labels])
    except (KeyError, ValueError):
        raise EstimatorError(f"{source}: expected labels of type {kind}, got {', '.join(labels)}") from None
