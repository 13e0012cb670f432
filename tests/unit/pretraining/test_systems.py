"""Settings of each system, combinations that are refused, and the recipe of GPT-1's paper."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig
from bertwright.model.families.elmo import LSTMConfig, PairConfig
from bertwright.model.families.gpt import GPTConfig
from bertwright.model.families.roberta import RobertaConfig
from bertwright.model.folder import SavedModel, open_model, save_model
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.system import SYSTEMS, System, system_config
from bertwright.objectives.language_model import LanguageModel
from bertwright.pretraining.init_from import size_name, with_pair_head
from bertwright.pretraining.resources import activation_bytes, count_parameters, meta_model
from bertwright.pretraining.settings import PretrainSettings, resolve_settings
from bertwright.pretraining.setup import encoder_config, prepare_pretraining
from bertwright.pretraining.systems import refuse_vocabulary
from bertwright.text.bpe import train_bpe
from tests.support.encoders import write_encoder


def one_step_settings(**changes: Any) -> PretrainSettings:
    return PretrainSettings.model_validate({"steps": 1, **changes})


@pytest.mark.parametrize("system", SYSTEMS)
def test_settings_come_back_from_a_record(system: System) -> None:
    requested_settings = one_step_settings(system=system)
    usual = {"bert": "next"} | dict.fromkeys(("albert", "albert-attention", "albert-feed-forward"), "order")
    assert requested_settings.examples.second_sentence == usual.get(system, "none")
    assert requested_settings.examples.short_share == (0.0 if system == "roberta" else 0.1)
    assert requested_settings.activation == ("gelu_tanh" if system in ("gpt", "gpt2") else "gelu")
    assert PretrainSettings.model_validate(requested_settings.model_dump(mode="json")) == requested_settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": {"second_sentence": "next"}}, "no second sentence"),
        ({"examples": {"masking": {"share": 0.3}}}, "nothing is masked"),
        ({"examples": {"masking": {"units": "word"}}}, "nothing is masked"),
        ({"examples": {"static_masks": 2}}, "no masks to repeat"),
        ({"mask_schedule": [{"masked": 0.3, "share": 1.0}]}, "nothing is masked"),
        ({"system": "bert", "mask_schedule": [{"masked": 0.3, "share": 0.5}]}, "mask_schedule: expected fractions"),
        ({"system": "gpt", "activation": "gelu"}, "the tanh form of GELU"),
        ({"system": "gpt", "examples": {"short_share": 0.2}}, "all of one length"),
        ({"system": "gpt", "phases": [{"length": 600, "share": 1.0}]}, "512 positions, and rows are 600 tokens long"),
        ({"system": "lstm-left", "activation": "gelu_tanh"}, "an LSTM has no GELU"),
        ({"system": "lstm-left", "start": "local"}, "an LSTM has no attention"),
        ({"system": "gpt-bert", "examples": {"causal_share": 0.0}}, "above 0 and below 1 .causal_share 0"),
        ({"system": "gpt-bert", "examples": {"causal_share": 1.0}}, "above 0 and below 1 .causal_share 1"),
        ({"system": "gpt-bert", "examples": {"causal_share": 1.5}}, "less than or equal to 1"),
        ({"system": "gpt-bert", "examples": {"second_sentence": "next"}}, "its rows have no second sentence"),
        ({"embedding_size": 64}, "system bert-left: its embeddings are as wide as its states"),
        ({"system": "roberta", "embedding_size": 64}, "its embeddings are as wide .*; leave it out"),
        ({"system": "electra", "embedding_size": 0}, "greater than 0"),
        ({"system": "gpt-bert", "generator_width": 0.5}, "system gpt-bert: has no generator"),
        ({"system": "bert", "examples": {"causal_share": 0.5}}, "gpt-bert mixes causal and masked rows"),
        ({"system": "elmo"}, "Input should be .*'bert', 'bert-left'"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        one_step_settings(**{"system": "bert-left", **changes})


def test_gpts_paper() -> None:
    """Values of §4.1 of the paper; epsilon, correction and clipping are those of its code for fine-tuning."""
    recipe = resolve_settings("paper-gpt", {})
    assert (recipe.system, recipe.size, recipe.batch_size, recipe.steps) == ("gpt", "base", 64, 1_000_000)
    assert [(phase.length, phase.share) for phase in recipe.phases] == [(512, 1.0)]
    optimizer = recipe.optimizer
    assert (optimizer.learning_rate, optimizer.schedule) == (2.5e-4, "cosine")
    assert int((recipe.steps or 0) * optimizer.warmup) == 2_000
    assert (optimizer.weight_decay, optimizer.epsilon, optimizer.bias_correction) == (0.01, 1e-8, True)
    shape = encoder_config(recipe, 40_478)
    assert isinstance(shape, GPTConfig)
    assert count_parameters(meta_model(shape, second_sentence="none")) == 116_534_784


def test_shapes_of_a_size() -> None:
    shapes = {
        system: encoder_config(one_step_settings(system=system, size="mini", dropout=0.2), 99) for system in SYSTEMS
    }
    assert {EncoderConfig, GPTConfig, LSTMConfig, RobertaConfig, ModernBertConfig} <= {*map(type, shapes.values())}
    assert all(shape.hidden_dropout == 0.2 for shape in shapes.values())
    assert all(size_name(shape) == "mini" for shape in shapes.values())
    assert size_name(shapes["lstm-left"].model_copy(update={"cells": 999})) == "4x256 of 999 cells"
    assert size_name(shapes["gpt"].model_copy(update={"heads": 2})) == "4x256x2"
    assert encoder_config(one_step_settings(system="gpt", size="4x256x2"), 99) == shapes["gpt"].model_copy(
        update={"heads": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    )
    with pytest.raises(InputError, match="size 4x256x2: an LSTM has no heads"):
        encoder_config(one_step_settings(system="lstm-left", size="4x256x2"), 99)
    assert size_name(PairConfig(left=shapes["lstm-left"], right=shapes["lstm-right"])) == "4x512"


def test_vocabularies_of_the_wrong_kind(own_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Corpus.open(own_corpus)
    refuse_vocabulary("bert-left", data)
    with pytest.raises(InputError, match="is WordPiece, and GPT-1 is defined with byte pairs"):
        refuse_vocabulary("gpt", data)
    monkeypatch.setitem(data.__dict__, "tokenizer", train_bpe(["some text of ours"], merges=3))
    refuse_vocabulary("gpt", data)
    with pytest.raises(InputError, match=r"without \[CLS\] and \[SEP\]; lstm-left needs WordPiece"):
        refuse_vocabulary("lstm-left", data)


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        (
            "bert-left",
            {"system": "bert-right"},
            r"a right-to-left BERT .*, got a left-to-right BERT \(--system bert-left\)",
        ),
        ("bert-left", {}, r"expected a BERT \(--system bert\)"),
        ("lstm-left", {"system": "lstm-left", "size": "mini"}, "expected the size mini .*, got tiny"),
        (
            "bert-left",
            {"system": "bert-left", "activation": "gelu_tanh"},
            "expected the activation gelu_tanh .*, got gelu",
        ),
    ],
)
def test_an_initial_model_of_another_system_is_refused(
    own_corpus: Path, tmp_path: Path, system: System, changes: dict[str, Any], message: str
) -> None:
    config = system_config(system, "tiny", 500)
    model = LanguageModel(config)
    tokenizer = own_corpus / "tokenizer"
    save_model(tmp_path / "m", model, config=config, tokenizer=tokenizer, architecture="BertwrightLanguageModel")
    with pytest.raises(InputError, match=message):
        prepare_pretraining(
            one_step_settings(phases=[{"length": 16, "share": 1.0}], **changes),
            corpus=own_corpus,
            out=tmp_path / "run",
            held_out=None,
            init_from=str(tmp_path / "m"),
        )


def test_a_composition_is_not_pretrained() -> None:
    pair = PairConfig(left=system_config("lstm-left", "tiny", 9), right=system_config("lstm-right", "tiny", 9))
    with pytest.raises(InputError, match="a composition of models"):
        encoder_config(one_step_settings(), 9, SavedModel("m", pair, {}, Path()))


def test_memory_of_a_language_model_holds_a_block_of_logits() -> None:
    run_settings = one_step_settings(system="bert-left", micro_tokens=8192, phases=[{"length": 128, "share": 1.0}])
    shape = encoder_config(run_settings, 30_000)
    kept = 64 * 128 * (2 * (18 * 128 + 3 * 2 * 128) + (2 + 6) * 128)
    random = 64 * 128 * (2 * (128 + 2 * 128 // 2) + 128 // 2)  # half of the bytes of a number in fp32
    assert activation_bytes(run_settings, shape, length=128, precision="fp32") == 4 * (kept - random + 1024 * 30_000)
    assert activation_bytes(run_settings, shape, length=128, precision="bf16") == 2 * kept + 4 * 1024 * 30_000
    mixed = one_step_settings(system="gpt-bert", micro_tokens=8192, phases=[{"length": 128, "share": 1.0}])
    logits = round(64 * 19 * 15 / 16)  # of the masked pieces, together
    both = activation_bytes(mixed, encoder_config(mixed, 30_000), length=128, precision="fp32")
    assert both == 4 * (kept - random + logits * 30_000)


def test_a_head_for_pairs_with_another_objective_is_left_out_and_named(
    own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = open_model(write_encoder(tmp_path / "m", own_tokenizer, second_sentence="next"))
    assert with_pair_head(saved, "next") is saved
    assert capsys.readouterr().err == ""
    kept = with_pair_head(saved, "none").weights or {}
    assert {*(saved.weights or {})} - {*kept} == {"next_sentence.linear.weight", "next_sentence.linear.bias"}
    assert "its head for pairs of sentences learned 'next' and is left out; wanted is 'none'" in capsys.readouterr().err


def test_memory_of_a_second_head_that_reads_the_mean_holds_all_last_states() -> None:
    phases = [{"length": 128, "share": 1.0}]
    alone = one_step_settings(system="modernbert", micro_tokens=8192, phases=phases)
    with_pairs = one_step_settings(
        system="modernbert", micro_tokens=8192, phases=phases, examples={"second_sentence": "next"}
    )
    shape = encoder_config(alone, 30_000)
    forecasts = [activation_bytes(each, shape, length=128, precision="fp32") for each in (alone, with_pairs)]
    longer = shape.model_copy(update={"layers": shape.layers + 1})
    layer = activation_bytes(alone, longer, length=128, precision="fp32") - forecasts[0]
    assert layer / 2 < forecasts[1] - forecasts[0] < layer + 4 * 64 * 128 * 2 * shape.hidden
