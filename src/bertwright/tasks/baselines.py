"""labelled texts → metrics of two simple models without an encoder, which an encoder should exceed (beside paper §4.1).

The baselines are the majority label (or the mean number), and a linear model on words and pairs of adjacent words.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.split import split_dev

INVERSE_PENALTIES: Final = (1.0, 10.0, 0.1, 100.0)
"""Candidates for the inverse of the penalty on the linear model's weights; on ties the earlier one is chosen."""
SELECTION_ROWS: Final = 20_000
"""Largest number of training rows with which the penalty is chosen."""
WORD: Final = re.compile(r"\w+|[^\w\s]")


def majority_baseline(task: ClassificationTask, train: TextExamples, validation: TextExamples) -> dict[str, float]:
    """Return the validation metrics of always predicting the majority label (the first on ties) or the mean number."""
    train_targets, validation_targets = _targets(train), _targets(validation)
    answer: Any
    if task.kind == "regression":
        answer = np.mean(train_targets, dtype=np.float64)
    else:
        answer = np.bincount(train_targets, minlength=task.num_outputs).argmax()
    return score_values(task, np.full(len(validation), answer), validation_targets)


def bag_of_words_baseline(
    task: ClassificationTask, train: TextExamples, validation: TextExamples, *, seed: int = 0
) -> dict[str, float]:
    """Return the validation metrics of a linear model on the TF-IDF of words and of pairs of adjacent words.

    The model is a logistic regression, or a ridge regression for numbers. A pair of texts has features of each text, of
    the words in both texts, and of their number. The penalty on the weights is chosen on a tenth of the training rows
    by the task's primary metric. Raises MissingExtra without scikit-learn.
    """
    inverse_penalty = _choose_inverse_penalty(task, train, seed=seed)
    (predictions,) = _fit_predict(task, train, validation, (inverse_penalty,))
    return score_values(task, predictions, _targets(validation))


def _choose_inverse_penalty(task: ClassificationTask, train: TextExamples, *, seed: int) -> float:
    """Return the best of INVERSE_PENALTIES on a tenth of the rows; the first where the rows cannot be split."""
    try:
        fitted, measured = split_dev(train, seed=seed)
    except InputError:
        return INVERSE_PENALTIES[0]
    if len(fitted) > SELECTION_ROWS:
        _, fitted = split_dev(fitted, fraction=SELECTION_ROWS / len(fitted), seed=seed)
    predictions = _fit_predict(task, fitted, measured, INVERSE_PENALTIES)
    metrics = [score_values(task, values, _targets(measured))[task.primary_metric] for values in predictions]
    return INVERSE_PENALTIES[int(np.argmax(metrics))]


def _fit_predict(
    task: ClassificationTask, train: TextExamples, test: TextExamples, inverse_penalties: Sequence[float]
) -> list[NDArray[Any]]:
    """Return the predictions on `test` of a model fitted on `train`, for each inverse penalty."""
    sklearn = _sklearn()
    targets = _targets(train)
    if len(np.unique(targets)) == 1:  # scikit-learn refuses to fit a single label
        return [np.full(len(test), targets[0]) for _ in inverse_penalties]
    vectoriser = sklearn.feature_extraction.text.TfidfVectorizer(
        tokenizer=_words, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64
    )
    vectoriser.fit([*train.texts_a, *(train.texts_b or ())])
    features, test_features = _features(vectoriser, train), _features(vectoriser, test)
    predictions = []
    for inverse in inverse_penalties:
        if task.kind == "regression":
            model = sklearn.linear_model.Ridge(alpha=1.0 / inverse, solver="sparse_cg", tol=1e-3)
        else:
            model = sklearn.linear_model.LogisticRegression(C=inverse, solver="newton-cg", max_iter=1000)
        predictions.append(np.asarray(model.fit(features, targets).predict(test_features)))
    return predictions


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _features(vectoriser: Any, examples: TextExamples) -> Any:
    """Return a sparse matrix [N, features]; a pair also has features of the words in both texts."""
    import scipy.sparse

    first = vectoriser.transform(examples.texts_a)
    if examples.texts_b is None:
        return first
    second = vectoriser.transform(examples.texts_b)
    shared = first.multiply(second)
    cosine = np.asarray(shared.sum(axis=1))
    pairs = zip(examples.texts_a, examples.texts_b, strict=True)
    overlap = np.array([_overlap(set(_words(a)), set(_words(b))) for a, b in pairs])
    dense = scipy.sparse.csr_matrix(np.hstack([cosine, overlap]))
    return scipy.sparse.hstack([first, second, shared, dense], format="csr")


def _overlap(a: set[str], b: set[str]) -> tuple[float, float, float]:
    """Return the words in both texts as a fraction of all words, of the words of A, and of the words of B."""
    num_shared = len(a & b)
    return num_shared / max(1, len(a | b)), num_shared / max(1, len(a)), num_shared / max(1, len(b))


def _targets(examples: TextExamples) -> NDArray[Any]:
    if examples.targets is None:
        raise ValueError("a baseline needs examples with labels")
    if examples.targets.ndim == 2:
        raise InputError(
            f"{examples.source}: the baselines need one label or one number per row; this task has several labels"
        )
    return examples.targets


def _sklearn() -> Any:
    try:
        import sklearn.feature_extraction.text
        import sklearn.linear_model
    except ImportError:
        raise MissingExtra("tasks", "the bag-of-words baseline") from None
    return sklearn
