"""A static table in use: vectors, search and the service; every other use is refused by name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.interop.static import export_static
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.search import open_indexes
from bertwright.serving.server import open_models
from bertwright.tasks.static_vectors import open_static
from tests.support.commands import run_json
from tests.support.encoders import write_encoder
from tests.support.requests import Requests

TEXTS = ["A ship sails on the sea.", "Rain falls on the roof.", "☃ ", "The teacher reads a book."]
QUERY = "the ship by the sea"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("static")
    export_static(write_encoder(folder / "model", own_tokenizer), folder / "table", width=16)
    return folder / "table"


@pytest.fixture(scope="module")
def static_model(table: Path) -> Predictor:
    return load(table)


def test_vectors_are_those_of_the_table(static_model: Predictor, table: Path) -> None:
    expected = open_static(str(table)).vectors(TEXTS)
    for computed in (static_model.vectors(TEXTS), static_model(TEXTS), static_model.vectors(TEXTS, prompt="")):
        np.testing.assert_array_equal(computed, expected)
    assert not expected[2].any()  # no known piece
    np.testing.assert_array_equal(static_model.vectors(TEXTS[0]), expected[0])
    assert static_model.prompts == {}
    embedded, info = Requests({"table": static_model})(("POST", "/embed", {"inputs": TEXTS}), ("GET", "/info"))
    lengths = np.maximum(np.sqrt((expected**2).sum(axis=1, keepdims=True)), 1e-9)  # that of "☃ " is 0
    np.testing.assert_allclose(embedded.json(), expected / lengths, atol=1e-5)
    assert info.json()["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (static_model.kind, static_model.backend, static_model.layers, static_model.heads, static_model.labels) == (
        "vectors",
        "fp32",
        0,
        0,
        (),
    )
    assert "static table, vectors of 16" in repr(static_model)


def test_other_uses_are_refused_by_name(
    static_model: Predictor, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_table = f"{table}: is a static table, which gives vectors"
    for call, message in (
        (lambda: static_model.fill("a [MASK]"), f"{is_table}; expected an encoder for: fill"),
        (lambda: static_model.next_sentence("a", "b"), f"{is_table}; expected an encoder for: next sentence"),
        (lambda: static_model.rerank("a", ["b"]), f"{table}: expected a reranker"),
        (lambda: static_model.vectors("a", pool="mean"), "pool mean: expected none, since a static table has"),
        (lambda: static_model.vectors("a", prompt="to ask: "), f"prompt 'to ask: ': {table} is a static table"),
        (lambda: static_model.vectors("a", prompt_name="query"), f"prompt 'query': {table} is a static table"),
        (lambda: static_model.vectors("a", layer=1), "layer 1: allowed are -1 to 0; 0 is the embeddings"),
        (lambda: static_model.generate("a", tokens=2), f"{is_table}; expected a GPT-1, GPT-2 or GPT-BERT"),
        (lambda: load(table, precision="int8"), f"{table}: a static table is computed on the processors in fp32"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            call()
    assert main(["finetune", "embed", "--model", str(table), "--data", "absent", "--out", "out"]) == 2
    assert "expected an encoder, got a table of static vectors (model2vec)" in capsys.readouterr().err


def test_an_index_of_a_table_is_searched_by_command_python_and_service(
    static_model: Predictor, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", "utf-8")
    built, _ = run_json(capsys, "index", tmp_path / "texts.txt", "--model", table, "--out", tmp_path / "index")
    assert (built["rows"], built["width"], built["cut"]) == (4, 16, 0)
    vectors = open_static(str(table)).vectors([QUERY, *TEXTS]).astype(np.float64)
    cosines = vectors[1:] @ vectors[0]
    expected = [str(1 + number) for number in np.argsort(-cosines, kind="stable")]
    answered, _ = run_json(capsys, "search", tmp_path / "index", QUERY)
    assert [hit["id"] for hit in answered["hits"]] == expected
    assert [hit["score"] for hit in answered["hits"]] == pytest.approx(sorted(cosines, reverse=True), abs=2e-6)
    assert [hit.id for hit in static_model.search(QUERY, index=tmp_path / "index")] == expected
    assert [hit.id for hit in static_model.search(QUERY, texts=TEXTS)] == [str(int(id) - 1) for id in expected]
    models = open_models({"table": str(table)}, precision="auto")
    ask = Requests(models, indexes=open_indexes({"texts": str(tmp_path / "index")}, models))
    answer, embedded, refused, listed = ask(
        ("POST", "/v1/search", {"query": QUERY}),
        ("POST", "/v1/embeddings", {"input": TEXTS}),
        ("POST", "/v1/fill", {"inputs": ["a [MASK]"]}),
        ("GET", "/v1/models"),
    )
    assert [row["id"] for row in answer.json()["results"]] == expected
    np.testing.assert_allclose([each["embedding"] for each in embedded.json()["data"]], vectors[1:], atol=1e-6)
    assert refused.status_code == 422
    assert "model table is a model for vectors" in refused.json()["error"]["message"]
    [entry] = listed.json()["data"]
    assert (entry["kind"], entry["layers"], entry["uses"]) == ("vectors", 0, [])


def test_no_encoder_is_built_for_a_model_that_did_not_make_the_index(
    table: Path,
    own_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "texts.txt").write_text("One.\nTwo.\n", "utf-8")
    moved = write_encoder(tmp_path / "moved", own_tokenizer)
    write_encoder(tmp_path / "other", own_tokenizer, layers=1)
    run_json(capsys, "index", tmp_path / "texts.txt", "--model", moved, "--out", tmp_path / "index")
    (tmp_path / "moved").rename(tmp_path / "here")  # the noted path tells nothing
    models = {name: load(tmp_path / name, precision="fp32") for name in ("other", "here")}
    opened: list[Any] = []
    monkeypatch.setattr(Predictor, "pipeline_for", lambda *use: opened.append(use))
    served = open_indexes({"texts": str(tmp_path / "index")}, {"table": load(table), **models})
    assert served["texts"].model == "here"
    assert opened == []
