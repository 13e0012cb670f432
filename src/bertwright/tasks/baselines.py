"""task → metrics without a network, as a lower bound for any encoder (beside paper §4.1).

Two baselines: the majority label (or mean number), and a linear model on words and word pairs.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import TextExamples, split_dev
from bertwright.tasks.classification.spec import ClassificationTask

# Inverse strengths of the penalty; the default comes first and wins ties.
STRENGTHS: Final = (1.0, 10.0, 0.1, 100.0)
# Number of rows that are enough to choose the strength.
SELECTION_ROWS: Final = 20_000
WORD: Final = re.compile(r"\w+|[^\w\s]")


def majority_baseline(task: ClassificationTask, train: TextExamples, validation: TextExamples) -> dict[str, float]:
    """Return the validation metrics of the most frequent training label (the first on ties) or the mean number."""
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
    """Return the validation metrics of a linear model on TF-IDF of words and word pairs.

    The model is a logistic regression, or a ridge regression for numbers. A pair has features for each text, for the
    words that both share, and for the size of the overlap. The strength of the penalty is chosen on a tenth of the
    training rows by the task's primary metric. Raises MissingExtra without scikit-learn.
    """
    strength = _choose_strength(task, train, seed=seed)
    return score_values(task, _fit_predict(task, train, validation, (strength,))[0], _targets(validation))


def _choose_strength(task: ClassificationTask, train: TextExamples, *, seed: int) -> float:
    """Return the best of STRENGTHS on an inner split; the first where there are too few rows to split."""
    try:
        rest, validation = split_dev(train, seed=seed)
    except InputError:
        return STRENGTHS[0]
    if len(rest) > SELECTION_ROWS:
        _, rest = split_dev(rest, fraction=SELECTION_ROWS / len(rest), seed=seed)
    predictions = _fit_predict(task, rest, validation, STRENGTHS)
    metrics = [score_values(task, values, _targets(validation))[task.primary_metric] for values in predictions]
    return STRENGTHS[int(np.argmax(metrics))]


def _fit_predict(
    task: ClassificationTask, train: TextExamples, test: TextExamples, strengths: Sequence[float]
) -> list[NDArray[Any]]:
    """Return the predictions on `test` for each strength; only `train` decides the features."""
    linear_model = _sklearn().linear_model
    targets = _targets(train)
    if len(np.unique(targets)) == 1:  # there is nothing to fit
        return [np.full(len(test), targets[0]) for _ in strengths]
    vectoriser = _vectoriser().fit([*train.texts_a, *(train.texts_b or ())])
    features, test_features = _features(vectoriser, train), _features(vectoriser, test)
    predictions = []
    for strength in strengths:
        if task.kind == "regression":
            model = linear_model.Ridge(alpha=1.0 / strength, solver="sparse_cg", tol=1e-3)
        else:
            model = linear_model.LogisticRegression(C=strength, solver="newton-cg", max_iter=1000)
        predictions.append(np.asarray(model.fit(features, targets).predict(test_features)))
    return predictions


def _vectoriser() -> Any:
    return _sklearn().feature_extraction.text.TfidfVectorizer(
        tokenizer=_words, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64
    )


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _features(vectoriser: Any, examples: TextExamples) -> Any:
    """Return a sparse matrix [N, features]."""
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
    """Return the number of shared words as a fraction of all words, of the words of A, and of the words of B."""
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
