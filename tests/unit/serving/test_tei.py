"""The endpoints of text-embeddings-inference."""

import math

import numpy as np
import pytest

from bertwright.serving.predictor import Predictor
from tests.support.requests import Requests
from tests.support.served import TEXTS

LONG = "rain " * 90


def test_embed_gives_vectors_of_length_1_or_those_of_the_folder(models: dict[str, Predictor]) -> None:
    several, one, plain, other = Requests(models)(
        ("POST", "/embed", {"inputs": TEXTS, "truncate": False, "truncation_direction": "Right"}),
        ("POST", "/embed", {"inputs": TEXTS[0], "normalize": True, "truncate": None, "prompt_name": None}),
        ("POST", "/embed", {"inputs": TEXTS, "normalize": False, "dimensions": 64}),
        ("POST", "/embed", {"inputs": TEXTS, "normalize": False, "model": "sst"}),
    )
    vectors = models["lm"].vectors(TEXTS)
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    assert abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(several.json(), vectors / lengths, atol=1e-5)
    np.testing.assert_allclose(one.json(), (vectors / lengths)[:1], atol=1e-5)
    np.testing.assert_allclose(plain.json(), vectors, atol=1e-5)
    np.testing.assert_allclose(other.json(), models["sst"].vectors(TEXTS), atol=1e-5)


def test_rerank_takes_the_first_reranker(models: dict[str, Predictor], number: Predictor) -> None:
    body = {"query": TEXTS[0], "texts": TEXTS}
    default, with_text, logistic, raw = Requests({**models, "number": number})(
        ("POST", "/rerank", {**body, "raw_scores": False, "truncate": False}),
        ("POST", "/rerank", {**body, "return_text": True}),
        ("POST", "/rerank", {**body, "model": "number"}),
        ("POST", "/rerank", {**body, "model": "number", "raw_scores": True}),
    )
    by_probability = models["relevance"].rerank(TEXTS[0], TEXTS)
    assert [each["index"] for each in default.json()] == [each.index for each in by_probability]
    assert [each["score"] for each in default.json()] == pytest.approx(
        [each.score for each in by_probability], abs=1e-5
    )
    assert {*default.json()[0]} == {"index", "score"}
    assert [each["text"] for each in with_text.json()] == [each.text for each in by_probability]
    numbers = [each.score for each in number.rerank(TEXTS[0], TEXTS)]
    assert [each["score"] for each in raw.json()] == pytest.approx(numbers, abs=1e-5)
    expected = [1 / (1 + math.exp(-number)) for number in numbers]
    assert [each["score"] for each in logistic.json()] == pytest.approx(expected, abs=1e-5)


def test_info_describes_the_first_model(models: dict[str, Predictor], number: Predictor) -> None:
    infos = []
    for name, model in {**{name: models[name] for name in ("lm", "sst", "relevance")}, "number": number}.items():
        (answer,) = Requests({name: model}, max_inputs=9)(("GET", "/info"))
        infos.append(answer.json())
    limits = {key: infos[0][key] for key in ("model_id", "model_dtype", "max_input_length", "max_client_batch_size")}
    assert limits == {
        "model_id": "lm",
        "model_dtype": "float32",
        "max_input_length": 64,
        "max_client_batch_size": 9,
    }
    no, relevant = {"0": "no", "1": "yes", "2": "who knows"}, {"0": "irrelevant", "1": "relevant"}
    assert [info["model_type"] for info in infos] == [
        {"embedding": {"pooling": "mean"}},
        {"classifier": {"id2label": no, "label2id": {label: int(key) for key, label in no.items()}}},
        {"reranker": {"id2label": relevant, "label2id": {"irrelevant": 0, "relevant": 1}}},
        {"reranker": {"id2label": {"0": "score"}, "label2id": {"score": 0}}},
    ]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/embed", {"inputs": [TEXTS[0], LONG], "truncate": False}, "input 1: has more tokens than model lm reads"),
        ("/embed", {"inputs": [1, 2]}, "got token ids; send the texts"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, "truncation_direction"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "model lm has no prompt of this name"),
        ("/embed", {"inputs": "a", "dimensions": 3}, "dimensions 3: expected 64"),
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores: model relevance gives the prob"),
        ("/rerank", {"query": "a", "texts": [LONG, "b"], "truncate": False}, "input 0: has more tokens"),
        ("/rerank", {"query": "a", "texts": ["b"], "model": "lm"}, "expected one of relevance"),
        ("/rerank", {"query": "", "texts": ["b"]}, "query: expected a text, got an empty one"),
    ],
)
def test_a_refusal_names_the_reason(models: dict[str, Predictor], path: str, body: object, words: str) -> None:
    (answer,) = Requests(models)(("POST", path, body))
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["error"]["message"]


def test_long_texts_are_cut_and_no_reranker_is_an_error(models: dict[str, Predictor]) -> None:
    served = {"lm": models["lm"], "sst": models["sst"]}
    cut, refused = Requests(served)(
        ("POST", "/embed", {"inputs": LONG}), ("POST", "/rerank", {"query": "a", "texts": ["b"]})
    )
    assert cut.status_code == 200
    assert (refused.status_code, "model lm" in refused.json()["error"]["message"]) == (422, True)


def test_the_endpoints_need_the_token(models: dict[str, Predictor]) -> None:
    requests = [("POST", "/embed", {"inputs": "a"}), ("POST", "/rerank", {"query": "a", "texts": ["b"]})]
    ask = Requests(models, token="word")
    right = {"authorization": "Bearer word"}
    assert [each.status_code for each in ask(*requests, ("GET", "/info"))] == [401] * 3
    with_token = [(*request, right) for request in requests]
    assert [each.status_code for each in ask(*with_token, ("GET", "/info", None, right))] == [200] * 3
