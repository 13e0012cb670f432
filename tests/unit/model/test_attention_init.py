"""Attention initialisations: the neighbouring positions, and other positions of the same piece."""

import pytest
import torch

from bertwright.errors import InputError
from bertwright.model.attention_init import init_attention
from bertwright.model.backbones import build_backbone
from bertwright.model.config import Start, size_config
from bertwright.model.encoder import Encoder, init_weights, visible_keys
from bertwright.model.families.gpt import GPTConfig

SPECIAL = (0, 1, 2, 3, 4)
FIVE_TIMES = 5 / 40
"""Five times the probability of each position where a head attends to all of a row alike."""
SHAPE = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.05}


def started(start: Start, *, attends: str = "both", seed: int = 0) -> Encoder:
    config = size_config("4x128", 200, **SHAPE).model_copy(update={"attends": attends})
    return begun(Encoder(config), start, seed)


def begun(backbone: Encoder, start: Start, seed: int = 0) -> Encoder:
    init_weights(backbone, backbone.config.initializer_range, torch.Generator().manual_seed(seed))
    init_attention(backbone, start, generator=torch.Generator().manual_seed(seed), special=SPECIAL)
    return backbone.eval()


def rows_with_repeats() -> torch.Tensor:
    """Return four rows of 40 pieces. The pieces of positions 3 to 6 stand at 23 to 26 again, all others once."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([5 + torch.randperm(195, generator=generator)[:40] for _ in range(4)])
    ids[:, 23:27] = ids[:, 3:7]
    return ids


def shares(backbone: Encoder, layer: int, ids: torch.Tensor) -> torch.Tensor:
    """Return the attention between positions, [B, H, T, T]; the second half of a row is segment B."""
    segments = (torch.arange(ids.shape[1]) >= ids.shape[1] // 2).long().expand_as(ids)
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        hidden = backbone(ids, segments, mask, all_hidden=True).hidden[layer]
        return backbone.layers[layer].attention.probabilities(hidden, visible_keys(mask, backbone.config.attends))


@pytest.mark.parametrize("start", ["local", "matching"])
def test_the_first_layer_looks_at_the_neighbours(start: Start) -> None:
    def beside(backbone: Encoder, offset: int, head: int) -> float:
        return float(shares(backbone, 0, rows_with_repeats())[:, head].diagonal(offset, 1, 2).mean())

    assert beside(started("random"), -1, 0) < 0.1
    assert beside(started(start), -1, 0) > 0.5
    assert beside(started(start), 1, 1) > 0.5
    assert beside(started(start), 1, 0) < 0.1
    assert beside(started(start, attends="left"), -2, 1) > 0.4


def test_a_head_of_the_second_looks_at_the_same_piece_elsewhere() -> None:
    there, back = (slice(3, 7), slice(23, 27)), (slice(23, 27), slice(3, 7))

    def same(backbone: Encoder, layer: int, head: int, places: tuple[slice, slice] = there) -> float:
        return float(
            shares(backbone, layer, rows_with_repeats())[:, head, places[0], places[1]].diagonal(0, 1, 2).mean()
        )

    backbone = started("matching")
    assert same(backbone, 1, 1) > FIVE_TIMES
    assert same(backbone, 1, 1, back) > FIVE_TIMES
    assert float(shares(backbone, 1, rows_with_repeats())[:, 1].diagonal(0, 1, 2).mean()) < 0.1  # not at itself
    assert max(same(backbone, 1, 0), same(backbone, 2, 1), same(started("local"), 1, 1)) < 0.05
    assert same(started("matching", attends="left"), 1, 1, back) > FIVE_TIMES
    assert same(started("matching", attends="right"), 1, 1) > FIVE_TIMES


def test_what_is_no_piece_of_a_text_is_not_looked_for() -> None:
    ids = rows_with_repeats()
    ids[:, [3, 23]] = SPECIAL[4]
    attention = shares(started("matching"), 1, ids)[:, 1]
    assert float(attention[:, 3, 23].mean()) < 0.05
    assert float(attention[:, 4, 24].mean()) > FIVE_TIMES


def test_gpt_1_begins_where_its_states_have_gone_through_layer_norm() -> None:
    shape = size_config("4x128", 200, **SHAPE).model_dump(exclude_defaults=True)
    backbone = begun(build_backbone(GPTConfig.model_validate(shape)), "matching")
    assert float(shares(backbone, 1, rows_with_repeats())[:, 0].diagonal(-1, 1, 2).mean()) > 0.4
    assert float(shares(backbone, 2, rows_with_repeats())[:, 1, 23:27, 3:7].diagonal(0, 1, 2).mean()) > FIVE_TIMES
    shallow = build_backbone(GPTConfig.model_validate({**shape, "layers": 2}))
    begun(shallow, "local")
    with pytest.raises(InputError, match="start matching needs at least 3 layers, and this model has 2"):
        begun(shallow, "matching")


@pytest.mark.parametrize("start", ["local", "matching"])
def test_heads_of_other_widths(start: Start) -> None:
    for size in ("2x128x1", "2x90x3", "2x128x32"):
        backbone = begun(Encoder(size_config(size, 200, **SHAPE)), start)
        looks = float(shares(backbone, 0, rows_with_repeats())[:, 0].diagonal(-1, 1, 2).mean())
        assert looks > (0.3 if backbone.config.heads < 32 else 0.05), size  # all alike: 0.025
    for size in ("2x128x64", "2x75x3"):
        with pytest.raises(InputError, match=f"start {start} needs heads of width 4 or more and an even hidden size;"):
            begun(Encoder(size_config(size, 200, **SHAPE)), start)
