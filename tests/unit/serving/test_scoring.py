"""Scores of sentences from Python and over HTTP: those of the scorer, whatever rows share a batch."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.scoring.scorer import open_scorer
from bertwright.scoring.sentences import sentence_scores
from bertwright.scoring.settings import ScoreSettings
from bertwright.serving.predictor import Predictor
from tests.support.requests import Requests
from tests.support.served import TEXTS


def expected_of(model: Predictor, masking: Any) -> list[dict[str, Any]]:
    scorer = open_scorer(model.source)
    return [asdict(score) for score in sentence_scores(scorer, TEXTS, scorer.resolve(ScoreSettings(masking=masking)))]


@pytest.mark.parametrize("masking", [None, "piece"])
def test_scores_from_python_and_over_http_are_those_of_the_scorer(models: dict[str, Predictor], masking: Any) -> None:
    model = models["lm"]
    expected = expected_of(model, masking)
    for scores in (model.score(TEXTS, masking=masking), list(model.score(iter(TEXTS), masking=masking))):
        for score, other in zip(scores, expected, strict=True):
            assert asdict(score) == pytest.approx(other, abs=1e-4)
    assert isinstance(model.score(iter(TEXTS)), Iterator)
    assert asdict(model.score(TEXTS[0], masking=masking)) == pytest.approx(expected[0], abs=1e-4)
    requests = [("POST", "/v1/score", {"inputs": [text], "masking": masking}) for text in TEXTS]
    for answer, other in zip(Requests(models)(*requests, together=True), expected, strict=True):
        assert answer.status_code == 200
        assert answer.json()["results"][0] == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"inputs": ["a river", " "]}, 422, "input 1: expected a sentence, got an empty one"),
        (
            {"inputs": [". " * 63]},
            422,
            "the sentence has 65 tokens; expected at most 64, the positions of this model",
        ),
        ({"inputs": ["a"], "masking": "word"}, 422, "masking: Input should be 'within-word' or 'piece'"),
        ({"inputs": ["a"], "first_token": "count"}, 422, "first_token count: is for a language model"),
        ({"inputs": ["a"], "model": "sst"}, 422, "model sst is a model for classification without a head over"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    models: dict[str, Predictor], body: dict[str, Any], status: int, words: str
) -> None:
    (answer,) = Requests(models)(("POST", "/v1/score", body))
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_python_names_the_input_that_cannot_be_scored(models: dict[str, Predictor]) -> None:
    with pytest.raises(InputError, match=r"^input 1501: expected a sentence, got an empty one"):
        list(models["lm"].score(text for text in ["rain"] * 1501 + [""]))
    with pytest.raises(InputError, match=r"^the sentence has 65 tokens; expected at most 64, the positions of"):
        models["lm"].score(". " * 63)


def test_a_request_has_a_limit_on_all_its_rows(models: dict[str, Predictor]) -> None:
    """With 2 inputs of 64 tokens at most, 11 pieces make 143 tokens in rows of 13."""
    requests = [("POST", "/v1/score", {"inputs": [". " * count]}) for count in (10, 11)]
    fits, refused = Requests(models, max_inputs=2)(*requests)
    assert (fits.status_code, refused.status_code) == (200, 422)
    assert (
        "the sentences make 143 tokens, with a row for each masked piece; expected at most 128 in one" in refused.text
    )


def test_a_model_without_a_head_gives_no_scores(models: dict[str, Predictor]) -> None:
    with pytest.raises(InputError, match="sst: expected a model with the head of masked LM, or a language model"):
        models["sst"].score("a")
    assert models["lm"].can("score")
    assert not models["sst"].can("score")
