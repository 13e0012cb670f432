"""The loss of the frequencies of pieces against a plain loop, and the warnings of a run against those of its plan."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertwright.corpus.shards import Corpus
from bertwright.objectives.dataset import PretrainingBatch
from bertwright.pretraining import dry_run, run
from bertwright.pretraining.dry_run import plan_pretraining
from bertwright.pretraining.frequencies import frequency_loss, no_better_than_frequencies
from bertwright.pretraining.measure import Timings
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, build_model, encoder_config


def settings(**changes: Any) -> PretrainSettings:
    short = {"phases": (Phase(length=32, share=1.0),), "steps": 3, "batch_size": 6, "threads": 1, "precision": "fp32"}
    return PretrainSettings.model_validate({**short, "held_out_share": 0.2, "evaluations": 1, **changes})


def prepared(corpus: Path, **changes: Any) -> Pretraining:
    chosen, data = settings(**changes), Corpus.open(corpus)
    model = build_model(chosen, encoder_config(chosen, data.tokenizer.vocab_size), None, data)
    return Pretraining(chosen, model, [(data, 1.0)], None)


def predicted(batch: PretrainingBatch) -> list[int]:
    return [int(label) for label, weight in zip(batch.labels.flat, batch.weights.flat, strict=True) if weight]


def test_loss_of_the_frequencies(own_corpus: Path) -> None:
    pretraining = prepared(own_corpus)
    assert pretraining.validation
    counts, targets = Counter[int](), Counter[int]()
    for step in range(500):
        batch = pretraining.phase_rows[0].step_batch(step, 6)
        counts.update(predicted(batch))
    for batch in pretraining.validation:
        assert isinstance(batch, PretrainingBatch)
        targets.update(
            int(label) for label, weight in zip(batch.labels.flat, batch.weights.flat, strict=True) if weight
        )
    pieces, total = pretraining.corpus.tokenizer.vocab_size, sum(counts.values())
    nats = sum(-number * math.log((counts[id] + 1) / (total + pieces)) for id, number in targets.items())
    assert frequency_loss(pretraining) == pytest.approx(nats / sum(targets.values()))


@pytest.mark.parametrize(("name", "system"), [("mlm_loss", "bert"), ("lm_loss", "bert-left")])
def test_a_loss_above_that_of_the_frequencies_has_a_warning(own_corpus: Path, name: str, system: str) -> None:
    pretraining = prepared(own_corpus, system=system, examples={"second_sentence": "none"})
    frequencies = frequency_loss(pretraining)
    assert 2 < frequencies < math.log(pretraining.corpus.tokenizer.vocab_size)
    assert no_better_than_frequencies(pretraining, {name: 0.98 * frequencies}) == ""
    said = no_better_than_frequencies(pretraining, {name: frequencies})
    assert said.startswith(f"{name} {frequencies:.2f} is no better than {frequencies:.2f}")
    assert no_better_than_frequencies(pretraining, {}) == ""


def test_a_run_prints_the_warnings_of_its_plan_once(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "measure_timings", lambda *_, **__: Timings((0.5,), 0.5, 0.25))
    out = tmp_path / "run"
    planned = plan_pretraining(settings(), corpus=own_corpus, out=out)["warnings"]
    assert planned
    capsys.readouterr()
    result = run.pretrain(settings(), corpus=own_corpus, out=out)
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")][:-1] == planned
    assert f"warning: mlm_loss {result['held_out']['mlm_loss']:.2f} is no better than" in lines[-1]
    run.pretrain(settings(), corpus=own_corpus, out=out, resume=True)
    assert "warning:" not in capsys.readouterr().err
