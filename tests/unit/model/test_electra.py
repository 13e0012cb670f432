"""ELECTRA's two models: what each is refused for, files that contradict each other, and the answers of ready copies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.errors import InputError
from bertwright.finetuning.setup import open_initial_model
from bertwright.model.bert import Bert, open_architecture
from bertwright.model.cpu.packing import packed_copy
from bertwright.model.encoder import init_weights
from bertwright.model.families.electra import DISCRIMINATOR, GENERATOR, ElectraConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import system_config
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.text.wordpiece import Tokenizer
from tests.support.parity import padded_batch
from tests.support.processor import needs_bytes


def write_electra(folder: Path, tokenizer: Path, kind: str) -> str:
    """Write an ELECTRA of two layers of 128 with embeddings 24 wide and random weights; return its folder."""
    size = Tokenizer.load(tokenizer).vocab_size
    shape = system_config("electra", "2x128", size, max_positions=40)
    config = ElectraConfig.model_validate({**shape.model_dump(), "embedding_size": 24})
    model = Bert(config, kind)
    init_weights(model, 0.2, torch.Generator().manual_seed(6))
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture=kind)
    return str(folder)


def test_each_of_the_two_models_is_refused_for_the_use_of_the_other(tmp_path: Path, own_tokenizer: Path) -> None:
    discriminator = write_electra(tmp_path / "d", own_tokenizer, DISCRIMINATOR)
    generator = write_electra(tmp_path / "g", own_tokenizer, GENERATOR)
    with pytest.raises(InputError, match=r"such as ELECTRA's generator \(ElectraForMaskedLM\), got ELECTRA's disc"):
        open_pretrained(open_model(discriminator))
    with pytest.raises(InputError, match=r"expected ELECTRA's discriminator \(ElectraForPreTraining\)"):
        open_initial_model(generator, None)
    assert open_pretrained(open_model(generator)).masked_lm.transform.out_features == 24
    assert open_initial_model(discriminator, None)[0].architecture == DISCRIMINATOR


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"summary_type": "mean"}, "summary_type is 'mean'; only 'first' can be read"),
        ({"summary_activation": "tanh"}, "summary_activation is 'tanh'; only 'gelu' can be read"),
        ({"is_decoder": True}, "is_decoder is True; only False can be read"),
        ({"embedding_size": None}, "embedding_size is None"),
        (
            {"embedding_size": 48},
            r"word_embeddings.weight has shape \(\d+, 24\), expected \(\d+, 48\)",
        ),
        ({"hidden_size": 24, "num_attention_heads": 1}, "embeddings_project|has shape"),
    ],
)
def test_a_config_that_contradicts_the_weights_or_our_blocks_is_refused(
    tmp_path: Path, own_tokenizer: Path, entries: dict[str, Any], message: str
) -> None:
    folder = Path(write_electra(tmp_path / "m", own_tokenizer, DISCRIMINATOR))
    described = json.loads((folder / "config.json").read_text("utf-8"))
    assert described["embedding_size"] == 24
    assert described["architectures"] == ["ElectraForPreTraining"]
    (folder / "config.json").write_text(json.dumps({**described, **entries}), "utf-8")
    with pytest.raises(InputError, match=message):
        open_model(str(folder))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_bytes)])
def test_packed_layers_answer_as_the_plain_ones(tmp_path: Path, own_tokenizer: Path, precision: Any) -> None:
    model = open_architecture(open_model(write_electra(tmp_path / "m", own_tokenizer, DISCRIMINATOR)))
    ids, segments, mask = padded_batch(model.encoder.config.vocab_size)
    with torch.inference_mode():
        wanted = model(ids, segments, mask)["logits"][mask]
        logits = packed_copy(model, precision)(ids, segments, mask)["logits"][mask]
    largest = float((wanted - logits).abs().max() / wanted.abs().max())
    assert largest < (1e-5 if precision == "fp32" else 0.12)
