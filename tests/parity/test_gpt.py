"""GPT-1 of transformers and ours on random weights: all states, logits, loss, gradients, and files both ways."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from bertwright.model.backbones import build_backbone
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import Encoder
from bertwright.model.families.gpt import GPT_ARCHITECTURE, GPT_FAMILY, GPTConfig
from bertwright.model.folder import load_weights, open_model, save_model
from tests.support.parity import assert_close

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

SHAPES = (
    {"n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 17, "vocab_size": 40},
    {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 40, "vocab_size": 90},
    {"n_layer": 2, "n_embd": 48, "n_head": 6, "n_positions": 20, "vocab_size": 61, "layer_norm_epsilon": 1e-3},
)


def publish_gpt(folder: Path, kind: str = "OpenAIGPTLMHeadModel", **shape: Any) -> Any:
    """A model of random weights as transformers saves it."""
    settings = transformers.OpenAIGPTConfig(**shape, attn_implementation="eager")
    model = getattr(transformers, kind)(settings).eval()
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.named_parameters():
        # So large that GELU is bent where it is used: its two forms are 1e-6 apart on what transformers starts with.
        nn.init.normal_(tensor, mean=float(name.endswith("weight") and "ln_" in name), std=0.3, generator=generator)
    model.save_pretrained(folder)
    return model


def ours_of(folder: Path) -> Encoder:
    saved = open_model(str(folder))
    model = build_backbone(saved.config).eval()
    load_weights(nn.ModuleDict({"encoder": model}), saved)
    return model


def gpt_batch(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Ids and mask [5, 17]: padded on the right, but for the last row, where only the mask hides the padding."""
    ids = torch.randint(1, vocabulary, (5, 17), generator=torch.Generator().manual_seed(4))
    mask = torch.arange(17) < torch.tensor([17, 11, 3, 1, 17])[:, None]
    mask[4, :6] = False
    return ids * mask, mask


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_agrees(tmp_path: Path, shape: dict[str, Any]) -> None:
    """States, logits and loss within 1e-5; every parameter's gradient within 1e-4 of its size."""
    theirs = publish_gpt(tmp_path / "m", **shape)
    ours = ours_of(tmp_path / "m")
    ids, mask = gpt_batch(shape["vocab_size"])
    labels = ids.masked_fill(~mask, -100)
    labels[4, 6] = -100  # the token that padding comes before: no state that knows anything predicts it
    answer = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels, output_hidden_states=True)
    output = ours(ids, torch.zeros_like(ids), mask, all_hidden=True)
    assert len(output.hidden) == len(answer.hidden_states) == shape["n_layer"] + 1
    for mine, other in zip(output.hidden, answer.hidden_states, strict=True):
        assert_close(mine[mask], other[mask])
    assert torch.equal(output.last, output.hidden[-1])
    logits = F.linear(output.last, ours.word_embeddings()[0].weight)
    assert_close(logits[mask], answer.logits[mask])
    loss = next_token_loss(logits, labels)
    assert_close(loss, answer.loss)
    loss.backward()
    answer.loss.backward()
    gradients = GPT_FAMILY.weights_to_foreign(
        {f"encoder.{name}": tensor.grad for name, tensor in ours.named_parameters()}, GPT_ARCHITECTURE
    )
    named = dict(theirs.named_parameters())
    assert set(gradients) == set(named)
    # What is added to all scores of a softmax (a key's bias) has the gradient 0: only rounding is left.
    rounding = 1e-6 * math.hypot(*(float(part.norm()) for part in gradients.values()))
    for name, mine in gradients.items():
        other = named[name].grad
        assert float((mine - other).norm()) <= 1e-4 * float(other.norm()) + rounding, name


@pytest.mark.parametrize("kind", ["OpenAIGPTLMHeadModel", "OpenAIGPTModel"])
def test_files_come_back_bit_by_bit(tmp_path: Path, kind: str) -> None:
    theirs = publish_gpt(tmp_path / "theirs", kind, **SHAPES[1])
    first = open_model(str(tmp_path / "theirs"))
    assert first.weights is not None
    (tmp_path / "tok").mkdir()
    save_model(
        tmp_path / "run" / "model",
        first.weights,
        config=first.config,
        tokenizer=tmp_path / "tok",
        architecture="OpenAIGPTLMHeadModel",
        extra={"step": 7},
    )
    with_head = transformers.OpenAIGPTLMHeadModel
    again, report = with_head.from_pretrained(tmp_path / "run" / "model", output_loading_info=True)
    assert not any(report.values()), report
    backbone = theirs.transformer if kind == "OpenAIGPTLMHeadModel" else theirs
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(again.transformer.state_dict()[name], tensor), name
    for name in ("afn", "layer_norm_epsilon", "embd_pdrop", "resid_pdrop", "attn_pdrop", *SHAPES[1]):
        assert getattr(again.config, name) == getattr(theirs.config, name), name
    again.save_pretrained(tmp_path / "again")
    last = open_model(str(tmp_path / "again"))
    assert last.config == first.config
    assert last.weights is not None
    assert (
        last.weights.keys()
        == first.weights.keys()
        == {f"encoder.{name}" for name in build_backbone(first.config).state_dict()}
    )
    assert all(torch.equal(tensor, first.weights[name]) for name, tensor in last.weights.items())
    assert load_file(tmp_path / "run" / "model" / "model.safetensors").keys() == {
        name for name in with_head(theirs.config).state_dict() if name != "lm_head.weight"
    }
    assert open_model(str(tmp_path / "run")).extra == {"step": 7}


def test_the_original_shape_has_the_published_number_of_parameters() -> None:
    shape = {"vocab_size": 40478, "hidden": 768, "layers": 12, "heads": 12, "intermediate": 3072}
    with torch.device("meta"):
        model = build_backbone(GPTConfig.model_validate(shape))
        theirs = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig())
    assert sum(tensor.numel() for tensor in model.parameters()) == 116_534_784
    assert sum(tensor.numel() for tensor in theirs.parameters()) == 116_534_784
    config = model.config
    assert (
        (config.max_positions, config.layer_norm_eps)
        == (512, 1e-5)
        == (
            theirs.config.n_positions,
            theirs.config.layer_norm_epsilon,
        )
    )
    assert (config.hidden_dropout, config.attention_dropout) == (theirs.config.resid_pdrop, theirs.config.attn_pdrop)


def randomised(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(5)
    for tensor in model.parameters():
        nn.init.normal_(tensor, std=0.3, generator=generator)
    return model


def test_a_later_token_changes_no_earlier_state_but_in_a_bert_it_does() -> None:
    shape = {"vocab_size": 30, "hidden": 16, "layers": 3, "heads": 2, "intermediate": 64, "max_positions": 12}
    gpt = randomised(build_backbone(GPTConfig.model_validate(shape))).eval()
    bert = randomised(Encoder(EncoderConfig.model_validate(shape))).eval()
    ids = torch.randint(30, (3, 12), generator=torch.Generator().manual_seed(6))
    other = ids.clone()
    other[:, 7] = (other[:, 7] + 1) % 30
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        none = torch.zeros_like(ids)
        mine, perturbed = (gpt(rows, none, mask, all_hidden=True).hidden for rows in (ids, other))
        both, changed = (bert(rows, none, mask).last for rows in (ids, other))
    for before, after in zip(mine, perturbed, strict=True):
        assert torch.equal(before[:, :7], after[:, :7])
        assert ((before - after)[:, 7].abs().amax(-1) > 1e-3).all()
    assert ((mine[-1] - perturbed[-1])[:, 8:].abs().amax(-1) > 1e-6).all()
    assert ((both - changed)[:, :7].abs().amax(-1) > 1e-6).all()


def test_training_computes_the_same_without_the_fused_kernel() -> None:
    """Dropout too rare to drop anything takes the path that spells attention out."""
    shape = {"vocab_size": 30, "hidden": 16, "layers": 3, "heads": 2, "intermediate": 64, "max_positions": 20}
    config = GPTConfig.model_validate({**shape, "attention_dropout": 1e-9, "hidden_dropout": 0.0})
    model = randomised(build_backbone(config))
    ids, mask = gpt_batch(30)
    none = torch.zeros_like(ids)
    spelled = model.train()(ids, none, mask).last
    fused = model.eval()(ids, none, mask).last
    assert not torch.equal(spelled, fused)  # rows that may attend to nothing say that it was another path
    assert_close(spelled[mask], fused[mask])
    torch.manual_seed(8)
    dropping = build_backbone(config.model_copy(update={"attention_dropout": 0.5})).train()
    dropping.load_state_dict(model.state_dict())
    assert not torch.allclose(dropping(ids, none, mask).last, fused, atol=1e-3)


def test_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    publish_gpt(tmp_path / "m", **SHAPES[0])
    ids = torch.zeros(1, 18, dtype=torch.long)
    with pytest.raises(ValueError, match="18 tokens are more than the 17 positions of this model"):
        ours_of(tmp_path / "m")(ids, ids, ids == 0)
