"""How a pre-training run's steps are cut into phases and micro-batches."""

from pathlib import Path

import numpy as np
import pytest

from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.recipes.pretrain import Phase, Pretraining, PretrainSettings, build_model, encoder_config
from bertwright.text.tokenizer import train_tokenizer


@pytest.fixture
def corpus(tmp_path: Path, own_text: Path) -> Corpus:
    train_tokenizer([own_text.read_text("utf-8")], vocab_size=500).save(tmp_path / "tok")
    build_corpus([own_text], tokenizer=tmp_path / "tok", out=tmp_path / "corpus", workers=1)
    return Corpus.open(tmp_path / "corpus")


def prepared(corpus: Corpus, **changes: object) -> Pretraining:
    phases = (Phase(length=16, share=0.75), Phase(length=32, share=0.25))
    settings = PretrainSettings.model_validate(
        {"phases": phases, "steps": 40, "batch_size": 6, "micro_tokens": 64, **changes}
    )
    model = build_model(settings, encoder_config(settings, corpus.tokenizer.vocab_size), None, corpus)
    return Pretraining(settings, model, corpus, None)


def test_phases_follow_one_another_and_rows_are_cut_by_tokens(corpus: Corpus) -> None:
    batches = prepared(corpus).batches(40)
    assert [inputs.ids.shape for inputs in batches(0)] == [(4, 16), (2, 16)]
    assert [inputs.ids.shape[1] for inputs in batches(29)] == [16, 16]
    assert [inputs.ids.shape for inputs in batches(30)] == [(2, 32)] * 3
    assert [inputs.ids.shape for inputs in batches(39)] == [(2, 32)] * 3


def test_the_cut_changes_no_row(corpus: Corpus) -> None:
    narrow, wide = prepared(corpus).batches(40), prepared(corpus, micro_tokens=10_000).batches(40)
    rows = np.concatenate([inputs.ids.numpy() for inputs in narrow(7)])
    (whole,) = wide(7)
    np.testing.assert_array_equal(rows, whole.ids.numpy())
    assert sum(len(inputs.labels) for inputs in narrow(7)) == len(whole.labels)


def test_time_left_counts_longer_rows_as_longer_steps(corpus: Corpus) -> None:
    run = prepared(corpus)
    assert run.steps_left(10, 40) == 20 + 10 * 2
    assert run.steps_left(35, 40) == 5
    assert run.steps_left(40, 40) == 0


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="either steps or minutes"):
        PretrainSettings(steps=3, minutes=1.0)
    with pytest.raises(ValueError, match=r"sum to 0\.5"):
        PretrainSettings(steps=3, phases=(Phase(length=16, share=0.5),))
