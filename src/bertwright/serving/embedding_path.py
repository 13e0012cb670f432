"""rows → scores on the way from baseline embeddings to those of the pieces, and their gradients.

Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) of the word embeddings. Positions, segments and
special tokens stay as they are. This is `LayerIntegratedGradients` of captum on the table of words.

For a point of the way, the tables of word embeddings look up rows that are computed here: each token of each row has
a number, which the model gets in place of its id. So the order in which a backbone reads the tokens has no effect, and
a backbone of two models has two tables.

Shapes: N tokens of all rows, P points, E width of the embeddings.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import Backbone
from bertwright.serving.answer_scores import ScoreFunction
from bertwright.serving.pipeline import ModelRow
from bertwright.tasks.inference import ANSWERED_TOKENS

GRADIENT_TOKENS: Final = 2048
"""Number of tokens of a batch whose gradients are computed, padding included; a longer row is a batch by itself."""

LogitsFunction = Callable[[Sequence[ModelRow]], list[Tensor]]


class EmbeddingPath:
    """The way of some rows from the baseline (0) to the input (1), and a score of the logits of all these rows."""

    def __init__(
        self,
        encoder: Backbone,
        logits: LogitsFunction,
        score: ScoreFunction,
        *,
        rows: Sequence[ModelRow],
        replaced: NDArray[np.bool_],
        replacement: int | None,
        seconds: float | None = None,
    ) -> None:
        """Set the path.

        logits       function from rows to the logits of each row, with their graph
        replaced     [N] True for the tokens that the baseline replaces
        replacement  id of the token that replaces them; None for embeddings of zeros
        seconds      seconds from now after which `scores` and `attributions` raise InputError; None is never
        """
        self._seconds, self._begin = seconds, time.monotonic()
        self._logits, self._score, self._rows = logits, score, rows
        self._encoder, self._pad = encoder, encoder.config.pad_id
        lengths = [len(row) for row in rows]
        self.num_tokens = sum(lengths)
        self._begins, self._longest = np.cumsum([0, *lengths]), max(lengths)
        ids = torch.from_numpy(np.concatenate([row.ids for row in rows]))
        self._inputs, self._baselines = [], []
        for table in encoder.word_embeddings():
            embedded = table.weight.detach()[ids]  # [N, E]
            other = torch.zeros_like(embedded[0]) if replacement is None else table.weight.detach()[replacement]
            self._inputs.append(embedded)
            self._baselines.append(torch.where(torch.from_numpy(replaced)[:, None], other, embedded))

    def scores(self, fractions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scores [P] where each token is a fraction [P, N] of its way from the baseline."""
        scores: list[float] = []
        with torch.no_grad():
            for points in _parts(len(fractions), self._points_of(ANSWERED_TOKENS)):
                self._refuse_late()
                scores += map(float, self._scores(self._logits_at(fractions[points])))
        return np.array(scores)

    def _logits_at(self, fractions: NDArray[np.float64]) -> list[Tensor]:
        """Return the logits of all rows of each point; those of a row with no fraction below 1 are computed once."""
        is_input = np.logical_and.reduceat(fractions == 1, self._begins[:-1], axis=1)  # [P, rows]
        changed = [(point, row) for point, row in np.argwhere(~is_input).tolist()]
        values = self._values(fractions)
        computed = [each for part in self._batches(changed, ANSWERED_TOKENS) for each in self._of(values, part)]
        by_pair = dict(zip(changed, computed, strict=True))
        return [by_pair.get(pair, self._input_logits[pair[1]]) for pair in self._pairs(len(fractions))]

    @cached_property
    def _input_logits(self) -> list[Tensor]:
        """Logits of each row of the input."""
        values = self._values(np.ones((1, self.num_tokens)))
        return [each for part in self._batches(self._pairs(1), ANSWERED_TOKENS) for each in self._of(values, part)]

    def attributions(self, steps: int) -> NDArray[np.float64]:
        """Return the integrated gradients [N] with `steps` points of Gauss and Legendre."""
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        total = np.zeros(self.num_tokens)
        for points in _parts(steps, self._points_of(GRADIENT_TOKENS)):
            self._refuse_late()
            fractions = np.repeat((nodes[points, None] + 1) / 2, self.num_tokens, axis=1)
            gradients = self._gradients([value.requires_grad_() for value in self._values(fractions)])
            for embedded, baseline, gradient in zip(self._inputs, self._baselines, gradients, strict=True):
                along = (gradient.double() * (embedded - baseline).double()).sum(-1)  # [P, N]
                total += weights[points] / 2 @ along.numpy()
        return total

    def _refuse_late(self) -> None:
        """Raise InputError after the seconds of the path."""
        if self._seconds is not None and time.monotonic() - self._begin > self._seconds:
            raise InputError(
                f"the explanation takes more than {self._seconds:g} seconds here, for {self.num_tokens} tokens; send a "
                "shorter text, or ask for the answer alone"
            )

    def _points_of(self, tokens: int) -> int:
        """Return the number of points that are computed together; one where the rows of a point exceed `tokens`."""
        return max(1, tokens // (self._longest * len(self._rows)))

    def _values(self, fractions: NDArray[np.float64]) -> list[Tensor]:
        """Return the embeddings [P, N, E] of each table at fractions [P, N] of the way."""
        factors = torch.from_numpy(fractions)[:, :, None].float()
        ways = zip(self._inputs, self._baselines, strict=True)
        return [baseline + factors * (embedded - baseline) for embedded, baseline in ways]

    def _pairs(self, points: int) -> list[tuple[int, int]]:
        """Return every (point, row); all rows of a point are one after another."""
        return [(point, row) for point in range(points) for row in range(len(self._rows))]

    def _batches(self, pairs: Sequence[tuple[int, int]], tokens: int) -> list[Sequence[tuple[int, int]]]:
        """Return the batches of pairs of a point and a row."""
        return [pairs[part] for part in _parts(len(pairs), max(1, tokens // self._longest))]

    def _of(self, values: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Return the logits of some rows at some points."""
        numbered = []
        for point, row in pairs:
            first = self._pad + 1 + point * self.num_tokens + int(self._begins[row])
            of_row = self._rows[row]
            numbers = np.arange(first, first + len(of_row), dtype=np.int32)
            numbered.append(ModelRow(numbers, of_row.first, of_row.at))
        with self._looked_up(values):
            return [logits.double() for logits in self._logits(numbered)]

    def _scores(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """Return the score of each point from the logits of all rows of all points."""
        size = len(self._rows)
        return [self._score(logits[begin : begin + size]) for begin in range(0, len(logits), size)]

    def _gradients(self, values: list[Tensor]) -> list[Tensor]:
        """Return the gradients [P, N, E] of the scores.

        If the rows of a point do not fit into one batch, their logits are computed first without a graph, and then
        batch by batch with the gradient of the score by the logits. So the memory is that of one batch.
        """
        batches = self._batches(self._pairs(len(values[0])), GRADIENT_TOKENS)
        if len(batches) == 1:
            score = torch.stack(self._scores(self._of(values, batches[0]))).sum()
            return list(torch.autograd.grad(score, values))
        with torch.no_grad():
            logits = [each for part in batches for each in self._of(values, part)]
        for each in logits:
            each.requires_grad_()
        by_logits = iter(torch.autograd.grad(torch.stack(self._scores(logits)).sum(), logits))
        totals = [torch.zeros_like(value) for value in values]
        for part in batches:
            of_part = self._of(values, part)
            gradients = torch.autograd.grad(of_part, values, [next(by_logits) for _ in of_part])
            totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
        return totals

    @contextmanager
    def _looked_up(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Let the tables of words look up rows of `values` [P, N, E] by number; the padding keeps its embedding."""
        hooks = []
        for table, of_table in zip(self._encoder.word_embeddings(), values, strict=True):
            rows = torch.cat((table.weight.detach()[self._pad, None], of_table.flatten(0, 1)))
            lookup = _Lookup(rows, self._pad)
            hooks += [table.register_forward_pre_hook(lookup.before), table.register_forward_hook(lookup.after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _Lookup:
    """Replacement of a table's rows; the table itself looks up padding instead of the numbers."""

    def __init__(self, rows: Tensor, pad: int) -> None:
        self._rows, self._pad = rows, pad
        self._numbers: Tensor | None = None

    def before(self, table: nn.Module, arguments: Any) -> Any:
        """Keep the numbers, and return the ids for the table."""
        self._numbers = arguments[0]
        return (torch.full_like(arguments[0], self._pad),)

    def after(self, table: nn.Module, arguments: Any, embedded: Tensor) -> Tensor:
        """Return the rows of the numbers in place of the embeddings."""
        assert self._numbers is not None
        return F.embedding(self._numbers - self._pad, self._rows)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
