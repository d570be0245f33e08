"""The admission of requests: slots, bytes and the end of the service."""

import asyncio
import contextlib
import types

import pytest
from starlette.requests import ClientDisconnect

from keras_transformer.export.serving.admission import Admission
from keras_transformer.export.serving.bodies import unless_gone
from keras_transformer.export.serving.endpoints import EventStream
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.metrics import Metrics
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.refusals import Busy, TooLarge, Unavailable

LIMITS = Limits(open_requests=2, open_streams=3, buffered_bytes=100, lines=5)


@pytest.fixture
def admission():
    return Admission(LIMITS)


@pytest.mark.parametrize("first", ["streams", "requests"])
def test_streams_and_requests_have_separate_slots(admission, first):
    """As many of each kind as its limit are open at the same time, whichever comes first."""
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys([first, "streams", "requests"]):
            most = getattr(LIMITS, f"open_{name}")
            for _ in range(most):
                stack.enter_context(getattr(admission, name).hold("a"))
            with pytest.raises(Busy, match=f"{most} {name} are open, {most} of them of this"):
                with getattr(admission, name).hold("a"):
                    pass


@pytest.mark.parametrize("name", ["streams", "requests"])
def test_a_slot_is_free_again_after_its_request(admission, name):
    for _ in range(7):
        with contextlib.suppress(ZeroDivisionError), getattr(admission, name).hold("a"):
            raise ZeroDivisionError  # a failed request frees it, too
    assert not getattr(admission, name).held


def test_bytes_have_room_up_to_the_limit(admission):
    admission.buffer("a", 60)
    admission.buffer("a", 40)
    with pytest.raises(Busy, match="100 bytes are taken by requests, 100 of them of this client"):
        admission.buffer("a", 1)
    assert admission.bytes.total == 100  # refused bytes do not count
    admission.free("a", 100)
    admission.buffer("a", 100)


def test_bytes_of_one_client_leave_room_for_others(admission):
    admission.buffer("a", 100)
    admission.buffer("b", 50)
    with pytest.raises(Busy, match="150 bytes .*, 50 of them of this client, whose share is 50"):
        admission.buffer("b", 1)
    admission.buffer("c", 25)
    with pytest.raises(Busy, match="175 bytes"):
        admission.buffer("c", 1)


def waits(admission, count, *freed):
    """Returns whether `wait_for_room` waits at first; it must end when `freed` bytes are free."""

    async def run():
        waiting = asyncio.create_task(admission.wait_for_room("a", count))
        for _ in range(10):
            await asyncio.sleep(0)
        begun = not waiting.done()
        for bytes in freed:
            admission.free("a", bytes)
        await asyncio.wait_for(waiting, 60)
        return begun

    return asyncio.run(run())


def test_a_stream_waits_for_room(admission):
    admission.buffer("a", 70)
    assert not waits(admission, 30)
    assert waits(admission, 31, 1)
    assert admission.bytes.total == 69


def test_a_part_that_is_larger_than_the_room_does_not_wait_for_ever(admission):
    """It is refused afterwards, when it is counted."""
    assert not waits(admission, 101)
    admission.buffer("a", 7)
    assert waits(admission, 101, 3, 4)
    with pytest.raises(Busy):
        admission.buffer("a", 101)


def test_too_many_lines_are_refused(admission):
    admission.check_lines(5)
    with pytest.raises(TooLarge, match="may have 5 lines"):
        admission.check_lines(6)


def test_a_drain_refuses_new_requests_and_waits_for_all_open_ones(admission):
    async def run():
        with contextlib.ExitStack() as one, contextlib.ExitStack() as two:
            one.enter_context(admission.count_request())
            two.enter_context(admission.count_request())
            draining = asyncio.create_task(admission.drain(60))
            for stack in (one, two):
                await asyncio.sleep(0)
                with pytest.raises(Unavailable, match="shutting down"):
                    with admission.count_request():
                        pass
                assert not draining.done() and admission.open_requests
                stack.close()
        assert admission.open_requests == 0
        return await draining

    assert asyncio.run(run()) is True


def test_a_drain_tells_whether_a_request_is_left(admission):
    with admission.count_request():
        assert asyncio.run(admission.drain(0.01)) is False
    assert asyncio.run(admission.drain(0.01)) is True


@pytest.mark.parametrize(
    "asked, given", [(None, 7.0), (3.0, 3.0), (0.0, 0.0), (-5.0, 0.0), (7.5, 7.0), (1e9, 7.0)]
)
def test_a_client_sets_no_deadline_beyond_that_of_the_service(asked, given):
    """Its request would hold its place in the queue."""
    seconds = []

    async def submit(items, options, deadline, receive, client):
        seconds.append(deadline - asyncio.get_running_loop().time())
        return types.SimpleNamespace(results=items, tokens=1, waited=0.0)

    async def run():
        models = Models(Limits(deadline_seconds=7.0), Metrics(None))
        model = types.SimpleNamespace(name="en-de", queue=types.SimpleNamespace(submit=submit))
        with models.request("lines") as record:
            return await models.answer(record, model, ["x"], seconds=asked)

    assert asyncio.run(run()) == ["x"]
    assert seconds == [pytest.approx(given, abs=0.1)]


@pytest.mark.parametrize("sends", [True, False])
def test_a_request_of_a_client_that_left_is_open_until_its_work_has_ended(sends):
    """A stream computes its next event, or waits until the client takes one."""
    ended = []

    async def events():
        try:
            yield "an event"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def run():
        leaving, sent = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def send(message):
            if b"an event" in message.get("body", b""):
                sent.set()
                if sends:
                    await asyncio.Event().wait()

        async def leave():
            await sent.wait()
            await asyncio.sleep(0)
            leaving.set_result(None)

        left = asyncio.create_task(leave())
        with pytest.raises(ClientDisconnect):
            await unless_gone(leaving, EventStream(events()).stream_response(send))
        assert ended == [True]
        await left

    asyncio.run(run())
