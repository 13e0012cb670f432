"""Classifiers and taggers of GPT-2 that were trained elsewhere: rows without a frame, answers as in transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.setup import with_task_tokens
from bertwright.interop.import_model import import_model
from bertwright.model.folder import open_model
from bertwright.serving.predictor import load
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.model import windows_of
from tests.support.gpt2_files import END, publish_gpt2, write_gpt2_tokenizer
from tests.support.requests import Requests

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

TEXTS = ("The harbour.", "Near the old bridge, ships!", "a", "It is old, " * 30)
"""The last one has more tokens than the model has positions."""
LENGTH = 40


def _published(folder: Path, kind: str, **entries: Any) -> tuple[Any, Any]:
    """Write and import a model of three labels whose tokenizer adds nothing; return both objects of transformers."""
    size = write_gpt2_tokenizer(folder / "m")
    shape = {"vocab_size": size, "eos_token_id": size - 1, "n_positions": LENGTH, "num_labels": 3}
    theirs = publish_gpt2(folder / "m", kind, **shape, **entries)
    return theirs, transformers.AutoTokenizer.from_pretrained(folder / "m")


def _probabilities(theirs: Any, encoded: Any) -> np.ndarray:
    with torch.inference_mode():
        probabilities: np.ndarray = theirs(**encoded).logits.softmax(-1).numpy()
    return probabilities


@pytest.mark.parametrize("pad", ["no padding", "the end of a text", "a token of its own"])
def test_a_classifier_answers_as_in_transformers(tmp_path: Path, pad: str) -> None:
    """Without padding in config.json transformers reads one text at a time; with it, the last token before it."""
    theirs, read = _published(tmp_path, "GPT2ForSequenceClassification")
    if pad != "no padding":
        read.add_special_tokens({"pad_token": END if pad == "the end of a text" else "<|pad|>"})
        theirs.resize_token_embeddings(len(read))
        theirs.config.pad_token_id = read.pad_token_id
        theirs.save_pretrained(tmp_path / "m")
        read.save_pretrained(tmp_path / "m")
    cut = {"truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
    if pad == "no padding":
        singles = [_probabilities(theirs, read(text, **cut)) for text in TEXTS]
        pairs = [_probabilities(theirs, read("A ship.", text, **cut)) for text in TEXTS[:3]]
        expected, of_pairs = np.concatenate(singles), np.concatenate(pairs)
    else:
        expected = _probabilities(theirs, read(list(TEXTS), padding=True, **cut))
        of_pairs = _probabilities(theirs, read(["A ship."] * 3, list(TEXTS[:3]), padding=True, **cut))
    import_model(str(tmp_path / "m"), tmp_path / "one")
    model = load(tmp_path / "one", precision="fp32")
    with pytest.warns(UserWarning, match="1 of 4 inputs exceed the 40 tokens"):
        answers = model(list(TEXTS))
    np.testing.assert_allclose([list(answer.probabilities.values()) for answer in answers], expected, atol=1e-5)
    import_model(str(tmp_path / "m"), tmp_path / "two", text=("first", "second"))
    answers = load(tmp_path / "two", precision="fp32")([("A ship.", text) for text in TEXTS[:3]])
    np.testing.assert_allclose([list(answer.probabilities.values()) for answer in answers], of_pairs, atol=1e-5)


def test_predict_answers_each_line_and_an_empty_text(tmp_path: Path) -> None:
    theirs, read = _published(tmp_path, "GPT2ForSequenceClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (*TEXTS[:3], "")))
    command = ["predict", "--model", str(tmp_path / "model"), "--input", str(tmp_path / "in.jsonl")]
    assert main([*command, "--output", str(tmp_path / "out.jsonl"), "--precision", "fp32"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    encoded = [*(read(text, return_tensors="pt") for text in TEXTS[:3]), {"input_ids": torch.tensor([[len(read) - 1]])}]
    expected = np.concatenate([_probabilities(theirs, each) for each in encoded])
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, atol=1e-5)
    assert [row["label"] for row in rows] == [f"LABEL_{label}" for label in expected.argmax(1)]


def test_the_server_answers_and_names_the_words_that_decide(tmp_path: Path) -> None:
    theirs, read = _published(tmp_path, "GPT2ForSequenceClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    model = load(tmp_path / "model", precision="fp32")
    expected = _probabilities(theirs, read("The old bridge", return_tensors="pt"))[0]
    (answer,) = Requests({"m": model})(("POST", "/v1/predict", {"model": "m", "inputs": ["The old bridge"]}))
    assert answer.status_code == 200, answer.text
    probabilities = answer.json()["results"][0]["probabilities"]
    np.testing.assert_allclose(list(probabilities.values()), expected, atol=1e-5)
    explained = model.explain("The old bridge", method="occlusion")
    assert [word.text for word in explained.words] == ["The", "old", "bridge"]


def test_the_attention_of_a_text_and_of_a_pair_is_shown(tmp_path: Path) -> None:
    _published(tmp_path, "GPT2ForSequenceClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    inputs = [{"text": "The bridge"}, {"text": "The bridge", "second": "a"}, {"text": ""}]
    answers = Requests({"m": load(tmp_path / "model")})(
        *(("POST", "/v1/inside", {"model": "m", **one}) for one in inputs)
    )
    assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
    one, pair, empty = (answer.json() for answer in answers)
    assert "".join(one["pieces"]) == "The▁bridge"
    assert pair["segments"] == [*([0] * len(one["pieces"])), *([1] * (len(pair["pieces"]) - len(one["pieces"])))]
    assert empty["pieces"] == [END]


def test_the_doctor_measures_the_rows_of_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _published(tmp_path, "GPT2ForSequenceClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    rows = [{"text": f"{text} {number}", "label": f"LABEL_{number % 3}"} for number in range(30) for text in TEXTS[:3]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["doctor", "--model", str(tmp_path / "model"), "--data", str(tmp_path / "rows.jsonl")])
    printed = capsys.readouterr().out
    assert "train: mean" in printed
    assert "tokens, 95 % of the rows up to" in printed


def test_a_vocabulary_without_an_end_of_text_cannot_be_fine_tuned(tmp_path: Path) -> None:
    _published(tmp_path, "GPT2ForSequenceClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(dict.fromkeys(("pad_token", "unk_token"), END)))
    saved = open_model(str(tmp_path / "model"))
    with pytest.raises(InputError, match="name it as eos_token"):
        with_task_tokens(saved, open_tokenizer(saved))


def test_a_long_sentence_is_tagged_in_windows_of_all_positions(tmp_path: Path) -> None:
    _published(tmp_path, "GPT2ForTokenClassification")
    import_model(str(tmp_path / "m"), tmp_path / "model")
    saved = open_model(str(tmp_path / "model"))
    words = ("old bridge " * LENGTH).split()
    sentences = Sentences("words", (tuple(words),), None, (tuple(range(len(words))),))
    windows = windows_of(open_tokenizer(saved), sentences, context="off", max_length=LENGTH)
    assert max(map(len, windows.ids)) == LENGTH
    model = load(tmp_path / "model", precision="fp32")
    assert [entity.text for entity in model(" ".join(words)).entities] == words
    explained = model.explain("The old bridge", method="occlusion", word=1)
    assert [word.text for word in explained.words] == ["The", "old", "bridge"]


def test_a_tagger_answers_as_in_transformers(tmp_path: Path) -> None:
    theirs, read = _published(tmp_path, "GPT2ForTokenClassification")
    read = type(read).from_pretrained(tmp_path / "m", add_prefix_space=True)
    import_model(str(tmp_path / "m"), tmp_path / "model")
    words = "Near the old bridge ships wait".split()
    encoded = read(words, is_split_into_words=True, return_tensors="pt")
    firsts = [encoded.word_ids(0).index(number) for number in range(len(words))]
    expected = _probabilities(theirs, encoded)[0, firsts]
    entities = load(tmp_path / "model", precision="fp32")(" ".join(words)).entities
    assert [entity.text for entity in entities] == words
    assert [entity.type for entity in entities] == [f"LABEL_{label}" for label in expected.argmax(1)]
    np.testing.assert_allclose([entity.probability for entity in entities], expected.max(1), atol=1e-5)
