"""A head that is removed from a model, or taken from another one."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.experiments.heads import change_head
from bertwright.experiments.spec import HeadChange
from bertwright.model.backbones import build_backbone
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import Encoder
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.model.system import system_config
from bertwright.text.wordpiece import Tokenizer

OTHER, MATCHING = slice(0, 64), slice(64, 128)
"""States of the two heads of a layer, in a model of width 128; the matching head is the last one."""
OF_LAYER = "encoder.layers.1.attention."


def saved(folder: Path, words: Path, *, size: str = "2x128", seed: int = 0) -> str:
    config = system_config("bert", size, Tokenizer.load(words).vocab_size, hidden_dropout=0.0, attention_dropout=0.0)
    torch.manual_seed(seed)
    model = nn.ModuleDict({"encoder": build_backbone(config)})
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.1)  # biases too
    save_model(folder, model, config=config, tokenizer=words, architecture="BertModel")
    return str(folder)


def opened(source: str | Path) -> tuple[Encoder, Mapping[str, Tensor]]:
    model = open_model(str(source))
    assert isinstance(model.config, EncoderConfig)
    encoder = build_backbone(model.config)
    assert isinstance(encoder, Encoder)
    load_weights(nn.ModuleDict({"encoder": encoder}), model)
    return encoder.train(), model.weights or {}


def by_head(weight: Tensor) -> Tensor:
    """The rows of queries, keys and values, or the columns of the output, with the head as the first dimension."""
    if len(weight) == 128:
        return weight.T.unflatten(0, (2, 64))
    return weight.unflatten(0, (3, 2, 64)).transpose(0, 1)


def states(encoder: Encoder) -> Tensor:
    ids = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    last: Tensor = encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)).last
    return last


@pytest.mark.parametrize(("change", "head"), [("matching-removed", MATCHING), ("other-removed", OTHER)])
def test_a_removed_head_gives_nothing_and_learns_nothing(
    change: HeadChange, head: slice, tmp_path: Path, own_tokenizer: Path
) -> None:
    whole = saved(tmp_path / "whole", own_tokenizer)
    change_head(change, [whole], tmp_path / "without")
    encoder, _ = opened(whole)
    layer = encoder.layers[1]

    def without(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        context = inputs[0].clone()
        context[..., head] = 0.0
        return (context, *inputs[1:])

    layer.attention.output.register_forward_pre_hook(without)
    expected = states(encoder)
    changed, _ = opened(tmp_path / "without")
    last = states(changed)
    torch.testing.assert_close(last, expected, atol=1e-6, rtol=1e-5)
    last.square().sum().backward()
    attention = changed.layers[1].attention
    values = attention.qkv.weight.grad.unflatten(0, (3, 128))[2]
    assert not values[head].any()
    assert not attention.output.weight.grad[:, head].any()
    kept = OTHER if head == MATCHING else MATCHING
    assert values[kept].any()
    assert attention.output.weight.grad[:, kept].any()


def test_a_transplanted_head_is_that_of_the_second_model(tmp_path: Path, own_tokenizer: Path) -> None:
    first, second = (saved(tmp_path / str(seed), own_tokenizer, seed=seed) for seed in (1, 2))
    change_head("transplanted", [first, second], tmp_path / "both")
    (_, recipient), (_, donor), (_, both) = (opened(folder) for folder in (first, second, tmp_path / "both"))
    for part in ("qkv.weight", "qkv.bias", "output.weight"):
        of_both, of_recipient, of_donor = (by_head(weights[OF_LAYER + part]) for weights in (both, recipient, donor))
        assert torch.equal(of_both[1], of_donor[1])
        assert torch.equal(of_both[0], of_recipient[0])
    changed = {name for name in recipient if not torch.equal(recipient[name], both[name])}
    assert changed == {OF_LAYER + part for part in ("qkv.weight", "qkv.bias", "output.weight")}


def test_models_without_such_a_head(tmp_path: Path, own_tokenizer: Path) -> None:
    two, four = saved(tmp_path / "two", own_tokenizer), saved(tmp_path / "four", own_tokenizer, size="4x128")
    single = saved(tmp_path / "single", own_tokenizer, size="2x128x1")
    with pytest.raises(InputError, match=r"four: expected a model of the same shape as .*two"):
        change_head("transplanted", [two, four], tmp_path / "out")
    with pytest.raises(InputError, match="single: expected a Transformer encoder with two layers and two heads"):
        change_head("matching-removed", [single], tmp_path / "out")
    assert not (tmp_path / "out").exists()
