"""requests → batches: what waits is answered together, by one thread, up to a budget of tokens.

Nothing is delayed to wait for company: a batch is what came while the one before it was computed. What would wait for
longer than is allowed is refused at once, so that the delay of what is accepted never grows.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from bertwright.errors import InputError, RunFailed

_FORGOTTEN: Final = 0.9
"""What the batches before still count beside the newest one, in the speed of their kind."""

_BETWEEN_TRIALS: Final = 60.0
"""Seconds between trials of a kind: one that is as slow as it was thought keeps the others waiting."""


class Overloaded(Exception):
    """There is more work than can be done in the time that a request may wait; `seconds` until there is room."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"too much is waiting; try again in {self.seconds} s")


@dataclass(frozen=True)
class Work:
    """What is done to inputs: those of one `key` may be computed together, those of one `kind` are about as fast."""

    key: Hashable
    kind: Hashable
    compute: Callable[[Sequence[Any]], list[Any]]


@dataclass(eq=False)
class _Job:
    """One input of a request; `seconds` is how long it will take, as far as is known."""

    work: Work
    item: Any
    tokens: int
    seconds: float
    answer: asyncio.Future[Any]
    waits: bool = True


@dataclass
class _Speed:
    """Tokens and seconds of the batches of a kind, the newest ones counting most."""

    tokens: float
    seconds: float = 1.0
    tried: float = -math.inf
    """When what was thought too slow was computed all the same, to measure it."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = _FORGOTTEN * self.tokens + tokens
        self.seconds = _FORGOTTEN * self.seconds + seconds


@dataclass
class _Queue:
    """The jobs that wait, and how long they take together."""

    jobs: deque[_Job] = field(default_factory=deque)
    tokens: int = 0
    seconds: float = 0.0

    def put(self, jobs: Sequence[_Job]) -> None:
        self.jobs.extend(jobs)
        self.tokens += sum(job.tokens for job in jobs)
        self.seconds += sum(job.seconds for job in jobs)

    def leave(self, job: _Job) -> None:
        """It waits no longer: it is begun, or given up."""
        if job.waits:
            job.waits = False
            self.tokens -= job.tokens
            self.seconds = max(0.0, self.seconds - job.seconds)


class Batcher:
    """Takes inputs from many requests and computes them in batches. All calls come from one event loop."""

    def __init__(
        self,
        *,
        batch_tokens: int,
        most_seconds: float,
        longest_seconds: float,
        rate: float,
        seen: Callable[[int, int], None],
    ) -> None:
        """Limits, and what is told.

        most_seconds      how long a request may have to wait for those before it
        longest_seconds   how long one input may take
        rate              tokens a second, until they were measured
        seen              told of each batch, its inputs and its tokens
        """
        self.batch_tokens, self.most_seconds, self.longest_seconds = batch_tokens, most_seconds, longest_seconds
        self._rate, self._seen = rate, seen
        self._speeds: dict[Hashable, _Speed] = {}
        self._queue = _Queue()
        self._computing = 0.0
        self._more: asyncio.Event
        self._thread: ThreadPoolExecutor
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting_tokens(self) -> int:
        """Of what waits to be computed."""
        return self._queue.tokens

    @property
    def works(self) -> bool:
        """Whether it was started and has not ended."""
        return self._worker is not None and not self._worker.done()

    def start(self) -> None:
        """Begin to work; within a running event loop."""
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End when all that was accepted is answered."""
        assert self._worker
        while (self._queue.jobs or self._computing) and self.works:
            await asyncio.sleep(0.01)
        self._worker.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answers(self, work: Work, items: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """The results for all items, in order.

        Overloaded where they would wait for too long, InputError for one that alone takes too long. That rests on how
        fast its kind was: now and then, where nothing waits and all would be done in time at the speed that the service
        began with, they are computed and the speed measured anew, so that one bad measurement does not refuse for ever.
        """
        if not self.works:
            raise RunFailed("the service has stopped to work")
        ahead = self._queue.seconds + self._computing
        if ahead > self.most_seconds:
            raise Overloaded(ahead - self.most_seconds)
        speed = self._speeds.setdefault(work.kind, _Speed(self._rate))
        loop = asyncio.get_running_loop()
        jobs = [
            _Job(work, item, size, size / speed.rate, loop.create_future())
            for item, size in zip(items, tokens, strict=True)
        ]
        slow = next((place for place, job in enumerate(jobs) if job.seconds > self.longest_seconds), None)
        is_idle = not self.waiting_tokens and not self._computing
        if slow is not None and not (is_idle and self._may_try(speed, sum(tokens))):
            told = f"{jobs[slow].tokens:,} tokens take about {jobs[slow].seconds:.0f} s"
            raise InputError(f"input {slow}: {told}; at most {self.longest_seconds:g} s")
        self._queue.put(jobs)
        self._more.set()
        try:
            return list(await asyncio.gather(*(job.answer for job in jobs)))
        finally:  # given up by the client or by the clock: what was not begun is not computed
            for job in jobs:
                self._queue.leave(job)
                job.answer.cancel()

    def _may_try(self, speed: _Speed, tokens: int) -> bool:
        """Whether so many tokens are worth a trial of how fast their kind is; if so, it is not asked for a while."""
        now = time.monotonic()
        if tokens / self._rate > self.longest_seconds or now - speed.tried < _BETWEEN_TRIALS:
            return False
        speed.tried = now
        return True

    async def _work(self) -> None:
        try:
            while True:
                await self._more.wait()
                batch = self._next()
                if batch:
                    await self._compute(batch)
                if not self._queue.jobs:
                    self._more.clear()
        finally:  # whatever ended it, nobody waits for ever
            for job in self._queue.jobs:
                job.answer.cancel()

    def _next(self) -> list[_Job]:
        """The jobs that are computed next: the oldest, and those after it that go with it, up to the budget."""
        batch: list[_Job] = []
        left: list[_Job] = []
        jobs, longest = self._queue.jobs, 0
        while jobs:
            job = jobs.popleft()
            if not job.waits:  # given up
                continue
            goes_with = not batch or job.work.key == batch[0].work.key
            if goes_with and (not batch or max(longest, job.tokens) * (len(batch) + 1) <= self.batch_tokens):
                batch.append(job)
                longest = max(longest, job.tokens)
                continue
            left.append(job)
            if goes_with:
                break
        jobs.extendleft(reversed(left))
        for job in batch:
            self._queue.leave(job)
        return batch

    async def _compute(self, batch: list[_Job]) -> None:
        self._computing = sum(job.seconds for job in batch)
        loop = asyncio.get_running_loop()
        begin = time.perf_counter()
        try:
            results = await loop.run_in_executor(self._thread, _together, batch)
        finally:
            self._computing = 0.0
        tokens = sum(job.tokens for job in batch)
        if not any(isinstance(result, Exception) for result in results):
            self._speeds[batch[0].work.kind].add(tokens, time.perf_counter() - begin)
        self._seen(len(batch), tokens)
        for job, result in zip(batch, results, strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)


def _together(batch: Sequence[_Job]) -> list[Any]:
    """Results or exceptions: an input that cannot be answered takes none of those beside it with it."""
    try:
        results = batch[0].work.compute([job.item for job in batch])
        if len(results) != len(batch):
            raise RunFailed(f"{len(results)} results for {len(batch)} inputs")
        return results
    except Exception as error:  # whatever it is, it is the answer of that input alone
        if len(batch) == 1:
            return [error]
        return [result for job in batch for result in _together([job])]
