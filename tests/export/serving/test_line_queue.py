"""The queue of a model: its batches, their order, and refused lines."""

import asyncio
import threading
import types

import pytest

from keras_transformer.export.serving import line_queue
from keras_transformer.export.serving.line_queue import DEATHS, NEXT_LINES, ByLine, LineQueue
from keras_transformer.export.serving.refusals import Busy, Invalid, Late, WorkerLost

pytestmark = pytest.mark.anyio

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


class Timed(Sender):
    """Takes a second of a false clock for each token of a batch."""

    def __init__(self):
        super().__init__()
        self.free.set()
        self.now = 0.0

    def monotonic(self):
        return self.now

    async def __call__(self, items, options, emit=None):
        found = await super().__call__(items, options)
        await settled()  # requests arrive while it runs
        self.now += sum(sizes(items))
        return found


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


def sizes(items):
    """Returns lengths: a number is its own length, and a text has one token."""
    return [item if isinstance(item, int) else 1 for item in items]


@pytest.fixture
async def opened(monkeypatch):
    """A function that makes a queue and its sender."""
    queues = []

    def make(kind=Sender, measure=sizes, **options):
        sender = kind()
        if kind is not Sender:
            monkeypatch.setattr(line_queue, "time", sender)
        queues.append(LineQueue(sender, measure, **options))
        return queues[0], sender

    yield make
    await queues[0].close()


async def settled():
    """Runs all tasks that are ready."""
    for _ in range(100):
        await asyncio.sleep(0)


def start(queue, *requests, options=None, **more):
    """Returns tasks of requests."""
    return [asyncio.create_task(queue.submit(items, options, **more)) for items in requests]


async def send(queue, *requests, **more):
    """Returns tasks of requests, which have arrived."""
    tasks = start(queue, *requests, **more)
    await settled()
    return tasks


async def send_apart(queue, client, *requests):
    """Sends requests of a client. Different options keep them out of each other's batches."""
    tasks = []
    for number, items in enumerate(requests):
        tasks += start(queue, items, options={"number": (client, number)}, client=client)
    await settled()
    return tasks


async def begun(queue, sender, *requests, options=None):
    """Returns tasks of requests: the first is being computed, and the others wait."""
    tasks = []
    for request in requests:
        before = queue.waiting, len(sender.batches)
        tasks += await send(queue, request, options=options)
        # Many lines are measured on a thread.
        while not tasks[-1].done() and (queue.waiting, len(sender.batches)) == before:
            await asyncio.sleep(0.001)
    assert sender.batches[0][0] == requests[0]
    return tasks


LONG = [7 * n % 23 for n in range(23)]


@pytest.mark.parametrize(
    "tokens, requests, batches",
    [
        pytest.param(512, [[2, 3], [4]], [[2, 3, 4]], id="all that waits"),
        pytest.param(
            156, [[50, 11], [52, 10], [12], [51]], [[50, 51, 52], [10, 11, 12]], id="similar length"
        ),
        # A line of unusual length is in the next batch, whatever comes after it.
        pytest.param(100, [[99], *([10],) * 40], [[99]], id="the oldest first"),
        pytest.param(
            100, [[20] * 24, [3], [4]], [[20] * 5, [3, 4, 20, 20, 20]], id="a long one takes turns"
        ),
        # A fifth of the waiting tokens, between 100 and 200.
        pytest.param(
            100, [[10]] * 60, [[10] * n for n in (12, 10, 10, 10, 10, 8)], id="as much as waits"
        ),
        pytest.param(100, [[10]] * 300, [[10] * 20], id="at most twice the tokens"),
        pytest.param(30, [LONG], [[21, 22]], id="a long one is split"),
    ],
)
async def test_waiting_lines_form_batches(opened, tokens, requests, batches):
    queue, sender = opened(batch_tokens=tokens)
    tasks = await begun(queue, sender, [1], *requests)
    assert len(sender.batches) == 1 and queue.waiting == sum(map(len, requests))
    sender.free.set()
    answers = [await task for task in tasks[1:]]
    assert [answer.results for answer in answers] == [[2 * i for i in items] for items in requests]
    assert [answer.tokens for answer in answers] == [*map(len, requests)]
    assert sender.items()[: 1 + len(batches)] == [[1], *batches] and queue.waiting == 0
    for batch in sender.items():
        assert len(batch) == 1 or len(batch) * max(batch) <= 2 * tokens
    assert (await queue.submit([])).results == []


async def test_free_workers_share_the_waiting_lines(opened):
    queue, sender = opened(workers=2)
    await settled()  # both workers have started
    (task,) = await send(queue, [5] * 9)
    assert sender.items() == [[5] * 5, [5] * 4]
    sender.free.set()
    assert (await task).results == [10] * 9


async def test_a_request_to_an_idle_queue_does_not_wait(opened):
    queue, sender = opened()
    sender.free.set()
    for number in range(3):
        (task,) = await send(queue, [number])
        assert task.done()  # without a timer


async def test_requests_with_different_options_do_not_share_a_batch(opened):
    queue, sender = opened()
    await begun(queue, sender, [1])
    given = [
        ([2], {"seed": 7}),
        ([3], {"seed": 8}),
        ([4], {"seed": 7}),
        ([20, 21], {"terms": ByLine(["a", "b"])}),
        ([22], {}),
        ([23], {"terms": ByLine(["c"])}),  # the same option, with other values
        ([24], {"lengths": ByLine(["d"])}),
    ]
    tasks = [task for items, options in given for task in await send(queue, items, options=options)]
    sender.free.set()
    for (items, _), task in zip(given, tasks, strict=True):
        assert (await task).results == [2 * item for item in items]
    assert sorted(sender.batches[1:]) == [
        ([2, 4], {"seed": 7}),
        ([3], {"seed": 8}),
        ([21, 20, 23], {"terms": ByLine(["b", "a", "c"])}),
        ([22], {}),
        ([24], {"lengths": ByLine(["d"])}),
    ]


async def test_a_full_queue_refuses_and_late_requests_are_dropped(opened):
    queue, sender = opened(most_waiting=3)
    tasks = await begun(queue, sender, [1])
    with pytest.raises(Late):
        await queue.submit(["late"] * 2, deadline=asyncio.get_running_loop().time() + 0.05)
    tasks += await send(queue, [5, 5, 5])
    with pytest.raises(Busy, match="3 lines wait already"):
        await queue.submit([6])
    sender.free.set()
    assert [(await task).results for task in tasks] == [[2], [10] * 3]
    assert "late" not in [item for items, _ in sender.batches for item in items]


async def test_a_cancelled_request_removes_its_waiting_lines(opened):
    queue, sender = opened()
    tasks = await begun(queue, sender, [1], [2, 2])
    for task in tasks[::-1]:  # the batch of the first one is computed and discarded
        task.cancel()
        await asyncio.wait([task])
        assert queue.waiting == 0
    sender.free.set()
    assert (await queue.submit([3])).results == [6]
    assert sender.items() == [[1], [3]]


async def test_a_long_request_queues_only_its_next_lines(opened):
    queue, sender = opened(most_waiting=NEXT_LINES + 1)
    tasks = await begun(queue, sender, [1], [2] * 1000)
    assert queue.waiting == NEXT_LINES
    tasks += await send(queue, [2])
    sender.free.set()
    assert [len((await task).results) for task in tasks] == [1, 1000, 1]


async def test_an_error_reaches_only_requests_of_its_batch(opened):
    queue, sender = opened(batch_tokens=100)
    tasks = await begun(queue, sender, [50], ["bad"], [70, "bad"], [1], [70])
    sender.free.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found[1:4]] == [ZeroDivisionError] * 3
    assert found[0].results == [100] and found[4].results == [140]
    assert queue.waiting == 0 and (await queue.submit([1])).results == [2]


@pytest.mark.parametrize("fault, tries", [("poison", DEATHS), ("refused", 2)])
async def test_a_request_that_fails_a_batch_fails_alone(opened, fault, tries):
    """The others of its batch are computed again, each without it, and get their results."""
    queue, sender = opened(batch_tokens=100)
    tasks = await begun(queue, sender, [50], [fault], [1], [1, 1])
    sender.free.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found.pop(1), FAULTS[fault])
    assert [one.results for one in found] == [[100], [2], [2, 2]]
    failed = [len(batch) for batch, _ in sender.batches if fault in batch]
    assert failed == [4] + [1] * (tries - 1)
    assert (await queue.submit([3])).results == [6]


async def test_suspects_run_one_after_the_other(opened):
    """Each of them may kill the next worker, and would take the batch of another one with it."""
    queue, sender = opened(workers=2, batch_tokens=100)
    suspects, tasks = [["poison 1"], ["poison 2"]], []  # they fit into one batch
    await settled()  # both workers have started
    for items in ([9], [18], *suspects):
        tasks += await send(queue, items)
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


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_request_whose_client_has_gone_is_not_retried(opened, fault):
    """It may have killed a worker; neither its error nor a retry may harm the queue."""
    queue, sender = opened(batch_tokens=100)
    tasks = await begun(queue, sender, [fault], [70])
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    sender.free.set()
    assert (await tasks[1]).results == [140]
    assert sender.items() == [[fault], [70]]


async def test_the_room_is_checked_again_after_lines_were_measured(opened):
    """Long requests are measured on a thread. The queue may fill up meanwhile."""
    measured, gate = threading.Event(), threading.Event()

    def measure(items):
        if len(items) > 100:  # on a thread
            measured.set()
            assert gate.wait(60)
        return sizes(items)

    queue, sender = opened(measure=measure, most_waiting=1)
    tasks = await begun(queue, sender, [1])
    (late,) = await send(queue, ["some words"] * 101)
    assert await asyncio.to_thread(measured.wait, 60)
    tasks += await send(queue, [3])
    gate.set()
    with pytest.raises(Busy, match="1 lines wait already"):
        await late
    sender.free.set()
    assert [(await task).results for task in tasks] == [[2], [6]]


async def test_too_few_answers_are_an_error_and_the_queue_continues(opened):
    queue, sender = opened()
    sender.free.set()
    with pytest.raises(ValueError, match="shorter"):
        await queue.submit(["lost"])
    assert (await queue.submit([3])).results == [6]


@pytest.mark.parametrize(
    "clients, batches",
    [
        pytest.param(
            {"greedy": [[100]] * 100, "short": [[1]]}, [[100], [1], [100]], id="a greedy client"
        ),
        pytest.param(
            {"a": [[5], [50] * 4, [6]]}, [[5], [50] * 2, [6], [50] * 2], id="of one client"
        ),
    ],
)
async def test_clients_and_their_requests_take_turns(opened, clients, batches):
    queue, sender = opened(Timed, batch_tokens=100)
    tasks = [task for name in clients for task in await send_apart(queue, name, *clients[name])]
    await asyncio.gather(*tasks)
    assert sender.items()[: len(batches)] == batches


async def test_lines_like_those_of_a_greedy_client_are_in_the_next_batch(opened):
    """The turns of clients also decide which of equally long lines a batch takes."""
    queue, sender = opened(Timed, batch_tokens=100, most_waiting=2000)
    greedy = await send(queue, *[[10] * 60] * 20, client="greedy")
    others = [task for n in range(3) for task in start(queue, [10], client=f"{n}")]
    assert [(await task).results for task in others] == [[20]] * 3 and len(sender.batches) <= 3
    await asyncio.gather(*greedy)


async def test_clients_get_equal_times_and_not_equal_turns(opened):
    queue, sender = opened(Timed)
    tasks = await send_apart(queue, "first", [1])
    tasks += await send_apart(queue, "long", *([80],) * 10)
    await asyncio.gather(*tasks, *await send_apart(queue, "short", *([20],) * 40))
    found = sender.items()[1:26]
    assert 4 <= found.count([80]) <= 6 and found.count([20]) == 25 - found.count([80])


@pytest.mark.parametrize("greedy", [1, 7])
async def test_a_newcomer_neither_pays_the_debts_of_others_nor_overtakes_them(opened, greedy):
    queue, sender = opened(Timed)
    tasks = []
    for number in range(greedy):
        tasks += await send_apart(queue, f"greedy {number}", *([50 + number],) * 9)
    while sender.now < 200 * greedy:
        await asyncio.sleep(0)
    before = len(sender.batches)
    await asyncio.gather(*tasks, *await send_apart(queue, "new", *([40],) * 9))
    after = [items[0] for items in sender.items()[before:]]
    assert after.index(40) <= greedy  # a turn for each of the others
    assert after[: 4 * (greedy + 1)].count(40) <= 6  # its share is four


async def test_new_clients_do_not_starve_an_old_one(opened):
    """Each has one short line, and another one comes before the last one has its answer."""
    queue, sender = opened(Timed)
    tasks = await send_apart(queue, "old", *([30],) * 8)
    for number in range(60):
        tasks += await send_apart(queue, f"new {number}", [10])
        seen = len(sender.batches)
        while len(sender.batches) == seen and queue.waiting:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert sender.items()[:45].count([30]) == 8


async def test_debts_end_when_nothing_waits(opened):
    queue, sender = opened(Timed)
    await asyncio.gather(*await send_apart(queue, "a", *([100],) * 5))
    await settled()
    assert not queue._used
    tasks = await send_apart(queue, "x", [1])
    tasks += await send_apart(queue, "a", [7])
    await asyncio.gather(*tasks, *await send_apart(queue, "b", [8]))
    assert sender.items()[5:] == [[1], [7], [8]]


async def test_clients_that_have_gone_are_forgotten(opened):
    queue, sender = opened(Timed)
    tasks = await send_apart(queue, "old", *([5],) * 300)
    for number in range(200):
        tasks += await send_apart(queue, f"new {number}", [5])
    await asyncio.gather(*tasks[300:])
    assert len(queue._used) < 20
    await asyncio.gather(*tasks)


async def test_lines_in_a_batch_of_another_client_are_charged(opened):
    queue, sender = opened(Timed, batch_tokens=200)
    tasks = await send(queue, [1], options={"n": 0}, client="x")
    for client, items in {"a": [50, 50], "b": [50], "c": [50]}.items():
        tasks += start(queue, items, options={"n": 1}, client=client)
    await settled()
    tasks += await send_apart(queue, "d", [49])
    await asyncio.gather(*tasks, *await send_apart(queue, "a", [48]))
    assert sender.items() == [[1], [50] * 4, [49], [48]]


async def test_a_full_queue_refuses_the_client_that_fills_it(opened):
    queue, sender = opened()
    tasks = await begun(queue, sender, [1])
    for number in range(8):
        tasks += await send(queue, *[[9] * 64] * 4, client=f"greedy {number}")
    assert queue.shares.total >= 512
    for number in range(8):
        with pytest.raises(Busy, match=r"lines wait already, \d+ of them of this client, wh"):
            await queue.submit([9] * 64, client=f"greedy {number}")
    tasks += await send(queue, [2], client="ninth")
    sender.free.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[-1].results == [4]
    assert {type(one) for one in found} == {type(found[-1]), Busy}


async def test_a_stream_gives_its_worker_to_others_and_goes_on(opened):
    queue, sender = opened(Streamer)
    parts, tasks = ([], []), []
    for n, got in enumerate(parts):
        tasks += start(queue, [8], options={"n": n}, receive=got.append, client="greedy")
    tasks += start(queue, [2], options={"n": 0}, client="greedy")  # shares no batch of a stream
    await settled()
    found = await asyncio.gather(*tasks, *await send_apart(queue, "short", [1]))
    await settled()
    assert parts == ([*range(8)],) * 2
    assert [one.results for one in found] == [["all"], ["all"], [4], [2]]
    assert found[0].tokens == 3 and found[0].waited < 4.2 < sender.now
    # Three parts a turn, and the newcomer after the first one.
    assert sender.items() == [[0], [1], [1], [2], [0], [1], [0], [1]]


async def test_a_stream_alone_keeps_its_worker(opened):
    queue, sender = opened(Streamer)
    await queue.submit([40], {"n": 0}, receive=lambda part: None)
    assert sender.items() == [[0]]


@pytest.mark.parametrize("others", [0, 3])
async def test_a_stream_whose_client_leaves_ends(opened, others):
    """It leaves during a turn, or between two, when others wait."""
    queue, sender = opened(Streamer)
    got = []
    (gone,) = start(queue, [900], options={"n": 0}, receive=got.append, client="a")
    while not got:
        await asyncio.sleep(0)
    tasks = await send_apart(queue, "b", *([1],) * others) if others else []
    gone.cancel()
    await asyncio.gather(*tasks)
    for _ in range(10):
        await settled()  # long enough for all of its parts
    assert sender.now < 60  # of 90
    await asyncio.gather(*await send_apart(queue, "c", [1]))
    await settled()
    assert len(got) < 300 and queue.waiting == 0
    assert sender.items() == [[0]] + [[1]] * (others + 1)
