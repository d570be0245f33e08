"""The queue of a model: its batches, their order, and refused lines."""

import asyncio
import threading
import types

import pytest

from keras_transformer.export.serving import line_queue
from keras_transformer.export.serving.line_queue import DEATHS, NEXT_LINES, ByLine, LineQueue
from keras_transformer.export.serving.refusals import Busy, Invalid, Late, WorkerLost

FAULTS = {"bad": ZeroDivisionError, "poison": WorkerLost, "refused": Invalid}


class Sender:
    """Doubles numbers once `free` is set, and records its batches.

    Attributes:
        batches: list of the lines and the options of each batch.
        beside: list with the number of other faulty batches that ran when each batch began.
        free: asyncio.Event; batches wait for it.
    """

    def __init__(self):
        self.batches, self.beside, self.free, self.faulty = [], [], asyncio.Event(), 0

    async def __call__(self, items, options, emit=None):
        faults = [fault for name, fault in FAULTS.items() for item in items if name in str(item)]
        self.batches.append((list(items), options))
        self.beside.append(self.faulty)
        self.faulty += bool(faults)
        try:
            await self.free.wait()
            if emit is not None:
                while await asyncio.to_thread(emit, "part"):  # as a worker, from another thread
                    pass
            for fault in faults:
                await asyncio.sleep(0)  # other batches begin meanwhile
                raise fault("a fault")
        finally:
            self.faulty -= bool(faults)
        results = [2 * item for item in items if item != "lost"]
        return types.SimpleNamespace(results=results, lengths=[1] * len(items), rest=None)

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
    """Runs all tasks that are ready."""
    for _ in range(100):
        await asyncio.sleep(0)


async def begun(queue, sender, *requests, options=None):
    """Returns tasks of requests: the first is being computed, and the others wait."""
    tasks = []
    for request in requests:
        before = queue.waiting, len(sender.batches)
        tasks.append(asyncio.create_task(queue.submit(request, options)))
        await settled()
        # Many lines are measured on a thread.
        while not tasks[-1].done() and (queue.waiting, len(sender.batches)) == before:
            await asyncio.sleep(0.001)
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


@pytest.mark.parametrize("fault", ["poison", "refused"])
def test_a_request_that_fails_a_batch_fails_alone(fault):
    """The others of its batch are computed again, each without it, and get their results."""

    async def test(queue, sender):
        tasks = await begun(queue, sender, [50], [fault], [1], [1, 1])
        sender.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[1], FAULTS[fault])
        assert [one.results for one in (found[0], *found[2:])] == [[100], [2], [2, 2]]
        together = [batch for batch, _ in sender.batches if fault in batch and len(batch) > 1]
        assert len(together) == 1
        alone = [batch for batch, _ in sender.batches if batch == [fault]]
        assert len(alone) == (DEATHS - 1 if fault == "poison" else 1)
        assert (await queue.submit([3])).results == [6]

    queued(test, batch_tokens=100)


def test_suspects_run_one_after_the_other():
    """Each of them may kill the next worker, and would take the batch of another one with it."""

    async def test(queue, sender):
        suspects = [["poison 1"], ["poison 2"]]  # they fit into one batch
        await settled()  # both workers have started
        tasks = []
        for items in ([9], [18], *suspects):
            tasks.append(asyncio.create_task(queue.submit(items)))
            await settled()
        assert len(sender.batches) == 2  # both workers are busy
        sender.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found[2:]] == [WorkerLost] * 2
        seen, retried = set(), []
        for (batch, _), others in zip(sender.batches, sender.beside, strict=True):
            if seen & {*batch}:
                retried.append((batch, others))
            seen |= {*batch}
        assert sorted(retried, key=str) == [(items, 0) for items in suspects]

    queued(test, workers=2, batch_tokens=100)


def test_a_request_whose_client_has_gone_is_not_retried():
    """It killed a worker already; neither its error nor a retry may harm the queue."""

    async def test(queue, sender):
        tasks = await begun(queue, sender, ["poison"], [70])
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        sender.free.set()
        assert (await tasks[1]).results == [140]
        assert sender.items() == [["poison"], [70]]
        for name in ("bad", "refused"):
            sender.free.clear()
            task = asyncio.create_task(queue.submit([name]))
            await settled()
            task.cancel()
            await asyncio.wait([task])
            sender.free.set()
            assert (await queue.submit([3])).results == [6]  # the worker lives

    queued(test, batch_tokens=100)


def test_requests_with_and_without_options_by_line_do_not_share_a_batch():
    async def test(queue, sender):
        first = {"seed": 7}
        tasks = await begun(queue, sender, [1], options=first)
        by_line = {"terms": ByLine(["a", "b"])}
        given = [by_line, {}, {"terms": ByLine(["c"])}, {"lengths": ByLine(["d"])}]
        items = [[20, 21], [22], [23], [24]]
        tasks += [
            asyncio.create_task(queue.submit(*pair)) for pair in zip(items, given, strict=True)
        ]
        await settled()
        sender.free.set()
        assert [(await task).results for task in tasks] == [[2], [40, 42], [44], [46], [48]]
        used = {}
        for batch, options in sender.batches[1:]:
            for place, item in enumerate(batch):
                used[item] = {name: values[place] for name, values in options.items()}
        assert used == {
            20: {"terms": "a"},
            21: {"terms": "b"},
            22: {},
            23: {"terms": "c"},
            24: {"lengths": "d"},
        }
        assert [20, 21, 23] in sender.items()  # the same options, with other values

    queued(test)


def test_a_stream_has_its_own_batches_and_ends_with_its_client():
    async def test(queue, sender):
        parts = []
        tasks = await begun(queue, sender, [1])
        tasks.append(asyncio.create_task(queue.submit([2], receive=parts.append)))
        tasks.append(asyncio.create_task(queue.submit([3])))
        await settled()
        sender.free.set()
        while not parts:
            await asyncio.sleep(0.001)
        tasks[1].cancel()
        await asyncio.wait(tasks[1:2])
        assert (await tasks[2]).results == [6]  # after the stream: there is one worker
        assert sender.items() == [[1], [2], [3]]

    queued(test)


def test_the_room_is_checked_again_after_lines_were_measured():
    """Long requests are measured on a thread. The queue may fill up meanwhile."""
    measured, gate = threading.Event(), threading.Event()

    def measure(items):
        if len(items) > 100:  # on a thread
            measured.set()
            assert gate.wait(60)
        return sizes(items)

    async def test(queue, sender):
        tasks = await begun(queue, sender, [1])
        late = asyncio.create_task(queue.submit(["some words"] * 101))
        assert await asyncio.to_thread(measured.wait, 60)
        tasks.append(asyncio.create_task(queue.submit([3])))
        await settled()
        gate.set()
        with pytest.raises(Busy, match="1 lines wait already"):
            await late
        sender.free.set()
        assert [(await task).results for task in tasks] == [[2], [6]]

    queued(test, measure, most_waiting=1)


def test_too_few_answers_are_an_error_and_the_queue_continues():
    async def test(queue, sender):
        sender.free.set()
        with pytest.raises(ValueError, match="shorter"):
            await queue.submit(["lost"])
        assert (await queue.submit([3])).results == [6]

    queued(test)


class Timed(Sender):
    """Takes a second of a false clock for each token of a batch, and records who had the turns."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.free.set()
        self.now = 0.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(line_queue, "time", clock)

    async def __call__(self, items, options, emit=None):
        found = await super().__call__(items, options)
        await settled()  # requests arrive while it runs
        self.now += sum(sizes(items))
        return found


def turns(monkeypatch, test, kind=Timed, **options):
    """Runs a test, a coroutine function of a queue, and returns the lines of its batches."""
    sender = kind(monkeypatch)

    async def run():
        queue = LineQueue(sender, sizes, **options)
        try:
            await asyncio.wait_for(test(queue, sender), 60)
        finally:
            await queue.close()

    asyncio.run(run())
    return [items for items, _ in sender.batches]


async def send(queue, client, *requests):
    """Queues requests of a client. Different options keep them out of each other's batches."""
    tasks = [
        asyncio.create_task(queue.submit(items, {"number": (client, number)}, client=client))
        for number, items in enumerate(requests)
    ]
    await settled()
    return tasks


def test_a_short_request_waits_for_one_batch_of_a_greedy_client(monkeypatch):
    async def test(queue, sender):
        greedy = await send(queue, "greedy", *([100],) * 100)
        short = await send(queue, "short", [1])
        await asyncio.gather(*greedy, *short)

    assert turns(monkeypatch, test)[:3] == [[100], [1], [100]]


def test_lines_like_those_of_a_greedy_client_are_in_the_next_batch(monkeypatch):
    """The turns of clients also decide which of equally long lines a batch takes."""

    async def test(queue, sender):
        greedy = [asyncio.create_task(queue.submit([10] * 60, client="greedy")) for _ in range(20)]
        await settled()
        others = [asyncio.create_task(queue.submit([10], client=f"{n}")) for n in range(3)]
        done = await asyncio.gather(*others)
        assert [one.results for one in done] == [[20]] * 3 and len(sender.batches) <= 3
        await asyncio.gather(*greedy)

    turns(monkeypatch, test, batch_tokens=100, most_waiting=2000)


def test_requests_of_a_client_take_turns(monkeypatch):
    async def test(queue, sender):
        tasks = await send(queue, "a", [5], [50] * 4, [6])
        await asyncio.gather(*tasks)

    assert turns(monkeypatch, test, batch_tokens=100) == [[5], [50] * 2, [6], [50] * 2]


def test_clients_get_equal_times_and_not_equal_turns(monkeypatch):
    async def test(queue, sender):
        tasks = await send(queue, "first", [1])
        tasks += await send(queue, "long", *([80],) * 10)
        tasks += await send(queue, "short", *([20],) * 40)
        await asyncio.gather(*tasks)

    found = turns(monkeypatch, test)[1:26]
    assert 4 <= found.count([80]) <= 6 and found.count([20]) == 25 - found.count([80])


@pytest.mark.parametrize("greedy", [1, 7])
def test_a_newcomer_does_not_wait_for_the_debts_of_others_nor_overtake_them(monkeypatch, greedy):
    async def test(queue, sender):
        tasks = []
        for number in range(greedy):
            tasks += await send(queue, f"greedy {number}", *([50 + number],) * 9)
        while sender.now < 200 * greedy:
            await asyncio.sleep(0)
        marks.append(len(sender.batches))
        tasks += await send(queue, "new", *([40],) * 9)
        await asyncio.gather(*tasks)

    marks = []
    found = turns(monkeypatch, test)
    after = [items[0] for items in found[marks[0] :]]
    assert after.index(40) <= greedy  # a turn for each of the others
    some = after[: 4 * (greedy + 1)]
    assert some.count(40) <= 6  # its share is four


def test_new_clients_do_not_starve_an_old_one(monkeypatch):
    """Each has one short line, and another one comes before the last one has its answer."""

    async def test(queue, sender):
        tasks = await send(queue, "old", *([30],) * 8)
        for number in range(60):
            tasks += await send(queue, f"new {number}", [10])
            seen = len(sender.batches)
            while len(sender.batches) == seen and queue.waiting:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    found = turns(monkeypatch, test)
    assert found[:45].count([30]) == 8


def test_debts_end_when_nothing_waits(monkeypatch):
    async def test(queue, sender):
        await asyncio.gather(*await send(queue, "a", *([100],) * 5))
        await settled()
        assert not queue._used
        tasks = await send(queue, "x", [1])
        tasks += await send(queue, "a", [7])
        tasks += await send(queue, "b", [8])
        await asyncio.gather(*tasks)

    assert turns(monkeypatch, test)[5:] == [[1], [7], [8]]


def test_clients_that_have_gone_are_forgotten(monkeypatch):
    async def test(queue, sender):
        tasks = await send(queue, "old", *([5],) * 300)
        for number in range(200):
            tasks += await send(queue, f"new {number}", [5])
        await asyncio.gather(*tasks[300:])
        assert len(queue._used) < 20
        await asyncio.gather(*tasks)

    turns(monkeypatch, test)


def test_lines_in_a_batch_of_another_client_are_charged(monkeypatch):
    async def test(queue, sender):
        tasks = [asyncio.create_task(queue.submit([1], {"n": 0}, client="x"))]
        await settled()
        for client, items in {"a": [50, 50], "b": [50], "c": [50]}.items():
            tasks.append(asyncio.create_task(queue.submit(items, {"n": 1}, client=client)))
        await settled()
        tasks += await send(queue, "d", [49])
        tasks += await send(queue, "a", [48])
        await asyncio.gather(*tasks)

    found = turns(monkeypatch, test, batch_tokens=200)
    assert found == [[1], [50] * 4, [49], [48]]


def test_a_full_queue_refuses_the_client_that_fills_it():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1])
        for number in range(8):
            for _ in range(4):
                tasks.append(asyncio.create_task(queue.submit([9] * 64, client=f"greedy {number}")))
        await settled()
        assert queue.shares.total >= 512
        for number in range(8):
            with pytest.raises(Busy, match=r"lines wait already, \d+ of them of this client, wh"):
                await queue.submit([9] * 64, client=f"greedy {number}")
        tasks.append(asyncio.create_task(queue.submit([2], client="ninth")))
        await settled()
        sender.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[-1].results == [4]
        assert {type(one) for one in found} == {type(found[-1]), Busy}

    queued(test)


class Streamer(Timed):
    """As `Timed`; a stream of `n` has `n` parts, each of which takes a tenth of a second."""

    async def __call__(self, items, options, emit=None):
        if emit is None:
            return await super().__call__(items, options)
        await settled()
        work = iter(range(items[0])) if isinstance(items[0], int) else items[0]
        self.batches.append(([next(iter(options.values()))], options))
        for part in work:
            self.now += 0.1
            if not emit(part):
                return types.SimpleNamespace(results=[], lengths=[], rest=work)
            await asyncio.sleep(0)
        return types.SimpleNamespace(results=["all"], lengths=[3], rest=None)


def test_a_stream_gives_its_worker_to_others_and_goes_on(monkeypatch):
    async def test(queue, sender):
        parts = [], []
        tasks = [
            asyncio.create_task(queue.submit([8], {"n": n}, receive=got.append, client="greedy"))
            for n, got in enumerate(parts)
        ]
        await settled()
        tasks += await send(queue, "short", [1])
        found = await asyncio.gather(*tasks)
        await settled()
        assert parts == ([*range(8)],) * 2
        assert [one.results for one in found] == [["all"], ["all"], [2]]
        assert found[0].tokens == 3 and found[0].waited < 2.2 < sender.now

    found = turns(monkeypatch, test, kind=Streamer)
    # Three parts a turn, and the newcomer after the first one.
    assert found == [[0], [1], [0], [1], [0], [1]][:1] + [[1]] + [[1], [0], [1], [0], [1]]


def test_a_stream_alone_keeps_its_worker(monkeypatch):
    async def test(queue, sender):
        await queue.submit([40], {"n": 0}, receive=lambda part: None)

    assert turns(monkeypatch, test, kind=Streamer) == [[0]]


def test_a_stream_whose_client_leaves_between_its_turns_ends(monkeypatch):
    async def test(queue, sender):
        got = []
        gone = asyncio.create_task(queue.submit([40], {"n": 0}, receive=got.append, client="a"))
        await settled()
        tasks = await send(queue, "b", *([1],) * 3)
        while len(sender.batches) < 2:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*tasks)
        await settled()
        assert len(got) == 3 and queue.waiting == 0

    assert turns(monkeypatch, test, kind=Streamer) == [[0], [1], [1], [1]]


@pytest.mark.parametrize("others", [0, 3])
def test_a_stream_whose_client_leaves_during_its_turn_ends(monkeypatch, others):
    async def test(queue, sender):
        got = []
        gone = asyncio.create_task(queue.submit([900], {"n": 0}, receive=got.append, client="a"))
        while not got:
            await asyncio.sleep(0)
        tasks = await send(queue, "b", *([1],) * others) if others else []
        gone.cancel()
        await asyncio.gather(*tasks)
        for _ in range(10):
            await settled()  # long enough for all of its parts
        assert sender.now < 60  # of 90
        await asyncio.gather(*await send(queue, "c", [1]))
        await settled()
        assert len(got) < 300 and queue.waiting == 0

    found = turns(monkeypatch, test, kind=Streamer)
    assert found == [[0]] + [[1]] * (others + 1)
