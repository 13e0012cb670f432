"""labelled texts → metrics of simple models without an encoder, which an encoder should exceed (beside paper §4.1).

The baselines are the majority label (or the mean number), and a linear model on words and pairs of adjacent words; for
taggers the commonest tag of each word. `text_baselines` needs a second or two also for large data, since it learns from
a sample.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError, MissingExtra
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.split import split_dev
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import TaggingTask, score_tags

INVERSE_PENALTIES: Final = (1.0, 10.0, 0.1, 100.0)
"""Candidates for the inverse of the penalty on the linear model's weights; on ties the earlier one is chosen."""
SELECTION_ROWS: Final = 20_000
"""Largest number of training rows with which the penalty is chosen."""
SAMPLE_TEXTS: Final = 10_000
"""Largest number of training texts from which `text_baselines` learns; a pair is two texts."""
SAMPLE_ROWS: Final = 10_000
"""Largest number of validation rows on which `text_baselines` measures."""
_SAMPLE_CHARACTERS: Final = 2_000_000
"""Number of characters that the texts of a sample have together at most, about."""
_MOST_OUTPUTS: Final = 200
"""Largest number of labels for which `text_baselines` has a bag of words; its time grows with labels times rows."""
_QUICK_PENALTY: Final = 0.1
"""Penalty on the weights of the linear model of `text_baselines`, which chooses none."""
WORD: Final = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Baselines:
    """Metrics of baselines by name, and notes on them: samples, and libraries that are missing."""

    metrics: dict[str, dict[str, float]]
    notes: tuple[str, ...] = ()


def text_baselines(task: ClassificationTask, train: TextExamples, validation: TextExamples) -> Baselines:
    """Return the commonest answer (the mean number) and a bag of words on validation rows; both learn from train.

    Without scikit-learn there is a note in place of the bag of words.
    """
    measured, measured_note = _sample(validation, SAMPLE_ROWS, "measured on")
    most = SAMPLE_TEXTS // len(task.text) // max(1, task.num_outputs // 10)
    fitted, fitted_note = _sample(train, most, "the bag of words learned from")
    name = "mean number" if task.kind == "regression" else "commonest answer"
    targets = measured.targets
    assert targets is not None
    metrics = {name: score_values(task, _commonest(task, train, len(measured)), targets)}
    notes = [*measured_note, *fitted_note]
    if task.num_outputs > _MOST_OUTPUTS:
        note = f"the bag of words is left out, because its time grows with the {task.num_outputs:,} labels"
        return Baselines(metrics, (*measured_note, note))
    try:
        values = _quick_predictions(task, fitted, measured)
        metrics["bag of words"] = score_values(task, values, targets)
    except MissingExtra as error:
        notes = [*measured_note, str(error)]
    return Baselines(metrics, tuple(notes))


def word_baseline(task: TaggingTask, train: Sentences, validation: Sentences) -> Baselines:
    """Return the metrics of the commonest tag of each word in train; an unknown word gets the commonest of all."""
    assert train.tags is not None
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, row in zip(train.words, train.tags, strict=True):
        for word, tag in zip(words, row, strict=True):
            counts[word][tag] += 1
    tags = {word: seen.most_common(1)[0][0] for word, seen in counts.items()}
    every = Counter(chain.from_iterable(train.tags)).most_common(1)[0][0]
    predicted = [[tags.get(word, every) for word in words] for words in validation.words]
    metrics = score_tags(task, predicted, validation)
    return Baselines({"commonest tag of each word": {key: metrics[key] for key in metrics if "." not in key}})


def majority_baseline(task: ClassificationTask, train: TextExamples, validation: TextExamples) -> dict[str, float]:
    """Return the validation metrics of always predicting the majority label (the first on ties) or the mean number."""
    targets = _targets(validation)
    _targets(train)  # refuses several labels
    return score_values(task, _commonest(task, train, len(validation)), targets)


def bag_of_words_baseline(task: ClassificationTask, train: TextExamples, validation: TextExamples) -> dict[str, float]:
    """Return the validation metrics of a linear model on the TF-IDF of words and of pairs of adjacent words.

    The model is a logistic regression, or a ridge regression for numbers. A pair of texts has features of each text, of
    the words in both texts, and of their number. The penalty on the weights is chosen on a tenth of the training rows
    by the task's primary metric. Raises MissingExtra without scikit-learn.
    """
    inverse_penalty = _choose_inverse_penalty(task, train)
    (predictions,) = _fit_predict(task, train, validation, (inverse_penalty,))
    return score_values(task, predictions, _targets(validation))


def _choose_inverse_penalty(task: ClassificationTask, train: TextExamples) -> float:
    """Return the best of INVERSE_PENALTIES on a tenth of the rows; the first where the rows cannot be split."""
    try:
        fitted, measured = split_dev(train)
    except InputError:
        return INVERSE_PENALTIES[0]
    if len(fitted) > SELECTION_ROWS:
        _, fitted = split_dev(fitted, fraction=SELECTION_ROWS / len(fitted))
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
    features, test_features = vectorised(train, test)
    predictions = []
    for inverse in inverse_penalties:
        if task.kind == "regression":
            model = sklearn.linear_model.Ridge(alpha=1.0 / inverse, solver="sparse_cg", tol=1e-3)
        else:
            model = sklearn.linear_model.LogisticRegression(C=inverse, solver="newton-cg", max_iter=1000)
        predictions.append(np.asarray(model.fit(features, targets).predict(test_features)))
    return predictions


def vectorised(train: TextExamples, test: TextExamples) -> tuple[Any, Any]:
    """Return the features of both, of the words and pairs of adjacent words in `train`: sparse matrices [N, features].

    Raises MissingExtra without scikit-learn.
    """
    vectoriser = _sklearn().feature_extraction.text.TfidfVectorizer(
        tokenizer=_words, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64
    )
    vectoriser.fit([*train.texts_a, *(train.texts_b or ())])
    return _features(vectoriser, train), _features(vectoriser, test)


def _quick_predictions(task: ClassificationTask, train: TextExamples, test: TextExamples) -> NDArray[Any]:
    """Return predictions of a linear model with a fixed penalty: for labels a logistic regression against the rest."""
    targets = train.targets
    assert targets is not None
    if not any(WORD.search(text) for text in chain(train.texts_a, train.texts_b or ())):
        return _commonest(task, train, len(test))
    features, test_features = vectorised(train, test)
    if task.kind == "regression":
        model = _sklearn().linear_model.Ridge(alpha=1.0, solver="sparse_cg", tol=1e-3)
        return np.asarray(model.fit(features, targets).predict(test_features))
    several = targets.ndim == 2
    columns = targets if several else targets[:, None] == np.arange(task.num_outputs)
    scores = np.stack([quick_scores(features, is_label, test_features) for is_label in columns.T], axis=1)
    return scores > 0.0 if several else scores.argmax(axis=1)


def quick_scores(features: Any, is_label: NDArray[np.bool_], test_features: Any) -> NDArray[np.float64]:
    """Return the scores of test rows [M] of a logistic regression with a fixed penalty, for one label against the rest.

    features        sparse matrix of the N training rows, as `vectorised` returns it
    is_label        [N] True where a row has the label; where all rows are equal, all scores are infinite
    test_features   sparse matrix of the M test rows
    """
    if is_label.all() or not is_label.any():  # scikit-learn refuses to fit a single label
        return np.full(test_features.shape[0], np.inf if is_label.all() else -np.inf)
    regression = _sklearn().linear_model.LogisticRegression
    model = regression(C=1.0 / _QUICK_PENALTY, solver="liblinear", max_iter=1000).fit(features, is_label)
    return np.asarray(model.decision_function(test_features), dtype=np.float64)


def _commonest(task: ClassificationTask, train: TextExamples, rows: int) -> NDArray[Any]:
    """Return the commonest answer of train (of several labels the commonest set) or its mean number, `rows` times."""
    targets = train.targets
    assert targets is not None
    if task.kind == "regression":
        return np.full(rows, np.mean(targets, dtype=np.float64))
    values, counts = np.unique(targets, axis=0, return_counts=True)
    return np.repeat(values[counts.argmax()][None], rows, axis=0)


def _sample(examples: TextExamples, most: int, what: str) -> tuple[TextExamples, list[str]]:
    """Return at most so many rows with so much text, and a note where these are a sample; it is always the same."""
    characters = sum(map(len, chain(examples.texts_a, examples.texts_b or ())))
    rows, notes = sample_rows(len(examples), characters, most, what)
    return examples if rows is None else examples.select(rows), notes


def sample_rows(num_rows: int, characters: int, most: int, what: str) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return the numbers of at most so many rows with so much text, and a note; None where these are all rows.

    The sample is always the same. `characters`: number of characters of all rows.
    """
    most = min(most, max(1, num_rows * _SAMPLE_CHARACTERS // max(1, characters)))
    if num_rows <= most:
        return None, []
    rows = np.sort(np.random.default_rng(0).choice(num_rows, most, replace=False))
    return rows, [f"{what} a sample of {most:,} of {num_rows:,} rows"]


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
