"""A loaded model in Python: every form of input, and the errors of wrong ones."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import bertwright
from bertwright.errors import InputError, RunFailed
from bertwright.model.bert import Bert
from bertwright.model.folder import open_model, save_model
from bertwright.serving.embeddings import features_of, pooled
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.results import FilledText, Label, Labels, Score
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.spec import SQUAD1
from bertwright.tasks.question_answering.windows import encode_windows
from tests.support.processor import needs_bytes
from tests.support.served import TEXTS, broken


def same_answer(first: Any, second: Any) -> bool:
    return first.label == second.label and all(
        math.isclose(share, second.probabilities[name], abs_tol=1e-5) for name, share in first.probabilities.items()
    )


def test_importing_the_package_imports_no_tensors() -> None:
    import subprocess
    import sys

    program = (
        "import sys, bertwright; print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)), dir(bertwright))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.startswith("[] ['Predictor', '__version__', 'command', 'load', 'open_run']"), out
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        _ = bertwright.lod


def test_every_form_of_input_gives_the_same(models: dict[str, Predictor]) -> None:
    model = models["sst"]
    one = [model(text) for text in TEXTS]
    assert all(isinstance(result, Label) for result in one)
    assert sum(one[0].probabilities.values()) == pytest.approx(1)
    assert list(one[0].probabilities) == ["no", "yes", "who knows"]
    for inputs in (
        TEXTS,
        tuple(TEXTS),
        pd.Series(TEXTS),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
    ):
        results = model(inputs)
        assert isinstance(results, list)
        assert all(map(same_answer, results, one))
    results = model(text for text in TEXTS)
    assert isinstance(results, Iterator)
    assert all(map(same_answer, results, one))
    assert model([]) == []
    assert list(model(iter(()))) == []
    assert model.labels == ("no", "yes", "who knows")
    assert (model.kind, model.backend) == ("classification", "fp32")


def test_an_iterator_is_read_only_as_far_as_it_is_answered(models: dict[str, Predictor]) -> None:
    read = []

    def texts() -> Iterator[str]:
        for number in range(3000):
            read.append(number)
            yield f"number {number}"

    results = models["sst"](texts())
    assert not read
    next(results)
    assert len(read) < 1100
    assert sum(1 for _ in results) == 2999


def test_long_lists_keep_their_order(models: dict[str, Predictor]) -> None:
    texts = [" ".join(["the"] * (1 + number % 17)) for number in range(2500)]
    results = models["sst"](texts)
    assert len(results) == 2500
    assert all(same_answer(results[number], results[number + 17]) for number in range(0, 2400, 31))


def test_pairs(models: dict[str, Predictor]) -> None:
    model, second = models["pair"], TEXTS[::-1]
    both = model(list(zip(TEXTS, second, strict=True)))
    assert all(map(same_answer, model(TEXTS, second), both))
    assert all(map(same_answer, model(pd.Series(TEXTS), pa.array(second)), both))
    assert all(map(same_answer, model(iter(TEXTS), iter(second)), both))
    assert same_answer(model((TEXTS[0], second[0])), both[0])
    assert same_answer(model(TEXTS[0], second[0]), both[0])
    with pytest.raises(InputError, match="columns of 4 and 3 values"):
        model(TEXTS, second[:3])
    with pytest.raises(InputError, match="ended before the other"):
        list(model(iter(TEXTS), iter(second[:3])))
    with pytest.raises(ValueError, match="invalid literal"):  # one's own error stays it
        list(model(map(int, TEXTS), iter(second)))
    with pytest.raises(InputError, match=r"input 0: expected a pair: a tuple of two texts, got str a"):
        model(["a", "b"])
    with pytest.raises(InputError, match="give two texts, or two columns"):
        model(TEXTS, "b")


def test_tables(models: dict[str, Predictor]) -> None:
    """The columns that the model was trained on, wherever they stand."""
    columns = {"label": [0, 1, 0, 1], "b": TEXTS[::-1], "a": TEXTS}
    table = pa.table(columns)
    (batch,) = table.to_batches()
    pairs = models["pair"](TEXTS, TEXTS[::-1])
    for table_input in (pd.DataFrame(columns, index=[7, 7, 3, 0]), table, batch, OtherTable(columns)):
        results = models["pair"](table_input)
        assert len(results) == 4
        assert all(map(same_answer, results, pairs))
    one = models["sst"](TEXTS)
    assert all(map(same_answer, models["sst"](pd.DataFrame({"text": TEXTS, "more": TEXTS[::-1]})), one))
    assert models["pair"](table.slice(0, 0)) == []


def test_tables_of_questions_and_of_choices(folders: dict[str, str], tmp_path: Path) -> None:
    saved = open_model(folders["sst"])
    config, squad = saved.config, SQUAD1.model_copy(update={"question": 16, "stride": 16})
    modules = {
        "BertForQuestionAnswering": (squad, Bert(config, "BertForQuestionAnswering")),
        "BertForMultipleChoice": (SWAG, Classifier(config, 1)),
    }
    for name, (task, module) in modules.items():
        extra = {"task": task.model_dump(mode="json"), "max_length": 64}
        save_model(
            tmp_path / name, module, architecture=name, config=config, tokenizer=saved.tokenizer, labels=(), extra=extra
        )
    questions, choices = (load(tmp_path / name, precision="fp32") for name in modules)
    results = questions(pa.table({"context": TEXTS, "id": [1, 2, 3, 4], "question": ["who"] * 4}))
    assert [one.text for one in results] == [one.text for one in questions(["who"] * 4, TEXTS)]
    assert not any(one.truncated for one in results)
    with pytest.warns(UserWarning, match="1 of 2 inputs exceed the 16 pieces of a question"):
        from_lists = questions(["who", "harbour " * 20], TEXTS[:2])
    assert [one.truncated for one in from_lists] == [False, True]
    for question, passage in (("who", "rain"), ("who", "harbour " * 200), ("harbour " * 40, "rain " * 90)):
        windows = encode_windows(
            questions.tokenizer, Questions((Question("0", question, passage),), "1.1", ""), squad, max_length=64
        )
        rows = questions.pipeline.encode([(question, passage)]).rows
        assert [row.ids.tolist() for row in rows] == [windows.row(index).tolist() for index in range(len(windows))]
    table = pd.DataFrame({"choices": [["a", "b"], ("rain", "harbour", "river")], "context": TEXTS[:2]})
    assert [len(one.probabilities) for one in choices(table)] == [2, 3]
    table["choices"] = table["choices"].map(np.array)  # as pandas reads lists of Parquet
    assert [len(one.probabilities) for one in choices(table)] == [2, 3]
    assert [len(one.probabilities) for one in choices(iter(TEXTS[:2]), iter(table["choices"]))] == [2, 3]


class OtherTable:
    """A table of any library that numpy can read."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = list(columns)
        self._rows = list(zip(*columns.values(), strict=True))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._rows, dtype=dtype)


def test_the_other_kinds(models: dict[str, Predictor]) -> None:
    many, number = models["many"](TEXTS[0]), models["number"](TEXTS)
    assert isinstance(many, Labels)
    assert set(many.labels) == {name for name, share in many.probabilities.items() if share > 0.5}
    assert all(isinstance(one, Score) and math.isfinite(one.score) for one in number)
    filled = models["lm"]("the [MASK] and the [MASK]")
    assert isinstance(filled, FilledText)
    assert [len(mask) for mask in filled.masks] == [5, 5]
    assert models["lm"].fill(["the [MASK]"], top_k=2)[0].masks[0][0].probability > 0
    assert len(models["lm"].fill("the [MASK]", top_k=np.int64(2)).masks[0]) == 2
    for wrong in (0, 1.5, "a", True):
        with pytest.raises(InputError, match=r"top_k .*: expected a whole number from 1 on"):
            models["lm"].fill("the [MASK]", top_k=wrong)
    assert 0 < models["lm"].next_sentence(TEXTS[0], TEXTS[1]) < 1
    assert len(models["lm"].next_sentence(TEXTS, TEXTS)) == 4


def test_vectors(models: dict[str, Predictor]) -> None:
    for name, model in models.items():
        vectors = model.vectors(TEXTS)
        assert vectors.shape == (4, 64), name
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(model.vectors(TEXTS[1]), vectors[1], atol=1e-5)
        np.testing.assert_allclose(np.stack(list(model.vectors(iter(TEXTS)))), vectors, atol=1e-5)
    model = models["lm"]
    assert model.vectors([]).shape == (0, 64)
    assert not np.allclose(model.vectors("rain", pool="cls"), model.vectors("rain"))
    (features,) = features_of(frozen_encoder(open_model(model.source)), model.tokenizer, ["rain"], layers=[0, 2])
    assert all(
        pooled(features.states, pool).base is None for pool in ("cls", "mean", "max")
    )  # else it keeps all tokens' states
    assert np.allclose(model.vectors("rain", layer=2), model.vectors("rain"))
    others: list[Any] = [3, 1.0, "last", True]
    for layer in others:
        with pytest.raises(InputError, match=f"layer {layer!r}: allowed are -3 to 2"):
            model.vectors("rain", layer=layer)
    prompts: list[Any] = [5, ["a"]]
    for prompt in prompts:
        with pytest.raises(InputError, match=r"prompt .*: expected a text"):
            model.vectors("rain", prompt=prompt)
    with pytest.raises(InputError, match="pool 'sum': allowed are"):
        model.vectors("rain", pool="sum")


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("sst", 3, r"int 3: .*sst takes a text; or a list"),
        ("sst", None, "NoneType None"),
        ("sst", b"bytes", r"bytes b'bytes'"),
        ("sst", {"text": "a"}, "dict"),
        ("lm", pd.DataFrame({"text": ["a"]}), "DataFrame: is a table; give a column"),
        ("sst", pd.DataFrame({"review": ["a"]}), "DataFrame: expected the columns text, once each, got review"),
        ("pair", pa.table({"a": ["a"], "c": ["c"]}), "Table: expected the columns a, b, once each, got a, c"),
        (
            "pair",
            pa.table([["a"], ["b"], ["c"]], ["a", "b", "b"]),
            "Table: expected the columns a, b, once each, got a, b, b",
        ),
        ("pair", pd.DataFrame({"a": ["a", "b"], "b": ["c", None]}), r"input 1: expected a pair: .*, got tuple \('b', "),
        ("sst", {"a", "b"}, "set: is without an order"),
        ("sst", ["a", None, "b"], "input 1: expected a text, got NoneType None"),
        ("sst", ["a", math.nan], "input 1: expected a text, got float nan"),
        ("sst", ["a", "b\ud800c"], r"input 1: holds half of a character \(position 1\)"),
        ("lm", "\ud800 [MASK]", r"^holds half of a character \(position 0\)"),
        ("lm", "no mask here", "'no mask here' holds no .MASK"),
        ("lm", ["a [MASK]", "none"], "input 1: 'none' holds no .MASK"),
        ("lm", "[MASK] " + "harbour " * 80, r"the text has \d+ tokens; this model takes at most 64"),
    ],
)
def test_bad_input_is_named(models: dict[str, Predictor], name: str, inputs: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        models[name](inputs)


def test_a_model_without_the_head_is_refused(models: dict[str, Predictor]) -> None:
    with pytest.raises(InputError, match="is a model for classification without the head that fills"):
        models["sst"].fill("a [MASK]")
    with pytest.raises(InputError, match="has no next-sentence head"):
        models["sst"].next_sentence("a", "b")


def test_what_is_cut_is_reported(models: dict[str, Predictor]) -> None:
    with pytest.warns(UserWarning, match=r"1 of 2 inputs exceed the 64 tokens"):
        results = models["sst"](["harbour " * 80, "rain"])
    assert [one.truncated for one in results] == [True, False]


def test_inputs_that_are_cut_are_counted_over_all_blocks(
    models: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.serving.predictor._BLOCK_INPUTS", 2)
    inputs = ["harbour " * 80, "rain", "rain", "harbour " * 90, "rain"]
    with pytest.warns(UserWarning, match="exceed") as caught:
        models["sst"](inputs)
    assert [str(each.message).partition(" exceed")[0] for each in caught] == ["2 of 5 inputs"]
    with pytest.warns(UserWarning, match="exceed") as caught:
        list(models["sst"](iter(inputs)))
    assert [str(each.message).partition(" exceed")[0] for each in caught] == ["1 of 2 inputs"] * 2


def test_a_folder_that_is_no_model_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a model folder"):
        load(tmp_path)
    with pytest.raises(InputError, match="make one of it first: bertwright import hub:who/what --out FOLDER"):
        load("hub:who/what")
    with pytest.raises(InputError, match="random weights have learned nothing"):
        load("random:tiny")
    half = tmp_path / "half"
    half.mkdir()
    for path in sorted(Path(folders["sst"]).iterdir())[:-1]:  # all but the last file
        (half / path.name).write_bytes(path.read_bytes()[: 5000 if path.suffix == ".safetensors" else None])
    with pytest.raises(InputError, match="half"):
        load(half)


def test_numbers_that_are_none_are_no_answer(folders: dict[str, str], tmp_path: Path) -> None:
    model = load(broken(folders["sst"], tmp_path / "nan"))
    with pytest.raises(RunFailed, match="/nan: expected finite numbers from the model, got NaN or infinity"):
        model("rain")


def test_threads_share_a_model(models: dict[str, Predictor]) -> None:
    expected, results, model = models["sst"](TEXTS), {}, models["sst"]

    def ask(number: int) -> None:
        results[number] = [model(TEXTS) for _ in range(5)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(
        same_answer(one, other)
        for turns in results.values()
        for turn in turns
        for one, other in zip(turn, expected, strict=True)
    )


@pytest.mark.parametrize("bits", [pytest.param("int8", marks=needs_bytes), "bf16"])
def test_numbers_of_fewer_bits_answer_nearly_the_same(
    folders: dict[str, str], models: dict[str, Predictor], bits: str
) -> None:
    lm = load(folders["lm"], precision=bits)
    filled, expected = lm("the [MASK]").masks[0], models["lm"]("the [MASK]").masks[0]
    assert filled[0].probability == pytest.approx(expected[0].probability, abs=0.02)
    assert filled[0].probability != expected[0].probability  # it is computed in those numbers
    assert lm.next_sentence(*TEXTS[:2]) == pytest.approx(models["lm"].next_sentence(*TEXTS[:2]), abs=0.05)
    model = load(folders["sst"], precision=bits)
    for one, other in zip(model(TEXTS), models["sst"](TEXTS), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.05)


def test_without_the_products_of_bytes_it_warns_and_answers_in_fp32(
    folders: dict[str, str], models: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.warns(UserWarning, match="lacks exact 8-bit products"):
        model = load(folders["sst"], precision="int8")
    for one, other in zip(model(TEXTS), models["sst"](TEXTS), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
