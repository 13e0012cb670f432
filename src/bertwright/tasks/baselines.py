"""task → figures without a network: what any encoder must beat, under the task's own metrics (beside paper §4.1).

The majority label (or mean number), and a linear model on words and word pairs.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import Examples, split_dev
from bertwright.tasks.classification.spec import ClassificationTask

# Inverse strengths of the penalty, the usual one first: the first of equals wins.
STRENGTHS: Final = (1.0, 10.0, 0.1, 100.0)
# Choosing the strength needs no more rows than this.
SELECTION_ROWS: Final = 20_000
WORD: Final = re.compile(r"\w+|[^\w\s]")


def majority_baseline(task: ClassificationTask, train: Examples, dev: Examples) -> dict[str, float]:
    """Metrics on dev of always answering train's most frequent label (the first of equals), or its mean number."""
    train_targets, dev_targets = _targets(train), _targets(dev)
    answer: Any
    if task.kind == "regression":
        answer = np.mean(train_targets, dtype=np.float64)
    else:
        answer = np.bincount(train_targets, minlength=task.num_outputs).argmax()
    return score_values(task, np.full(len(dev), answer), dev_targets)


def bag_of_words_baseline(
    task: ClassificationTask, train: Examples, dev: Examples, *, seed: int = 0
) -> dict[str, float]:
    """Metrics on dev of a linear model on TF-IDF of words and word pairs: logistic regression, or ridge for numbers.

    Of a pair, both sides have features of their own, and so have the words they share and how much they overlap. The
    strength of the penalty is chosen on a tenth of train, by the task's primary metric, never on dev. MissingExtra
    without scikit-learn.
    """
    strength = _choose_strength(task, train, seed=seed)
    return score_values(task, _fit_predict(task, train, dev, (strength,))[0], _targets(dev))


def _choose_strength(task: ClassificationTask, train: Examples, *, seed: int) -> float:
    """The best of STRENGTHS on an inner split; the first where train is too small to be split."""
    try:
        rest, chosen = split_dev(train, seed=seed)
    except InputError:
        return STRENGTHS[0]
    if len(rest) > SELECTION_ROWS:
        _, rest = split_dev(rest, share=SELECTION_ROWS / len(rest), seed=seed)
    answers = _fit_predict(task, rest, chosen, STRENGTHS)
    figures = [score_values(task, values, _targets(chosen))[task.primary_metric] for values in answers]
    return STRENGTHS[int(np.argmax(figures))]


def _fit_predict(
    task: ClassificationTask, train: Examples, test: Examples, strengths: Sequence[float]
) -> list[NDArray[Any]]:
    """Answers on `test` for each strength, the features learned from `train` alone."""
    linear_model = _sklearn().linear_model
    targets = _targets(train)
    if len(np.unique(targets)) == 1:  # a single label leaves nothing to fit
        return [np.full(len(test), targets[0]) for _ in strengths]
    vectoriser = _vectoriser().fit([*train.texts_a, *(train.texts_b or ())])
    features, asked = _features(vectoriser, train), _features(vectoriser, test)
    answers = []
    for strength in strengths:
        if task.kind == "regression":
            model = linear_model.Ridge(alpha=1.0 / strength, solver="sparse_cg", tol=1e-3)
        else:
            model = linear_model.LogisticRegression(C=strength, solver="newton-cg", max_iter=1000)
        answers.append(np.asarray(model.fit(features, targets).predict(asked)))
    return answers


def _vectoriser() -> Any:
    return _sklearn().feature_extraction.text.TfidfVectorizer(
        tokenizer=_words, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64
    )


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _features(vectoriser: Any, examples: Examples) -> Any:
    """A sparse matrix [N, features]."""
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
    """The shared words' share of all words, of A's and of B's."""
    shared = len(a & b)
    return shared / max(1, len(a | b)), shared / max(1, len(a)), shared / max(1, len(b))


def _targets(examples: Examples) -> NDArray[Any]:
    if examples.targets is None:
        raise ValueError("a baseline needs examples with labels")
    if examples.targets.ndim == 2:
        raise InputError(f"{examples.source}: the baselines answer one label or one number per row, not several labels")
    return examples.targets


def _sklearn() -> Any:
    try:
        import sklearn.feature_extraction.text
        import sklearn.linear_model
    except ImportError:
        raise MissingExtra("tasks", "the bag-of-words baseline") from None
    return sklearn
