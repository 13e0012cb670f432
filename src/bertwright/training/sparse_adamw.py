"""loss → weights: AdamW on a table of which a step reads few rows (word embeddings in fine-tuning), cheaply.

The gradient holds the rows that were read. What AdamW does to all others needs no gradient: averages of zero stay zero,
so a row that was never read only decays, by one factor for all such rows, which is multiplied in when one is first
read or when the table is settled. Rows that were read once are updated at every step. The result is AdamW's on the
whole table, but for the rounding of that factor.

Shapes: V rows of the table, D columns, S rows seen, G rows of the gradient.
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
    """The learning tables that give sparse gradients (`nn.Embedding(sparse=True)`)."""
    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.sparse and part.weight.requires_grad:
            yield part


class TableRows:
    """What AdamW keeps of one table beside its averages: `seen` [V] bool, and `decay` of the rows not seen yet.

    `state` holds it as tensors together with `exp_avg`, `exp_avg_sq` [V, D] and `step`, for checkpoints.
    """

    def __init__(self, table: nn.Embedding, state: dict[str, Tensor]) -> None:
        self.weight, self.state = table.weight, state
        state["seen"] = torch.zeros(len(table.weight), dtype=torch.bool)
        state["decay"] = torch.ones((), dtype=torch.float64)
        earlier = getattr(table, "catch_up", None)  # of another optimiser, whose rows these are no longer
        if earlier:
            earlier.remove()

        def before(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if table.training:
                self.see(arguments[0])

        table.catch_up = table.register_forward_pre_hook(before)  # type: ignore[assignment]

    def see(self, ids: Tensor) -> None:
        """Bring the rows of `ids` up to date before they are first read."""
        new = torch.unique(ids[~self.state["seen"][ids]])
        if len(new):
            with torch.no_grad():
                self.weight[new] *= float(self.state["decay"])
            self.state["seen"][new] = True

    def settle(self) -> None:
        """Bring all rows up to date."""
        with torch.no_grad():
            self.weight[~self.state["seen"]] *= float(self.state["decay"])
        self.state["decay"].fill_(1.0)

    def step(self, group: Mapping[str, Any]) -> None:
        """One update with the coalesced sparse gradient, under the settings of a torch AdamW's group."""
        gradient, state = self.weight.grad, self.state
        assert gradient is not None
        (beta1, beta2), rate = group["betas"], group["lr"]
        state["step"] += 1
        count = float(state["step"])
        keep = 1.0 - rate * group["weight_decay"]
        state["decay"] *= keep
        seen = np.flatnonzero(state["seen"].numpy())
        place = np.full(len(self.weight), -1, dtype=np.int64)
        place[gradient.indices()[0].numpy()] = np.arange(gradient.indices().shape[1])
        figures = np.array(
            [
                *(beta1, 1.0 - beta1, beta2, 1.0 - beta2, keep),
                *(rate / (1.0 - beta1**count), 1.0 / np.sqrt(1.0 - beta2**count), group["eps"]),
            ],
            dtype=np.float32,
        )
        arrays = (self.weight.detach(), state["exp_avg"], state["exp_avg_sq"], gradient.values())
        weight, first, second, values = (array.numpy() for array in arrays)
        threads = torch.get_num_threads()

        def update(part: NDArray[np.int64]) -> None:
            _update(weight, first, second, part, place, values, figures)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(update, np.array_split(seen, threads)))


def _rows(
    weight: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    rows: np.ndarray,
    place: np.ndarray,
    gradient: np.ndarray,
    figures: np.ndarray,
) -> None:
    """AdamW on `rows` [S] of weight, first and second average, float32 [V, D] each; a row's gradient is at place[row].

    place: int64 [V], -1 for rows without one; gradient: float32 [G, D]; figures: float32 [8]: beta1, 1 - beta1, beta2,
    1 - beta2, what is kept of a weight, the rate and the root of the second average's share, both corrected, epsilon.
    """
    beta1, new1, beta2, new2, keep, rate, root, epsilon = figures
    for row in rows:
        at = place[row]
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


_update = compiled(_rows, error_model="numpy")  # no question whether a divisor is 0: it would end the vectors
