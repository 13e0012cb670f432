"""Sparse gradients → weights: AdamW on a table of which a step reads few rows, as word embeddings in fine-tuning.

The gradient holds the rows that were read. All other rows need no gradient. The averages of a row that was never read
stay zero, so the row only decays, by one factor for all such rows: it is multiplied in when a row is first read, or
when all pending decay is applied. A row that was read once is updated at every step. The result is AdamW's on the whole
table, but for the rounding of that factor.

Shapes: V rows of the table, D columns, S rows that were read so far, G rows of the gradient.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.jit import compiled


def sparse_tables(module: nn.Module) -> Iterator[nn.Embedding]:
    """Yield the trained tables with sparse gradients (`nn.Embedding(sparse=True)`)."""
    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.sparse and part.weight.requires_grad:
            yield part


class TableRows:
    """State of AdamW for one table: which rows were read, and the pending decay of all others.

    `state` holds `seen` [V] bool and `decay` as tensors beside `exp_avg`, `exp_avg_sq` [V, D] and `step`, for
    checkpoints.
    """

    def __init__(self, table: nn.Embedding, state: dict[str, Tensor]) -> None:
        self.weight, self.state = table.weight, state
        state["seen"] = torch.zeros(len(table.weight), dtype=torch.bool)
        state["decay"] = torch.ones((), dtype=torch.float64)
        earlier_hook = getattr(table, "before_read", None)  # of another optimiser, which no longer updates this table
        if earlier_hook:
            earlier_hook.remove()

        def before_read(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if table.training:
                self.see(arguments[0])

        table.before_read = table.register_forward_pre_hook(before_read)  # type: ignore[assignment]

    def see(self, ids: Tensor) -> None:
        """Bring the rows of `ids` up to date before they are first read."""
        new = torch.unique(ids[~self.state["seen"][ids]])
        if len(new):
            with torch.no_grad():
                self.weight[new] *= float(self.state["decay"])
            self.state["seen"][new] = True

    def apply_pending_decay(self) -> None:
        """Bring all rows up to date."""
        with torch.no_grad():
            self.weight[~self.state["seen"]] *= float(self.state["decay"])
        self.state["decay"].fill_(1.0)

    def step(self, group: Mapping[str, Any]) -> None:
        """Update the table with its coalesced sparse gradient and the settings of a torch AdamW group."""
        gradient, state = self.weight.grad, self.state
        assert gradient is not None
        (beta1, beta2), rate = group["betas"], group["lr"]
        state["step"] += 1
        count = float(state["step"])
        keep = 1.0 - rate * group["weight_decay"]
        state["decay"] *= keep
        seen = np.flatnonzero(state["seen"].numpy())
        gradient_row = np.full(len(self.weight), -1, dtype=np.int64)
        gradient_row[gradient.indices()[0].numpy()] = np.arange(gradient.indices().shape[1])
        coefficients = np.array(
            [
                *(beta1, 1.0 - beta1, beta2, 1.0 - beta2, keep),
                *(rate / (1.0 - beta1**count), 1.0 / np.sqrt(1.0 - beta2**count), group["eps"]),
            ],
            dtype=np.float32,
        )
        arrays = (self.weight.detach(), state["exp_avg"], state["exp_avg_sq"], gradient.values())
        weight, first, second, values = (array.numpy() for array in arrays)
        threads = torch.get_num_threads()

        def update(rows: NDArray[np.int64]) -> None:
            _update(weight, first, second, rows, gradient_row, values, coefficients)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(update, np.array_split(seen, threads)))


def _update_rows(
    weight: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    rows: np.ndarray,
    gradient_row: np.ndarray,
    gradient: np.ndarray,
    coefficients: np.ndarray,
) -> None:
    """Apply AdamW to `rows` [S] of weight, first and second average, float32 [V, D] each, in place.

    gradient_row: int64 [V], the row of `gradient` for each row of the table, -1 for none. gradient: float32 [G, D].
    coefficients: float32 [8]: beta1, 1 - beta1, beta2, 1 - beta2, the fraction of a weight that stays after decay, the
        corrected rate, the correction of the second average's root, epsilon.
    """
    beta1, new1, beta2, new2, keep, rate, root, epsilon = coefficients
    for row in rows:
        at = gradient_row[row]
        w, m, v = weight[row], first[row], second[row]
        if at < 0:
            for j in range(w.size):
                m[j] = m[j] * beta1
                v[j] = v[j] * beta2
                w[j] = w[j] * keep - rate * m[j] / (np.sqrt(v[j]) * root + epsilon)
        else:
            g = gradient[at]
            for j in range(w.size):
                m[j] = m[j] * beta1 + g[j] * new1
                v[j] = v[j] * beta2 + g[j] * g[j] * new2
                w[j] = w[j] * keep - rate * m[j] / (np.sqrt(v[j]) * root + epsilon)


_update = compiled(_update_rows, error_model="numpy")  # without a check for divisors of 0, which prevents vectors
