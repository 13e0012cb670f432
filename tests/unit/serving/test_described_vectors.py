"""Vectors over HTTP and as features: what the model folder describes, a Matryoshka width, or an explicit pooling."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.interop.static import export_static
from bertwright.model.vector_settings import DenseLayer, VectorSettings
from bertwright.serving.embeddings import write_features
from bertwright.serving.predictor import load
from bertwright.tasks.static_vectors import open_static
from tests.support.encoders import write_encoder
from tests.support.requests import Requests
from tests.support.vectors import write_vector_model

SETTINGS = VectorSettings(
    pooling=("weightedmean",), dense=(DenseLayer(inputs=48, outputs=32),), normalize=True, widths=(8, 16)
)
TEXTS = ["The house stood at the end of the lane.", "Rain."]


def test_the_endpoint_computes_what_the_folder_describes(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS)
    ask = Requests({"model": load(tmp_path / "model", precision="fp32")})
    bodies = [{}, {"dimensions": 32}, {"dimensions": 8}, {"pool": "mean"}, {"pool": "mean", "dimensions": 48}]
    wrong = [{"dimensions": 9}, {"pool": "mean", "dimensions": 8}]
    responses = ask(*[("POST", "/v1/embeddings", {"input": TEXTS, **body}) for body in bodies + wrong])
    assert [response.status_code for response in responses] == [200] * 5 + [422] * 2
    vectors = [np.array([each["embedding"] for each in response.json()["data"]]) for response in responses[:5]]
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    for ours, theirs in zip(vectors, (expected, expected, expected[:, :8]), strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert vectors[3].shape == (2, 48)
    assert vectors[3] == pytest.approx(vectors[4])
    messages = [response.json()["error"]["message"] for response in responses[5:]]
    assert "expected 32, the size of the vectors of model model, a Matryoshka width (8, 16), or none" in messages[0]
    assert "expected 48, the size of the vectors of model model, or none" in messages[1]


def test_a_prompt_is_named_or_written(tmp_path: Path, own_tokenizer: Path) -> None:
    """Without its prompt's tokens in the pooling, a vector depends on the prompt; sentence-transformers agrees."""
    settings = SETTINGS.model_copy(
        update={"prompts": {"query": "to ask: ", "plain": ""}, "default_prompt": "query", "include_prompt": False}
    )
    write_vector_model(tmp_path / "model", own_tokenizer, settings)
    model = load(tmp_path / "model", precision="fp32")
    assert model.prompts == settings.prompts
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    options: list[dict[str, str]] = [{}, {"prompt_name": "query"}, {"prompt_name": "plain"}, {"prompt": "the sea: "}]
    options.append({"prompt": ""})
    ask = Requests({"model": model})
    requests = [("POST", "/v1/embeddings", {"input": TEXTS, **option}) for option in options]
    together = ask(*requests, together=True)
    seen = []
    for option, response in zip(options, together, strict=True):
        expected = theirs.encode(TEXTS, **option)
        vectors = [each["embedding"] for each in response.json()["data"]]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        np.testing.assert_allclose(model.vectors(TEXTS, **option), expected, atol=1e-5)
        seen.append(expected)
    np.testing.assert_array_equal(seen[0], seen[1])
    with pytest.raises(InputError, match="prompt holds half of a character"):
        model.vectors(TEXTS, prompt="\ud800")
    assert all(np.abs(seen[0] - other).max() > 1e-3 for other in seen[2:])


@pytest.mark.parametrize(
    ("prompts", "body", "words"),
    [
        ({"query": "q: ", "title": "t: "}, {"prompt_name": "nix"}, "'nix': model model has no prompt of this name; "),
        ({"query": "q: ", "title": "t: "}, {"prompt_name": "nix"}, "expected one of query, title"),
        ({}, {"prompt_name": "query"}, "it has none; give the text as prompt"),
        ({"query": "q: "}, {"prompt_name": "query", "prompt": "q: "}, "expected one of them, got both"),
        ({}, {"prompt": "\ud800"}, "prompt: Input should be a valid string, unable to parse"),
        ({}, {"prompt": "the " * 62}, "has 64 tokens, special tokens included, and leaves no room for a text in 64"),
        ({}, {"prompt": "a" * 4_001}, "prompt: String should have at most 4000 characters"),
        ({}, {"prompt": 3}, "prompt: Input should be a valid string"),
    ],
)
def test_a_bad_prompt_is_refused(
    prompts: dict[str, str], body: dict[str, str], words: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS.model_copy(update={"prompts": prompts}))
    (response,) = Requests({"model": load(tmp_path / "model", precision="fp32")})(
        ("POST", "/v1/embeddings", json.dumps({"input": TEXTS, **body}).encode())
    )
    assert response.status_code == 422
    assert words in response.json()["error"]["message"]


def test_features_of_the_folder_are_the_vectors_of_load(tmp_path: Path, own_tokenizer: Path) -> None:
    settings = VectorSettings(
        pooling=("cls", "max"),
        normalize=True,
        prompts={"all": "to read: "},
        default_prompt="all",
        max_length=9,
        width=40,
    )
    write_vector_model(tmp_path / "model", own_tokenizer, settings)
    texts = [*TEXTS, "", "rain " * 30]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    options: Any = {"pool": "folder"}
    summary = write_features(str(tmp_path / "model"), str(tmp_path / "texts.txt"), tmp_path / "out.npz", **options)
    with np.load(tmp_path / "out.npz") as archive:
        assert set(archive) == {"vectors"}
        vectors = archive["vectors"]
    with pytest.warns(UserWarning, match="3 of 4 inputs exceed the 9 tokens"):
        expected = load(tmp_path / "model", precision="fp32").vectors(texts)
    np.testing.assert_allclose(vectors, np.array(expected), atol=1e-5)
    assert (summary["texts"], summary["size"], summary["truncated"], summary["empty"]) == (4, 40, 3, 1)
    source = str(tmp_path / "texts.txt")
    shorter = write_features(str(tmp_path / "model"), source, tmp_path / "short.npz", max_length=8, **options)
    assert (shorter["tokens"], shorter["truncated"]) == (3 * 8 + 6, 3)  # the prompt alone has six
    with pytest.raises(InputError, match="--layers 1: --pool folder computes vectors of the last layer"):
        write_features(str(tmp_path / "model"), source, tmp_path / "no.npz", layers="1", **options)
    assert not (tmp_path / "no.npz").exists()


def test_features_of_a_folder_without_settings_are_means(tmp_path: Path, own_tokenizer: Path) -> None:
    model = write_encoder(tmp_path / "model", own_tokenizer)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    pools: tuple[tuple[Any, str], ...] = (("folder", "a"), ("mean", "b"))
    for pool, name in pools:
        write_features(model, str(tmp_path / "texts.txt"), tmp_path / name, pool=pool, layers="last")
    with np.load(tmp_path / "a") as folder, np.load(tmp_path / "b") as mean:
        np.testing.assert_allclose(folder["vectors"], mean["vectors"][:, 0], atol=1e-5)


def test_features_of_a_static_table(tmp_path: Path, own_tokenizer: Path) -> None:
    export_static(write_encoder(tmp_path / "model", own_tokenizer), tmp_path / "static", width=8)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    write_features(str(tmp_path / "static"), str(tmp_path / "texts.txt"), tmp_path / "out", pool="folder")
    with np.load(tmp_path / "out") as archive:
        np.testing.assert_array_equal(archive["vectors"], open_static(str(tmp_path / "static")).vectors(TEXTS))
