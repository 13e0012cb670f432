"""GPT-2's configuration: what config.json may say, and what is refused; the blocks with norms first."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.encoder import Encoder, PreNormLayer, init_weights
from bertwright.model.families.gpt2 import GPT2_FAMILY, GPT2Config
from bertwright.model.folder import open_model

PATH = Path("m/config.json")
ENTRIES = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20, "vocab_size": 90}


def test_entries_and_their_defaults() -> None:
    described = GPT2_FAMILY.config_from_json(ENTRIES, PATH)
    config = described.config
    assert isinstance(config, GPT2Config)
    assert described.architecture == "GPT2LMHeadModel"
    assert (config.intermediate, config.activation, config.pad_id, config.end_id) == (128, "gelu_tanh", 0, None)
    ended = GPT2_FAMILY.config_from_json({**ENTRIES, "eos_token_id": 89, "pad_token_id": None}, PATH).config
    assert isinstance(ended, GPT2Config)
    assert (ended.pad_id, ended.end_id) == (89, 89)
    out_of_range = GPT2_FAMILY.config_from_json({**ENTRIES, "eos_token_id": 50256, "pad_token_id": 3}, PATH).config
    assert isinstance(out_of_range, GPT2Config)
    assert (out_of_range.pad_id, out_of_range.end_id) == (3, None)
    written = GPT2_FAMILY.config_to_json(ended, "BertForSequenceClassification", ("no", "yes"))
    assert written["architectures"] == ["GPT2ForSequenceClassification"]
    assert (written["n_inner"], written["bos_token_id"], written["embd_pdrop"]) == (None, 89, 0.1)
    assert GPT2_FAMILY.config_from_json(written, PATH).config == ended


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GPT2DoubleHeadsModel"]},
            "expected one of GPT2LMHeadModel, GPT2Model, .* in architectures, got GPT2DoubleHeadsModel; import a",
        ),
        (
            {"architectures": ["GPT2ForQuestionAnswering"]},
            "in architectures, got GPT2ForQuestionAnswering; import a GPT2LMHeadModel and fine-tune it",
        ),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; only False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; only True"),
        ({"embd_pdrop": 0.3}, "embd_pdrop is 0.3; only 0.1"),
        ({"activation_function": "relu"}, "activation_function is 'relu'; allowed are gelu, gelu_new"),
        ({"n_head": 5}, "hidden 32 is not a multiple of heads 5"),
        ({"n_inner": "wide"}, "n_inner is 'wide'"),
        ({"eos_token_id": [3, 4]}, "eos_token_id is"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GPT2_FAMILY.config_from_json({**ENTRIES, **changes}, PATH)


def test_a_random_model_has_norms_first_and_one_at_the_end(own_tokenizer: Path) -> None:
    saved = open_model("random:gpt2:tiny", tokenizer=own_tokenizer, vocab_size=500)
    model = build_backbone(saved.config).eval()
    assert isinstance(model, Encoder)
    init_weights(model, 0.3, torch.Generator().manual_seed(1))
    layer = model.layers[0]
    assert isinstance(layer, PreNormLayer)
    hidden = torch.randn(2, 5, 128, generator=torch.Generator().manual_seed(3))
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    with torch.inference_mode():
        middle = hidden + layer.attention(layer.attention_norm(hidden), keep)
        normed = layer.output_norm(middle)
        expected = middle + layer.contract(F.gelu(layer.expand(normed), approximate="tanh"))
        torch.testing.assert_close(layer(hidden, keep), expected)
        at = torch.tensor([[1, 4], [0, 2]])
        chosen = expected.gather(1, at[:, :, None].expand(-1, -1, 128))
        torch.testing.assert_close(layer(hidden, keep, at), chosen, atol=1e-4, rtol=1e-5)
        ids = torch.randint(500, (2, 5), generator=torch.Generator().manual_seed(2))
        output = model(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
    assert float(output.last.mean(-1).abs().max()) < 1e-5  # the last LayerNorm has weights 1 and biases 0
