"""The model of vectors: gradient caching gives the gradients of the plain batch, with dropout on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.model.encoder import init_weights
from bertwright.model.vector_settings import VectorSettings
from bertwright.tasks.embedding.model import (
    EncodedSide,
    VectorModel,
    parts_of,
    similar_lengths,
    text_vectors,
    vectors_of_parts,
)
from tests.support.encoders import classifier_config


@pytest.fixture
def random_texts() -> EncodedSide:
    random = np.random.default_rng(0)
    return EncodedSide(tuple(random.integers(1, 200, size, dtype=np.int32) for size in random.integers(3, 20, 24)), 0)


@pytest.fixture
def dropout_model() -> VectorModel:
    config = classifier_config(layers=2, hidden_dropout=0.2, attention_dropout=0.2)
    model = VectorModel(config, VectorSettings(normalize=True))
    init_weights(model, 0.3, torch.Generator().manual_seed(1))
    return model.double().train()


def gradients(model: VectorModel, compute: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a loss in which every vector meets every other one."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    vectors = compute()
    torch.logsumexp(vectors @ vectors.T / 0.05, dim=1).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_gradient_caching_gives_the_gradients_of_the_plain_batch(
    dropout_model: VectorModel, random_texts: EncodedSide
) -> None:
    parts, _ = parts_of(random_texts, np.arange(24), pad_id=0, most=64)
    assert len(parts) > 4
    plain = gradients(dropout_model, lambda: vectors_of_parts(dropout_model, parts, cached=False))
    cached = gradients(dropout_model, lambda: vectors_of_parts(dropout_model, parts, cached=True))
    assert plain.keys() == cached.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=1e-10, atol=1e-12)
    torch.manual_seed(7)
    first = vectors_of_parts(dropout_model, parts, cached=False)
    assert not torch.equal(first, vectors_of_parts(dropout_model, parts, cached=False))  # dropout is on


def test_gradient_caching_keeps_no_activations(dropout_model: VectorModel, random_texts: EncodedSide) -> None:
    parts, _ = parts_of(random_texts, np.arange(24), pad_id=0, most=64)

    def kept(*, cached: bool) -> int:
        numbers = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            vectors_of_parts(dropout_model, parts, cached=cached)
        return numbers

    assert kept(cached=True) < kept(cached=False) / 10


@pytest.mark.parametrize(
    ("lengths", "most", "sizes"),
    [
        ([10] * 30 + [64], 4096, [8, 23]),  # 64 tokens x 8 texts = 512, then short texts of one length
        ([10] * 30 + [64], 200, [3, 20, 8]),
        ([100] * 20 + [90] * 20 + [70] * 20, 4096, [40, 20]),  # 70 is less than 0.8 x 100
        ([700, 90], 512, [1, 1]),
    ],
)
def test_large_parts_have_texts_of_similar_lengths(lengths: list[int], most: int, sizes: list[int]) -> None:
    parts = list(similar_lengths(np.array(lengths), most))
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts)) == list(range(len(lengths)))


def test_parts_hold_each_text_once_and_few_tokens(random_texts: EncodedSide, dropout_model: VectorModel) -> None:
    chosen = np.array([5, 0, 17, 9, 23])
    parts, positions = parts_of(random_texts, chosen, pad_id=0, most=40)
    assert all(part.ids.numel() <= 40 for part in parts)
    with torch.inference_mode():
        dropout_model.eval()
        together = vectors_of_parts(dropout_model, parts, cached=False)[torch.from_numpy(positions)]
    np.testing.assert_allclose(text_vectors(dropout_model, random_texts)[chosen], together.float().numpy(), atol=1e-6)
