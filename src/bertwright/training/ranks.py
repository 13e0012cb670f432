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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bertwright.console import console, say
from bertwright.errors import InputError, RunFailed
from bertwright.training.device import Device, finish, own_device

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
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes what all of them found."""
        return self.rank == 0

    def share(self, parts: Sequence[Batch]) -> list[tuple[int, Batch, bool]]:
        """(number, part, whether it counts) of this rank. All get equally many: what is missing does not count."""
        own = [(number, part, True) for number, part in enumerate(parts) if number % self.world == self.rank]
        missing = math.ceil(len(parts) / self.world) - len(own)
        return [*own, *[(0, parts[0], False) for _ in range(missing)]]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def any(self, *facts: bool) -> bool:
        """Whether one of the facts holds for one of the ranks."""
        return self.sum([float(any(facts))])[0] > 0

    def told(self, value: Any) -> Any:
        """What rank zero holds, for all; it goes as JSON."""
        if self.world == 1:
            return value
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        dist.broadcast(length, src=0)
        if not self.leads:
            text = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    def sum_seconds(self, numbers: int, place: torch.device) -> float:
        """How long the ranks take to sum so many numbers of 32 bits that lie there."""
        if self.world == 1:
            return 0.0
        values, times = torch.zeros(numbers, device=place), []
        for _ in range(3):
            self.meet()
            begin = time.perf_counter()
            dist.all_reduce(values)
            finish(place)
            times.append(time.perf_counter() - begin)
        return min(times)

    def meet(self) -> None:
        """Wait until all are here."""
        self.sum([0.0])


ALONE: Final = Ranks()


@contextmanager
def joined(device: Device = "cpu", *, sharding: str = "ddp") -> Iterator[Ranks]:
    """The processes that torchrun started together, or this one alone, which has nothing to share: that is said.

    What lies in the processors' memory goes over gloo, what lies on GPUs over NCCL.
    RunFailed where another process is gone or does not answer in time; it names the ranks. InputError where two of them
    have one GPU, or one has none.
    """
    rank, world = (_number(name, default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world == 1:
        if sharding != "ddp":
            say(f"--sharding {sharding}: is for the processes that torchrun starts; this one is alone and holds it all")
        yield ALONE
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
        ranks.meet()
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
        for other in set(range(ranks.world)) - {ranks.rank}:
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
