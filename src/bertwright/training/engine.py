"""A micro-batch → losses and gradients: by this process alone, or by several whose gradients torch adds up.

Several: DistributedDataParallel, where every process holds the whole model, or FSDP2, where each holds a share of every
tensor and blocks are put together while they are computed. Both divide what they add up by the number of processes, so
losses are multiplied by it. What torch shares tensors with takes half as long to import as torch itself: it is imported
where it is needed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertwright.training.device import CPU, moved
from bertwright.training.ranks import ALONE, Ranks, is_share
from bertwright.training.tables import sparse_tables
from bertwright.training.trainable import Terms, Trainable

Batch = TypeVar("Batch")
Found = TypeVar("Found")
Sharding = Literal["ddp", "fsdp2"]


class Engine(Generic[Batch]):
    """Computes steps of a Trainable. Build it before the optimiser: FSDP2 replaces the parameters.

    place: where the module is put, and each batch before it is computed.
    """

    def __init__(
        self,
        trainable: Trainable[Batch],
        *,
        compiled: bool,
        place: torch.device = CPU,
        ranks: Ranks = ALONE,
        sharding: Sharding = "ddp",
    ) -> None:
        self.place, self.ranks = place, ranks
        trainable.module.to(place)
        step = torch.compile(trainable.step, dynamic=True) if compiled else trainable.step
        self._losses: Callable[[Batch], Terms] = step
        self._wrapped: DistributedDataParallel | None = None
        self._sharded: Any = None
        if ranks.world > 1 or place != CPU:  # which rows were read is known to one rank, and on its processors alone
            for table in sparse_tables(trainable.module):
                table.sparse = False
        if ranks.world == 1:
            return
        whole = _Step(trainable.module, step)
        if sharding == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            mesh = init_device_mesh(place.type, (ranks.world,))
            for block in trainable.blocks:
                fully_shard(block, mesh=mesh)
            self._sharded = fully_shard(whole, mesh=mesh)
            register_fsdp_forward_method(whole, "call")
            self._losses = self._sharded
        else:
            self._wrapped = DistributedDataParallel(whole, gradient_as_bucket_view=True)
            self._losses = self._wrapped

    def losses(self, batch: Batch) -> Terms:
        """Sums of losses and the names of their counts."""
        return self._losses(moved(batch, self.place))

    def backward(self, loss: Tensor, *, counts: bool) -> None:
        """Add the loss's gradient to those of this step; one that does not count takes part all the same."""
        if self.ranks.world > 1:
            loss = loss * (float(self.ranks.world) if counts else 0.0)
        loss.backward()

    @contextmanager
    def adding_up(self, is_last: bool) -> Iterator[None]:
        """Forward and backward of one of a step's micro-batches: ranks exchange gradients at the last alone."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(is_last)
            self._sharded.set_is_last_backward(is_last)
        if self._wrapped is not None and not is_last:
            with self._wrapped.no_sync():
                yield
        else:
            yield

    def call(self, function: Callable[[], Found]) -> Found:
        """`function`, in which the module can be called without learning; every rank calls it alike."""
        if self._sharded is None:
            with torch.inference_mode():
                return function()
        with torch.no_grad():
            found: Found = self._sharded.call(function)
            return found


class _Step(nn.Module):
    """What torch's wrappers take: a module whose forward is the step."""

    def __init__(self, module: nn.Module, step: Callable[[Any], Terms]) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, batch: Any) -> Terms:
        """Of one micro-batch."""
        return self.step(batch)

    def call(self, function: Callable[[], Found]) -> Found:
        """With the parameters that lie in no block put together."""
        return function()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which each rank may hold a share; every rank calls it."""
    return tensor.full_tensor() if is_share(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if is_share(tensor) else tensor


def filled(target: Tensor, value: Tensor) -> Tensor:
    """A whole tensor as `target` is: shared among the ranks or not, and there where it lies."""
    if not is_share(target):
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(device=target.device, dtype=target.dtype)
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one of which this rank may hold a share."""
    target.copy_(filled(target, value))


def whole_state(module: nn.Module) -> Mapping[str, Tensor]:
    """The state of a module, its tensors whole and in the processors' memory; every rank calls it."""
    return {name: whole(tensor).detach().cpu() for name, tensor in module.state_dict().items()}
