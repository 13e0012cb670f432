"""Layers computed anew in backward: the same bits, and less that is kept."""

import pytest
import torch

from bertwright.model.config import size_config
from bertwright.model.encoder import Encoder, init_weights
from bertwright.training.activation_checkpointing import checkpoint_activations


def random_encoder(*, activation_checkpointing: bool) -> Encoder:
    made = Encoder(size_config("4x128", 50))
    init_weights(made, 0.1, torch.Generator().manual_seed(0))
    if activation_checkpointing:
        checkpoint_activations(made.layers)
    return made.train()


def gradients_after(made: Encoder, at: torch.Tensor | None) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)  # of dropout
    mask = torch.arange(9) < torch.tensor([[9], [4], [1]])
    made(ids, torch.zeros_like(ids), mask, at=at).last.square().sum().backward()
    return {name: parameter.grad for name, parameter in made.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("at", [None, torch.tensor([[0, 2]]).expand(3, 2)])
def test_gradients_are_the_same_bits(at: torch.Tensor | None) -> None:
    plain, anew = (gradients_after(random_encoder(activation_checkpointing=way), at) for way in (False, True))
    assert plain.keys() == anew.keys()
    assert all(torch.equal(plain[name], anew[name]) for name in plain)


def test_less_is_kept_for_backward() -> None:
    def kept(made: Encoder) -> int:
        sizes = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        ids = torch.zeros(2, 8, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made(ids, ids, ids == 0)
        return sum(sizes)

    assert (
        kept(random_encoder(activation_checkpointing=True)) < kept(random_encoder(activation_checkpointing=False)) / 3
    )
