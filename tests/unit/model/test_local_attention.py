"""Attention in a window: block by block equal to a mask and to a plain loop; no tensor of a row's square."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertwright.model import modern_encoder
from bertwright.model.attention import attention_context, attention_probabilities
from bertwright.model.encoder import init_weights
from bertwright.model.local_attention import (
    BLOCKS_OF_LONG,
    attend_in_blocks,
    block_mask,
    block_size,
    is_long,
    window_mask,
)
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernEncoder, turned, turns


def modern_config(**changes: Any) -> ModernBertConfig:
    shape = {"vocab_size": 50, "hidden": 16, "layers": 3, "heads": 2, "intermediate": 24, "pad_id": 0}
    return ModernBertConfig.model_validate({**shape, "initializer_range": 0.2, **changes})


def modern_encoder_of(**changes: Any) -> ModernEncoder:
    encoder = ModernEncoder(modern_config(**changes))
    init_weights(encoder, 0.2, torch.Generator().manual_seed(2))
    return encoder.eval()


def long_batch(length: int, *lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask of rows with these numbers of tokens, padded to `length`."""
    ids = torch.randint(5, 50, (len(lengths), length), generator=torch.Generator().manual_seed(3))
    return ids, torch.zeros_like(ids), torch.arange(length) < torch.tensor(lengths)[:, None]


@contextmanager
def largest_tensor() -> Iterator[list[int]]:
    """Yield a list that holds the number of elements of the largest tensor that any operation returns."""
    largest = [0]

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for part in result if isinstance(result, tuple | list) else (result,):
                if isinstance(part, Tensor):  # what a broadcast repeats takes no memory
                    largest[0] = max(largest[0], part.untyped_storage().nbytes() // part.element_size())
            return result

    with Watched():
        yield largest


@pytest.mark.parametrize(("length", "radius"), [(129, 1), (130, 2), (300, 40), (512, 64)])
def test_blocks_are_equal_to_a_mask_and_to_a_loop(length: int, radius: int) -> None:
    draw = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, length, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    context = attend_in_blocks(query, key, value, block_mask(mask, radius), radius=radius, dropout_p=0.0)
    masked = attention_context(query, key, value, window_mask(mask, radius), dropout_p=0.0)
    torch.testing.assert_close(context, masked, atol=1e-12, rtol=1e-12)
    for row, head, token in [(0, 0, 0), (0, 2, length - 1), (1, 1, length // 2 - 1), (1, 0, length - 1), (0, 1, 70)]:
        near = [
            other for other in range(length) if abs(other - token) <= radius and (mask[row, other] or other == token)
        ]
        scores = [float(query[row, head, token] @ key[row, head, other]) / math.sqrt(4) for other in near]
        total = sum(math.exp(score) for score in scores)
        wanted = sum(
            math.exp(score) / total * value[row, head, other] for score, other in zip(scores, near, strict=True)
        )
        torch.testing.assert_close(context[row, head, token], torch.as_tensor(wanted), atol=1e-12, rtol=1e-12)


def test_an_encoder_has_the_same_states_and_gradients_with_and_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows of 200 tokens, of which the last layer, a local one, is also computed at three positions alone."""
    encoder, batch = modern_encoder_of(window=12).double(), long_batch(200, 200, 77)
    assert is_long(200, encoder.config.radius)
    at = torch.tensor([[0, 199, 31], [0, 76, 5]])
    seen = []
    for _ in range(2):
        encoder.zero_grad()
        states = encoder(*batch).last
        states[batch[2]].square().sum().backward()
        some = encoder(*batch, at=at).last
        torch.testing.assert_close(some, states.gather(1, at[:, :, None].expand(-1, -1, 16)))
        seen.append([states[batch[2]], *(part.grad.clone() for part in encoder.parameters() if part.grad is not None)])
        monkeypatch.setattr(modern_encoder, "is_long", lambda *_: False)
    for mine, other in zip(*seen, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-8)


def test_the_last_projections_are_those_of_the_last_attention() -> None:
    """The relations of teacher and student read them, without the positions."""
    encoder, batch = modern_encoder_of(window=12), long_batch(30, 30, 30)
    states = encoder(*batch, all_hidden=True).hidden
    query, key, _ = encoder.last_projections(states[-2]).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    turn = turns(30, 8, encoder.config.local_rope_theta, device=query.device)
    probabilities = attention_probabilities(turned(query, turn), turned(key, turn), window_mask(batch[2], 6))
    torch.testing.assert_close(probabilities, encoder.attention(*batch, layer=2))
    torch.testing.assert_close(states[-1], encoder(*batch).last)


def test_states_do_not_depend_on_padding() -> None:
    encoder, (ids, segments, mask) = modern_encoder_of(window=12), long_batch(200, 200, 60)
    alone = encoder(ids[1:, :60], segments[1:, :60], mask[1:, :60]).last
    torch.testing.assert_close(encoder(ids, segments, mask).last[1:, :60], alone, atol=1e-5, rtol=1e-5)


def test_local_layers_make_no_tensor_of_the_square_of_a_row() -> None:
    encoder = modern_encoder_of(window=16, reaches=("local", "local", "local"))
    assert block_size(encoder.config.radius) * BLOCKS_OF_LONG < 1024
    with largest_tensor() as largest:
        encoder.train()(*long_batch(1024, 1024)).last.sum().backward()
    assert 0 < largest[0] < 1024 * 1024 // 8
    with largest_tensor() as largest:
        encoder(*long_batch(120, 120))
    assert largest[0] >= 120 * 120  # so the square would be seen


@pytest.mark.slow
def test_8192_tokens_fit() -> None:
    """Forward and backward with a global layer and two local ones; the square of a row would be 67 million numbers."""
    encoder = modern_encoder_of(window=128)
    with largest_tensor() as largest:
        states = encoder(*long_batch(8192, 8192)).last
        states.sum().backward()
    assert bool(states.isfinite().all())
    assert largest[0] < 8192 * 8192 // 8
