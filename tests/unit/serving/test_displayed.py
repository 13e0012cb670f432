"""Results in notebooks: their HTML, and that they are the same data as before."""

import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from bertwright.serving.displayed import Results, Vectors, with_texts
from bertwright.serving.predictor import Predictor
from bertwright.serving.results import (
    Choice,
    Entities,
    ExplainedWord,
    Explanation,
    ExtractedAnswer,
    FilledText,
    Label,
    Labels,
    Piece,
    RankedText,
    Score,
    TextEntity,
)

SCRIPT = "<script>alert(1)</script>"
EXPLAINED = ExplainedWord(0, SCRIPT, 0, len(SCRIPT), 1.5, ())
AGAINST = ExplainedWord(0, "not", 26, 29, -0.75, ())
SHOWN: tuple[tuple[Any, tuple[str, ...], str], ...] = (
    (Label(SCRIPT, 0.7, {SCRIPT: 0.7, "b": 0.3}, True), (SCRIPT,), "a part of the input was not read"),
    (Labels((SCRIPT,), {SCRIPT: 0.7, "b": 0.3}), (SCRIPT, SCRIPT), "70.0%"),
    (Score(1.25), (SCRIPT,), "<b>1.2500</b>"),
    (RankedText(0, 0.5, SCRIPT), (SCRIPT,), "<b>0.5000</b>"),
    (Entities((TextEntity("PER", SCRIPT, 0, 25, 0.9),)), (SCRIPT,), "<small><b>PER</b></small></span>"),
    (ExtractedAnswer(SCRIPT, 2, 27, 0.8), ("who?", f"a {SCRIPT}."), ">a <span"),
    (ExtractedAnswer("", None, None, 0.8, 0.8), ("who?", SCRIPT), "<b>no answer</b>"),
    (Choice(1, SCRIPT, 0.8, (0.2, 0.8)), ("then", "it rains", SCRIPT), "it rains"),
    (FilledText(((Piece(SCRIPT, 0.4),),)), (f"{SCRIPT} [MASK]",), ">[MASK]</span>"),
    (
        Explanation(SCRIPT, None, None, "log-odds", 1, 0, 1, 0, "gradients", "mask", 16, (EXPLAINED, AGAINST)),
        (f"{SCRIPT} not",),
        'title="-0.750">not</span>',
    ),
)


@pytest.mark.parametrize(("result", "texts", "part"), SHOWN, ids=[type(row[0]).__name__ for row in SHOWN])
def test_a_result_shows_its_texts_escaped(result: Any, texts: tuple[str, ...], part: str) -> None:
    shown = with_texts(copy.copy(result), texts)
    html = shown._repr_html_()
    assert part in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert shown == result
    assert repr(shown) == repr(result)
    assert dataclasses.asdict(shown) == dataclasses.asdict(result)
    assert pickle.loads(pickle.dumps(shown)) == result
    assert "<script" not in result._repr_html_()  # without its texts


def test_a_list_is_a_list_that_shows_its_first_results(models: dict[str, Predictor]) -> None:
    results = models["sst"]([SCRIPT] * 12)
    assert type(results) is Results
    assert results == list(results)
    assert json.loads(json.dumps([dataclasses.asdict(each) for each in results]))[0]["label"] in models["sst"].labels
    html = results._repr_html_()
    assert html.count("&lt;script&gt;") == 10
    assert "… and 2 more" in html
    assert Results()._repr_html_() is None
    assert Results([1.0])._repr_html_() is None


def test_a_model_shows_what_it_is(models: dict[str, Predictor]) -> None:
    html = models["sst"]._repr_html_()
    for part in ("classification", "no, yes, who knows", "a text", "fp32"):
        assert part in html


def test_vectors_are_arrays_with_a_summary(models: dict[str, Predictor]) -> None:
    model = models["sst"]
    vectors, one = model.vectors(["a text", "another"]), model.vectors("a text")
    assert isinstance(vectors, np.ndarray)
    assert "2 vectors of" in vectors._repr_html_()
    assert "a vector of" in one._repr_html_()
    assert f"{np.linalg.norm(one):.3f}" in one._repr_html_()
    assert repr(one).startswith("array(")
    for result in (vectors @ vectors.T, vectors + 1, pickle.loads(pickle.dumps(vectors))):
        assert type(result) is np.ndarray
    assert isinstance(vectors.sum(), np.float32)
    assert type(vectors[0]) is Vectors
    assert np.array_equal(pickle.loads(pickle.dumps(vectors)), vectors)
    assert model.vectors([])._repr_html_() is None
