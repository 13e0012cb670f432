"""The quickstart's table: what it compares, with scikit-learn and without."""

import sys
from pathlib import Path

import pytest

from bertwright.errors import Stopped
from bertwright.quickstart import run as module
from bertwright.quickstart.run import _baseline_accuracies, _table
from bertwright.quickstart.task import LibraryTask
from bertwright.tasks.classification.spec import get_task
from tests.support.examples import text_examples


def test_without_scikit_learn_the_table_has_no_bag_of_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = text_examples(["a good film", "a bad film", "a good book", "a bad book"] * 3, [1, 0, 1, 0] * 3)
    accuracy = _baseline_accuracies(get_task("sst2"), examples, examples)
    assert accuracy == {"majority": 0.5, "bag_of_words": 1.0}
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    assert _baseline_accuracies(get_task("sst2"), examples, examples) == {"majority": 0.5}
    assert "needs the extra 'tasks': pip install 'bertwright[tasks]'; the table has no bag" in capsys.readouterr().err

    task = LibraryTask(("a", "b"), (), (), (), ())
    results = {"sd": {"scratch": 0.01, "pretrained": 0.01}, "test_sentences": 100}
    models = {"scratch": 0.6, "pretrained": 0.7}
    lines = _table(results | {"accuracy": {"majority": 0.5, "bag_of_words": 0.8} | models}, task, own_text=False)
    assert lines[2].split() == ["bag", "of", "words", "+", "logistic", "regression", "80.0%"]
    assert "It is no better than the bag of words" in lines[-2]
    lines = _table(results | {"accuracy": {"majority": 0.5, "bag_of_words": 0.6895} | models}, task, own_text=False)
    assert "bag of words" not in lines[-2]  # 1.05 points are more than the deviation of the seeds
    lines = _table(results | {"accuracy": {"majority": 0.5, "bag_of_words": 0.695} | models}, task, own_text=False)
    assert "It is no better than the bag of words" in lines[-2]
    unsteady = results | {"sd": {"scratch": 0.04, "pretrained": 0.01}}  # the model from scratch is not compared here
    lines = _table(unsteady | {"accuracy": {"majority": 0.5, "bag_of_words": 0.68} | models}, task, own_text=False)
    assert "bag of words" not in lines[-2]
    lines = _table(results | {"accuracy": {"majority": 0.5} | models}, task, own_text=False)
    assert [line.split("  ")[1] for line in lines[1:4]] == [
        "always the commonest",
        "BERT from scratch",
        "BERT, pre-trained",
    ]
    assert lines[-2] == "Pre-training was worth +10.0 points over the same model from scratch."


def test_a_signal_at_the_end_of_pre_training_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal came while the last checkpoint was written; no fine-tuning begins."""
    ended = {"stopped": False, "signalled": True, "held_out": {}, "curve": ""}
    monkeypatch.setattr(module, "pretrain", lambda *_, **__: ended)
    monkeypatch.setattr(module, "with_pages", lambda result, _: result)
    monkeypatch.setattr(module, "_build", lambda _: None)
    monkeypatch.setattr(module, "_pretraining", lambda *_: (None, None))
    with pytest.raises(Stopped, match="stopped during pre-training"):
        module._run_stages(["A text."], None, corpus=None, minutes=1.0, out=tmp_path, start=0.0)
