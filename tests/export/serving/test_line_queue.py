"""The queue of a model: its batches, their order, and refused lines."""

import asyncio
import types

import pytest

from keras_transformer.export.serving.line_queue import NEXT_LINES, LineQueue
from keras_transformer.export.serving.refusals import Busy, Late


class Sender:
    """Doubles numbers once `free` is set, and records its batches."""

    def __init__(self):
        self.batches, self.free = [], asyncio.Event()

    async def __call__(self, items, seed):
        self.batches.append((list(items), seed))
        await self.free.wait()
        if "bad" in items:
            raise ZeroDivisionError
        results = [2 * item for item in items if item != "lost"]
        return types.SimpleNamespace(results=results, lengths=[1] * len(items))

    def items(self):
        """Returns the lines of each batch, sorted."""
        return [sorted(items) for items, _ in self.batches]


def sizes(items):
    """Returns lengths: a number is its own length, and a text has one token."""
    return [item if isinstance(item, int) else 1 for item in items]


def queued(test, measure=sizes, **options):
    """Runs a test, a coroutine function of a queue and its sender."""

    async def run():
        sender = Sender()
        queue = LineQueue(sender, measure, **options)
        try:
            await asyncio.wait_for(test(queue, sender), 60)
        finally:
            await queue.close()

    asyncio.run(run())


async def settled():
    """Runs all tasks that are ready. No test here waits for another thread."""
    for _ in range(100):
        await asyncio.sleep(0)


async def begun(queue, sender, *requests, options=None):
    """Returns tasks of requests: the first is being computed, and the others wait."""
    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(queue.submit(request, options)))
        await settled()
    assert sender.batches[0][0] == requests[0]
    return tasks


def test_lines_that_arrive_during_a_batch_form_the_next_batch():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [2, 3], [4])
        assert len(sender.batches) == 1 and queue.waiting == 3
        sender.free.set()
        answers = [await task for task in tasks]
        assert [answer.results for answer in answers] == [[2], [4, 6], [8]]
        assert [answer.tokens for answer in answers] == [1, 2, 1]
        assert sender.items() == [[1], [2, 3, 4]] and queue.waiting == 0

    queued(test)


def test_lines_of_similar_length_share_a_batch_across_requests():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [50, 11], [52, 10], [12], [51])
        sender.free.set()
        answers = [(await task).results for task in tasks]
        assert answers == [[2], [100, 22], [104, 20], [24], [102]]
        assert sender.items() == [[1], [50, 51, 52], [10, 11, 12]]

    queued(test, batch_tokens=156)


def test_the_oldest_request_is_never_starved():
    """A line of unusual length is in the next batch, whatever comes after it."""

    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [99], *([10],) * 40)
        sender.free.set()
        await asyncio.gather(*tasks)
        assert sender.items()[:2] == [[1], [99]]

    queued(test, batch_tokens=100)


def test_a_long_request_does_not_delay_short_ones():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [20] * 24, [3], [4])
        sender.free.set()
        done, _ = await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        assert done == {tasks[2], tasks[3]}  # short ones after one batch of the long one
        assert (await tasks[1]).results == [40] * 24
        assert sender.items()[:3] == [[1], [20] * 5, [3, 4, 20, 20, 20]]

    queued(test, batch_tokens=100)


def test_batches_grow_with_the_queue_up_to_twice_the_tokens():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], *([10],) * 60)
        sender.free.set()
        await asyncio.gather(*tasks)
        # A fifth of the waiting tokens, between 100 and 200.
        assert [len(batch) for batch in sender.items()] == [1, 12, 10, 10, 10, 10, 8]
        tasks = [asyncio.create_task(queue.submit([10])) for _ in range(300)]
        await asyncio.gather(*tasks)
        assert len(sender.items()[7]) == 20

    queued(test, batch_tokens=100)


def test_free_workers_share_the_waiting_lines():
    async def test(queue, sender):
        await settled()  # both workers have started
        task = asyncio.create_task(queue.submit([5] * 9))
        await settled()
        assert sender.items() == [[5] * 5, [5] * 4]
        sender.free.set()
        assert (await task).results == [10] * 9

    queued(test, workers=2)


def test_a_request_to_an_idle_queue_does_not_wait():
    async def test(queue, sender):
        sender.free.set()
        for number in range(3):
            task = asyncio.create_task(queue.submit([number]))
            await settled()
            assert task.done()  # without a timer

    queued(test)


def test_a_long_request_is_split_and_joined_in_order():
    async def test(queue, sender):
        sender.free.set()
        items = [7 * n % 23 for n in range(23)]
        assert (await queue.submit(items)).results == [2 * item for item in items]
        for batch in sender.items():
            assert len(batch) == 1 or len(batch) * max(batch) <= 2 * 30
        assert (await queue.submit([])).results == []

    queued(test, batch_tokens=30)


def test_requests_with_different_options_do_not_share_a_batch():
    async def test(queue, sender):
        seven, eight = {"seed": 7}, {"seed": 8}
        tasks = await begun(queue, sender, [1], [2], options=seven)
        tasks += [asyncio.create_task(queue.submit([3], eight))]
        tasks += [asyncio.create_task(queue.submit([4], {"seed": 7}))]
        await settled()
        sender.free.set()
        assert [(await task).results for task in tasks] == [[2], [4], [6], [8]]
        assert sender.batches == [([1], seven), ([2, 4], seven), ([3], eight)]

    queued(test)


def test_a_full_queue_refuses_and_late_requests_are_dropped():
    async def test(queue, sender):
        loop = asyncio.get_running_loop()
        (first,) = await begun(queue, sender, [1])
        with pytest.raises(Late):
            await queue.submit(["late", "late"], deadline=loop.time() + 0.05)
        kept = asyncio.create_task(queue.submit([5, 5, 5]))
        await settled()
        with pytest.raises(Busy, match="3 lines wait already"):
            await queue.submit([6])
        sender.free.set()
        assert (await first).results == [2] and (await kept).results == [10] * 3
        assert "late" not in [item for items, _ in sender.batches for item in items]

    queued(test, most_waiting=3)


def test_a_cancelled_request_removes_its_waiting_lines():
    async def test(queue, sender):
        first, gone = await begun(queue, sender, [1], [2, 2])
        gone.cancel()
        await asyncio.wait([gone])
        assert queue.waiting == 0
        first.cancel()  # its batch is computed and discarded
        await asyncio.wait([first])
        sender.free.set()
        assert (await queue.submit([3])).results == [6]
        assert sender.items() == [[1], [3]]

    queued(test)


def test_a_long_request_queues_only_its_next_lines():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [2] * 1000)
        assert queue.waiting == NEXT_LINES
        tasks.append(asyncio.create_task(queue.submit([2])))
        sender.free.set()
        assert [len((await task).results) for task in tasks] == [1, 1000, 1]

    queued(test, most_waiting=NEXT_LINES + 1)


def test_an_error_reaches_only_requests_of_its_batch():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [50], ["bad"], [70, "bad"], [1], [70])
        sender.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found[1:4]] == [ZeroDivisionError] * 3
        assert found[0].results == [100] and found[4].results == [140]
        assert queue.waiting == 0 and (await queue.submit([1])).results == [2]

    queued(test, batch_tokens=100)


def test_too_few_answers_are_an_error_and_the_queue_continues():
    async def test(queue, sender):
        sender.free.set()
        with pytest.raises(ValueError, match="shorter"):
            await queue.submit(["lost"])
        assert (await queue.submit([3])).results == [6]

    queued(test)
