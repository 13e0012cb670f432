"""ModernBERT: both spellings of config.json, what is refused, long rows beside transformers, the layer of heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.model.bert import open_architecture
from bertwright.model.config import encoder_shape, size_config
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.model.hf_config import describe_settings
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.system import system_config
from bertwright.objectives.dataset import PretrainingBatch
from bertwright.objectives.masked_lm import PretrainingModel, open_pretrained, second_objective, to_inputs
from bertwright.pretraining.init_from import size_name
from bertwright.pretraining.resources import count_parameters, meta_model
from bertwright.tasks.fill_mask import open_next_sentence
from bertwright.tasks.inference import Answerable, Answering
from bertwright.text.open_tokenizer import open_tokenizer_folder
from tests.support.folders import update_json
from tests.support.parity import assert_close
from tests.support.published_families import FAMILIES, publish

BASE = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "sep_token_id": 50282,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "vocab_size": 50368,
}
"""Entries of a config.json of transformers 4.48, in the shape of ModernBERT-base."""
OLDER = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
TYPES = ["full_attention", "sliding_attention", "sliding_attention"]


def described(**changes: Any) -> ModernBertConfig:
    """Return the configuration of BASE with these changes; an entry that is None is left out."""
    raw = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
    config = describe_settings(raw, Path("config.json")).config
    assert isinstance(config, ModernBertConfig)
    return config


def rope(full: float | None, sliding: float | None) -> dict[str, Any]:
    """Return `rope_parameters` of transformers 5."""
    thetas = {"full_attention": full, "sliding_attention": sliding}
    return {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items() if theta}


def test_both_spellings_are_one_configuration() -> None:
    older = described()
    assert (older.reaches, older.global_every, older.radius) == (None, 3, 64)
    assert [layer for layer in range(22) if older.is_global(layer)] == [0, 3, 6, 9, 12, 15, 18, 21]
    newer: dict[str, Any] = dict.fromkeys(OLDER)
    newer |= {"layer_types": (TYPES * 8)[:22], "rope_parameters": rope(160000.0, 10000.0)}
    assert described(**newer) == older
    assert described(layer_types=(TYPES * 8)[:22], rope_parameters=rope(160000.0, None)) == older
    assert described(**dict.fromkeys(OLDER)) == older
    other = described(**{**newer, "layer_types": (TYPES[::-1] * 8)[:22], "rope_parameters": rope(500.0, 20.0)})
    assert other.reaches is not None
    assert [layer for layer in range(22) if other.is_global(layer)] == [2, 5, 8, 11, 14, 17, 20]
    assert (other.global_rope_theta, other.local_rope_theta) == (500.0, 20.0)
    assert describe_settings({**BASE, "local_rope_theta": None}, Path("m")).config == described(
        local_rope_theta=160000.0
    )


def test_both_spellings_are_written_and_read_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    from bertwright.model.families.modernbert import MODERNBERT_FAMILY

    for config in (described(), described(global_attn_every_n_layers=None, layer_types=(TYPES[::-1] * 8)[:22])):
        written = MODERNBERT_FAMILY.config_to_json(config, "BertForMaskedLM", ())
        assert describe_settings(written, tmp_path).config == config
        assert (written.get("global_attn_every_n_layers") == 3) == (config.reaches is None)
        theirs = transformers.ModernBertConfig(**written)
        assert theirs.layer_types == written["layer_types"]
        assert theirs.rope_parameters == rope(160000.0, 10000.0) == written["rope_parameters"]
        assert (written["global_rope_theta"], written["local_rope_theta"]) == (160000.0, 10000.0)


def test_published_number_of_parameters() -> None:
    """149,655,232 weights of ModernBERT-base and its masked-LM head, with the bias of each vocabulary entry."""
    model = meta_model(described(), second_sentence="none")
    embeddings, layer = 768 * 50368, 4 * 768**2 + 3 * 768 * 1152
    norms = 768 * (1 + 21 + 22 + 1)  # after the embeddings, before attention but in the first layer, before GeGLU, last
    assert count_parameters(model) == embeddings + 22 * layer + norms + 768**2 + 768 + 50368 == 149_655_232


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_attention": 0}, "local_attention is 0: Input should be greater than 0"),
        ({"local_attention": -1}, "local_attention is -1: Input should be greater than 0"),
        ({"num_attention_heads": 7}, "hidden 768 is not a multiple of heads 7"),
        ({"num_attention_heads": 256}, "expected heads of an even width, .* got 3"),
        ({"layer_types": TYPES}, "layer_types has 3 entries; expected one for each of 22 layers"),
        ({"layer_types": ["full_attention", "linear_attention"] * 11}, "expected a list of full_attention, sliding"),
        ({"layer_types": ["full_attention"] * 22}, "global_attn_every_n_layers is 3, but layer_types has other layers"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0; expected an integer from 1 on"),
        ({"rope_parameters": rope(7.0, None)}, "global_rope_theta is 160000.0, but rope_parameters has 7.0"),
        ({"rope_parameters": {"rope_type": "default"}}, "expected an object for each of full_attention, sliding"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "expected rope_theta and the rope_type"),
        ({"rope_parameters": {"full_attention": {"factor": 2.0}}}, "expected rope_theta and the rope_type"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling is .*; only None can be read"),
        ({"global_rope_theta": 0.0}, "global_rope_theta is 0.0: Input should be greater than 0"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; allowed are gelu, gelu_new, gelu_pytorch_tanh"),
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu'; allowed are gelu, .*tanh"),
        ({"classifier_activation": ["gelu"]}, r"classifier_activation is \['gelu'\]; allowed are gelu"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max': Input should be 'cls' or 'mean'"),
        ({"pad_token_id": 60000}, "pad_id 60000 is not below the vocab_size 50368"),
        ({"is_decoder": True}, "is_decoder is True; only False can be read"),
    ],
)
def test_what_is_not_computed_here_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"config.json: .*{message}"):
        described(**changes)


def test_long_rows_have_the_states_of_transformers(tmp_path: Path, own_tokenizer: Path) -> None:
    """Rows of 200 tokens are computed in blocks here and with a mask there."""
    published = next(published for published in FAMILIES if published.family == "modernbert")
    theirs = publish(tmp_path / "m", published, "BertForMaskedLM", own_tokenizer)
    ours = open_architecture(open_model(str(tmp_path / "m")))
    ids = torch.randint(5, ours.encoder.config.vocab_size, (2, 200), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(200) < torch.tensor([[200], [90]])
    with torch.inference_mode():
        logits = ours(ids, torch.zeros_like(ids), mask)["logits"]
        answer = theirs(input_ids=ids, attention_mask=mask.long(), output_attentions=True)
        assert_close(logits[mask], answer.logits[mask])
        for layer, attention in enumerate(answer.attentions):  # of real tokens, which are the same for all heads
            mine = ours.encoder.attention(ids, torch.zeros_like(ids), mask, layer=layer)
            assert_close(mine.transpose(1, 2)[mask], attention.transpose(1, 2)[mask])


def test_a_classifier_starts_with_the_layer_of_the_masked_lm(tmp_path: Path, own_tokenizer: Path) -> None:
    """As in transformers, which gives both layers the name head.dense; the span head reads the same layer."""
    published = next(published for published in FAMILIES if published.family == "modernbert")
    theirs = publish(tmp_path / "m", published, "BertForMaskedLM", own_tokenizer)
    saved = open_model(str(tmp_path / "m"))
    weights = saved.weights or {}
    assert torch.equal(weights["pooler.dense.weight"], theirs.head.dense.weight)
    assert torch.equal(weights["masked_lm.transform.weight"], theirs.head.dense.weight)
    assert torch.equal(weights["pooler.norm.weight"], theirs.head.norm.weight)
    publish(tmp_path / "q", published, "BertForQuestionAnswering", own_tokenizer)
    names = {*(open_model(str(tmp_path / "q")).weights or {})}
    assert {"pooler.dense.weight", "pooler.norm.weight", "span.linear.weight", "span.linear.bias"} <= names
    assert not any(name.startswith(("classifier", "masked_lm")) for name in names)
    update_json(tmp_path / "q" / "config.json", tie_word_embeddings=False)  # true of no masked-LM head: it has none
    assert {*(open_model(str(tmp_path / "q")).weights or {})} == names


def test_next_sentences_share_the_layer_of_the_masked_lm_and_read_the_mean(tmp_path: Path, own_tokenizer: Path) -> None:
    """The head is that of a classifier in transformers with the same weights; transformers leaves it out elsewhere."""
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    tokenizer = open_tokenizer_folder(own_tokenizer)
    config = system_config("modernbert", "4x32x2", tokenizer.vocab_size, initializer_range=0.3, pad_id=tokenizer.pad_id)
    assert isinstance(config, ModernBertConfig)
    model = PretrainingModel(config, second_sentence="next").eval()
    init_weights(model, 0.3, torch.Generator().manual_seed(0))
    note, architecture = {"second_sentence": "next"}, model.architecture
    save_model(tmp_path / "m", model, config=config, tokenizer=own_tokenizer, architecture=architecture, extra=note)
    saved = open_model(str(tmp_path / "m"))
    assert (saved.architecture, second_objective(saved)) == ("BertForMaskedLM", "next")
    ids = torch.randint(5, config.vocab_size, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(12) < torch.tensor([[12], [7], [9]])
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")
    head = theirs.head
    with torch.inference_mode():
        again = open_next_sentence(saved)
        state = again.encoder.summary(ids, torch.zeros_like(ids), mask)
        last = theirs.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        mean = (last * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        assert model.next_sentence is not None
        assert_close(again.pair_logits(state), model.next_sentence.linear(head(mean)))
        rows = PretrainingBatch(
            ids=ids.numpy().astype("int32"),
            segments=np.zeros((3, 12), "int8"),
            lengths=np.array([12, 7, 9]),
            positions=np.array([[1, 3], [2, 5], [4, 0]]),
            labels=np.array([[7, 8], [9, 10], [11, 0]]),
            weights=np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]], "float32"),
            is_random=np.array([0, 1, 0]),
        )
        masked, pair = open_pretrained(saved, second_sentence="next").logits(to_inputs(rows))
        logits = theirs(input_ids=ids, attention_mask=mask.long()).logits
        assert_close(masked, logits[[0, 0, 1, 1, 2], [1, 3, 2, 5, 4]])
        assert_close(pair, again.pair_logits(state))
    assert main(["import", str(tmp_path / "m"), "--out", str(tmp_path / "again")]) == 0
    imported = open_model(str(tmp_path / "again"))
    assert (imported.architecture, second_objective(imported)) == ("BertForMaskedLM", "next")
    with torch.inference_mode():
        assert torch.equal(open_next_sentence(imported).pair_logits(state), again.pair_logits(state))


def test_a_named_size_has_about_the_weights_of_bert() -> None:
    for size in ("tiny", "mini", "base", "large"):
        config = system_config("modernbert", size, 1000)
        assert isinstance(config, ModernBertConfig)
        assert size_name(config) == size
        bert = size_config(size, 1000)
        layers = config.layers * (4 * config.hidden**2 + 3 * config.hidden * config.intermediate)
        assert layers == pytest.approx(12 * bert.layers * bert.hidden**2, rel=0.05)


@pytest.mark.parametrize("answering", ["fp32", "bf16", "int8"])
def test_answers_have_packed_layers(answering: Answering) -> None:
    config = described()
    assert Answerable("m", config, None, Path(), answering=answering).computed == answering
    assert encoder_shape(config, "m") is config
