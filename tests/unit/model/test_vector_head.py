"""Vectors from token states: equal to sentence-transformers' modules, and to plain loops where rows are masked."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer import modules as library

from bertwright.errors import InputError
from bertwright.model.vector_head import VectorHead, pool_states
from bertwright.model.vector_settings import DenseLayer, Pooling, VectorSettings

MODES: tuple[Pooling, ...] = get_args(Pooling)
SEVERAL: tuple[Pooling, ...] = ("mean", "cls", "weightedmean")


def states_and_mask(seed: int = 3, *, rows: int = 5, tokens: int = 7, hidden: int = 4) -> tuple[torch.Tensor, Any]:
    """Return states [rows, tokens, hidden] and a mask whose rows have 7, 1, 6, 2, … tokens."""
    states = torch.randn(rows, tokens, hidden, generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([tokens - row // 2 if row % 2 == 0 else 1 + row // 2 for row in range(rows)])
    return states, torch.arange(tokens)[None] < lengths[:, None]


def of_library(module: Any, states: torch.Tensor, mask: torch.Tensor, prompt: int = 0) -> torch.Tensor:
    features = {"token_embeddings": states, "attention_mask": mask.long(), "prompt_length": prompt}
    vectors: torch.Tensor = module(features)["sentence_embedding"]
    return vectors


@pytest.mark.parametrize("pooling", [*((mode,) for mode in MODES), SEVERAL])
@pytest.mark.parametrize("prompt", [0, 1])
def test_every_pooling_is_that_of_sentence_transformers(pooling: tuple[Pooling, ...], prompt: int) -> None:
    states, mask = states_and_mask()
    mask[:, :2] = True  # a row that is all prompt is tested below
    head = VectorHead(VectorSettings(pooling=pooling, include_prompt=not prompt), 4)
    theirs = library.Pooling(4, pooling, include_prompt=not prompt)
    torch.testing.assert_close(
        head(states, mask, prompt=prompt), of_library(theirs, states, mask, prompt), atol=1e-6, rtol=0
    )


def test_dense_layers_normalisation_and_truncation_are_those_of_sentence_transformers() -> None:
    states, mask = states_and_mask()
    layers = (DenseLayer(inputs=8, outputs=6, activation="GELU"), DenseLayer(inputs=6, outputs=5, bias=False))
    head = VectorHead(VectorSettings(pooling=("cls", "max"), dense=layers, normalize=True, width=3), 4)
    dense = [
        library.Dense(8, 6, activation_function=torch.nn.GELU()),
        library.Dense(6, 5, bias=False, activation_function=torch.nn.Tanh()),
    ]
    for theirs, ours in zip(dense, head.dense, strict=True):
        theirs.load_state_dict(ours.state_dict())
    theirs = torch.nn.Sequential(library.Pooling(4, ("cls", "max")), *dense, library.Normalize())
    expected = of_library(theirs, states, mask)
    torch.testing.assert_close(head(states, mask, width=5), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(head(states, mask), expected[:, :3], atol=1e-6, rtol=0)


def plain_pooling(states: Any, mask: Any, mode: Pooling, prompt: int) -> list[list[float]]:
    """Return the pooled vectors by a loop over rows, tokens and components."""
    vectors = []
    for row, row_mask in zip(states.tolist(), mask.tolist(), strict=True):
        tokens = [token for token, real in zip(row, row_mask, strict=True) if real]
        numbered = list(enumerate(tokens, start=1))[prompt:]
        vector = []
        for component in range(states.shape[2]):
            values = [(number, token[component]) for number, token in numbered]
            if not values:
                vector.append(0.0)
                continue
            plain = [value for _, value in values]
            vector.append(
                {
                    "cls": plain[0],
                    "lasttoken": plain[-1],
                    "max": max(plain),
                    "mean": sum(plain) / len(plain),
                    "mean_sqrt_len_tokens": sum(plain) / math.sqrt(len(plain)),
                    "weightedmean": sum(number * value for number, value in values)
                    / sum(number for number, _ in values),
                }[mode]
            )
        vectors.append(vector)
    return vectors


@given(
    mask=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4),
    mode=st.sampled_from(MODES),
    prompt=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_masked_positions_have_no_part_in_a_vector_or_its_gradient(
    mask: list[list[bool]], mode: Pooling, prompt: int
) -> None:
    real = torch.tensor(mask)
    states = torch.randn(len(mask), 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spoiled = states.masked_fill(~real[:, :, None], math.nan).requires_grad_()
    vectors = pool_states(spoiled, real, mode, prompt=prompt)
    np.testing.assert_allclose(vectors.detach(), plain_pooling(states, real, mode, prompt), atol=1e-12)
    vectors.square().sum().backward()
    assert spoiled.grad is not None
    assert bool(spoiled.grad.isfinite().all())
    assert not bool(spoiled.grad[~real].any())


def test_gradients_of_all_weights_reach_the_states() -> None:
    states, mask = states_and_mask()
    head = VectorHead(VectorSettings(dense=(DenseLayer(inputs=4, outputs=4),), normalize=True), 4)
    head(states.requires_grad_(), mask)[:, 0].sum().backward()
    assert states.grad is not None
    assert bool(states.grad[mask].abs().sum(1).gt(0).all())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_states_in_bf16_give_vectors_in_fp32() -> None:
    states, mask = states_and_mask()
    rounded = states.bfloat16()
    assert pool_states(rounded, mask, "mean").dtype == torch.float32
    torch.testing.assert_close(pool_states(rounded, mask, "mean"), pool_states(rounded.float(), mask, "mean"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 9}, "model-x: Matryoshka width 9: expected 1 to 8, the size of this model's vectors"),
        ({"widths": (4, 12)}, "model-x: Matryoshka width 12: expected 1 to 8"),
        ({"dense": (DenseLayer(inputs=4, outputs=2),)}, r"model-x: the first dense layer has 4 inputs; expected 8"),
    ],
)
def test_settings_that_do_not_fit_the_states_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        VectorHead(VectorSettings(pooling=("cls", "mean"), **changes), 4, source="model-x")
