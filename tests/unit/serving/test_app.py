"""A model in use over HTTP: the endpoints, and every limit."""

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from bertwright.cli import main
from bertwright.commands import serving as commands
from bertwright.console import Status
from bertwright.serving.app import create_app
from bertwright.serving.endpoints import summed_embeddings
from bertwright.serving.middleware import RequestMiddleware, _Refused
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.settings import ServeSettings
from tests.support.published_tokenizers import write_byte_pairs
from tests.support.requests import Requests
from tests.support.served import TEXTS, broken


@pytest.fixture
def ask(models: dict[str, Predictor]) -> Requests:
    return Requests(models)


def test_answers_over_http_are_those_of_python(models: dict[str, Predictor], ask: Requests) -> None:
    requests = [("POST", "/v1/predict", {"model": "sst", "inputs": [text]}) for text in TEXTS * 5]
    requests += [
        ("POST", "/v1/predict", {"model": "pair", "inputs": [[a, b]]}) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)
    ]
    for together in (False, True):
        answers = [response.json() for response in ask(*requests, together=together)]
        expected = models["sst"](TEXTS) * 5 + models["pair"](TEXTS, TEXTS[::-1])
        for got, one in zip(answers, expected, strict=True):
            assert got["results"][0]["label"] == one.label
            assert got["results"][0]["probabilities"] == pytest.approx(one.probabilities, abs=1e-5)


def test_the_other_endpoints(models: dict[str, Predictor], ask: Requests) -> None:
    fill, follows, plain, packed, inside, listed, health, page, docs = ask(
        ("POST", "/v1/fill", {"inputs": ["the [MASK]"], "top_k": 3}),
        ("POST", "/v1/next-sentence", {"first": TEXTS[0], "second": TEXTS[1]}),
        ("POST", "/v1/embeddings", {"input": TEXTS[:2]}),
        ("POST", "/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64", "user": "me"}),
        ("POST", "/v1/inside", {"text": "the [MASK]", "second": "rain", "layer": 2}),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/"),
        ("GET", "/docs"),
    )
    assert len(fill.json()["results"][0]["masks"][0]) == 3
    assert follows.json()["probability"] == pytest.approx(models["lm"].next_sentence(*TEXTS[:2]), abs=1e-5)
    vectors = models["lm"].vectors(TEXTS[:2])
    for row, one in enumerate(plain.json()["data"]):
        np.testing.assert_allclose(one["embedding"], vectors[row], atol=1e-5)
    values = np.frombuffer(base64.b64decode(packed.json()["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(values, vectors[0], atol=1e-5)
    assert packed.json()["usage"]["prompt_tokens"] == len(models["lm"].tokenizer.ids([TEXTS[0]])[0]) + 2
    looked = inside.json()
    assert looked["pieces"][0] == "[CLS]"
    assert looked["embeddings"] == ["token", "segment", "position"]
    assert summed_embeddings(load("small-wiki", precision="fp32").config) == ["token"]  # a ModernBERT turns by position
    assert "[MASK]" in looked["pieces"]
    assert np.array(looked["attention"]).shape == (4, *(len(looked["pieces"]),) * 2)
    np.testing.assert_allclose(np.array(looked["attention"]).sum(-1), 1, atol=0.01)
    uses = {entry["id"]: entry["uses"] for entry in listed.json()["data"]}
    assert uses["lm"] == ["predict", "fill", "next sentence", "score", "inside"]
    assert uses["sst"] == ["predict", "inside", "explain"]
    assert health.json() == {"status": "ok", "models": list(models)}
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "//cdn" not in docs.text
    assert "https://" not in page.text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/predict", {"model": "nix", "inputs": ["a"]}, 404, "there is no model 'nix'; there are lm, sst"),
        ("/v1/predict", {"model": "sst", "inputs": []}, 422, "inputs: List should have at least 1 item"),
        ("/v1/predict", {"model": "sst", "inputs": ["a"] * 10_000}, 422, "10,000 inputs; at most 256 in one request"),
        ("/v1/predict", {"model": "sst", "inputs": ["a" * 100_001]}, 422, "a text of 100,001 characters; at most"),
        ("/v1/predict", {"model": "pair", "inputs": ["a"]}, 422, "input 0: model pair takes a pair"),
        ("/v1/predict", {"model": "sst", "inputs": [["a", "b"]]}, 422, "input 0: model sst takes a text"),
        ("/v1/predict", {"model": "sst", "inputs": [3]}, 422, "inputs"),
        ("/v1/predict", {"model": "sst", "inputs": ["a"], "more": 1}, 422, "more: Extra inputs are not permitted"),
        ("/v1/predict", b"{", 400, "not JSON"),
        ("/v1/predict", b"[" * 200_000, 400, "not JSON"),
        ("/v1/predict", b'{"inputs": ["\xff"]}', 400, "not JSON"),
        ("/v1/predict", b'{"model": "sst", "inputs": ["\\ud800"]}', 422, "half of a character"),
        ("/v1/predict", b"x" * 1_000_001, 413, "1,000,001 bytes; at most 1,000,000"),
        ("/v1/fill", {"model": "sst", "inputs": ["a [MASK]"]}, 422, "model sst is a model for classification without"),
        ("/v1/fill", {"inputs": ["a"]}, 422, "input 0: 'a' holds no"),
        ("/v1/fill", b'{"inputs": ["\\ud800 [MASK]"]}', 422, "input 0: holds half of a character"),
        ("/v1/answer", {"question": "a", "context": "b"}, 422, "model lm is a model for fill, not for questions"),
        ("/v1/next-sentence", {"model": "sst", "first": "a", "second": "b"}, 422, "model sst is a model for classifi"),
        ("/v1/inside", {"text": "a", "layer": 3}, 422, "layer 3: allowed are 1 to 2"),
        ("/v1/inside", {"text": "rain " * 100}, 422, "more than 64 tokens"),
        (
            "/v1/inside",
            {"text": ["rain", "sun"]},
            422,
            "text: expected one text, got a list; the second text of a pair",
        ),
        ("/v1/predict", {"inputs": [{"premise": "a", "hypothesis": "b"}]}, 422, "a pair as a list of two texts"),
        ("/v1/fill", {"inputs": ["rain"]}, 422, "holds no [MASK]; write [MASK] in place of a word"),
        ("/v1/predict", {"inputs": ["rain"]}, 422, "for labels, load a fine-tuned model"),
        ("/v1/embeddings", {"input": []}, 422, "input"),
        ("/v1/embeddings", {"input": [15339, 1917]}, 422, "input: expected a text or a list of texts, got token ids"),
        ("/v1/embeddings", {"input": [[15339], [1917]]}, 422, "got token ids; send the texts"),
        ("/v1/embeddings", {"input": [["a text"]]}, 422, "valid string"),
        (
            "/v1/embeddings",
            {"input": "a", "dimensions": 32},
            422,
            "dimensions 32: expected 64, the size of the vectors of model lm",
        ),
        ("/v1/inside", b'{"text": "\\ud800"}', 422, "half of a character"),
        ("/v1/fill", {"inputs": ["[MASK] " * 60] * 250, "top_k": 100}, 422, "at most 20,000 pieces in all"),
        ("/v1/predict", {"inputs": ["[MASK] " * 60] * 100}, 422, "at most 20,000 pieces in all"),
        ("/v1/predict", {"inputs": [0] * 400_000}, 422, "inputs.0"),
        ("/v1/predict", {f"name{number}": 0 for number in range(60_000)}, 422, "at most 20 fields, got 60,000"),
    ],
)
def test_the_error_of_a_bad_request_names_what_is_wrong(
    ask: Requests, path: str, body: Any, status: int, words: str
) -> None:
    (response,) = ask(("POST", path, body))
    assert response.status_code == status, response.text
    assert words in response.json()["error"]["message"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_description_has_groups_and_examples(ask: Requests) -> None:
    """Every endpoint belongs to a described group, and every example of a request is answered as it stands."""
    (response,) = ask(("GET", "/openapi.json"))
    described = response.json()
    groups = {tag["name"]: tag["description"] for tag in described["tags"]}
    assert all(groups.values())
    requests = []
    for path, methods in described["paths"].items():
        for method, endpoint in methods.items():
            assert [tag in groups for tag in endpoint["tags"]] == [True], path
            assert endpoint["description"], path
            if method == "post":
                examples = endpoint["requestBody"]["content"]["application/json"]["examples"]
                requests += [("POST", path, example["value"]) for example in examples.values()]
    assert len(requests) > 10
    spoke = "a text, with the words that spoke for the label"
    models = {"a text": "sst", spoke: "sst", "a pair of texts": "pair"}
    names = described["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    bodies = {json.dumps(names[name]["value"]): model for name, model in models.items()}
    # no model of questions and of choices, and no index is served here
    without_model = ("questions", "a text with [MASK]", "no index is served")
    for method, path, body in requests:
        model = "relevance" if path.endswith("/rerank") else bodies.get(json.dumps(body), "lm")
        (response,) = ask((method, path, body if path == "/v1/search" else {"model": model, **body}))
        if response.status_code != 200:
            assert any(words in response.json()["error"]["message"] for words in without_model), (path, body)


def test_the_models_own_width_may_be_named(ask: Requests) -> None:
    """Clients of OpenAI's endpoint send `dimensions`, also as null."""
    bodies = [{"input": ["rain"]}, {"input": ["rain"], "dimensions": None}, {"input": ["rain"], "dimensions": 64}]
    responses = ask(*[("POST", "/v1/embeddings", body) for body in bodies])
    assert [response.status_code for response in responses] == [200] * 3
    assert len({json.dumps(response.json()["data"]) for response in responses}) == 1


def test_a_body_that_is_not_sent_as_json_is_not_read(ask: Requests) -> None:
    """Else a page of another site could post to a service on the visitor's own machine."""
    (response,) = ask(("POST", "/v1/fill", b'{"inputs": ["a [MASK]"]}', {"content-type": "text/plain"}))
    assert response.status_code == 415
    assert response.json()["error"]["message"].startswith("sent as 'text/plain'; send JSON with the header Content-Ty")


def test_a_body_whose_last_part_is_too_much_is_refused_at_once() -> None:
    """Nothing comes after it that could be read on."""
    parts = [{"type": "http.request", "body": b"x" * 6, "more_body": more} for more in (True, False)]

    async def receive() -> Any:
        return parts.pop(0)

    counted: Any = None
    guard = RequestMiddleware(None, settings=ServeSettings(max_body=10), requests=counted, seconds=counted)
    with pytest.raises(_Refused, match="more than 10 bytes"):
        asyncio.run(guard._body({}, receive))
    assert not parts


@pytest.mark.parametrize("address", ["127.0.0.1", "LOCALHOST", "127.0.0.2", "0:0:0:0:0:0:0:1"])
@pytest.mark.parametrize(
    ("status", "hosts"),
    [
        (200, ["localhost", "LOCALHOST", "LocalHost:8000", "localhost:", "localhost.", "localhost.:8000"]),
        (200, ["127.0.0.1", "127.0.0.1:8000", "127.0.0.2", "[::1]", "[::1]:8000", "[0:0::0:1]", "[0000::0001]:80"]),
        (421, ["evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1"]),
        (421, ["[localhost]evil.com", "[localhost]", "[::1]evil.com", "[::1]:evil.com", "[::1", "[127.0.0.1]", "::1"]),
        (421, ["[::2]", "[fe80::1]", "[::ffff:10.0.0.1]", "[]", "", ":8000", "localhost:80:80", "localhost:evil.com"]),
        (421, ["localhost@evil.com", "localhost,evil.com", "localhost evil.com", "localhost/", "localhost..", "."]),
        (421, ["loca%6chost", "127.1", "2130706433", "0.0.0.0", "*"]),
    ],
)
def test_another_sites_name_is_refused(
    models: dict[str, Predictor], address: str, status: int, hosts: list[str]
) -> None:
    responses = Requests(models, host=address)(*[("GET", "/health", None, {"host": host}) for host in hosts])
    assert {host: got.status_code for host, got in zip(hosts, responses, strict=True)} == dict.fromkeys(hosts, status)


def test_where_others_may_ask_any_name_is_answered(models: dict[str, Predictor]) -> None:
    for address in ("0.0.0.0", "::", "192.0.2.1", "my.example"):
        (response,) = Requests(models, host=address)(("GET", "/health", None, {"host": "my.example"}))
        assert response.status_code == 200


def test_a_token_is_required(models: dict[str, Predictor]) -> None:
    ask = Requests(models, token="so secret")
    body = {"inputs": ["a [MASK]"]}
    responses = ask(
        ("POST", "/v1/fill", body),
        ("POST", "/v1/fill", body, {"authorization": "Bearer so secre"}),
        ("POST", "/v1/fill", body, {"authorization": "Bearer so secret"}),
        ("GET", "/metrics"),
        ("GET", "/health"),
        ("GET", "/"),
    )
    assert [response.status_code for response in responses] == [401, 401, 200, 401, 200, 200]
    assert responses[0].headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (200, ["Bearer so secret", "bearer so secret", "BEARER so secret", "bEARER  so secret"]),
        (401, ["", "so secret", "Bearer", "Bearer ", "Bearerso secret", "Basic so secret", "bearer So Secret"]),
        (401, ["Bearer so secret ", "Bearer so secret, Basic x", "Bearer\tso secret", "Bearer: so secret"]),
    ],
)
def test_the_word_before_the_token_may_be_in_either_case(
    models: dict[str, Predictor], status: int, sent: list[str]
) -> None:
    requests = [("GET", "/v1/models", None, {"authorization": value}) for value in sent]
    statuses = [response.status_code for response in Requests(models, token="so secret")(*requests)]
    assert dict(zip(sent, statuses, strict=True)) == dict.fromkeys(sent, status)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "expected a token, got an empty text"),
        ("secret\n", "begins or ends with a space or the end of a line, which no header keeps"),
        (" secret", "begins or ends with a space"),
        ("se\ncret", "character 3 of 7 is not printable, or not UTF-8, which no header holds"),
        (os.fsdecode(b"secret\xff"), "character 7 of 7 is not printable, or not UTF-8"),
    ],
)
@pytest.mark.parametrize("of_the_environment", [False, True])
def test_a_token_that_no_request_can_hold_is_refused(
    token: str,
    words: str,
    of_the_environment: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "_serve", lambda *_, **__: None)
    arguments = ["serve", "--model", "small-wiki"]
    if of_the_environment:
        monkeypatch.setenv("BERTWRIGHT_TOKEN", token)
    assert main([*arguments, *([] if of_the_environment else [f"--token={token}"])]) == 2
    stderr = capsys.readouterr().err
    assert f"--token (or BERTWRIGHT_TOKEN): {words}" in stderr
    assert "secret" not in stderr


def test_a_token_of_any_printable_characters_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(commands, "_serve", lambda named, settings, **how: taken.append(settings.token))
    for token in ("so secret", "a+b/c==", "비밀"):
        assert main(["serve", "--model", "small-wiki", "--token", token]) == 0
        assert taken.pop() == token


@pytest.mark.parametrize(
    ("name_bytes", "shown"),
    [
        (b"\xff=small-wiki", r"argument '\xff=small-wiki'"),
        (b"a\xe9b=nowhere", r"argument 'a\xe9b=nowhere'"),
        (b"runs/tuned\xff", r"argument 'runs/tuned\xff'"),
        (b"runs\xff/model", r"argument 'runs\xff/model'"),
        (b".", r"here\xff'"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_model_whose_name_is_not_utf_8_is_refused(
    command: str,
    name_bytes: bytes,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / os.fsdecode(b"here\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(commands, "_serve", lambda *_, **__: None)
    assert main([command, "--model", os.fsdecode(name_bytes)]) == 2
    assert f"{shown}: expected UTF-8 text, got other bytes" in capsys.readouterr().err


def test_metrics_count(ask: Requests) -> None:
    *_, metrics = ask(
        ("POST", "/v1/predict", {"model": "sst", "inputs": TEXTS}),
        ("POST", "/v1/predict", {"model": "sst", "inputs": [3]}),
        ("GET", "/nowhere"),
        ("GET", "/metrics"),
    )
    lines = metrics.text.splitlines()
    assert 'bertwright_requests_total{path="/v1/predict",status="200"} 1.0' in lines
    assert 'bertwright_requests_total{path="/v1/predict",status="422"} 1.0' in lines
    assert 'bertwright_requests_total{path="other",status="404"} 1.0' in lines
    assert 'bertwright_inputs_total{model="sst",use="classification"} 4.0' in lines


def test_the_log_holds_no_text(models: dict[str, Predictor], capsys: pytest.CaptureFixture[str]) -> None:
    ask = Requests(models)
    ask.app = create_app(models, log=True)
    ask(
        ("POST", "/v1/predict", {"model": "sst", "inputs": ["a private thing"]}),
        ("POST", "/v1/predict", {"model": "sst", "inputs": ["a private thing", 3]}),
        ("GET", "/private?private"),
    )
    lines = capsys.readouterr().err.splitlines()
    assert "private" not in "".join(lines)
    first = json.loads(lines[0])
    assert (first["model"], first["inputs"], first["status"]) == ("sst", 1, 200)


def test_a_model_that_fails_is_no_other_requests_trouble(
    folders: dict[str, str], models: dict[str, Predictor], tmp_path: Path
) -> None:
    ask = Requests({"sst": models["sst"], "nan": load(broken(folders["sst"], tmp_path / "nan"))})
    requests = [("POST", "/v1/predict", {"model": name, "inputs": ["rain"]}) for name in ("sst", "nan", "sst")]
    responses = ask(*requests, together=True)
    assert [response.status_code for response in responses] == [200, 500, 200]
    assert responses[1].json()["error"]["message"].startswith("input 0: expected finite numbers from the model")


def test_equal_questions_are_answered_together(ask: Requests) -> None:
    for body in ({"text": "rain", "second": "the tower"}, {"text": "rain"}):
        responses = ask(*[("POST", "/v1/inside", body)] * 5, together=True)
        assert [response.status_code for response in responses] == [200] * 5
        assert len({response.text for response in responses}) == 1


def test_a_wrong_question_is_no_trouble_of_those_beside_it(ask: Requests) -> None:
    layers = (1, 9, 2, 1)
    responses = ask(*[("POST", "/v1/inside", {"text": "rain", "layer": layer}) for layer in layers], together=True)
    assert [response.status_code for response in responses] == [200, 422, 200, 200]


@pytest.mark.parametrize(
    ("path", "body", "num_texts"),
    [
        ("/v1/predict", {"model": "sst", "inputs": TEXTS}, 4),
        ("/v1/predict", {"model": "pair", "inputs": [TEXTS[:2]]}, 2),
        ("/v1/fill", {"model": "lm", "inputs": ["the [MASK]", "a [MASK]"]}, 2),
        ("/v1/embeddings", {"model": "lm", "input": TEXTS}, 4),
        ("/v1/next-sentence", {"model": "lm", "first": TEXTS[0], "second": TEXTS[1]}, 2),
        ("/v1/inside", {"model": "lm", "text": "the harbour"}, 1),
    ],
)
def test_a_text_is_tokenised_once_and_batched_once(
    models: dict[str, Predictor],
    ask: Requests,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    num_texts: int,
) -> None:
    """The inputs of a request make one batch, without a progress display."""
    tokenised = []
    tokenizer = models[body["model"]].tokenizer
    ids = tokenizer.ids
    monkeypatch.setattr(tokenizer, "ids", lambda texts, **how: tokenised.extend(texts) or ids(texts, **how))
    monkeypatch.setattr(Status, "__init__", lambda *_, **__: pytest.fail("a progress display was made"))
    answer, metrics = ask(("POST", path, body), ("GET", "/metrics"))
    assert answer.status_code == 200, answer.text
    assert len(tokenised) == num_texts
    assert "bertwright_batch_inputs_count 1.0" in metrics.text.splitlines()


def test_too_much_at_once_is_refused_and_the_rest_answered(models: dict[str, Predictor]) -> None:
    ask = Requests(models, max_waiting_tokens=20)
    body = {"model": "sst", "inputs": TEXTS}
    responses = ask(*[("POST", "/v1/predict", body)] * 30, together=True)
    codes = {response.status_code for response in responses}
    assert codes == {200, 503}
    refused = next(response for response in responses if response.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert "try again in" in refused.json()["error"]["message"]


def test_the_mask_of_a_published_vocabulary_counts_too(tmp_path: Path) -> None:
    write_byte_pairs(tmp_path)
    config = transformers.RobertaConfig(
        vocab_size=330, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(tmp_path)
    (reply,) = Requests({"roberta": load(tmp_path, precision="fp32")})(
        ("POST", "/v1/fill", {"inputs": ["<mask> " * 60] * 250, "top_k": 100})
    )
    assert reply.status_code == 422
    assert "at most 20,000 pieces in all" in reply.text
