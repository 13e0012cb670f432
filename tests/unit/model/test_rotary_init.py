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
SPECIAL, VOCAB, LENGTH = (0, 1, 2, 3, 4), 500, 64


def fresh(size: str, *, seed: int = 0) -> ModernEncoder:
    config = system_config("modernbert", size, VOCAB, initializer_range=0.05, max_positions=512, pad_id=PAD)
    assert isinstance(config, ModernBertConfig)
    encoder = build_backbone(config)
    assert isinstance(encoder, ModernEncoder)
    init_weights(encoder, config.initializer_range, torch.Generator().manual_seed(seed))
    return encoder.eval()


def started(start: Start, size: str = "4x128", *, seed: int = 0) -> ModernEncoder:
    encoder = fresh(size, seed=seed)
    init_rotary_attention(encoder, start, special=SPECIAL, marked=(CLS, SEP))
    return encoder


def pairs(length: int = LENGTH, second: int = 30) -> Tensor:
    """Return eight pairs of texts; the second text follows the token at `second`."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([5 + torch.randperm(VOCAB - 5, generator=generator)[:length] for _ in range(8)])
    ids[:, 0], ids[:, second], ids[:, -1] = CLS, SEP, SEP
    return ids


def attention(encoder: ModernEncoder, layer: int, ids: Tensor | None = None) -> Tensor:
    ids = pairs() if ids is None else ids
    with torch.no_grad():
        return encoder.attention(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), layer=layer)


@pytest.mark.parametrize(("start", "layer"), [("local", 0), ("matching", 1)])
@pytest.mark.parametrize("size", ["4x128", "6x192", "4x256x8"])
def test_the_heads_of_a_layer_attend_to_neighbours(start: Start, layer: int, size: str) -> None:
    plain, seen = attention(started("random", size), layer), attention(started(start, size), layer)
    assert float(plain[:, 0].diagonal(-1, 1, 2).mean()) < 0.1
    for head, offset in enumerate((-1, 1)):
        assert float(seen[:, head].diagonal(offset, 1, 2).mean()) > 0.55
        assert float(seen[:, head].diagonal(-offset, 1, 2).mean()) < 0.12
    if seen.shape[1] > 2:
        assert float(seen[:, 2].diagonal(-2, 1, 2).mean()) > 0.55


@pytest.mark.parametrize(("size", "least"), [("4x128", 0.85), ("4x192", 0.85), ("4x256x2", 0.85), ("4x128x4", 0.6)])
@pytest.mark.parametrize(("length", "second"), [(64, 10), (64, 30), (128, 20), (128, 100)])
def test_a_head_of_the_first_layer_tells_the_texts_of_a_pair_apart(
    size: str, least: float, length: int, second: int
) -> None:
    seen = attention(started("matching", size), 0, pairs(length, second))[:, 0]
    assert float(seen[:, 1:second, 0].mean()) > least
    assert float(seen[:, second + 1 : -1, second].mean()) > least
    plain = attention(started("random", size), 0, pairs(length, second))[:, 0]
    assert float(plain[:, 1:second, 0].mean()) < 0.2


def test_one_token_for_both_ends_leaves_the_head_for_sides_out() -> None:
    encoder = fresh("4x128")
    before = encoder.layers[0].attention.qkv.weight.clone()
    init_rotary_attention(encoder, "matching", special=SPECIAL, marked=(CLS, CLS))
    assert torch.equal(encoder.layers[0].attention.qkv.weight, before)


@pytest.mark.parametrize(("size", "least"), [("4x128", 0.5), ("4x192", 0.4), ("4x256x2", 0.5), ("4x128x4", 0.2)])
@pytest.mark.parametrize("distance", [4, 12, 24, 35, 44, 57])
def test_a_head_of_the_third_layer_attends_to_the_same_piece_at_any_distance(
    size: str, least: float, distance: int
) -> None:
    generator = torch.Generator().manual_seed(distance)
    ids = torch.stack([5 + torch.randperm(VOCAB - 5, generator=generator)[:LENGTH] for _ in range(64)])
    ids[:, 0], ids[:, -1], ids[:, 3 + distance] = CLS, SEP, ids[:, 3]
    seen = attention(started("matching", size), 2, ids)[:, -1]
    assert float(seen[:, 3, 3 + distance].mean()) > least
    assert float(seen[:, 3, 3].mean()) < 0.1
    plain = attention(started("local", size), 2, ids)[:, -1]
    assert float(plain[:, 3, 3 + distance].mean()) < 0.1


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
        ("local", "4x128x16", "start local needs two heads of width 16 or more; this model has 16 of width 8"),
        ("matching", "4x128x8", "start matching needs two heads of width 32 or more; this model has 8 of width 16"),
    ],
)
def test_a_shape_without_room_is_refused(start: Start, size: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        started(start, size)
    started("random", size)
