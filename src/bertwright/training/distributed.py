"""Several processes that train one model: their process group, the engine that computes a step, and sharded tensors.

This is the only file that uses torch.distributed. `torchrun` starts the processes and gives each one its rank. Every
rank makes the rows of the whole step, which is cheap, and computes the micro-batches rank, rank + world size, …: rows
and masks are therefore those of a single process. Dropout draws the same numbers too, if the single process cuts its
steps into as many micro-batches.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.training.hardware import CPU, move_to_device, resolve_device, synchronize
from bertwright.training.settings import Device
from bertwright.training.sparse_adamw import sparse_tables

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Batch = TypeVar("Batch")
_Result = TypeVar("_Result")
Sharding = Literal["ddp", "fsdp2"]
"""DistributedDataParallel: every rank holds the whole model. FSDP2: every rank holds a shard of each tensor."""
Terms = Mapping[str, tuple[Tensor, str]]
"""Terms of a loss: {term: (sum over the batch, name of the count that divides it)}."""
TIMEOUT: Final = "BERTWRIGHT_TIMEOUT"
"""Environment variable: seconds after which a rank that waits for another one gives up (default: 600)."""
_UNTIMED: Final = timedelta(days=1)
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
_ROLL_CALL: Final = 3.0
"""Seconds in which a rank must report, once another rank is missing."""


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of processes. With one process every collective is a no-op."""

    rank: int = 0
    world_size: int = 1
    untimed: dist.ProcessGroup | None = None
    """Group of all processes whose calls wait for a day."""

    @property
    def is_main(self) -> bool:
        """Return whether this is rank zero, which alone writes files and messages."""
        return self.rank == 0

    def partition(self, parts: Sequence[Batch]) -> list[tuple[int, Batch, bool]]:
        """Return (index, part, whether it counts) for each part of this rank.

        All ranks get equally many. A rank with fewer parts gets the first part again, which does not count.
        """
        mine = [(index, part, True) for index, part in enumerate(parts) if index % self.world_size == self.rank]
        missing = math.ceil(len(parts) / self.world_size) - len(mine)
        return [*mine, *[(0, parts[0], False) for _ in range(missing)]]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over the ranks."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def broadcast(self, value: Any) -> Any:
        """Return rank zero's value on every rank. The value is sent as JSON."""
        if self.world_size == 1:
            return value
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        dist.broadcast(length, src=0)
        if not self.is_main:
            text = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    def sum_seconds(self, numbers: int, device: torch.device) -> float:
        """Return the seconds in which the ranks sum so many float32 numbers on `device`; the best of three trials."""
        if self.world_size == 1:
            return 0.0
        values, times = torch.zeros(numbers, device=device), []
        for _ in range(3):
            self.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            synchronize(device)
            times.append(time.perf_counter() - start)
        return min(times)

    def barrier(self) -> None:
        """Wait until every rank has come to this call."""
        self.sum([0.0])

    def wait_for_main(self) -> None:
        """Wait until rank zero has come to this call, for a day if it works alone so long.

        A rank whose process has ended ends the wait.
        """
        if self.world_size > 1:
            dist.barrier(group=self.untimed)


SINGLE_PROCESS: Final = Ranks()


@contextmanager
def init_distributed(device: Device = "cpu", *, sharding: str = "ddp") -> Iterator[Ranks]:
    """Join the process group that torchrun started; yield this process' ranks. Without torchrun there is one process.

    Tensors on processors are exchanged over gloo, those on GPUs over NCCL. Raises RunFailed where another process died
    or timed out, with its rank. Raises InputError where two processes use the same GPU, or a process has none.
    """
    rank, world_size = (_environment_number(name, default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world_size == 1:
        if sharding != "ddp":
            say(f"--sharding {sharding}: has no effect with one process; torchrun starts several")
        yield SINGLE_PROCESS
        return
    timeout = timedelta(seconds=_environment_number(TIMEOUT, 600))
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps one store over its restarts; the prefix hides what the processes before the restart wrote.
    store = PrefixStore(f"attempt {_environment_number(_RESTARTS, 0)}", store)
    backend = "gloo"
    if device == "cuda":
        gpu = resolve_device(device)
        torch.cuda.set_device(gpu)
        backend = "cpu:gloo,cuda:nccl"
        refuse_shared(store, str(torch.cuda.get_device_properties(gpu).uuid))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    untimed = dist.new_group(backend="gloo", timeout=_UNTIMED)
    ranks, is_complete = Ranks(rank, world_size, untimed), False
    try:
        yield ranks
        ranks.wait_for_main()
        is_complete = True
    except RuntimeError as error:
        if not _is_communication_error(error):
            raise
        with suppress(ValueError):  # raised outside of the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now; the message below must come first
        raise RunFailed(
            f"rank {rank} of {world_size}: {_lost_ranks(ranks, store)}: {str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if is_complete or device == "cpu":  # NCCL would wait here for the lost rank, and the message would not appear
            with suppress(Exception):
                dist.destroy_process_group()


def refuse_shared(store: Store, gpu: str) -> None:
    """Raise InputError where another process of the group uses this GPU; NCCL would only report a failed call."""
    if store.add(f"GPU {gpu}", 1) > 1:
        raise InputError(f"--device cuda: two of the processes have the same GPU ({gpu}); each needs one of its own")


def refuse_several(option: str) -> None:
    """Raise InputError where torchrun started several processes."""
    if (world_size := _environment_number("WORLD_SIZE", 1)) > 1:
        raise InputError(f"{option}: expected one process, got {world_size}; start it without torchrun")


def is_restart() -> bool:
    """Return whether torchrun restarted these processes after one of them died."""
    return _environment_number(_RESTARTS, 0) > 0


def _is_communication_error(error: RuntimeError) -> bool:
    """Return whether a collective call failed, not a computation."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        sign in text
        for sign in ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Timed out")
    )


def _lost_ranks(ranks: Ranks, store: Store) -> str:
    """Return a text that names the ranks that no longer answer."""
    key = "still here "
    try:
        store.set(f"{key}{ranks.rank}", "1")
        silent = []
        for other in set(range(ranks.world_size)) - {ranks.rank}:
            try:
                store.wait([f"{key}{other}"], timedelta(seconds=_ROLL_CALL))
            except RuntimeError:
                silent.append(str(other))
    except RuntimeError:
        return "lost the process that holds the group's store"
    return f"lost rank {', '.join(silent)}" if silent else "lost the connection between ranks"


def _environment_number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"environment variable {name}: expected a whole number, got {text!r}")
    return int(text)


@dataclass(frozen=True)
class Trainable(Generic[Batch]):
    """A module, and the functions by which the loop trains it."""

    module: nn.Module
    blocks: Sequence[nn.Module]
    """Layers that are sharded one by one, and whose matrices Muon updates."""
    step: Callable[[Batch], Terms]
    """Forward: the terms of the loss as sums, not means."""
    counts: Callable[[Batch], Mapping[str, float]]
    """The counts of a batch by name, before forward."""
    flops: Callable[[Batch], float]
    """Floating-point operations of forward and backward."""
    tokens: Callable[[Batch], int]
    """Number of tokens without padding."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factors of the terms in the loss by name; 1 where none is named."""
    muon_iteration: Callable[[Tensor, Sequence[float], int], Tensor | None] = lambda *_: None
    """Muon's iteration in bf16 where it is faster than that of torch, see `muon.bf16_function`."""

    def loss(self, means: Iterable[tuple[str, Tensor]]) -> Tensor:
        """Return the loss whose gradient is taken: the sum of the means of the terms, each with its factor."""
        return torch.stack([mean * self.weights.get(term, 1.0) for term, mean in means]).sum()


class Engine(Generic[Batch]):
    """Computes losses and gradients of a Trainable, in one process or in several.

    Build it before the optimiser, since FSDP2 replaces the parameters. DDP and FSDP2 divide summed gradients by the
    number of ranks; losses are multiplied by it beforehand.

    device: the module and each batch are moved there.
    """

    def __init__(
        self,
        trainable: Trainable[Batch],
        *,
        compiled: bool,
        device: torch.device = CPU,
        ranks: Ranks = SINGLE_PROCESS,
        sharding: Sharding = "ddp",
    ) -> None:
        self.device, self.ranks = device, ranks
        trainable.module.to(device)
        step = torch.compile(trainable.step, dynamic=True) if compiled else trainable.step
        self._losses: Callable[[Batch], Terms] = step
        self._ddp: DistributedDataParallel | None = None
        self._fsdp: Any = None
        if ranks.world_size > 1 or device != CPU:
            for table in sparse_tables(trainable.module):  # sparse gradients work in one process on processors only
                table.sparse = False
        if ranks.world_size == 1:
            return
        wrapped = _StepModule(trainable.module, step)
        if sharding == "fsdp2":
            # Imported here: these modules take half as long to import as torch itself.
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            mesh = init_device_mesh(device.type, (ranks.world_size,))
            for block in trainable.blocks:
                fully_shard(block, mesh=mesh)
            self._fsdp = fully_shard(wrapped, mesh=mesh)
            register_fsdp_forward_method(wrapped, "call")
            self._losses = self._fsdp
        else:
            self._ddp = DistributedDataParallel(wrapped, gradient_as_bucket_view=True)
            self._losses = self._ddp

    def losses(self, batch: Batch) -> Terms:
        """Return the terms of the loss of a micro-batch."""
        return self._losses(move_to_device(batch, self.device))

    def backward(self, loss: Tensor, *, counts: bool) -> None:
        """Add the gradient of `loss` to the gradients of the step; with zero weight where it does not count."""
        if self.ranks.world_size > 1:
            loss = loss * (float(self.ranks.world_size) if counts else 0.0)
        loss.backward()

    @contextmanager
    def accumulate(self, is_last: bool) -> Iterator[None]:
        """Run forward and backward of one micro-batch inside; ranks exchange gradients at the last one of a step."""
        if self._fsdp is not None:
            self._fsdp.set_requires_gradient_sync(is_last)
            self._fsdp.set_is_last_backward(is_last)
        if self._ddp is not None and not is_last:
            with self._ddp.no_sync():
                yield
        else:
            yield

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return `function()`, which may call the module without gradients. Every rank must call this."""
        if self._fsdp is None:
            with torch.inference_mode():
                return function()
        with torch.no_grad():
            result: _Result = self._fsdp.call(function)
            return result


class _StepModule(nn.Module):
    """A module whose forward is the step, as DDP and FSDP2 need it."""

    def __init__(self, module: nn.Module, step: Callable[[Any], Terms]) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, batch: Any) -> Terms:
        """Return the terms of the loss of one micro-batch."""
        return self.step(batch)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return `function()`, called while FSDP2 has gathered the parameters outside of all blocks."""
        return function()


def is_sharded(tensor: Tensor) -> TypeGuard["DTensor"]:
    """Return whether each rank holds a shard of the tensor; DTensor itself is not imported, which is slow."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor, gathered where it is sharded. Every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the shard of this rank, or the tensor itself where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def shard_like(target: Tensor, value: Tensor) -> Tensor:
    """Return the full tensor `value`, sharded as `target` is, on its device and with its dtype."""
    if not is_sharded(target):
        return value
    from torch.distributed.tensor import distribute_tensor  # slow to import, needed with FSDP2 alone

    value = value.to(device=target.device, dtype=target.dtype)
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


@torch.no_grad()
def copy_full_tensor(target: Tensor, value: Tensor) -> None:
    """Copy the full tensor `value` into `target`, which may be sharded."""
    target.copy_(shard_like(target, value))


def full_state(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the module's state as full tensors in main memory. Every rank must call this."""
    return {name: full_tensor(tensor).detach().cpu() for name, tensor in module.state_dict().items()}


def sum_over_shards(value: Tensor, tensor: Tensor) -> None:
    """Sum `value` in place over the ranks that hold shards of `tensor`; leave it where `tensor` is not sharded."""
    if is_sharded(tensor):
        dist.all_reduce(value, group=tensor.device_mesh.get_group())
