"""The scikit-learn estimators: the conventions that scikit-learn itself checks, and what they learn."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

import bertwright
from bertwright import load
from bertwright.cli import main
from bertwright.errors import InputError, MissingExtra
from bertwright.finetuning.evaluate import predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.vector_settings import VectorSettings
from bertwright.sklearn.estimators import BertClassifier, BertRegressor, BertVectorizer
from bertwright.sklearn.inputs import EstimatorError, Texts
from bertwright.sklearn.tagger import BertTagger
from bertwright.tasks.classification.spec import CLASSIFY
from bertwright.tasks.tagging.spec import Tagged
from bertwright.text.wordpiece import train_wordpiece
from tests.support.eight_sentences import PEOPLE, TOWNS, sentence
from tests.support.encoders import write_encoder
from tests.support.texts import PLACES
from tests.support.vectors import write_vector_model

X = [f"we met in the {noun}" for noun in PLACES]
Y = np.array(["dry", "wet"] * 4)
NUMBERS = np.array([3.0, -1.0] * 4)
FAST: dict[str, Any] = {"epochs": 30, "batch_size": 4, "learning_rate": 3e-3, "max_length": 24, "precision": "fp32"}
ONCE: dict[str, Any] = {"epochs": 1, "batch_size": 64, "max_length": 16, "precision": "fp32"}
TAGGED = [sentence(row) for row in range(8)]
WORDS, TAGS = [words for words, _ in TAGGED], [tags for _, tags in TAGGED]


@pytest.fixture(scope="module")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Path:
    """A folder with two small random encoders, `model` and `small`."""
    folder = tmp_path_factory.mktemp("encoders")
    texts = [own_text.read_text("utf-8"), *PLACES * 3, *PEOPLE, *TOWNS]
    train_wordpiece(texts, vocab_size=500).save(folder / "tok")
    write_encoder(folder / "model", folder / "tok")
    small: dict[str, Any] = {"hidden": 8, "layers": 1, "intermediate": 16}
    write_encoder(folder / "small", folder / "tok", **small, hidden_dropout=0.1, attention_dropout=0.1)
    return folder


@pytest.fixture(autouse=True)
def beside_the_models(encoder_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimators are made before any folder is: they name their model relative to where the test runs."""
    monkeypatch.chdir(encoder_folders)


@pytest.fixture(scope="module")
def fitted(encoder_folders: Path) -> BertClassifier:
    """A classifier that learned the eight sentences."""
    return BertClassifier(str(encoder_folders / "model"), **FAST).fit(X, Y)


# scikit-learn's checks hand out rows of numbers. An estimator of texts that says so is asked nothing but whether it can
# be cloned, so the numbers are read aloud here: everything behind the reading is the estimators' own.


class Aloud:
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = False, True, False
        if tags.classifier_tags:
            tags.classifier_tags.poor_score = True  # one epoch of a tiny model
        if tags.regressor_tags:
            tags.regressor_tags.poor_score = True
        return tags

    def _texts(self, X: Any) -> Texts:
        return self._aloud(validate_data(self, X))

    def _as_fitted(self, X: Any) -> Texts:
        return self._aloud(validate_data(self, X, reset=False))

    def _note_columns(self, texts: Texts) -> None:
        """Theirs are noted already."""

    def _aloud(self, rows: Any) -> Texts:
        return Texts((tuple(" ".join(f"{cell:.1f}" for cell in row[:3]) for row in rows),))


class Classifier(Aloud, BertClassifier):
    pass


class Regressor(Aloud, BertRegressor):
    pass


class Vectorizer(Aloud, BertVectorizer):
    pass


REPEATED = (
    "a row of weight 2 has the gradient of two equal rows, but it is drawn once in an epoch: other batches, other "
    "steps. That a row of weight 0 is absent, the other half of the check, is tested below."
)
EXPECTED: dict[type, dict[str, str]] = {
    Classifier: {"check_sample_weight_equivalence_on_dense_data": REPEATED},
    Regressor: {"check_sample_weight_equivalence_on_dense_data": REPEATED},
}


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED.get(type(estimator), {})


with warnings.catch_warnings():  # of texts there is little to check: see above
    warnings.simplefilter("ignore", SkipTestWarning)
    options: Any = {"expected_failed_checks": expected_failures, "xfail_strict": True}
    CHECKS = parametrize_with_checks(
        [
            Classifier("small", **ONCE),
            Vectorizer("small", max_length=16, precision="fp32"),
            *(BertClassifier("small"), BertRegressor("small"), BertTagger("small"), BertVectorizer("small")),
        ],
        **options,
    )
    CHECKS_OF_NUMBERS = parametrize_with_checks([Regressor("small", **ONCE)], **options)


@CHECKS
@pytest.mark.filterwarnings("ignore:X. .* exceed .* tokens:UserWarning")
def test_scikit_learn_finds_what_it_expects(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@CHECKS_OF_NUMBERS
@pytest.mark.filterwarnings("ignore:X. .* exceed .* tokens:UserWarning")
def test_scikit_learn_finds_what_it_expects_of_numbers(estimator: Any, check: Any) -> None:
    check(estimator)


# The rest is asked of the estimators as they are.


def test_eight_sentences_are_learned_by_heart(fitted: BertClassifier) -> None:
    assert fitted.predict(X).tolist() == Y.tolist()
    assert fitted.score(X, Y) == 1.0
    assert fitted.classes_.tolist() == ["dry", "wet"]
    assert fitted.n_features_in_ == 1
    shares = fitted.predict_proba(X)
    assert shares.sum(axis=1) == pytest.approx(np.ones(8))
    assert ((shares[:, 1] > 0.5) == (fitted.decision_function(X) > 0)).all()
    assert np.exp(fitted.predict_log_proba(X)) == pytest.approx(shares)
    for form in (
        np.array(X),
        np.array(X, dtype=object),
        pd.Series(X, name="said"),
        pd.DataFrame({"said": X}),
        tuple(X),
    ):
        assert np.array_equal(fitted.predict_proba(form), shares)
    assert np.array_equal(fitted.predict_proba(X[:1])[0], shares[0]) or np.allclose(
        fitted.predict_proba(X[:1])[0], shares[0]
    )


def test_one_number_gives_one_model_and_disturbs_nothing(fitted: BertClassifier) -> None:
    torch.manual_seed(7)
    before, threads, is_exact = (
        torch.get_rng_state(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    again = clone(fitted).fit(X, Y)
    assert torch.equal(before, torch.get_rng_state())
    assert (threads, is_exact) == (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    other = clone(fitted).set_params(random_state=1, epochs=1).fit(X, Y)
    same = clone(fitted).set_params(random_state=np.int64(1), epochs=np.int64(1)).fit(X, Y)
    assert not np.array_equal(other.predict_proba(X), again.predict_proba(X))
    assert np.array_equal(other.predict_proba(X), same.predict_proba(X))


@pytest.mark.parametrize("y", [np.array([10, 9] * 4), np.array([True, False] * 4), [2.0, 1.0] * 4, ["b", "a"] * 4])
def test_classes_keep_their_type_and_order(y: Any, tmp_path: Path) -> None:
    model = BertClassifier("model", **FAST | {"max_length": 12}).fit(X, y)
    assert model.classes_.tolist() == sorted(set(np.asarray(y).tolist()))
    assert model.predict(X).dtype == np.asarray(y).dtype
    assert model.predict(X).tolist() == np.asarray(y).tolist()
    model.save(tmp_path / "m")
    back = BertClassifier.load(tmp_path / "m")
    assert back.classes_.tolist() == model.classes_.tolist()
    assert back.predict(X).tolist() == model.predict(X).tolist()


LARGE = [2**53, 2**53 + 1] * 4
TYPED: dict[str, tuple[Any, list[Any]]] = {
    "Int64": (pd.Series([10, 9] * 4, dtype="Int64"), [10, 9] * 4),
    "boolean": (pd.Series([True, False] * 4, dtype="boolean"), [True, False] * 4),
    "Arrow": (pd.Series([10, 9] * 4, dtype="int64[pyarrow]"), [10, 9] * 4),
    "large": (pd.Series(LARGE, dtype="Int64"), LARGE),
    "large list": (LARGE, LARGE),
    "objects": (np.array(LARGE, dtype=object), LARGE),
}


@pytest.mark.parametrize("name", TYPED)
def test_labels_of_pandas_are_what_they_are(name: str, tmp_path: Path) -> None:
    y, values = TYPED[name]
    model = BertClassifier("small", **ONCE).fit(X, y)
    assert model.classes_.tolist() == sorted(set(values))
    assert {type(label) for label in model.classes_.tolist()} == {type(values[0])}
    assert set(model.predict(X).tolist()) <= set(values)
    model.save(tmp_path / "m")
    assert BertClassifier.load(tmp_path / "m").classes_.tolist() == model.classes_.tolist()


def test_several_classes_and_pairs() -> None:
    pairs = [("a question", text) for text in X]
    y = ["low", "middle", "high", "none"] * 2
    model = BertClassifier("model", **FAST).fit(pairs, y)
    assert model.predict(pairs).tolist() == y
    assert model.n_features_in_ == 2
    assert model.decision_function(pairs).shape == model.predict_proba(pairs).shape == (8, 4)
    assert model.predict(np.array(pairs)).tolist() == y
    frame = pd.DataFrame(pairs, columns=["asked", "said"])
    assert model.predict(frame).tolist() == y
    assert model.predict(pa.Table.from_pandas(frame)).tolist() == y
    with pytest.raises(EstimatorError, match="X has 1 features, but BertClassifier is expecting 2 features"):
        model.predict(X)
    short = clone(model).set_params(epochs=1).fit(frame, y)
    assert short.feature_names_in_.tolist() == ["asked", "said"]
    assert short.learned_.saved.extra["task"]["text"] == ["asked", "said"]


def test_searches_and_pipelines_take_it() -> None:
    quick = BertClassifier("small", **FAST | {"epochs": 1})
    search = GridSearchCV(quick, {"learning_rate": [1e-3, 3e-3]}, cv=2, scoring="roc_auc").fit(X, Y)
    assert set(search.best_params_) == {"learning_rate"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert cross_val_score(quick, np.array(X), Y, cv=2).shape == (2,)
    piped = make_pipeline(BertVectorizer("model", pool="cls"), LogisticRegression(C=1e4, max_iter=2000)).fit(X, Y)
    assert piped.predict(X).tolist() == Y.tolist()
    tagged = cross_val_score(BertTagger("small", **FAST | {"epochs": 1}), WORDS, TAGS, cv=KFold(2))
    assert tagged.shape == (2,)
    assert np.isfinite(tagged).all()


def test_a_tagger_needs_tags() -> None:
    with pytest.raises(ValueError, match="y: expected a list of tags for each text, got None"):
        BertTagger("small", **FAST).fit(WORDS, None)


def test_threads_of_joblib_give_the_same() -> None:
    quick = BertClassifier("small", **FAST | {"epochs": 2})
    alone = cross_val_score(quick, X, Y, cv=2, scoring="neg_log_loss")
    with joblib.parallel_config(backend="threading", n_jobs=2):  # dropout must not be drawn by both at once
        assert np.array_equal(cross_val_score(quick, X, Y, cv=2, scoring="neg_log_loss"), alone)


def test_a_model_opened_in_another_thread_changes_no_fit(
    fitted: BertClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch draws from the one generator for every new module, here right before a fit draws its dropout."""
    quick = BertClassifier("small", **FAST | {"epochs": 2})
    alone = quick.fit(X, Y).predict_proba(X)
    other = pickle.loads(pickle.dumps(fitted))  # as not yet opened
    answers = threading.Thread(target=other.predict, args=(X,))
    seed = torch.manual_seed

    def seeded(number: int) -> torch.Generator:
        fitted = seed(number)
        if answers.ident is None:
            answers.start()
            answers.join(2.0)  # it waits for this very fit
        return fitted

    monkeypatch.setattr(torch, "manual_seed", seeded)
    assert np.array_equal(quick.fit(X, Y).predict_proba(X), alone)
    answers.join()
    before = torch.get_rng_state()
    assert np.array_equal(pickle.loads(pickle.dumps(other)).predict(X), other.predict(X))
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_decide_what_is_learned() -> None:
    settings = FAST | {"epochs": 3, "random_state": 5}
    absent = BertClassifier("model", **settings).fit(X[:6], Y[:6])
    zero = BertClassifier("model", **settings).fit(X, Y, sample_weight=[1.0] * 6 + [0.0] * 2)
    assert np.array_equal(zero.predict_proba(X), absent.predict_proba(X))
    numbers = BertRegressor("model", **settings).fit(X, NUMBERS, [1.0] * 6 + [0.0] * 2)
    assert np.array_equal(numbers.predict(X), BertRegressor("model", **settings).fit(X[:6], NUMBERS[:6]).predict(X))
    # the same text with both answers: the weight decides
    for first, said in ((9.0, "dry"), (1.0, "wet")):
        model = BertClassifier("model", **FAST | {"max_length": 12}).fit(
            ["here", "here"], ["dry", "wet"], [first, 10.0 - first]
        )
        assert model.predict(["here"]).tolist() == [said]
        assert model.predict_proba(["here"])[0, 0] == pytest.approx(first / 10.0, abs=0.15)


def test_classes_may_weigh() -> None:
    texts, y = ["here"] * 8, np.array([0] * 6 + [1] * 2)
    settings = FAST | {"max_length": 12, "batch_size": 8, "epochs": 20}
    probabilities_by = {
        name: BertClassifier("model", class_weight=weight, **settings).fit(texts, y).predict_proba(["here"])[0, 1]
        for name, weight in {"none": None, "balanced": "balanced", "third": {1: 3.0}, "same": {0: 1, 1: 1.0}}.items()
    }
    assert probabilities_by["none"] == pytest.approx(0.25, abs=0.1)
    assert probabilities_by["balanced"] == pytest.approx(0.5, abs=0.1)
    assert probabilities_by["third"] == pytest.approx(probabilities_by["balanced"], abs=0.02)
    assert probabilities_by["same"] == probabilities_by["none"]


@pytest.mark.parametrize("weight", ["balanced", {10: 2.0, 9: 1.0}])
def test_the_weights_of_classes_are_kept(weight: Any, tmp_path: Path) -> None:
    model = BertClassifier("small", class_weight=weight, **ONCE).fit(X, [10, 9] * 4)
    model.save(tmp_path / "m")
    assert BertClassifier.load(tmp_path / "m").class_weight == weight


def test_a_command_in_a_message_stays_one(encoder_folders: Path) -> None:
    with pytest.raises(EstimatorError, match="run: bertwright finetune TASK --model"):
        BertClassifier.load("model")


def test_numbers_are_learned() -> None:
    model = BertRegressor("model", **FAST | {"epochs": 40}).fit(pd.Series(X), NUMBERS)
    assert model.score(X, NUMBERS) > 0.95
    assert model.predict(X).dtype == np.float64


def test_large_and_small_numbers_are_answered_in_every_precision(tmp_path: Path) -> None:
    """Targets of years and of millionths, by every method of the estimator."""
    for name, centre, scale in (("years", 1950.0, 1.0), ("shares", 3e-7, 1e-7)):
        numbers = centre + scale * NUMBERS
        model = BertRegressor("model", **FAST | {"epochs": 40}).fit(X, numbers)
        model.save(tmp_path / name)
        for precision in ("fp32", "bf16"):
            answers = [float(answer.score) for answer in load(tmp_path / name, precision=precision)(X)]
            assert np.corrcoef(answers, numbers)[0, 1] > 0.98
            assert answers == pytest.approx(model.predict(X), abs=0.2 * scale)
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in X))
        where = ["--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "answers.jsonl")]
        assert main(["predict", "--model", str(tmp_path / name), *where, "--precision", "fp32"]) == 0
        written = [json.loads(line)["score"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
        assert written == pytest.approx(model.predict(X).tolist(), rel=1e-5)
        (tmp_path / "answers.jsonl").unlink()


@pytest.mark.parametrize("scheme", ["auto", "plain"])
def test_tags_are_learned(scheme: str, tmp_path: Path) -> None:
    model = BertTagger("model", scheme=scheme, **FAST | {"max_length": 40, "epochs": 25}).fit(WORDS, TAGS)
    assert model.predict(WORDS) == TAGS
    assert model.score(WORDS, TAGS) == 1.0
    wrong = [["B-PER", *tags[1:]] if row else ["O"] * 7 for row, tags in enumerate(TAGS)]
    assert 0.8 < model.score(WORDS, wrong) < 1.0
    model.save(tmp_path / "m")
    back = BertTagger.load(tmp_path / "m")
    assert back.predict([*WORDS, []]) == [*TAGS, []]
    assert back.get_params()["scheme"] == scheme
    assert model.score([*WORDS, ["a"]], [*TAGS, ["B-XYZ"]]) < 1.0  # a fold may hold what no other has: it is missed
    assert np.array_equal(back.classes_, model.classes_)


def test_tags_are_written_as_the_entities_that_they_are_read_as(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertTagger("model", **ONCE).fit(WORDS, TAGS)
    raw = Tagged((("O", "I-PER", "I-PER", "O"),), np.ones(4))
    monkeypatch.setattr("bertwright.tasks.tagging.task.decode_tags", lambda *_: raw)
    tags = model.predict([["a", "b", "c", "d"]])
    assert tags == [["O", "B-PER", "I-PER", "O"]]
    assert model.score([["a", "b", "c", "d"]], tags) == 1.0
    with pytest.raises(EstimatorError, match=r"y\[0\]\[2\]: 'I-PER' after 'O' is .* 'B-PER' at y\[0\]\[0\] shows"):
        model.fit([["a", "b", "c"]], [["B-PER", "O", "I-PER"]])


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError])
def test_a_fit_that_ends_too_early_leaves_the_older_one(trouble: type, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertClassifier("model", **ONCE).fit(X, Y)
    vectors = BertVectorizer("model").fit(X)
    before = model.predict_proba(X)

    def fails(*_: Any, **__: Any) -> None:
        raise trouble

    monkeypatch.setattr("bertwright.sklearn.fit.fit_model", fails)
    with pytest.raises(trouble):
        model.fit([(text, text) for text in X], np.arange(len(X)) % 3)
    with pytest.raises(EstimatorError):
        vectors.set_params(pool="none").fit(pd.DataFrame({"text": X}))
    assert np.array_equal(model.predict_proba(X), before)
    assert model.classes_.tolist() == ["dry", "wet"]
    assert set(model.predict(X)) <= {"dry", "wet"}
    assert not hasattr(vectors, "feature_names_in_")


def test_vectors_are_those_of_the_model() -> None:
    loaded = bertwright.load("model", precision="fp32")
    for pool, layer in (("mean", -1), ("cls", 0), ("max", 1)):
        vectorizer = BertVectorizer("model", pool=pool, layer=layer, precision="fp32").fit(X)
        assert vectorizer.transform(X) == pytest.approx(loaded.vectors(X, pool=pool, layer=layer), abs=1e-5)
        assert vectorizer.transform(X).dtype == np.float32
    assert vectorizer.get_feature_names_out()[[0, 47]].tolist() == ["bertvectorizer0", "bertvectorizer47"]
    assert vectorizer.set_output(transform="pandas").transform(X).shape == (8, 48)
    assert vectorizer.set_params(pool="cls").transform(X).shape == (8, 48)
    with pytest.warns(UserWarning, match="8 of 8 texts exceed 4 tokens"):
        BertVectorizer("model", max_length=4).fit_transform(X)


@pytest.mark.parametrize("pool", [None, "mean", "max"])
def test_a_pooling_keeps_the_prompt_and_the_length_of_the_folder(
    pool: Any, places_tokenizer: Path, tmp_path: Path
) -> None:
    settings = VectorSettings(prompts={"query": "the bridge "}, default_prompt="query", max_length=10)
    write_vector_model(tmp_path / "prompted", places_tokenizer, settings)
    folder = str(tmp_path / "prompted")
    loaded = bertwright.load(folder, precision="fp32")
    with pytest.warns(UserWarning, match="exceed 10 tokens"):
        vectors = BertVectorizer(folder, pool=pool, precision="fp32").fit_transform(X)
    with pytest.warns(UserWarning, match="exceed the 10 tokens"):
        expected = loaded.vectors(X, pool=pool)
    assert vectors == pytest.approx(expected, abs=1e-5)


def test_a_precision_that_was_set_after_a_fit_counts() -> None:
    vectorizer = BertVectorizer("model", precision="fp32").fit(X)
    exact = vectorizer.transform(X)
    rounded = vectorizer.set_params(precision="int8").transform(X)
    assert not np.array_equal(rounded, exact)
    assert rounded == pytest.approx(bertwright.load("model", precision="int8").vectors(X, pool="mean"), abs=1e-5)
    assert np.array_equal(vectorizer.set_params(precision="fp32").transform(X), exact)


def test_parameters_that_were_set_after_a_fit_are_checked_too() -> None:
    vectors = BertVectorizer("model").fit(X)
    for parameters, message in (
        ({"layer": 99}, "layer: expected -3 to 2, got 99"),
        ({"layer": -1, "max_length": 0}, "max_length 0: expected 3 to 64"),
        ({"pool": "sum"}, "pool: expected mean, max or cls, or None, got 'sum'"),
    ):
        with pytest.raises(EstimatorError, match=message):
            vectors.set_params(**parameters).transform(X)


def test_pipelines_find_neighbours_and_clusters() -> None:
    vectors = bertwright.load("model", precision="fp32").vectors(X).astype(np.float64)
    near = make_pipeline(BertVectorizer("model", precision="fp32"), NearestNeighbors(n_neighbors=3, metric="cosine"))
    distances, numbers = near.fit(X)[-1].kneighbors(near[:-1].transform(X[:2]))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = 1.0 - unit[:2] @ unit.T
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :3], atol=1e-5)
    assert numbers[:, 0].tolist() == [0, 1]
    doubled = [text for text in X[:2] for _ in range(4)]  # two texts, four times each: two clusters
    clusters = make_pipeline(BertVectorizer("model"), KMeans(n_clusters=2, n_init=3, random_state=0))
    found_clusters = clusters.fit_predict(doubled)
    assert [len(set(found_clusters[first : first + 4])) for first in (0, 4)] == [1, 1]
    assert found_clusters[0] != found_clusters[4]
    assert clusters.predict(X[1:2])[0] == found_clusters[4]


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_vectors_have_the_precision_of_a_loaded_model(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.tasks.inference.choose_precision", lambda *_: "bf16")  # the choice of auto
    expected = bertwright.load("model", precision=precision).vectors(X)
    vectorizer = BertVectorizer("model", precision=precision).fit(X)
    assert np.array_equal(vectorizer.transform(X), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(vectorizer)).transform(X), expected)
    exact = BertVectorizer("model", precision="fp32").fit_transform(X)
    assert np.array_equal(expected, exact) == (precision == "fp32")
    defaults = [estimator("model").get_params()["precision"] for estimator in (BertVectorizer, BertClassifier)]
    assert defaults == ["auto", "auto"]


def searched(estimator: Any, grid: dict[str, Any]) -> list[str]:
    """Return the warnings of a search over 3 candidates and 2 folds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GridSearchCV(estimator, grid, cv=2).fit([f"{text} and {text}" for text in X], Y)
    return [str(warning.message) for warning in caught]


def test_a_search_warns_once_about_cut_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"logisticregression__C": [1.0, 2.0, 3.0]}
    for _ in range(2):  # another estimator warns again
        piped = make_pipeline(BertVectorizer("small", max_length=4), LogisticRegression())
        assert searched(piped, grid) == ["X: 4 of 4 texts exceed 4 tokens and are cut"]
    quick = BertClassifier("small", **ONCE | {"max_length": 8})
    (cut,) = searched(quick, {"learning_rate": [1e-3, 2e-3, 3e-3]})
    assert cut.startswith("X: 4 of 4 examples exceed 8 tokens and are cut")
    limits = searched(BertClassifier("small", **ONCE), {"max_length": [8, 9, 10]})
    assert limits == [cut.replace(" 8 ", f" {limit} ") for limit in (8, 9, 10)]
    monkeypatch.setattr("bertwright.sklearn.base._WARNED_BY_COPIES", set())
    content = pickle.dumps(BertVectorizer("small", max_length=4).fit(X))
    with pytest.warns(UserWarning, match="8 of 8 texts exceed 4 tokens"):
        pickle.loads(content).transform(X)
    pickle.loads(content).transform(X)  # a second copy, as in a process of a search with n_jobs: a warning is an error


def test_a_pipeline_with_a_memory_computes_each_fold_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"logisticregression__C": [0.1, 1.0, 10.0]}
    fits: list[int] = []
    fit_transform = BertVectorizer.fit_transform

    def counted(self: BertVectorizer, texts: Any, *more: Any, **options: Any) -> Any:
        fits.append(len(texts))
        return fit_transform(self, texts, *more, **options)

    monkeypatch.setattr(BertVectorizer, "fit_transform", counted)

    def search(memory: str | None) -> Any:
        fits.clear()
        piped = make_pipeline(BertVectorizer("small"), LogisticRegression(), memory=memory)
        return GridSearchCV(piped, grid, cv=2, refit=False).fit(X, Y).cv_results_["mean_test_score"]

    scores = search(None)
    assert fits == [4] * 6  # 3 candidates and 2 folds
    assert np.array_equal(search(str(tmp_path)), scores)
    assert fits == [4] * 2
    assert np.array_equal(search(str(tmp_path)), scores)
    assert fits == []


def test_what_is_saved_is_a_model_folder_like_any_other(fitted: BertClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m")
    back = BertClassifier.load(tmp_path / "m")
    assert np.array_equal(back.predict_proba(X), fitted.predict_proba(X))
    assert {**back.get_params(), "model": "model"} == {**fitted.get_params(), "model": "model"}
    back.save(tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    (tmp_path / "again" / "mine.txt").touch()
    with pytest.raises(
        EstimatorError,
        match=r"again: it has mine\.txt, which would be lost; name a new folder, or one with nothing but a model",
    ):
        back.save(tmp_path / "again")
    for name in ("README.md", "config.json"):
        (theirs := tmp_path / name.partition(".")[0]).mkdir()
        (theirs / name).write_text("{}")
        with pytest.raises(EstimatorError, match=f"it has {name}, which would be lost"):
            back.save(theirs)
    predictions = bertwright.load(tmp_path / "m", precision="fp32")(X)
    assert [one.label for one in predictions] == Y.tolist()
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in X))
    predict_file(str(tmp_path / "m"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == Y.tolist()
    for other in (BertRegressor, BertTagger):
        with pytest.raises(EstimatorError, match=f"expected a model for {other.__name__}, got one for classify"):
            other.load(tmp_path / "m")


def test_a_model_that_no_estimator_wrote_is_not_replaced(fitted: BertClassifier, encoder_folders: Path) -> None:
    before = (encoder_folders / "small" / "model.safetensors").read_bytes()
    with pytest.raises(EstimatorError, match=r"small: it has .*, which would be lost; name a new folder"):
        fitted.save(encoder_folders / "small")
    assert (encoder_folders / "small" / "model.safetensors").read_bytes() == before


def test_columns_of_the_training_in_another_order_are_refused(tmp_path: Path) -> None:
    pairs = pd.DataFrame({"first": X, "second": X[::-1]})
    (tmp_path / "train.jsonl").write_text(pairs.assign(label=Y).to_json(orient="records", lines=True))
    task = CLASSIFY.model_copy(update={"text": ("first", "second")})
    settings = FinetuneSettings(**FAST | {"epochs": 1}, threads=1)
    finetune(settings, task, model="small", data=tmp_path, out=tmp_path / "run")
    model = BertClassifier.load(tmp_path / "run")
    with pytest.raises(EstimatorError, match="in their order: first, second in fit, second, first now"):
        model.predict(pairs[["second", "first"]])
    renamed = pairs.rename(columns={"first": "a", "second": "b"})
    assert np.array_equal(model.predict_proba(renamed), model.predict_proba(pairs))


def test_a_run_of_the_command_line_becomes_an_estimator(tmp_path: Path) -> None:
    """Its labels are in natural order, 2 before 10, and scikit-learn's are sorted as they are: texts."""
    rows = [{"text": text, "label": "2" if said == "dry" else "10"} for text, said in zip(X, Y, strict=True)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = FinetuneSettings(**FAST, threads=1)
    finetune(settings, CLASSIFY, model="model", data=tmp_path, out=tmp_path / "run")
    model = BertClassifier.load(tmp_path / "run")
    for _ in range(2):  # the second one takes the place of the first
        model.save(tmp_path / "copy")
    assert np.array_equal(BertClassifier.load(tmp_path / "copy").predict_proba(X), model.predict_proba(X))
    assert model.learned_.saved.labels == ("2", "10")
    assert model.classes_.tolist() == ["10", "2"]
    assert model.predict(X).tolist() == [row["label"] for row in rows]
    assert model.classes_[model.predict_proba(X).argmax(axis=1)].tolist() == model.predict(X).tolist()
    assert ((model.decision_function(X) > 0) == (model.predict(X) == "2")).all()
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    config["bertwright"]["estimator"] = {"classes": ["?"], "parameters": 3}
    (tmp_path / "run" / "model" / "config.json").write_text(json.dumps(config))
    assert BertClassifier.load(tmp_path / "run").classes_.tolist() == ["10", "2"]


@pytest.mark.parametrize("labels", [("dry", "wet"), ("Zed", "apple"), ("class10", "class2")])
def test_it_trains_as_the_command_line_does(tmp_path: Path, labels: tuple[str, str]) -> None:
    """The same rows, seed and steps: the same bytes, and answers by the names of scikit-learn's order."""
    y = list(labels) * 4
    for name in ("train", "dev"):
        rows = [{"text": text, "label": said} for text, said in zip(X, y, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = FinetuneSettings(**FAST | {"epochs": 1}, threads=1, first_seed=3)
    finetune(settings, CLASSIFY, model="small", data=tmp_path, out=tmp_path / "run")
    model = BertClassifier("small", **FAST | {"epochs": 1}, threads=1, random_state=3).fit(X, y)
    model.save(tmp_path / "m")
    ours, theirs = (path / "model.safetensors" for path in (tmp_path / "m", tmp_path / "run" / "model"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert model.classes_.tolist() == sorted(labels)
    answer = load(tmp_path / "m", precision="fp32")(X[0])
    shares = dict(zip(model.classes_, model.predict_proba(X[:1])[0], strict=True))
    assert answer.probabilities == pytest.approx(shares, abs=1e-6)


def test_a_copy_needs_no_folder_and_leaves_none(fitted: BertClassifier, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    joblib.dump(fitted, tmp_path / "one.joblib")
    back = joblib.load(tmp_path / "one.joblib")
    assert np.array_equal(back.predict_proba(X), fitted.predict_proba(X))
    back.save(tmp_path / "m")
    assert np.array_equal(BertClassifier.load(tmp_path / "m").predict_proba(X), fitted.predict_proba(X))
    assert os.listdir(tmp_path / "temporary") == []
    state = fitted.learned_.__getstate__()
    assert isinstance(state["weights"], bytes)
    assert not any(isinstance(value, torch.Tensor | torch.nn.Module) for value in state.values())
    vectors = BertVectorizer("model").fit(X)
    joblib.dump(vectors, tmp_path / "two.joblib")
    shipped = BertVectorizer("small-wiki", precision="fp32").fit(X)  # a masked LM whose classifier begins with its head
    assert np.array_equal(pickle.loads(pickle.dumps(shipped)).transform(X[:2]), shipped.transform(X[:2]))
    monkeypatch.chdir(tmp_path)  # where there is no such model
    assert np.array_equal(joblib.load(tmp_path / "two.joblib").transform(X), vectors.transform(X))


NOT_A_TEXT: list[tuple[Any, str]] = [
    ([*X[:7], None], r"X\[7\]: expected a text, got NoneType None"),
    (pd.Series([*X[:7], None]), r"X\[7\]: expected a text, got float nan"),
    ([float("nan"), *X[1:]], r"X\[0\]: expected a text, got float nan"),
    ([[text, 3] for text in X], r"X\[0\]\[1\]: expected a text, got int 3"),
    ([*X[:7], ("a", "b")], r"X\[7\]: expected a text, got tuple \('a', 'b'\)"),
    ([("a", "b")] * 7 + [("a",)], r"X\[7\]: expected 2 texts, as in X\[0\], got \('a',\)"),
    ([("a", "b", "c")] * 8, r"X\[0\]: expected a text or a pair of two, got 3 columns"),
    (["\ud800"] * 8, r"X\[0\]: holds half of a character"),
    ("one text", "X: expected a list of texts, got str one text"),
    ([], r"X: 0 sample\(s\)"),
    (X[:7], "X has 7 texts, y has 8 labels"),
]


@pytest.mark.parametrize(("inputs", "trouble"), NOT_A_TEXT)
def test_what_is_no_text_is_named_with_its_place(inputs: Any, trouble: str) -> None:
    with pytest.raises(ValueError, match=trouble):
        BertClassifier("model").fit(inputs, Y)


TROUBLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"y": ["dry"] * 8}, "y: expected at least two classes, got one class, 'dry'"),
    ({}, {"y": [*Y[:7], None]}, r"y\[7\]: expected a label, got None"),
    ({}, {"y": [*Y[:7], " "]}, r"y\[7\]: expected a label, got ' '"),
    ({}, {"y": [*Y[:7], "a\tb"]}, r"y\[7\]: expected a label in one line without control characters, got 'a\\tb'"),
    (
        {},
        {"y": [*Y[:7], "a\udc00"]},
        r"y\[7\]: expected a label in one line without control characters, got 'a\\udc00'",
    ),
    ({}, {"y": np.array([1, "1"] * 4, dtype=object)}, "y: expected labels of one type, got int, str"),
    ({}, {"y": [1, "1"] * 4}, "y: expected labels of one type, got int, str"),
    ({}, {"y": [True, 2] * 4}, "y: expected labels of one type, got bool, int"),
    ({}, {"y": ["dry", "wet", float("nan"), "wet"] * 2}, r"y\[2\]: expected a label, got nan"),
    ({}, {"y": ["dry", "wet", np.float64("nan"), "wet"] * 2}, r"y\[2\]: expected a label, got nan"),
    ({}, {"y": pd.Series([1, 0, None, 1] * 2, dtype="Int64")}, r"y\[2\]: expected a label, got (nan|<NA>)"),
    ({}, {"y": pd.Series([True, None] * 4, dtype="boolean")}, r"y\[1\]: expected a label, got <NA>"),
    (
        {},
        {"y": [2**53 + 1, 1.0] * 4},
        r"y\[0\]: expected a label that an array can hold, got 9007199254740993; use",
    ),
    ({}, {"y": [2**70, 1] * 4}, r"y\[0\]: expected a label that an array can hold, got 1180591620717411303424"),
    ({}, {"y": [0.5, 1.5] * 4}, "y: Unknown label type: continuous"),
    ({}, {"sample_weight": [1.0] * 7}, r"sample_weight: has shape \(7,\)"),
    ({}, {"sample_weight": [1.0] * 7 + [-1.0]}, r"sample_weight\[7\]: expected a number from 0 on, got -1\.0"),
    ({}, {"sample_weight": [0.0] * 8}, "sample_weight: .* all are zero"),
    ({}, {"sample_weight": [1.0, 0.0] * 4}, "y: expected at least two classes, got one class, 'dry'"),
    ({"class_weight": {"blue": 2.0}}, {}, "class_weight: 'blue' is not a class of y; the classes are: dry, wet"),
    ({"class_weight": "even"}, {}, "class_weight: expected None, 'balanced' or a dict of classes, got 'even'"),
    ({"epochs": 0}, {}, "epochs: 0: Input should be greater than 0"),
    ({"random_state": "x"}, {}, "random_state: 'x'"),
    ({"long": "fold"}, {}, "long: 'fold'"),
    ({"max_length": 512}, {}, "max_length 512: model takes at most 64 tokens"),
    ({"model": "nowhere"}, {}, "nowhere: not a model folder"),
    ({"model": "random:tiny"}, {}, "random:tiny: random weights need a vocabulary: tokenizer DIR"),
]


@pytest.mark.parametrize(("parameters", "fit_arguments", "trouble"), TROUBLE)
def test_invalid_parameters_are_reported(
    parameters: dict[str, Any], fit_arguments: dict[str, Any], trouble: str
) -> None:
    with pytest.raises(EstimatorError, match=trouble) as caught:
        BertClassifier(**{"model": "model", "max_length": 24, **parameters}).fit(
            X, fit_arguments.pop("y", Y), **fit_arguments
        )
    assert isinstance(caught.value, InputError)


def test_wrong_tags_and_numbers_are_named_with_their_place(tmp_path: Path) -> None:
    tagger = BertTagger("model")
    with pytest.raises(EstimatorError, match=r"y\[1\]: expected 2 tags, one per word of X\[1\], got 1"):
        tagger.fit([["a"], ["b", "c"]], [["O"], ["O"]])
    with pytest.raises(EstimatorError, match=r"X\[1\]\[1\]: expected a word, got NoneType None"):
        tagger.fit([["a"], ["b", None]], [["O"], ["O", "O"]])
    with pytest.raises(EstimatorError, match=r"X\[0\]: expected a list of words, got str a text"):
        tagger.fit(["a text"], [["O"]])
    with pytest.raises(EstimatorError, match=r"y\[0\]\[1\]: expected a label in one line"):
        tagger.fit([["a", "b"]], [["B-PER", "B-x\ny"]])
    with pytest.raises(EstimatorError, match=r"y\[0\]\[1\]: .*'FOO'"):
        tagger.fit([["a", "b"]], [["B-PER", "FOO"]])
    with pytest.raises(EstimatorError, match=r"y\[2\]: expected a finite number, got inf"):
        BertRegressor("model").fit(X[:3], [1.0, 2.0, np.inf])
    with pytest.raises(EstimatorError, match=r"y\[0\]: expected a number from -3\.4e\+38 to 3\.4e\+38, got 1e\+300"):
        BertRegressor("model").fit(X[:2], [1e300, 2.0])
    for boolean in (True, np.True_):
        with pytest.raises(EstimatorError, match=r"y\[1\]: expected a finite number, got True"):
            BertRegressor("model").fit(X[:3], [1.0, boolean, 2.0])
    with pytest.raises(EstimatorError, match=r"y\[1\]: expected a finite number, got 'x'"):
        BertRegressor("model").fit(X[:3], [1.0, "x", 2.0])
    for estimator in (BertClassifier("model"), tagger, BertVectorizer("model")):
        with pytest.raises(NotFittedError):
            estimator.transform(X) if isinstance(estimator, BertVectorizer) else estimator.predict(X)
    with pytest.raises(NotFittedError):
        BertClassifier("model").save(tmp_path / "m")
    for parameters, trouble in (
        ({"pool": "none"}, "pool: expected mean, max or cls, or None, got 'none'"),
        ({"layer": 3}, "layer: expected -3 to 2, got 3"),
        ({"precision": "fp16"}, "precision: expected one of auto, fp32, bf16, int8, got 'fp16'"),
        ({"max_length": 8.0}, r"max_length: expected a whole number or None, got 8\.0"),
        ({"model": "random:tiny"}, "expected a model folder or a run, got random weights"),
    ):
        with pytest.raises(EstimatorError, match=trouble):
            BertVectorizer(**{"model": "model", **parameters}).fit(X)


def test_long_texts_are_told_by_a_warning(fitted: BertClassifier) -> None:
    with pytest.warns(UserWarning, match="X: 1 of 1 examples exceed 24 tokens and are cut"):
        fitted.predict(["harbour garden " * 30])


def test_without_scikit_learn_the_extra_is_named() -> None:
    """And with it, importing the estimators imports no torch."""
    code = "import sys; sys.modules['sklearn'] = None\nimport bertwright.sklearn"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "MissingExtra: bertwright.sklearn needs the extra 'tasks': pip install 'bertwright[tasks]'" in completed.stderr
    )
    assert issubclass(MissingExtra, InputError)
    subprocess.run(
        [sys.executable, "-c", "import sys, bertwright.sklearn\nassert 'torch' not in sys.modules"], check=True
    )
