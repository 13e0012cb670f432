"""An empty text is a text: Python, commands, HTTP and scikit-learn answer it alike, as transformers does."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.serving.predictor import Predictor
from bertwright.sklearn import BertClassifier, BertVectorizer
from tests.support.requests import Requests

TEXTS = ["", "the harbour", " \t"]


def output_of_transformers(folder: str, kind: Any, texts: list[str]) -> Any:
    """Return the model's output for each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = kind.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [model(**tokenizer(text, return_tensors="pt")) for text in texts]


def test_labels_of_empty_texts(folders: dict[str, str], models: dict[str, Predictor], tmp_path: Path) -> None:
    outputs = output_of_transformers(folders["sst"], transformers.AutoModelForSequenceClassification, TEXTS)
    expected = np.array([output.logits[0].softmax(-1).tolist() for output in outputs])
    python = [list(result.probabilities.values()) for result in models["sst"](TEXTS)]
    (response,) = Requests(models)(("POST", "/v1/predict", {"model": "sst", "inputs": TEXTS}))
    http = [list(result["probabilities"].values()) for result in response.json()["results"]]
    classifier = BertClassifier.load(folders["sst"])
    sklearn = classifier.predict_proba(TEXTS)[:, np.argsort(np.argsort(models["sst"].labels))]
    answers: dict[str, Any] = {"python": python, "http": http, "sklearn": sklearn}
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    for source, reading in (("texts.jsonl", []), ("texts.txt", ["--input-format", "lines"])):
        command = ["predict", "--model", folders["sst"], "--input", str(tmp_path / source), *reading]
        target = tmp_path / f"{source}.csv"
        assert main([*command, "--output", str(target), "--output-format", "csv", "--precision", "fp32"]) == 0
        with target.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        names = [f"probability_{label}" for label in models["sst"].labels]
        answers[source] = [[float(row[name]) for name in names] for row in rows]
    for way, probabilities in answers.items():
        np.testing.assert_allclose(probabilities, expected, atol=1e-5, err_msg=way)


def test_vectors_of_empty_texts(folders: dict[str, str], models: dict[str, Predictor], tmp_path: Path) -> None:
    outputs = output_of_transformers(folders["lm"], transformers.AutoModel, TEXTS)
    expected = np.stack([output.last_hidden_state[0].mean(0).numpy() for output in outputs])
    (response,) = Requests(models)(("POST", "/v1/embeddings", {"input": TEXTS}))
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    command = ["features", "--model", folders["lm"], "--layers", "last", "--pool", "mean"]
    assert main([*command, "--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out.npz")]) == 0
    answers = {
        "python": models["lm"].vectors(TEXTS),
        "http": [entry["embedding"] for entry in response.json()["data"]],
        "command": np.load(tmp_path / "out.npz")["vectors"][:, 0],
        "sklearn": BertVectorizer(folders["lm"], precision="fp32").fit_transform(TEXTS),
    }
    for way, vectors in answers.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=way)


def test_what_is_missing_is_refused(folders: dict[str, str], models: dict[str, Predictor], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="input 1: expected a text, got NoneType None"):
        models["sst"](["", None])
    with pytest.raises(InputError, match=r"X\[1\]: expected a text, got NoneType None"):
        BertClassifier.load(folders["sst"]).predict(["", None])
    (response,) = Requests(models)(("POST", "/v1/predict", {"model": "sst", "inputs": ["", None]}))
    assert response.status_code == 422
    (tmp_path / "texts.jsonl").write_text('{"text": ""}\n{"text": null}\n', "utf-8")
    assert main(["predict", "--model", folders["sst"], "--input", str(tmp_path / "texts.jsonl")]) == 2
