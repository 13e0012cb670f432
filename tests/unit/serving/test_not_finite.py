"""Finite weights that overflow: no way to an answer gives NaN, and each message names the input."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.corpus.shards import Corpus
from bertwright.errors import RunFailed
from bertwright.model.bert import Bert
from bertwright.model.folder import open_model, save_model
from bertwright.reports.filled_masks import fill_own_masks
from bertwright.reports.runs import Run
from bertwright.serving.predictor import Predictor, load
from bertwright.sklearn import BertVectorizer
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD1
from bertwright.tasks.tagging.model import Tagger
from bertwright.tasks.tagging.spec import NER
from tests.support.requests import Requests
from tests.support.served import SST, overflowing

EXPECTED = "expected finite numbers from the model, got NaN or infinity"


@pytest.fixture(scope="module")
def overflows(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("overflows")
    return {name: overflowing(folders[name], folder / f"{name}-overflows", "e") for name in ("lm", "sst")}


@pytest.fixture(scope="module")
def predictors(overflows: dict[str, str]) -> dict[str, Predictor]:
    return {name: load(path, precision="fp32") for name, path in overflows.items()}


def test_python_names_the_input(predictors: dict[str, Predictor]) -> None:
    lm, sst = predictors["lm"], predictors["sst"]
    assert np.isfinite(lm.vectors(["b", "c"])).all()
    for compute, location in (
        (lambda: sst(["b", "e", "c"]), "sst-overflows: input 1: "),
        (lambda: sst(["b"] * 2000 + ["e"]), "sst-overflows: input 2000: "),
        (lambda: list(lm.vectors(iter(["b"] * 1500 + ["e"]))), "lm-overflows: input 1500: "),
        (lambda: lm.vectors("e"), "lm-overflows: "),
        (lambda: lm.next_sentence(["b", "b"], ["c", "e"]), "lm-overflows: input 1: "),
        (lambda: lm.fill(["the [MASK] e"]), "lm-overflows: input 0: "),
        (lambda: sst.explain(["b", "e", "c"]), "sst-overflows: input 1: "),
    ):
        with pytest.raises(RunFailed, match=f"{location}{EXPECTED}"):
            compute()


@pytest.mark.parametrize(
    ("command", "location"),
    [
        (["fill", "the [MASK] e"], "the text 'the [MASK] e': "),
        (["next-sentence", "b", "e"], "the texts 'b' and 'e': "),
        (["features", "--input", "texts.txt", "--output", "out.npz"], "texts.txt:2: "),
        (["features", "--input", "texts.txt", "--output", "out.npz", "--pool", "mean"], "texts.txt:2: "),
    ],
)
def test_a_command_names_the_input_and_fails(
    overflows: dict[str, str],
    command: list[str],
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("b\ne\n", "utf-8")
    assert main([*command, "--model", overflows["lm"]]) == 1
    assert f"{location}{EXPECTED}" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_evaluate_and_report_have_no_nan(
    overflows: dict[str, str], tmp_path: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    assert main(["corpus", "build", str(own_text), "--tokenizer", overflows["lm"], "--out", str(corpus)]) == 0
    model, rows = overflows["lm"], ["--rows", "8", "--length", "32"]
    assert main(["evaluate", "pretraining", "--model", model, "--corpus", str(corpus), *rows]) == 1
    assert f"{model} on {corpus}: {EXPECTED}" in capsys.readouterr().err
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    record = {"settings": {}, "data": {"corpus": Corpus.open(corpus).fingerprint}, "places": {"corpus": str(corpus)}}
    masks = fill_own_masks(Run(run, record, "finished", "", {}, {}, {}))
    assert masks.filled == ()
    assert EXPECTED in masks.note


def test_predict_names_the_line(overflows: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text\nb\nc\ne\n", "utf-8")
    assert main(["predict", "--model", overflows["sst"], "--input", str(table)]) == 1
    assert f"texts.csv:4: {EXPECTED}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "body", "index"),
    [
        ("/v1/predict", {"model": "sst", "inputs": ["b", "c", "e"]}, 2),
        ("/v1/fill", {"inputs": ["the [MASK] e"]}, 0),
        ("/v1/next-sentence", {"first": "b", "second": "e"}, 0),
        ("/v1/embeddings", {"input": ["b", "e"]}, 1),
        ("/v1/inside", {"text": "e", "layer": 2}, 0),
    ],
)
def test_http_names_the_input(predictors: dict[str, Predictor], path: str, body: dict[str, Any], index: int) -> None:
    (response,) = Requests(predictors)(("POST", path, body))
    assert response.status_code == 500
    assert response.json()["error"]["message"].startswith(f"input {index}: {EXPECTED}")


def test_the_vectorizer_names_the_text(overflows: dict[str, str]) -> None:
    vectorizer = BertVectorizer(overflows["lm"]).fit(["b"])
    assert np.isfinite(vectorizer.transform(["b"])).all()
    with pytest.raises(RunFailed, match=rf"X\[1\]: {EXPECTED}"):
        vectorizer.transform(["b", "e"])


def test_the_input_of_a_row_is_named(overflows: dict[str, str], tmp_path: Path) -> None:
    """Texts with several rows: windows, and choices."""
    saved = open_model(overflows["lm"])
    config = saved.config
    tags = NER.model_copy(update={"labels": ("O", "B-X", "I-X")})
    long = "b " * 150
    kinds: dict[str, tuple[Any, Any, list[Any]]] = {
        "BertForSequenceClassification": (
            SST.model_copy(update={"long": "windows"}),
            Classifier(config, 3),
            ["b", long, "c"],
        ),
        "BertForTokenClassification": (tags, Tagger(config, 3), ["", "b", long, "", "c"]),
        "BertForQuestionAnswering": (
            SQUAD1.model_copy(update={"question": 16, "stride": 16}),
            Bert(config, "BertForQuestionAnswering"),
            [("b", "c"), ("b", long), ("b", "c")],
        ),
        "BertForMultipleChoice": (SWAG, Classifier(config, 1), [("b", ("c", "d")), ("b", ("c", "d", "b"))]),
    }
    for architecture, (task, module, values) in kinds.items():
        save_model(
            tmp_path / architecture,
            module,
            architecture=architecture,
            config=config,
            tokenizer=saved.tokenizer,
            labels=getattr(task, "labels", ()),
            extra={"task": task.model_dump(mode="json"), "max_length": 64},
        )
        pipeline = load(tmp_path / architecture, precision="fp32").pipeline
        rows_of_inputs = [len(pipeline.encode([pipeline.parse(value)]).rows) for value in values]
        expected = [index for index, count in enumerate(rows_of_inputs) for _ in range(count)]
        inputs = pipeline.encode([pipeline.parse(value) for value in values])
        assert max(rows_of_inputs) > 1
        assert len(inputs.rows) == len(expected)
        for row, index in enumerate(expected):
            outputs = [np.zeros(3, dtype=np.float32)] * len(expected)
            outputs[row] = np.full(3, np.inf, dtype=np.float32)
            with pytest.raises(RunFailed, match=f"^input {index}: {EXPECTED}"):
                pipeline.results(inputs, outputs)
