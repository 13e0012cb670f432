"""loss → weights: AdamW as the original's optimiser, its schedule and its clipping (paper §A.2); Muon where asked."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertwright.training import muon
from bertwright.training.distributed import is_share, local
from bertwright.training.settings import OptimizerSettings, Schedule
from bertwright.training.sparse_adamw import TableRows, sparse_tables

_NO_CORRECTION = 1e9
"""A step count at which 1 - beta**step is 1: torch's AdamW then corrects nothing, as the original."""
_PIECE = 1024
"""Squares that are added up in a gradient's own precision."""


def rate_at(step: int, steps: int, warmup: float, schedule: Schedule = "linear") -> float:
    """Share of the peak rate at `step` (from 0): rising over warm-up, then falling to 0, measured from step 0."""
    rising = int(steps * warmup)
    if step < rising:
        return step / rising
    return 1.0 - step / steps if schedule == "linear" else (1.0 + math.cos(math.pi * step / steps)) / 2


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that learn, by name: all but the frozen ones."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


class AdamW(torch.optim.AdamW):
    """torch's, but for tables with sparse gradients, whose rows are updated by themselves, and for Muon's matrices."""

    tables: tuple[TableRows, ...] = ()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply the gradients, those of tables and of Muon's matrices first; they are gone then."""
        for group in self.param_groups:
            if group["stacked"]:
                muon.step(group, self.state)
                for parameter in group["params"]:
                    parameter.grad = None
            for table in self.tables:
                if any(table.weight is parameter for parameter in group["params"]) and table.weight.grad is not None:
                    table.step(group)
                    table.weight.grad = None
        super().step(closure)

    def settle(self) -> None:
        """Bring every row of every table up to date: before weights are read other than in training."""
        for table in self.tables:
            table.settle()


def build_optimizer(
    module: nn.Module,
    settings: OptimizerSettings,
    *,
    scale: Callable[[str], float] = lambda _: 1.0,
    blocks: Sequence[nn.Module] = (),
) -> AdamW:
    """AdamW over `module`; `scale(name)` multiplies the rate of a parameter (layer decay, a faster head).

    Under Muon, the matrices of `blocks` form groups of their own, whose `stacked` says how many each parameter holds.
    """
    stacked = muon.matrices(blocks) if settings.method == "muon" else {}
    groups: dict[tuple[float, bool, int], list[nn.Parameter]] = {}
    for name, parameter in trained_parameters(module):
        key = scale(name), parameter.ndim > 1, stacked.get(parameter, 0)
        groups.setdefault(key, []).append(parameter)
    faster = settings.muon_rate / settings.learning_rate
    optimizer = AdamW(
        [
            {
                "params": part,
                "weight_decay": settings.weight_decay if decays else 0.0,
                "scale": times * faster if matrices else times,
                "stacked": matrices,
            }
            for (times, decays, matrices), part in groups.items()
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    for _, parameter in trained_parameters(module):
        if parameter in stacked:
            optimizer.state[parameter] = {"momentum": torch.zeros_like(parameter)}
            continue
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0 if settings.bias_correction else _NO_CORRECTION, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    optimizer.tables = tuple(TableRows(table, optimizer.state[table.weight]) for table in sparse_tables(module))
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group `rate` times its own scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients in place to a global norm of at most `limit`, as the original; returns the norm before.

    torch's own function divides by a norm that is 1e-6 larger.
    """
    gradients = [_values(parameter) for parameter in parameters if parameter.grad is not None]
    norm = total_norm(gradients)
    scale = limit / norm.clamp(min=limit)
    for gradient in gradients:
        local(gradient).mul_(scale)
    return norm


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Root of the sum of all squares, in float64; where ranks hold shares of the tensors, of the whole ones.

    On a processor torch adds up the squares of a float32 tensor one after the other: the norm of a large vocabulary
    comes out 1e-3 too small, and by another share where ranks hold parts of it. Here only few are added up like that.
    """
    pieces: list[Tensor] = []
    for tensor in tensors:
        values = local(tensor).flatten()
        rows = values.numel() // _PIECE
        pieces.append(torch.linalg.vector_norm(values[: rows * _PIECE].view(rows, _PIECE), dim=1))
        pieces.append(torch.linalg.vector_norm(values[rows * _PIECE :]).view(1))
    square = torch.cat(pieces).double().square().sum() if pieces else torch.zeros((), dtype=torch.float64)
    first = tensors[0] if tensors else None
    if first is not None and is_share(first):  # FSDP2 shares all tensors or none
        dist.all_reduce(square, group=first.device_mesh.get_group())
    return square.sqrt()


def _values(parameter: Tensor) -> Tensor:
    """The numbers of a gradient; a sparse one is left with one row for each that was read."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()
