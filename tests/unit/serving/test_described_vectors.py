"""Vectors over HTTP: what the model folder describes, a Matryoshka width, or an explicit pooling."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bertwright.model.vector_settings import DenseLayer, VectorSettings
from bertwright.serving.predictor import load
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
