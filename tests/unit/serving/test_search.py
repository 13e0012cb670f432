"""An index over HTTP: rows of the Python search, reranked on request; an index of another model is refused."""

import json
import sys
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import IndexRow
from bertwright.search.new_rows import IndexedText
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.search import ServedIndex, open_indexes
from tests.support.requests import Requests
from tests.support.vectors import write_vector_model

TEXTS = {
    "ship": "A ship sails on the sea.",
    "rain": "Rain falls on the roof of the house.",
    "book": "The teacher reads a book.",
    "lane": "The old house stands by the lane.",
}
QUERY = "the ship by the house"
SETTINGS = VectorSettings(prompts={"query": "to ask: ", "document": ""}, normalize=True, widths=(8,))


def build(folder: Path, model: Predictor, **options: Any) -> str:
    rows = [[IndexedText(IndexRow(id, text, {"size": len(text)}), id) for id, text in TEXTS.items()]]
    sentences = model.pipeline_for("vectors").sentences
    SearchIndex.build(folder, sentences, rows, model=model.source, **options)
    return str(folder)


@pytest.fixture(scope="module")
def searched_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Predictor:
    folder = tmp_path_factory.mktemp("search") / "model"
    write_vector_model(folder, own_tokenizer, SETTINGS)
    return load(folder, precision="fp32")


@pytest.fixture(scope="module")
def search_models(models: dict[str, Predictor], searched_model: Predictor) -> dict[str, Predictor]:
    return {"sst": models["sst"], "relevance": models["relevance"], "encoder": searched_model}


@pytest.fixture(scope="module")
def indexes(
    tmp_path_factory: pytest.TempPathFactory, search_models: dict[str, Predictor], searched_model: Predictor
) -> dict[str, ServedIndex]:
    folder = tmp_path_factory.mktemp("indexes")
    folders = {
        "texts": build(folder / "texts", searched_model),
        "narrow": build(folder / "narrow", searched_model, width=8),
    }
    return open_indexes(folders | {"states": build(folder / "states", search_models["sst"])}, search_models)


@pytest.fixture
def ask_search(search_models: dict[str, Predictor], indexes: dict[str, ServedIndex]) -> Requests:
    return Requests(search_models, indexes=indexes)


def test_rows_are_those_of_python(
    ask_search: Requests, searched_model: Predictor, indexes: dict[str, ServedIndex]
) -> None:
    first, narrow, listed = ask_search(
        ("POST", "/v1/search", {"query": QUERY}),
        ("POST", "/v1/search", {"query": QUERY, "index": "narrow", "top_k": 2}),
        ("GET", "/v1/models"),
    )
    for response, name, most in ((first, "texts", 4), (narrow, "narrow", 2)):
        expected = searched_model.search(QUERY, index=indexes[name].index, top_k=most)
        answer = response.json()
        assert (answer["index"], answer["model"], answer["rerank"]) == (name, "encoder", None)
        assert [row["id"] for row in answer["results"]] == [hit.id for hit in expected]
        assert [row["score"] for row in answer["results"]] == pytest.approx([hit.score for hit in expected], abs=2e-6)
        assert all(row["text"] == TEXTS[row["id"]] for row in answer["results"])
        assert all(row["fields"] == {"size": len(row["text"])} for row in answer["results"])
    entries = {entry["id"]: (entry["model"], entry["rows"], entry["width"]) for entry in listed.json()["indexes"]}
    assert entries == {"texts": ("encoder", 4, 48), "narrow": ("encoder", 4, 8), "states": ("sst", 4, 64)}


def test_the_mean_of_all_tokens_stands_in_for_a_description(
    ask_search: Requests, models: dict[str, Predictor], indexes: dict[str, ServedIndex]
) -> None:
    (response,) = ask_search(("POST", "/v1/search", {"query": QUERY, "index": "states"}))
    expected = models["sst"].search(QUERY, index=indexes["states"].index)
    assert [row["id"] for row in response.json()["results"]] == [hit.id for hit in expected]
    assert [row["score"] for row in response.json()["results"]] == pytest.approx(
        [hit.score for hit in expected], abs=2e-6
    )


def test_the_nearest_rows_are_reranked(
    ask_search: Requests, searched_model: Predictor, models: dict[str, Predictor], indexes: Any
) -> None:
    body = {"query": QUERY, "rerank": "relevance", "top_k": 1}
    whole, few = ask_search(
        ("POST", "/v1/search", {**body, "top_k": 4}), ("POST", "/v1/search", {**body, "candidates": 2})
    )
    for response, candidates, most in ((whole, 4, 4), (few, 2, 1)):
        nearest = searched_model.search(QUERY, index=indexes["texts"].index, top_k=candidates)
        ranked = models["relevance"].rerank(QUERY, [hit.text for hit in nearest], top_k=most)
        answer = response.json()
        assert answer["rerank"] == "relevance"
        assert [row["id"] for row in answer["results"]] == [nearest[each.index].id for each in ranked]
        assert [row["score"] for row in answer["results"]] == pytest.approx([each.score for each in ranked], abs=1e-5)
        assert all(row["score"] == round(row["score"], 6) for row in answer["results"])


def test_a_service_with_few_inputs_reranks_fewer_rows(
    search_models: dict[str, Predictor], indexes: dict[str, ServedIndex]
) -> None:
    body = {"query": QUERY, "rerank": "relevance"}
    few, named, many = Requests(search_models, indexes=indexes, max_inputs=2)(
        ("POST", "/v1/search", {**body, "top_k": 1}),
        ("POST", "/v1/search", {**body, "top_k": 1, "candidates": 3}),
        ("POST", "/v1/search", body),
    )
    assert (few.status_code, len(few.json()["results"])) == (200, 1)
    assert "candidates 3: expected at most 2, the service's limit" in named.json()["error"]["message"]
    assert "top_k 10: expected at most 2 with rerank" in many.json()["error"]["message"]


def test_searches_beyond_the_cores_wait(
    search_models: dict[str, Predictor], indexes: dict[str, ServedIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one core two searches never meet: each waits in vain for the other."""
    monkeypatch.setattr("bertwright.serving.search.usable_cores", lambda: 1)
    ask_search = Requests(search_models, indexes=indexes)
    index, meeting, met = indexes["texts"].index, Barrier(2, timeout=0.2), []
    nearest = index.hits

    def hits(queries: Any, top_k: int) -> Any:
        try:
            met.append(meeting.wait())
        except BrokenBarrierError:
            meeting.reset()
        return nearest(queries, top_k)

    monkeypatch.setattr(index, "hits", hits)
    answers = ask_search(*[("POST", "/v1/search", {"query": QUERY})] * 2, together=True)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert met == []


def test_an_index_with_lists_needs_faiss_at_the_start(
    searched_model: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.search.index.LEAST_ROWS", 2)
    folder = build(tmp_path / "lists", searched_model, approximate=True)
    assert open_indexes({"lists": folder}, {"encoder": searched_model})["lists"].model == "encoder"
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="an approximate index needs the extra 'search'"):
        open_indexes({"lists": folder}, {"encoder": searched_model})


def test_a_query_that_is_cut_is_marked(ask_search: Requests) -> None:
    short, long = ask_search(*[("POST", "/v1/search", {"query": query}) for query in ("rain", "rain " * 90)])
    assert (short.json()["truncated"], long.json()["truncated"]) == (False, True)


def test_a_row_that_the_reranker_cuts_is_marked(
    search_models: dict[str, Predictor], searched_model: Predictor, tmp_path: Path
) -> None:
    """The long row is the worst, so that it is not in the answer."""
    texts = ["rain " * 90, "The ship sails.", "A book."]
    rows = [[IndexedText(IndexRow(str(number), text, {}), str(number)) for number, text in enumerate(texts)]]
    sentences = searched_model.pipeline_for("vectors").sentences
    for folder, block in (("long", rows), ("short", [rows[0][1:]])):
        SearchIndex.build(tmp_path / folder, sentences, block, model=searched_model.source)
    opened = open_indexes({name: str(tmp_path / name) for name in ("long", "short")}, search_models)
    ask = {"query": QUERY, "rerank": "relevance"}
    long, short = Requests(search_models, indexes=opened)(
        *[("POST", "/v1/search", {**ask, "index": name, "top_k": 1}) for name in ("long", "short")]
    )
    assert (long.json()["truncated"], short.json()["truncated"]) == (True, False)
    assert len(long.json()["results"]) == 1


def test_an_index_without_rows_has_no_results(
    search_models: dict[str, Predictor], searched_model: Predictor, tmp_path: Path
) -> None:
    folder = build(tmp_path / "empty", searched_model)
    SearchIndex.open(folder).remove([(id, id) for id in TEXTS])
    ask_search = Requests(search_models, indexes=open_indexes({"empty": folder}, search_models))
    for response in ask_search(
        *[("POST", "/v1/search", {"query": QUERY, **more}) for more in ({}, {"rerank": "relevance"})]
    ):
        assert response.json()["results"] == []


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"query": " \t"}, 422, "query: expected a text, got an empty one"),
        ({"query": 3}, 422, "query: Input should be a valid string"),
        ({"query": "\ud800"}, 422, "query: Input should be a valid string, unable to parse"),
        ({"query": "a" * 4_001}, 422, "query: String should have at most 4000 characters"),
        ({"top_k": 0}, 422, "top_k: Input should be greater than or equal to 1"),
        ({"top_k": 101}, 422, "top_k: Input should be less than or equal to 100"),
        ({"index": "nix"}, 404, "there is no index 'nix'; there are texts, narrow, states"),
        ({"rerank": "nix"}, 404, "there is no model 'nix'; there are sst, relevance, encoder"),
        ({"rerank": "sst"}, 422, "model sst is no reranker; expected one of relevance"),
        ({"candidates": 9}, 422, "candidates: is for a reranker; name one as rerank"),
        ({"relevant": "a"}, 422, "relevant: is for a reranker; name one as rerank"),
        ({"relevant": "a", "rerank": "relevance"}, 422, "relevant 'a': expected one of irrelevant, relevant"),
        ({"candidates": 257, "rerank": "relevance"}, 422, "candidates 257: expected at most 256, the service's limit"),
        ({"candidates": 9, "rerank": "relevance"}, 422, "candidates 9: expected at least top_k, 10"),
        ({"model": "encoder"}, 422, "model: Extra inputs are not permitted"),
    ],
)
def test_the_error_of_a_bad_request_names_what_is_wrong(
    ask_search: Requests, changes: dict[str, Any], status: int, words: str
) -> None:
    (response,) = ask_search(("POST", "/v1/search", json.dumps({"query": QUERY, **changes}).encode()))
    assert response.status_code == status, response.text
    assert words in response.json()["error"]["message"]


def test_without_an_index_the_message_says_how_to_serve_one(search_models: dict[str, Predictor]) -> None:
    search, listed = Requests(search_models)(("POST", "/v1/search", {"query": QUERY}), ("GET", "/v1/models"))
    assert search.status_code == 404
    assert "no index is served; start the service with --index INDEX" in search.json()["error"]["message"]
    assert listed.json()["indexes"] == []


def test_an_index_of_another_model_is_refused_at_the_start(
    models: dict[str, Predictor], searched_model: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build(tmp_path / "texts", searched_model)
    with pytest.raises(
        InputError, match=r"--index .*texts: expected the model .* served ones \(sst\), which is .*model; add"
    ):
        open_indexes({"texts": folder}, {"sst": models["sst"]})
    arguments = ["serve", "--model", models["sst"].source, "--port", "0", "--index"]
    assert main([*arguments, folder]) == 2
    assert "expected the model that made this index among the served ones" in capsys.readouterr().err.replace("\n", " ")
    assert main([*arguments, str(tmp_path / "nix")]) == 2
    assert main([*arguments, f"a={folder}", "--index", f"a={folder}"]) == 2
    assert "there are two folders called a; write another name" in capsys.readouterr().err.replace("\n", " ")
