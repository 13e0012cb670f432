"""Gradients → weights: AdamW as in the original code, its schedule and its clipping (paper §A.2); Muon on request."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from bertwright.training import muon
from bertwright.training.distributed import local_tensor, sum_over_shards
from bertwright.training.settings import OptimizerSettings, Schedule, stable_steps
from bertwright.training.sparse_adamw import TableRows, sparse_tables

_NO_CORRECTION = 1e9
"""Step count at which 1 - beta**step is 1: torch's AdamW then corrects no bias, as in the original code."""
_CHUNK = 1024
"""Number of squares that are added up in the precision of the gradient."""


def rate_at(step: int, steps: int, warmup: float, schedule: Schedule = "linear", decay: float = 0.0) -> float:
    """Return the learning rate at `step` (from 0) as a fraction of the peak rate.

    It rises linearly over the warm-up. Then it falls to 0, linearly or along a cosine that is measured from step 0.
    With `wsd` it stays at the peak, and falls linearly in the last steps: the fraction `decay` of all steps.
    """
    warmup_steps = int(steps * warmup)
    if step < warmup_steps:
        return step / warmup_steps
    if schedule == "wsd":
        return min(1.0, (steps - step) / max(1, steps - stable_steps(steps, decay)))
    return 1.0 - step / steps if schedule == "linear" else (1.0 + math.cos(math.pi * step / steps)) / 2


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return (name, parameter) of every parameter that is not frozen."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


class AdamW(torch.optim.AdamW):
    """torch's AdamW, with row-wise updates of tables that have sparse gradients, and Muon for its matrices."""

    tables: tuple[TableRows, ...] = ()
    orthogonalise: Callable[[Tensor], Tensor] = staticmethod(muon.orthogonalise)
    """Function of Muon that sets the singular values of its updates."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply the gradients. Those of tables and of Muon's matrices are applied first, and removed."""
        for group in self.param_groups:
            if group["stacked"]:
                muon.step(group, self.state, self.orthogonalise)
                for parameter in group["params"]:
                    parameter.grad = None
            for table in self.tables:
                if any(table.weight is parameter for parameter in group["params"]) and table.weight.grad is not None:
                    table.step(group)
                    table.weight.grad = None
        super().step(closure)

    def apply_pending_decay(self) -> None:
        """Bring every row of every table up to date. Call this before weights are read outside of training."""
        for table in self.tables:
            table.apply_pending_decay()


def build_optimizer(
    module: nn.Module,
    settings: OptimizerSettings,
    *,
    scale: Callable[[str], float] = lambda _: 1.0,
    blocks: Sequence[nn.Module] = (),
    orthogonalise: Callable[[Tensor], Tensor] = muon.orthogonalise,
) -> AdamW:
    """Return AdamW over `module`; `scale(name)` multiplies a parameter's rate (layer-wise decay, a faster head).

    With Muon, the matrices of `blocks` form groups of their own, whose updates go through `orthogonalise`. A group's
    `stacked` is the number of matrices in each of its parameters, 0 without Muon.
    """
    stacked_by_weight = muon.matrices(blocks) if settings.method == "muon" else {}
    groups: dict[tuple[float, bool, int], list[nn.Parameter]] = {}
    for name, parameter in trained_parameters(module):
        key = scale(name), parameter.ndim > 1, stacked_by_weight.get(parameter, 0)
        groups.setdefault(key, []).append(parameter)
    muon_scale = settings.muon_rate / settings.learning_rate
    optimizer = AdamW(
        [
            {
                "params": parameters,
                "weight_decay": settings.weight_decay if decays else 0.0,
                "scale": factor * muon_scale if stacked else factor,
                "stacked": stacked,
            }
            for (factor, decays, stacked), parameters in groups.items()
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    for _, parameter in trained_parameters(module):
        if parameter in stacked_by_weight:
            optimizer.state[parameter] = {"momentum": torch.zeros_like(parameter)}
            continue
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0 if settings.bias_correction else _NO_CORRECTION, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    optimizer.orthogonalise = orthogonalise
    optimizer.tables = tuple(TableRows(table, optimizer.state[table.weight]) for table in sparse_tables(module))
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to `rate` times the group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients in place to a global norm of at most `limit`; return the norm before.

    As in the original code; torch's own function divides by a norm that is 1e-6 larger.
    """
    gradients = [_gradient_values(parameter) for parameter in parameters if parameter.grad is not None]
    norm = total_norm(gradients)
    scale = limit / norm.clamp(min=limit)
    for gradient in gradients:
        values = local_tensor(gradient)
        values.mul_(float(scale) if values.device.type == "mps" else scale)
    return norm


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the root of the sum of all squares in float64; of the full tensors where the tensors are sharded.

    On a processor torch adds up the squares of a float32 tensor one after the other: the norm of a large vocabulary
    comes out 1e-3 too small, by an amount that depends on the sharding. Here only short chunks are added up like that.
    """
    norms: list[Tensor] = []
    for tensor in tensors:
        values = local_tensor(tensor).flatten()
        rows = values.numel() // _CHUNK
        norms.append(torch.linalg.vector_norm(values[: rows * _CHUNK].view(rows, _CHUNK), dim=1))
        norms.append(torch.linalg.vector_norm(values[rows * _CHUNK :]).view(1))
    of_chunks = torch.cat(norms) if norms else torch.zeros(0)
    if of_chunks.device.type == "mps":  # which has no float64
        of_chunks = of_chunks.cpu()
    square = of_chunks.double().square().sum()
    if tensors:
        sum_over_shards(square, tensors[0])  # FSDP2 shards all tensors or none
    return square.sqrt()


def _gradient_values(parameter: Tensor) -> Tensor:
    """Return the values of a gradient; a sparse gradient is coalesced in place first."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()
