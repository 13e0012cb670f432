"""Relevance of documents for a query, against transformers on the same folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertwright.errors import InputError, RunFailed
from bertwright.search import rerank
from bertwright.search.rerank import Reranker, default_candidates, most_relevant
from bertwright.serving.predictor import load
from bertwright.tasks.classification.spec import CLASSIFY, QNLI, REGRESS, SST2, ClassificationTask
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier, write_encoder
from tests.support.served import overflowing

QUERY = "Who sails on the sea?"
TEXTS = ["The ship sails on the sea.", "Rain.", "", "The house stood at the end of the lane, by the old sea."]
PAIR: dict[str, Any] = {"text": ("query", "document")}
TASKS = {
    "number": (REGRESS.model_copy(update=PAIR), None),
    "labels": (CLASSIFY.model_copy(update={**PAIR, "labels": ("not_relevant", "relevant")}), "relevant"),
    "first label": (QNLI, "entailment"),
}


def write_reranker(folder: Path, tokenizer: Path, task: ClassificationTask, max_length: int = 64) -> str:
    model = small_classifier(classifier_config(Tokenizer.load(tokenizer).vocab_size), task.num_outputs)
    return save_classifier(folder, model, task, tokenizer, max_length)


def of_transformers(folder: str, label: str | None) -> Any:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)([QUERY] * len(TEXTS), TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits
    return logits[:, 0].numpy() if label is None else logits.softmax(1)[:, model.config.label2id[label]].numpy()


@pytest.mark.parametrize("name", TASKS)
def test_scores_are_those_of_transformers(name: str, tmp_path: Path, own_tokenizer: Path) -> None:
    task, label = TASKS[name]
    folder = write_reranker(tmp_path / "model", own_tokenizer, task)
    reranker = Reranker.open(folder, precision=None)
    assert reranker.relevant == label
    scores = reranker.scores(QUERY, TEXTS)
    assert scores.dtype == np.float64
    expected = of_transformers(folder, label)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(Reranker.open(folder, precision="fp32").scores(QUERY, TEXTS), expected, atol=1e-5)
    assert reranker.scores(QUERY, []).shape == (0,)


def test_documents_are_ordered_before_their_scores_are_rounded() -> None:
    scores = [0.25, 0.99999981, 0.5, 0.99999992, 0.5]
    assert most_relevant(scores) == [(3, 1.0), (1, 1.0), (2, 0.5), (4, 0.5), (0, 0.25)]
    assert most_relevant([0.123456789, -3.0], 1) == [(0, 0.123457)]
    assert most_relevant([]) == []


def test_scores_are_those_of_the_served_model(tmp_path: Path, own_tokenizer: Path) -> None:
    """They are not rounded, so that the order of documents is the same."""
    folder = write_reranker(tmp_path / "model", own_tokenizer, TASKS["labels"][0])
    served = [each.probabilities["relevant"] for each in load(folder)([(QUERY, text) for text in TEXTS])]
    np.testing.assert_allclose(Reranker.open(folder).scores(QUERY, TEXTS), served, atol=1e-15)


def test_a_search_reranks_at_least_what_it_shows() -> None:
    assert [default_candidates(top_k) for top_k in (1, 50, 51)] == [50, 50, 51]


def test_labels_that_do_not_tell_need_a_name(tmp_path: Path, own_tokenizer: Path) -> None:
    folder = write_reranker(
        tmp_path / "model", own_tokenizer, CLASSIFY.model_copy(update={**PAIR, "labels": ("a", "b")})
    )
    with pytest.raises(InputError, match=r"model: expected two labels .* got a, b; name the label"):
        Reranker.open(folder)
    a, b = (Reranker.open(folder, precision=None, relevant=label).scores(QUERY, TEXTS) for label in ("a", "b"))
    np.testing.assert_allclose(a + b, 1.0, atol=1e-6)
    np.testing.assert_allclose(a, of_transformers(folder, "a"), atol=1e-6)


def test_many_documents_are_scored_in_blocks(
    tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_reranker(tmp_path / "model", own_tokenizer, TASKS["labels"][0])
    reranker = Reranker.open(folder, precision=None)
    together = reranker.scores(QUERY, TEXTS * 2)
    monkeypatch.setattr(rerank, "_TEXTS", 3)
    np.testing.assert_allclose(reranker.scores(QUERY, TEXTS * 2), together, atol=1e-6)
    np.testing.assert_allclose(together[:4], together[4:], atol=1e-6)


def test_a_long_pair_is_read_in_windows_as_in_training(tmp_path: Path, own_tokenizer: Path) -> None:
    """The relevance of a document in windows is that of the mean of the logits of its windows."""
    task = TASKS["number"][0].model_copy(update={"long": "windows"})
    reranker = Reranker.open(write_reranker(tmp_path / "model", own_tokenizer, task, 24), precision=None)
    words = ["water"] * 12 + ["on"] * 12  # each is one piece
    width = 24 - 3 - 2  # the tokens of a row without its three special tokens and the two pieces of the query
    parts = [" ".join(words[begin : begin + width]) for begin in (0, width // 2)]
    expected = reranker.scores("of the", parts).mean()
    np.testing.assert_allclose(reranker.scores("of the", [" ".join(words)]), expected, atol=1e-6)


def test_other_folders_are_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    with pytest.raises(InputError, match="not a fine-tuned model"):
        Reranker.open(write_encoder(tmp_path / "encoder", own_tokenizer))
    with pytest.raises(InputError, match="got one for sst2, which reads one text; train one"):
        Reranker.open(write_reranker(tmp_path / "sst", own_tokenizer, SST2))
    with pytest.raises(InputError, match="missing"):
        Reranker.open(str(tmp_path / "missing"))


def test_bad_input_names_what_is_wrong(tmp_path: Path, own_tokenizer: Path) -> None:
    folder = write_reranker(tmp_path / "model", own_tokenizer, TASKS["number"][0])
    reranker = Reranker.open(folder, precision=None)
    for query in ("", " \t\u200b"):
        with pytest.raises(InputError, match="the query is empty; expected a text"):
            reranker.scores(query, TEXTS)
    with pytest.raises(InputError, match="document 1 holds half of a character"):
        reranker.scores(QUERY, ["a", "\ud800"])
    overflows = Reranker.open(overflowing(folder, tmp_path / "overflows", "water"), precision=None)
    with pytest.raises(RunFailed, match=r"overflows: document 4: expected finite numbers"):
        overflows.scores(QUERY, [*TEXTS, "The water."])
