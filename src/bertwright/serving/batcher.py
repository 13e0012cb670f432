"""rows of requests → batches: waiting rows are computed together, by one thread, up to a budget of tokens.

No row waits until a batch is full: a batch has the rows that came while the batch before was computed. The queue has a
limit of tokens. Where it is full, a request is refused at once. So the delay of accepted requests does not grow with
the number of clients.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from bertwright.errors import RunFailed

RETRY_SECONDS: Final = 1
"""Seconds after which a refused client may try again: a batch or more is computed meanwhile."""


class Overloaded(Exception):
    """The queue is full; the client may try again after RETRY_SECONDS."""

    def __init__(self) -> None:
        super().__init__(f"too many requests are waiting; try again in {RETRY_SECONDS} s")


@dataclass(frozen=True)
class Computation:
    """A function from rows to outputs. Rows of equal `key` may be computed together."""

    key: Hashable
    compute: Callable[[Sequence[Any]], list[Any]]


@dataclass(eq=False)
class _Job:
    """A row of a request. `waits` is False once it was taken into a batch or given up."""

    computation: Computation
    row: Any
    tokens: int
    output: asyncio.Future[Any]
    waits: bool = True


@dataclass
class _Queue:
    """Waiting jobs, and the number of their tokens."""

    jobs: deque[_Job] = field(default_factory=deque)
    tokens: int = 0

    def add(self, jobs: Sequence[_Job]) -> None:
        """Add jobs at the end."""
        self.jobs.extend(jobs)
        self.tokens += sum(job.tokens for job in jobs)

    def discard(self, job: _Job) -> None:
        """Mark a job as no longer waiting."""
        if job.waits:
            job.waits = False
            self.tokens -= job.tokens


class Batcher:
    """Takes rows from many requests and computes them in batches. All calls must come from one event loop."""

    def __init__(
        self, *, batch_tokens: int, max_waiting_tokens: int, observe: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Set the limits.

        batch_tokens        largest number of tokens of a batch, padding included; a longer row is a batch by itself
        max_waiting_tokens  a request is refused where so many tokens, or more, are waiting
        observe             called with the number of rows and of tokens of each batch
        """
        self.batch_tokens, self.max_waiting_tokens, self._observe = batch_tokens, max_waiting_tokens, observe
        self._queue = _Queue()
        self._is_computing = False
        self._more: asyncio.Event
        self._thread: ThreadPoolExecutor
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting_tokens(self) -> int:
        """Number of tokens in the queue."""
        return self._queue.tokens

    @property
    def is_running(self) -> bool:
        """Return whether the batcher was started and has not ended."""
        return self._worker is not None and not self._worker.done()

    def start(self) -> None:
        """Start the worker, within a running event loop."""
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forward")
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop the worker when all accepted rows are computed."""
        assert self._worker
        while (self._queue.jobs or self._is_computing) and self.is_running:
            await asyncio.sleep(0.01)
        self._worker.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def outputs(
        self,
        computation: Computation,
        rows: Sequence[Any],
        tokens: Sequence[int],
        *,
        accepted: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Return the outputs of all rows, in order; `accepted` is called before they are computed.

        Raises Overloaded where the queue is full.
        """
        if not self.is_running:
            raise RunFailed("the service has stopped working; restart it")
        if self._queue.tokens >= self.max_waiting_tokens:
            raise Overloaded
        if accepted is not None:
            accepted()
        loop = asyncio.get_running_loop()
        jobs = [_Job(computation, row, size, loop.create_future()) for row, size in zip(rows, tokens, strict=True)]
        self._queue.add(jobs)
        self._more.set()
        try:
            return list(await asyncio.gather(*(job.output for job in jobs)))
        finally:  # where the client is gone or the time is over, rows that still wait are not computed
            for job in jobs:
                self._queue.discard(job)
                job.output.cancel()

    async def _work(self) -> None:
        try:
            while True:
                await self._more.wait()
                if batch := self._next_batch():
                    await self._compute(batch)
                if not self._queue.jobs:
                    self._more.clear()
        finally:  # also after an error in the worker, so that no request waits for ever
            for job in self._queue.jobs:
                job.output.cancel()

    def _next_batch(self) -> list[_Job]:
        """Take the oldest job and later ones of the same key from the queue, in their order, up to the budget."""
        batch: list[_Job] = []
        others: list[_Job] = []
        jobs, longest = self._queue.jobs, 0
        while jobs:
            job = jobs.popleft()
            if not job.waits:  # given up
                continue
            fits_key = not batch or job.computation.key == batch[0].computation.key
            if fits_key and (not batch or max(longest, job.tokens) * (len(batch) + 1) <= self.batch_tokens):
                batch.append(job)
                longest = max(longest, job.tokens)
                continue
            others.append(job)
            if fits_key:
                break
        jobs.extendleft(reversed(others))
        for job in batch:
            self._queue.discard(job)
        return batch

    async def _compute(self, batch: list[_Job]) -> None:
        self._is_computing = True
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._thread, _outputs, batch)
        finally:
            self._is_computing = False
        self._observe(len(batch), sum(job.tokens for job in batch))
        for job, output in zip(batch, outputs, strict=True):
            if job.output.done():
                continue
            if isinstance(output, Exception):
                job.output.set_exception(output)
            else:
                job.output.set_result(output)


def _outputs(batch: Sequence[_Job]) -> list[Any]:
    """Return an output or an exception for each job.

    If a batch fails, its rows are retried one at a time, so that only the faulty one fails.
    """
    try:
        outputs = batch[0].computation.compute([job.row for job in batch])
        if len(outputs) != len(batch):
            raise RunFailed(f"{len(outputs)} outputs for {len(batch)} rows")
        return outputs
    except Exception as error:  # of any class: it becomes the output of that row alone
        if len(batch) == 1:
            return [error]
        return [output for job in batch for output in _outputs([job])]
