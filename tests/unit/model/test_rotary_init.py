"""Attention initialisation of ModernBERT: neighbours, the first token of a text, other positions of the same piece."""

import pytest
import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import Start
from bertwright.model.encoder import init_weights
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernEncoder
from bertwright.model.rotary_init import init_rotary_attention
from bertwright.model.system import system_config

PAD, CLS, SEP = 0, 2, 3
SPECIAL, VOCAB, LENGTH, SECOND = (0, 1, 2, 3, 4), 500, 64, 30


def started(start: Start, size: str = "4x128", *, seed: int = 0) -> ModernEncoder:
    config = system_config("modernbert", size, VOCAB, initializer_range=0.05, max_positions=512, pad_id=PAD)
    assert isinstance(config, ModernBertConfig)
    encoder = build_backbone(config)
    assert isinstance(encoder, ModernEncoder)
    init_weights(encoder, config.initializer_range, torch.Generator().manual_seed(seed))
    init_rotary_attention(encoder, start, special=SPECIAL, marked=(CLS, SEP))
    return encoder.eval()


def pairs() -> Tensor:
    """Return eight pairs of texts; the pieces of positions 5 to 9 stand at 40 to 44 again, all others once."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([5 + torch.randperm(VOCAB - 5, generator=generator)[:LENGTH] for _ in range(8)])
    ids[:, 40:45] = ids[:, 5:10]
    ids[:, 0], ids[:, SECOND], ids[:, -1] = CLS, SEP, SEP
    return ids


def attention(encoder: ModernEncoder, layer: int, ids: Tensor | None = None) -> Tensor:
    ids = pairs() if ids is None else ids
    with torch.no_grad():
        return encoder.attention(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), layer=layer)


@pytest.mark.parametrize("start", ["local", "matching"])
@pytest.mark.parametrize("size", ["4x128", "6x192", "4x256x8"])
def test_the_first_layer_attends_to_neighbours(start: Start, size: str) -> None:
    def beside(encoder: ModernEncoder, offset: int, head: int) -> float:
        return float(attention(encoder, 0)[:, head].diagonal(offset, 1, 2).mean())

    assert beside(started("random", size), -1, 0) < 0.1
    for head, offset in enumerate((-1, 1)):
        assert beside(started(start, size), offset, head) > 0.55
        assert beside(started(start, size), -offset, head) < 0.12
    if started(start, size).config.heads > 2:
        assert beside(started(start, size), -2, 2) > 0.55


def test_a_head_of_the_second_layer_tells_the_texts_of_a_pair_apart() -> None:
    seen = attention(started("matching"), 1)[:, 0]  # [8, T, T]
    assert float(seen[:, 1 : SECOND - 1, 0].mean()) > 0.9
    assert float(seen[:, SECOND + 4 : -1, SECOND].mean()) > 0.9
    assert float(seen[:, :, -1].mean()) < 0.05
    assert float(attention(started("local"), 1)[:, 0, 1:SECOND, 0].mean()) < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_head_of_the_third_layer_attends_to_the_same_piece_elsewhere(seed: int) -> None:
    there, back = torch.arange(5, 10), torch.arange(40, 45)
    seen = attention(started("matching", seed=seed), 2)[:, -1]
    assert float(seen[:, there, back].mean()) > 0.4
    assert float(seen[:, back, there].mean()) > 0.4
    assert float(seen.diagonal(0, 1, 2).mean()) < 0.05
    alone = torch.arange(12, 28)
    assert float(seen[:, alone, 0].mean()) > 0.25  # [CLS], where no piece is the same
    before = attention(started("local", seed=seed), 2)[:, -1]
    assert float(before[:, there, back].mean()) < 0.1


def test_special_tokens_do_not_attend_to_their_like() -> None:
    ids = pairs()
    ids[:, 12], ids[:, 50] = 4, 4  # [MASK]
    assert float(attention(started("matching"), 2, ids)[:, -1, 12, 50].mean()) < 0.05


def test_the_start_has_the_same_weights_for_a_seed_and_keeps_the_values() -> None:
    first, again, plain = started("matching"), started("matching"), started("random")
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    for ours, theirs in zip(first.layers, plain.layers, strict=True):
        assert torch.equal(ours.attention.qkv.weight[256:], theirs.attention.qkv.weight[256:])
        assert torch.equal(ours.expand.weight, theirs.expand.weight)


@pytest.mark.parametrize(
    ("start", "size", "message"),
    [
        ("matching", "2x128", "start matching needs at least 3 layers, and this model has 2"),
        ("local", "2x128x1", "start local needs two heads of width 16 or more; this model has 1 of width 128"),
        ("matching", "4x128x16", "start matching needs two heads of width 16 or more; this model has 16 of width 8"),
    ],
)
def test_a_shape_without_room_is_refused(start: Start, size: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        started(start, size)
    started("random", size)
