"""How a pre-training run's steps are cut into phases and micro-batches; which recorded settings it goes on from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.pretraining import to_inputs
from bertwright.recipes.held_out import HeldOut
from bertwright.recipes.pretrain import Pretraining, build_model, encoder_config
from bertwright.recipes.settings import Phase, PretrainSettings
from bertwright.text.tokenizer import train_tokenizer
from bertwright.training.machine import resolve_numerics
from bertwright.training.tracking import start_run


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
    return Pretraining(settings, model, [(corpus, 1.0)], None)


def test_phases_follow_one_another_and_rows_are_cut_by_tokens(corpus: Corpus) -> None:
    batches = prepared(corpus).batches(40)
    assert [inputs.ids.shape for inputs in batches(0)] == [(4, 16), (2, 16)]
    assert [inputs.ids.shape[1] for inputs in batches(29)] == [16, 16]
    assert [inputs.ids.shape for inputs in batches(30)] == [(2, 32)] * 3
    assert [inputs.ids.shape for inputs in batches(39)] == [(2, 32)] * 3


def test_a_phase_goes_on_in_the_rows_of_earlier_ones_of_its_length(corpus: Corpus) -> None:
    phases = [Phase(length=length, share=share) for length, share in ((16, 0.5), (32, 0.25), (16, 0.25))]
    torn, whole = prepared(corpus, phases=phases).batches(40), prepared(corpus).batches(40)
    for step, same in ((0, 0), (19, 19), (30, 20), (39, 29)):
        for inputs, wanted in zip(torn(step), whole(same), strict=True):
            assert torch.equal(inputs.ids, wanted.ids)
            assert torch.equal(inputs.picked, wanted.picked)


def test_a_run_notes_the_processor_that_it_goes_on_with(corpus: Corpus, tmp_path: Path) -> None:
    trained, here = prepared(corpus), resolve_numerics("fp32", threads=1)
    run = start_run(tmp_path / "run", kind="pretrain", settings={}, data={}, resume=False)
    trained.resolve(run, here, allow_other=False)
    settled = run.record["resolved"]
    run.note(resolved={**settled, "numerics": {**settled["numerics"], "processor": "another", "matrix_rate": 1.0}})
    with pytest.raises(InputError, match="begun with another, here is"):
        trained.resolve(run, here, allow_other=False)
    assert run.record["resolved"]["numerics"]["processor"] == "another"
    found, _ = trained.resolve(run, here, allow_other=True)
    assert found == here
    assert run.record["resolved"] == {**settled, "numerics": here.model_dump()}
    assert trained.resolve(run, here, allow_other=False) == (here, 40)


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


# ---------------------------------------------------------------- sentence order in place of next sentence


def model_for(corpus: Corpus, second_sentence: str, init_from: Path | None = None, seed: int = 0):
    settings = PretrainSettings.model_validate(
        {"steps": 1, "seed": seed, "examples": {"second_sentence": second_sentence}}
    )
    config = encoder_config(settings, corpus.tokenizer.vocab_size)
    return build_model(settings, config, open_model(str(init_from)) if init_from else None, corpus).eval()


def test_masked_lm_is_measured_on_the_same_rows_and_order_on_its_own(corpus: Corpus) -> None:
    ordered, following = model_for(corpus, "order"), model_for(corpus, "next")  # the same weights
    held_out = HeldOut.of([(corpus, 1.0)], "order", rows=60, length=32)
    with torch.inference_mode():
        figures = held_out.figures(ordered)
        other = HeldOut.of([(corpus, 1.0)], "next", rows=60, length=32).figures(following)
        assert held_out.ordered
        whole = to_inputs(held_out.ordered.batch(0, np.arange(60)))
        logits = ordered.logits(whole)[1]
    assert {name: figures[name] for name in figures if not name.startswith("sop")} == {
        name: other[name] for name in other if not name.startswith("nsp")
    }
    assert logits is not None
    assert figures["sop_loss"] == pytest.approx(float(F.cross_entropy(logits, whole.is_random)), rel=1e-5)
    assert figures["sop_accuracy"] == pytest.approx(float((logits.argmax(1) == whole.is_random).float().mean()))


def test_the_head_of_another_objective_is_not_taken_over(corpus: Corpus, tmp_path: Path) -> None:
    trained = model_for(corpus, "next", seed=1)
    save_model(
        tmp_path / "model",
        trained,
        config=trained.encoder.config,
        tokenizer=corpus.folder / "tokenizer",
        architecture="BertForPreTraining",
    )
    fresh = model_for(corpus, "order").state_dict()
    kept, changed = (model_for(corpus, kind, tmp_path / "model").state_dict() for kind in ("next", "order"))
    head = "next_sentence.linear.weight"
    assert all(torch.equal(kept[name], value) for name, value in trained.state_dict().items())
    assert all(torch.equal(changed[name], kept[name]) for name in kept if not name.startswith("next_sentence"))
    assert torch.equal(changed[head], fresh[head])
    assert not torch.equal(changed[head], kept[head])


# ---------------------------------------------------------------- records of earlier runs


def earlier_record(folder: Path, **changes: object) -> None:
    """A run.json from before second_sentence, static_masks and units, of PretrainSettings(steps=7) but for changes."""
    settings = PretrainSettings(steps=7).model_dump(mode="json")
    examples, masking = settings["examples"], settings["examples"]["masking"]
    for place, name in [(examples, "second_sentence"), (examples, "static_masks"), (masking, "units")]:
        del place[name]
    examples["next_sentence"] = changes.pop("next_sentence", True)
    masking["whole_word"] = changes.pop("whole_word", False)
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"kind": "t", "settings": settings | changes, "data": {}}), "utf-8")


@pytest.mark.parametrize(
    ("record", "examples"),
    [
        ({}, {}),
        ({"next_sentence": False, "whole_word": True}, {"second_sentence": "none", "masking": {"units": "word"}}),
    ],
)
def test_a_record_without_later_settings_or_with_old_names_is_resumed(
    tmp_path: Path, record: dict[str, object], examples: dict[str, object]
) -> None:
    earlier_record(tmp_path / "run", **record)
    settings = PretrainSettings.model_validate({"steps": 7, "examples": examples})
    before = (tmp_path / "run" / "run.json").read_bytes()
    assert start_run(tmp_path / "run", kind="t", settings=settings, data={}, resume=True).record["kind"] == "t"
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("record", "asked", "message"),
    [
        ({}, {"static_masks": 2}, "examples.static_masks is 0 there and 2 here"),
        ({}, {"masking": {"units": "span"}}, "units is 'piece' there and 'span' here"),
        ({"whole_word": True}, {}, "units is 'word' there and 'piece' here"),
        ({"next_sentence": False}, {"second_sentence": "order"}, "second_sentence is 'none' there and 'order' here"),
        ({"banana": 1}, {"static_masks": 1}, "static_masks is None there and 1 here"),  # of a version to come
    ],
)
def test_another_configuration_is_still_refused(
    tmp_path: Path, record: dict[str, object], asked: dict[str, object], message: str
) -> None:
    earlier_record(tmp_path / "run", **record)
    settings = PretrainSettings.model_validate({"steps": 7, "examples": asked})
    with pytest.raises(InputError, match=message):
        start_run(tmp_path / "run", kind="t", settings=settings, data={}, resume=True)


def test_old_and_new_names_together_are_refused() -> None:
    with pytest.raises(ValueError, match="next_sentence"):
        PretrainSettings.model_validate({"steps": 7, "examples": {"next_sentence": True, "second_sentence": "next"}})
    with pytest.raises(ValueError, match="whole_word"):
        PretrainSettings.model_validate({"steps": 7, "examples": {"masking": {"whole_word": "yes"}}})
