"""One process of several that train together: its share of a step, and what all of them have to agree on.

`torchrun` starts the processes and tells each its rank. Every one makes the rows of the whole step, which is cheap, and
computes the micro-batches rank, rank + world, …: so rows and masks are those of a single process, and dropout
where that one cuts its steps into as many micro-batches.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bertwright.console import console, say
from bertwright.errors import InputError, RunFailed
from bertwright.training.hardware import CPU, finish, moved, own_device
from bertwright.training.settings import Device
from bertwright.training.sparse_adamw import sparse_tables

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Batch = TypeVar("Batch")
TIMEOUT: Final = "BERTWRIGHT_TIMEOUT"
"""Environment: seconds after which a rank that waits for another gives up (default: 600)."""
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
_ROLL_CALL: Final = 3.0
"""Seconds for saying that one is still there, once another is missed."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. One that is alone agrees with itself."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes what all of them found."""
        return self.rank == 0

    def partition(self, parts: Sequence[Batch]) -> list[tuple[int, Batch, bool]]:
        """(number, part, whether it counts) of this rank. All get equally many: what is missing does not count."""
        own = [(number, part, True) for number, part in enumerate(parts) if number % self.world_size == self.rank]
        missing = math.ceil(len(parts) / self.world_size) - len(own)
        return [*own, *[(0, parts[0], False) for _ in range(missing)]]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def any(self, *facts: bool) -> bool:
        """Whether one of the facts holds for one of the ranks."""
        return self.sum([float(any(facts))])[0] > 0

    def broadcast(self, value: Any) -> Any:
        """What rank zero holds, for all; it goes as JSON."""
        if self.world_size == 1:
            return value
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        dist.broadcast(length, src=0)
        if not self.is_main:
            text = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    def sum_seconds(self, numbers: int, place: torch.device) -> float:
        """How long the ranks take to sum so many numbers of 32 bits that lie there."""
        if self.world_size == 1:
            return 0.0
        values, times = torch.zeros(numbers, device=place), []
        for _ in range(3):
            self.barrier()
            begin = time.perf_counter()
            dist.all_reduce(values)
            finish(place)
            times.append(time.perf_counter() - begin)
        return min(times)

    def barrier(self) -> None:
        """Wait until all are here."""
        self.sum([0.0])


SINGLE_PROCESS: Final = Ranks()


@contextmanager
def init_distributed(device: Device = "cpu", *, sharding: str = "ddp") -> Iterator[Ranks]:
    """The processes that torchrun started together, or this one alone, which has nothing to share: that is said.

    What lies in the processors' memory goes over gloo, what lies on GPUs over NCCL.
    RunFailed where another process is gone or does not answer in time; it names the ranks. InputError where two of them
    have one GPU, or one has none.
    """
    rank, world = (_number(name, default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world == 1:
        if sharding != "ddp":
            say(f"--sharding {sharding}: is for the processes that torchrun starts; this one is alone and holds it all")
        yield SINGLE_PROCESS
        return
    console.quiet = rank > 0
    patience = timedelta(seconds=_number(TIMEOUT, 600))
    store, _, _ = next(rendezvous("env://", timeout=patience))
    # torchrun keeps one store over its restarts: what the lost processes wrote must not be taken for today's.
    store = PrefixStore(f"attempt {_number(_RESTARTS, 0)}", store)
    backend = "gloo"
    if device == "cuda":
        place = own_device(device)
        torch.cuda.set_device(place)
        backend = "cpu:gloo,cuda:nccl"
        refuse_shared(store, str(torch.cuda.get_device_properties(place).uuid))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience)
    ranks, is_whole = Ranks(rank, world), False
    try:
        yield ranks
        ranks.barrier()
        is_whole = True
    except RuntimeError as error:
        if not _is_of_another(error):
            raise
        with suppress(ValueError):  # outside of the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now: what was lost is said first
        raise RunFailed(
            f"rank {rank} of {world}: {_missing(ranks, store)}: {str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if is_whole or device == "cpu":  # NCCL would wait here for a rank that is lost, and the message with it
            with suppress(Exception):
                dist.destroy_process_group()


def refuse_shared(store: Store, gpu: str) -> None:
    """InputError where another process of the group has this GPU already; NCCL would only say that a call failed."""
    if store.add(f"GPU {gpu}", 1) > 1:
        raise InputError(f"--device cuda: two of the processes have the same GPU ({gpu}); each needs one of its own")


def is_share(tensor: torch.Tensor) -> TypeGuard["DTensor"]:
    """Whether each rank holds a share of the tensor; the class is not imported here, which takes its time."""
    return hasattr(tensor, "full_tensor")


def refuse_several(option: str) -> None:
    """InputError where torchrun has started several processes."""
    if _number("WORLD_SIZE", 1) > 1:
        raise InputError(f"{option}: looks at one process alone; start it without torchrun")


def is_restart() -> bool:
    """Whether torchrun has started these processes again after one of them was lost."""
    return _number(_RESTARTS, 0) > 0


def _is_of_another(error: RuntimeError) -> bool:
    """Whether torch says that a collective call failed, and not a computation."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        sign in text
        for sign in ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Timed out")
    )


def _missing(ranks: Ranks, store: Store) -> str:
    """Which other ranks do not answer any more, as far as the store of the group can tell."""
    mark = "still here "
    try:
        store.set(f"{mark}{ranks.rank}", "1")
        silent = []
        for other in set(range(ranks.world_size)) - {ranks.rank}:
            try:
                store.wait([f"{mark}{other}"], timedelta(seconds=_ROLL_CALL))
            except RuntimeError:
                silent.append(str(other))
    except RuntimeError:
        return "the process that holds the group together is gone"
    return f"lost rank {', '.join(silent)}" if silent else "the connection between ranks broke"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"the environment's {name} is {text!r}; expected a whole number")
    return int(text)


# What the training loop sees of what it trains: sums of losses and what they are divided by.

Terms = Mapping[str, tuple[Tensor, str]]


@dataclass(frozen=True)
class Trainable(Generic[Batch]):
    """What the loop trains.

    `step` returns {term: (sum, count name)}; `counts` reads the same counts from the batch before forward; `flops` is
    the floating-point work of forward and backward; `tokens` counts real tokens; `blocks` are the units for sharding.
    """

    module: nn.Module
    blocks: Sequence[nn.Module]
    step: Callable[[Batch], Terms]
    counts: Callable[[Batch], Mapping[str, float]]
    flops: Callable[[Batch], float]
    tokens: Callable[[Batch], int]


# A micro-batch → losses and gradients: by this process alone, or by several whose gradients torch adds up.
#
# Several: DistributedDataParallel, where every process holds the whole model, or FSDP2, where each holds a share of
# every tensor and blocks are put together while they are computed. Both divide what they add up by the number of
# processes, so losses are multiplied by it. What torch shares tensors with takes half as long to import as torch
# itself: it is imported where it is needed.

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
        ranks: Ranks = SINGLE_PROCESS,
        sharding: Sharding = "ddp",
    ) -> None:
        self.place, self.ranks = place, ranks
        trainable.module.to(place)
        step = torch.compile(trainable.step, dynamic=True) if compiled else trainable.step
        self._losses: Callable[[Batch], Terms] = step
        self._wrapped: DistributedDataParallel | None = None
        self._sharded: Any = None
        if (
            ranks.world_size > 1 or place != CPU
        ):  # which rows were read is known to one rank, and on its processors alone
            for table in sparse_tables(trainable.module):
                table.sparse = False
        if ranks.world_size == 1:
            return
        whole = _Step(trainable.module, step)
        if sharding == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            mesh = init_device_mesh(place.type, (ranks.world_size,))
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
        if self.ranks.world_size > 1:
            loss = loss * (float(self.ranks.world_size) if counts else 0.0)
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
