"""Waiting rows are computed together; a request is refused where the queue is full."""

import asyncio
import threading
from typing import Any

import pytest

from bertwright.errors import RunFailed
from bertwright.serving.batcher import Batcher, Computation, Overloaded


class Held:
    """A batcher whose first batch is not computed before all calls are queued."""

    def __init__(self, **settings: Any) -> None:
        self.batcher = Batcher(**({"batch_tokens": 100, "max_waiting_tokens": 10_000} | settings))
        self.batches: list[list[Any]] = []
        self._go = threading.Event()

    def compute(self, items: Any) -> list[Any]:
        self.batches.append(list(items))
        assert self._go.wait(20)
        return [10 * item for item in items]

    def call(self, key: str, sizes: list[int]) -> "asyncio.Task[list[Any]]":
        return asyncio.create_task(self.batcher.outputs(Computation(key, self.compute), sizes, sizes))

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
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self.batcher.stop()
            assert self.batcher.waiting_tokens == 0
            return results

        return asyncio.run(run())


def test_what_waits_is_answered_together() -> None:
    held = Held()
    assert held([("a", [30]), ("a", [10]), ("b", [20]), ("a", [40, 40])]) == [[300], [100], [200], [400, 400]]
    assert held.batches == [[30], [10, 40], [20], [40]]  # the longest decides the width: 3 x 40 would be too many
    held = Held()
    held([("a", [500]), ("a", [1] * 60)])
    assert held.batches == [[500], [1] * 60]


def test_a_request_is_refused_at_once_where_the_queue_is_full() -> None:
    outputs = Held(max_waiting_tokens=90)([("a", [90]), ("a", [50]), ("a", [40]), ("a", [1])])
    assert outputs[:3] == [[900], [500], [400]]  # the first row is computed, and waits no longer
    assert isinstance(outputs[3], Overloaded)
    assert "try again in 1 s" in str(outputs[3])


def test_a_request_of_more_tokens_than_the_limit_is_accepted_while_there_is_room() -> None:
    """The limit is on what waits before a request: a client that is alone is never refused."""
    assert Held(max_waiting_tokens=10)([("a", [90, 90]), ("a", [500])])[0] == [900, 900]


def test_rows_that_were_given_up_make_room_in_the_queue() -> None:
    held = Held(max_waiting_tokens=10)

    async def run() -> list[Any]:
        held.batcher.start()
        first = held.call("a", [5])
        while not held.batches:
            await asyncio.sleep(0.001)
        given_up = held.call("a", [50])
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.sleep(0.01)
        last = held.call("a", [6])
        await asyncio.sleep(0.01)
        held._go.set()
        outputs = [await first, await last]
        await held.batcher.stop()
        return outputs

    assert asyncio.run(run()) == [[50], [60]]


def test_what_was_given_up_is_not_computed() -> None:
    held = Held(batch_tokens=10)
    results = held([("a", [7]), ("a", [8]), ("a", [9])], give_up=1)
    assert isinstance(results[1], asyncio.CancelledError)
    assert (results[0], results[2]) == ([70], [90])
    assert held.batches == [[7], [9]]


def test_wrong_answers_of_a_model_end_no_service() -> None:
    async def run() -> list[Any]:
        batcher = Held().batcher
        batcher.start()
        results = []
        for name, compute in (("short", lambda items: items[:0]), ("right", list)):
            call = batcher.outputs(Computation(name, compute), [1], [1])
            results += await asyncio.gather(call, return_exceptions=True)
        await batcher.stop()
        return results

    wrong, sound = asyncio.run(run())
    assert isinstance(wrong, RunFailed)
    assert sound == [1]


def test_refused_requests_are_not_counted() -> None:
    async def run() -> list[str]:
        calls: list[str] = []
        batcher = Batcher(batch_tokens=100, max_waiting_tokens=10)
        computation = Computation("a", list)
        with pytest.raises(RunFailed, match="has stopped working"):
            await batcher.outputs(computation, [1], [1], accepted=lambda: calls.append("stopped"))
        batcher.start()
        assert await batcher.outputs(computation, [1], [20], accepted=lambda: calls.append("accepted")) == [1]
        waiting = asyncio.create_task(batcher.outputs(computation, [2], [20]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.outputs(computation, [3], [1], accepted=lambda: calls.append("overloaded"))
        assert await waiting == [2]
        await batcher.stop()
        return calls

    assert asyncio.run(run()) == ["accepted"]
