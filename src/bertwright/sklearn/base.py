"""parameters → settings, a fitted estimator → a folder and back: what the trained estimators have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import ValidationError
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bertwright.sklearn.inputs import EstimatorError, Texts, in_python, texts_of

NOTES = "estimator"
"""Where the model folder notes what only an estimator asks for."""


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose inputs are texts."""

    n_features_in_: int
    feature_names_in_: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        return tags

    def _texts(self, X: Any) -> Texts:
        """The texts of X."""
        return texts_of(X)

    def _as_fitted(self, X: Any) -> Texts:
        """The texts of X; EstimatorError where its columns are not those of `fit`."""
        texts = self._texts(X)
        if len(texts.sides) != self.n_features_in_:
            due = f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise EstimatorError(f"X has {len(texts.sides)} features, but {due}")
        fitted = getattr(self, "feature_names_in_", None)
        if texts.names is not None and fitted is not None and list(texts.names) != list(fitted):
            names = f"{', '.join(map(str, fitted))} in fit, {', '.join(map(str, texts.names))} now"
            raise EstimatorError(
                f"The feature names should match those that were passed during fit, in their order: {names}"
            )
        return texts

    def _note_columns(self, texts: Texts) -> None:
        """Note those of `fit`, once nothing of it can fail any more: until then an older fit stays whole."""
        self.n_features_in_ = len(texts.sides)
        if texts.names is not None:
            self.feature_names_in_ = np.array(texts.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_


class Trained(TextEstimator):
    """An estimator that is fine-tuned."""

    _settings: ClassVar[tuple[str, ...]] = (
        "epochs",
        "batch_size",
        "learning_rate",
        "max_length",
        "precision",
        "threads",
    )
    _noted: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "learning_rate", "precision", "random_state")

    def save(self, folder: str | Path) -> None:
        """Write a model folder, which `bertwright.load`, `bertwright predict` and `load` read."""
        check_is_fitted(self)
        with in_python():
            self.learned_.save(Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The fitted estimator of a model folder or a run: one that was saved, or one of `bertwright finetune`.

        Fitted again, it begins from that model.
        """
        from bertwright.sklearn.fit import read

        with in_python():
            learned = read(folder)
            found = cls(model=str(folder))
            values = noted(learned, "parameters", {})
            names = set(cls._noted) & set(found.get_params())
            found.set_params(**{name: value for name, value in values.items() if name in names})
            found._take(learned)
        return found

    def _take(self, learned: Any) -> None:
        """Become what the model folder says; InputError where it is one of another kind."""
        raise NotImplementedError

    def _notes(self, **more: Any) -> dict[str, Any]:
        values = {name: plain(getattr(self, name)) for name in self._noted if hasattr(self, name)}
        kept = {name: value for name, value in values.items() if value is None or isinstance(value, str | int | float)}
        return {NOTES: {"parameters": kept, **more}}

    def _learn(self, bind: Any, **more: Any) -> Any:
        from bertwright.finetuning.settings import FinetuneSettings
        from bertwright.sklearn.fit import learn

        values = {name: plain(getattr(self, name)) for name in self._settings}
        settings = validated(FinetuneSettings, {**values, "first_seed": seed_of(self.random_state)})
        return learn(
            bind,
            settings,
            model=self.model,
            tokenizer=self.tokenizer,
            notes=self._notes(**more),
            verbose=bool(self.verbose),
        )


def validated(settings: Any, values: dict[str, Any]) -> Any:
    """The settings of these values; EstimatorError names the first that cannot be."""
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = {"first_seed": "random_state"}.get(*[str(first["loc"][0])] * 2) if first["loc"] else "the parameters"
        raise EstimatorError(f"{name}: {first['input']!r}: {first['msg']}") from None


def noted(learned: Any, name: str, default: Any) -> Any:
    """What a model folder notes for its estimator; a folder made otherwise notes nothing, or something else."""
    notes = learned.saved.extra.get(NOTES)
    found = notes.get(name, default) if isinstance(notes, dict) else default
    return found if isinstance(found, type(default)) else default


def plain(value: Any) -> Any:
    """A number of numpy's, as searches draw them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def seed_of(random_state: Any) -> int:
    """A whole number is the seed itself, as `bertwright finetune --first-seed` has it; None draws one."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise EstimatorError(f"random_state: {error}") from None


def in_order(labels: Sequence[str], kind: str, place: str) -> Any:
    """The classes of a model folder, of the type that they had."""
    types: dict[str, Any] = {"int": int, "float": float, "bool": lambda text: {"true": True, "false": False}[text]}
    try:
        return np.array([types.get(kind, str)(label) for label in labels])
    except (KeyError, ValueError):
        raise EstimatorError(f"{place}: notes that its labels are {kind}, and they are {', '.join(labels)}") from None
