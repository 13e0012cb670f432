"""Weights of pieces: by their frequency, chosen by the validation, the model's, and the task's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.finetuning import piece_weights as module
from bertwright.finetuning.piece_weights import USUAL, piece_weights
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.vector_settings import read_vector_settings
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.sentence_vectors import open_sentence_encoder
from bertwright.tasks.spec import with_settings
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import write_encoder
from tests.support.vectors import write_corpus

FAST = FinetuneSettings(epochs=1, batch_size=16, learning_rate=1e-3, max_length=32, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def weighted_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", own_tokenizer)


@pytest.fixture(scope="module")
def weighted_corpus(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), own_tokenizer)


def trained(model: str, corpus: Path, out: Path, *settings: str, **options: Any) -> tuple[float, ...]:
    """Return the weights of the model that a training writes; none are empty."""
    pairs = ["pairs=40"] if corpus.is_dir() else []
    finetune(FAST, with_settings(EMBED, [*pairs, *settings]), model=model, data=corpus, out=out, **options)
    stored = read_vector_settings(out / "model")
    assert stored is not None
    return stored.piece_weights


def choose(monkeypatch: pytest.MonkeyPatch, *, better: bool) -> None:
    """Let the measurement before training be better with the weights, or worse."""
    values = {"a": USUAL, "metric": "mrr", "with": 0.5 + 0.1 * better, "without": 0.55}
    monkeypatch.setattr(module, "_measured", lambda *_: values)


def test_the_weight_falls_with_the_frequency() -> None:
    weights = piece_weights(np.array([0.0, 999.0, 1.0, 0.0]), (3,), 0.001)
    assert weights == (1.0, pytest.approx(0.001, abs=1e-6), 0.5, weights[1])
    assert piece_weights(np.zeros(2), (0,), 0.001) == (1.0, 1.0)


@pytest.mark.parametrize("better", [True, False])
def test_the_validation_chooses(
    better: bool, weighted_model: str, weighted_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, better=better)
    weights = trained(weighted_model, weighted_corpus, tmp_path / "run")
    assert bool(weights) == better
    if better:
        tokenizer = Tokenizer.load(Path(weighted_model))
        common = set(tokenizer.ids(["the ."])[0])
        assert max(weights[id] for id in common) < np.median(weights)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["piece_weights"]["with"] == 0.5 + 0.1 * better
    assert record["data"]["task"]["vectors"]["piece_weights"] == []  # they follow from the data


def test_the_measurement_is_that_of_the_untrained_model(
    weighted_model: str, weighted_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = trained(weighted_model, weighted_corpus, tmp_path / "run")
    noted = json.loads((tmp_path / "run/run.json").read_text())["piece_weights"]
    assert noted["metric"] == "mrr@10"
    assert noted["with"] != noted["without"]
    assert bool(weights) == (noted["with"] > noted["without"])
    verdict = "kept" if weights else "left out"
    assert f"weights of pieces by their frequency: {verdict}; validation mrr@10" in " ".join(
        capsys.readouterr().err.split()
    )


def test_sentence_transformers_computes_the_same_vectors(
    weighted_model: str, weighted_corpus: Path, tmp_path: Path
) -> None:
    assert trained(weighted_model, weighted_corpus, tmp_path / "run", "piece_weights=0.01")
    texts = ["The house stood at the end of the lane.", "Rain.", "the the the house"]
    ours = open_sentence_encoder(str(tmp_path / "run"), "fp32", "cpu").vectors(texts)
    theirs = SentenceTransformer(str(tmp_path / "run/model"), device="cpu").encode(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_model_keeps_its_weights_unless_the_task_sets_them(
    weighted_model: str, weighted_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(weighted_model, weighted_corpus, tmp_path / "first", "piece_weights=0.01")
    monkeypatch.setattr(module, "_measured", lambda *_: pytest.fail("measured"))
    model = str(tmp_path / "first")
    assert trained(model, weighted_corpus, tmp_path / "again") == first
    assert trained(model, weighted_corpus, tmp_path / "none", "piece_weights=0") == ()
    assert trained(model, weighted_corpus, tmp_path / "cls", "pooling=cls") == ()
    other = trained(model, weighted_corpus, tmp_path / "other", "piece_weights=0.0001")
    assert all(new <= old for new, old in zip(other, first, strict=True))
    with pytest.raises(InputError, match=r"piece_weights=0.01: expected the pooling mean over all tokens, got cls"):
        trained(weighted_model, weighted_corpus, tmp_path / "refused", "pooling=cls", "piece_weights=0.01")


def test_tables_have_no_weights_unless_they_are_set(weighted_model: str, tmp_path: Path) -> None:
    rows = [f"where is the house {row}\tthe house {row} is by the road" for row in range(20)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    assert trained(weighted_model, tmp_path / "pairs.tsv", tmp_path / "plain") == ()
    assert len(trained(weighted_model, tmp_path / "pairs.tsv", tmp_path / "set", "piece_weights=0.001")) == 500
