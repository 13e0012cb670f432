"""Documents by relevance for a query: from Python and over HTTP, against the model's own answers for each pair."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bertwright.errors import InputError
from bertwright.search.rerank import Reranker
from bertwright.serving.predictor import Predictor, load
from bertwright.tasks.classification.spec import CLASSIFY
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.support.requests import Requests

QUERY = "the bridge over the river"
TEXTS = ["the quiet harbour", "a garden behind the library", "rain", "", "the tower and the bridge"]


@pytest.fixture(scope="module")
def unclear(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Predictor:
    task = CLASSIFY.model_copy(update={"text": ("query", "document"), "labels": ("a", "b")})
    model = small_classifier(classifier_config(Tokenizer.load(own_tokenizer).vocab_size), 2)
    return load(save_classifier(tmp_path_factory.mktemp("rerank") / "unclear", model, task, own_tokenizer, 64))


@pytest.fixture
def ask_rerankers(models: dict[str, Predictor], number: Predictor) -> Requests:
    return Requests({**models, "score": number})


def test_documents_are_ordered_by_the_answers_for_their_pairs(models: dict[str, Predictor], number: Predictor) -> None:
    answers = [result.probabilities["relevant"] for result in models["relevance"]([(QUERY, text) for text in TEXTS])]
    ranked = models["relevance"].rerank(QUERY, TEXTS)
    assert [each.index for each in ranked] == sorted(range(5), key=lambda index: -answers[index])
    assert [each.score for each in ranked] == pytest.approx(sorted(answers, reverse=True), abs=1e-6)
    assert [each.text for each in ranked] == [TEXTS[each.index] for each in ranked]
    numbers = [result.score for result in number([(QUERY, text) for text in TEXTS])]
    best = number.rerank(QUERY, pd.Series(TEXTS), top_k=2)
    assert [each.index for each in best] == np.argsort(numbers)[::-1][:2].tolist()
    assert number.rerank(QUERY, []) == []
    assert [each.index for each in number.rerank(QUERY, ["rain"] * 3)] == [0, 1, 2]  # a tie
    assert all(each.score == round(each.score, 6) for each in (*ranked, *best))


def test_the_reranker_of_a_search_gives_the_same_scores(models: dict[str, Predictor], number: Predictor) -> None:
    for model in (models["relevance"], number):
        by_index = {each.index: each.score for each in model.rerank(QUERY, TEXTS)}
        scores = Reranker.open(model.source, precision="fp32").scores(QUERY, TEXTS)
        np.testing.assert_allclose(scores, [by_index[index] for index in range(len(TEXTS))], atol=1e-5)


def test_labels_that_do_not_tell_need_a_name(unclear: Predictor, models: dict[str, Predictor]) -> None:
    assert not unclear.reranks
    with pytest.raises(InputError, match=r"unclear: expected two labels .* got a, b; name the label"):
        unclear.rerank(QUERY, TEXTS)
    by_a, by_b = (
        {each.index: each.score for each in unclear.rerank(QUERY, TEXTS, relevant=label)} for label in ("a", "b")
    )
    assert [by_a[index] + by_b[index] for index in range(5)] == pytest.approx([1.0] * 5, abs=2e-6)
    body = {"query": QUERY, "documents": TEXTS, "model": "unclear"}
    refused, named, unknown, listed = Requests({"unclear": unclear, "relevance": models["relevance"]})(
        ("POST", "/v1/rerank", body),
        ("POST", "/v1/rerank", {**body, "relevant": "b"}),
        ("POST", "/v1/rerank", {**body, "relevant": "c"}),
        ("GET", "/v1/models"),
    )
    assert (refused.status_code, unknown.status_code) == (422, 422)
    assert "model unclear: expected two labels" in refused.json()["error"]["message"]
    assert "relevant 'c': expected one of a, b" in unknown.json()["error"]["message"]
    assert {each["index"]: each["relevance_score"] for each in named.json()["results"]} == pytest.approx(by_b, abs=1e-5)
    labels = {entry["id"]: entry["relevant_label"] for entry in listed.json()["data"]}
    assert labels == {"unclear": None, "relevance": "relevant"}


def test_fields_of_other_clients_change_nothing(ask_rerankers: Requests) -> None:
    """A document may have more fields, of which the text is read, as Cohere does without rank_fields."""
    body = {"model": "score", "query": QUERY, "documents": TEXTS}
    rich = {
        **body,
        "documents": [{"title": "a" * 200, "text": text, "n": 3} for text in TEXTS],
        "rank_fields": ["text"],
        "max_tokens_per_doc": 4096,
        "max_chunks_per_doc": 10,
    }
    plain, richer, described = ask_rerankers(
        ("POST", "/v1/rerank", body), ("POST", "/v1/rerank", rich), ("GET", "/openapi.json")
    )
    assert richer.status_code == 200, richer.text
    scores = [
        [(each["index"], each["relevance_score"]) for each in answer.json()["results"]] for answer in (plain, richer)
    ]
    assert scores[0] == scores[1]
    documents = described.json()["components"]["schemas"]["RerankRequest"]["properties"]["documents"]["items"]
    assert [option.get("type", option.get("$ref")) for option in documents["anyOf"]] == [
        "string",
        "#/components/schemas/DocumentInput",
    ]


def test_a_long_document_is_marked(number: Predictor) -> None:
    with pytest.warns(UserWarning, match="1 of 2 inputs exceed the 64 tokens"):
        ranked = number.rerank(QUERY, ["rain", "rain " * 90])
    assert {each.index: each.truncated for each in ranked} == {0: False, 1: True}


def test_bad_input_from_python_names_what_is_wrong(models: dict[str, Predictor], number: Predictor) -> None:
    cases: tuple[tuple[Any, str], ...] = (
        (("", TEXTS), "query: expected a text, got an empty one"),
        ((None, TEXTS), "query: expected a text, got NoneType None"),
        (("\ud800", TEXTS), "query holds half of a character"),
        ((QUERY, "a text"), "str a text: expected a list or column of texts"),
        ((QUERY, ["rain", 3]), "document 1: expected a text, got int 3"),
    )
    for arguments, words in cases:
        with pytest.raises(InputError, match=words):
            number.rerank(*arguments)
    with pytest.raises(InputError, match="top_k 0: expected a whole number from 1 on"):
        number.rerank(QUERY, TEXTS, top_k=0)
    for name, words in (
        ("sst", "got one for t, which reads one text"),
        ("lm", "got one for fill"),
        ("pair", "no, yes, who"),
    ):
        with pytest.raises(InputError, match=f"expected a reranker, .*{words}"):
            models[name].rerank(QUERY, TEXTS)


def test_the_endpoint_has_the_shape_of_others(
    ask_rerankers: Requests, models: dict[str, Predictor], number: Predictor
) -> None:
    documents: list[Any] = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    body = {"model": "score", "query": QUERY, "documents": documents}
    whole, best, listed = ask_rerankers(
        ("POST", "/v1/rerank", body),
        ("POST", "/v1/rerank", {**body, "model": "relevance", "top_n": 2, "return_documents": True}),
        ("GET", "/v1/models"),
    )
    expected = number.rerank(QUERY, TEXTS)
    assert whole.json()["model"] == "score"
    assert [each["index"] for each in whole.json()["results"]] == [each.index for each in expected]
    assert [each["relevance_score"] for each in whole.json()["results"]] == pytest.approx(
        [each.score for each in expected], abs=1e-5
    )
    assert set(whole.json()["results"][0]) == {"index", "relevance_score", "truncated"}
    tokens = number.tokenizer.ids([QUERY, *TEXTS])
    assert whole.json()["usage"]["total_tokens"] == 5 * (len(tokens[0]) + 3) + sum(map(len, tokens[1:]))
    two = models["relevance"].rerank(QUERY, TEXTS, top_k=2)
    assert [each["document"] for each in best.json()["results"]] == [{"text": each.text} for each in two]
    uses = {entry["id"]: "rerank" in entry["uses"] for entry in listed.json()["data"]}
    assert [name for name, can in uses.items() if can] == ["relevance", "score"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": " "}, "query: expected a text, got an empty one"),
        ({"query": "a" * 4_001}, "query: String should have at most 4000 characters"),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": ["a"] * 257}, "257 inputs; at most 256 in one request"),
        ({"documents": ["a", 7]}, "documents.1: expected a text, or an object whose 'text' is one, got 7"),
        ({"documents": [{"title": "a"}]}, "documents.0: expected a text, or an object whose 'text' is one, got {"),
        ({"documents": [{"text": 1}]}, "documents.0: expected a text, or an object whose 'text' is one, got {"),
        ({"rank_fields": ["title"]}, "rank_fields.0: Input should be 'text'"),
        ({"documents": ["a", "\ud800"]}, "input 1: holds half of a character"),
        ({"top_n": 0}, "top_n: Input should be greater than or equal to 1"),
        ({"model": "lm"}, "model lm is no reranker; expected one of relevance, score"),
        ({"model": "pair"}, "model pair is no reranker; expected one of relevance, score"),
    ],
)
def test_the_error_of_a_bad_request_names_what_is_wrong(
    ask_rerankers: Requests, changes: dict[str, Any], words: str
) -> None:
    body = {"model": "score", "query": QUERY, "documents": TEXTS, **changes}
    (response,) = ask_rerankers(("POST", "/v1/rerank", json.dumps(body).encode()))
    assert response.status_code == 422, response.text
    assert words in response.json()["error"]["message"]


def test_without_a_reranker_the_message_says_how_to_train_one(models: dict[str, Predictor]) -> None:
    (response,) = Requests({"lm": models["lm"]})(("POST", "/v1/rerank", {"query": QUERY, "documents": TEXTS}))
    assert response.status_code == 422
    assert "model lm: expected a reranker" in response.json()["error"]["message"]
    assert "train one: bertwright finetune regress" in response.json()["error"]["message"]
