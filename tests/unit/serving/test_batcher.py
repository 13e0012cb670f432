"""What waits is computed together, and what would wait too long is refused."""

import asyncio
import threading
import time
from typing import Any

from bertwright.errors import InputError, RunFailed
from bertwright.serving.batcher import Batcher, Overloaded, Work, _Speed


class Held:
    """A batcher whose first batch is not computed before all calls are queued."""

    def __init__(self, **settings: Any) -> None:
        limits = {"batch_tokens": 100, "most_seconds": 9.0, "longest_seconds": 9.0, "rate": 1e4}
        self.batcher = Batcher(**(limits | {"seen": lambda *_: None} | settings))
        self.batches: list[list[Any]] = []
        self._go = threading.Event()

    def compute(self, items: Any) -> list[Any]:
        self.batches.append(list(items))
        assert self._go.wait(20)
        return [10 * item for item in items]

    def call(self, key: str, sizes: list[int]) -> "asyncio.Task[list[Any]]":
        return asyncio.create_task(self.batcher.answers(Work(key, key, self.compute), sizes, sizes))

    def __call__(self, calls: list[tuple[str, list[int]]], give_up: int | None = None) -> list[Any]:
        """Results or errors of (key, sizes) calls in their order, of which one may be given up while it waits."""

        async def run() -> list[Any]:
            self.batcher.start()
            tasks = [self.call(*calls[0])]
            while not self.batches:
                await asyncio.sleep(0.001)
            tasks += [self.call(*one) for one in calls[1:]]
            await asyncio.sleep(0.01)
            if give_up is not None:
                tasks[give_up].cancel()
                await asyncio.sleep(0.01)
            self._go.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await self.batcher.stop()
            assert self.batcher.waiting_tokens == 0
            return found

        return asyncio.run(run())


def test_what_waits_is_answered_together() -> None:
    held = Held()
    assert held([("a", [30]), ("a", [10]), ("b", [20]), ("a", [40, 40])]) == [[300], [100], [200], [400, 400]]
    assert held.batches == [[30], [10, 40], [20], [40]]  # the longest decides the width: 3 x 40 would be too many
    held = Held()
    held([("a", [500]), ("a", [1] * 60)])
    assert held.batches == [[500], [1] * 60]


def test_what_would_wait_too_long_is_refused_at_once() -> None:
    found = Held(rate=1000.0, most_seconds=0.1)([("a", [90]), ("a", [90]), ("a", [90])])
    assert found[:2] == [[900], [900]]
    assert isinstance(found[2], Overloaded)
    assert found[2].seconds == 1


def test_one_input_that_takes_too_long_is_refused() -> None:
    found = Held(rate=10.0, longest_seconds=2.0)([("a", [10]), ("a", [10, 30])])
    assert found[0] == [100]
    assert isinstance(found[1], InputError)
    assert "input 1: 30 tokens take about 3 s; at most 2 s" in str(found[1])


def test_one_bad_measurement_does_not_refuse_for_ever() -> None:
    """Something held the machine up for a while; the work is as quick as it was, and is found to be so again."""

    async def run() -> tuple[list[Any], list[Any]]:
        batcher = Held(rate=1000.0, longest_seconds=0.5).batcher
        batcher.start()
        batcher._speeds["a"] = _Speed(tokens=1.0, seconds=0.2)
        batcher._queue.seconds = 1e-17  # as sums and differences of fractions leave it
        quick = Work("a", "a", list)
        found = [await batcher.answers(quick, [2], [100])]
        too_much = await asyncio.gather(batcher.answers(quick, [3], [1000]), return_exceptions=True)
        batcher._speeds["a"] = _Speed(tokens=1.0, seconds=0.2, tried=time.monotonic())
        too_much += await asyncio.gather(batcher.answers(quick, [4], [100]), return_exceptions=True)
        await batcher.stop()
        return found, too_much

    found, too_much = asyncio.run(run())
    assert found == [[2]]
    assert isinstance(too_much[0], InputError)  # at the first speed too
    assert isinstance(too_much[1], InputError)  # a trial was made a moment ago


def test_what_was_given_up_is_not_computed() -> None:
    held = Held(batch_tokens=10)
    found = held([("a", [7]), ("a", [8]), ("a", [9])], give_up=1)
    assert isinstance(found[1], asyncio.CancelledError)
    assert (found[0], found[2]) == ([70], [90])
    assert held.batches == [[7], [9]]


def test_wrong_answers_of_a_model_end_no_service() -> None:
    async def run() -> list[Any]:
        batcher = Held().batcher
        batcher.start()
        found = []
        for name, compute in (("short", lambda items: items[:0]), ("right", list)):
            call = batcher.answers(Work(name, name, compute), [1], [1])
            found += await asyncio.gather(call, return_exceptions=True)
        await batcher.stop()
        return found

    wrong, sound = asyncio.run(run())
    assert isinstance(wrong, RunFailed)
    assert sound == [1]
