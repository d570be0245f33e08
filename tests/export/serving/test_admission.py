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


pytestmark = pytest.mark.anyio


@pytest.fixture
def admission():
    return Admission(LIMITS)


@pytest.mark.parametrize("first", ["streams", "requests"])
def test_streams_and_requests_have_separate_slots(admission, first):
    """As many of each kind as its limit are open at the same time, whichever comes first."""
    with contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        for name in dict.fromkeys([first, "streams", "requests"]):
            most = getattr(LIMITS, f"open_{name}")
            for _ in range(most):
                stack.enter_context(getattr(admission, name).hold("a"))
            with pytest.raises(Busy, match=f"{most} {name} are open, {most} of them of this"):
                with getattr(admission, name).hold("a"):
                    pass
        raise ZeroDivisionError  # failed requests free their slots, too
    assert not admission.streams.held and not admission.requests.held


def test_bytes_have_room_up_to_the_share_of_a_client(admission):
    for client, count, message in (
        ("a", 60, None),
        ("a", 40, None),
        ("a", 1, "100 bytes are taken by requests, 100 of them of this client"),
        ("b", 50, None),  # refused bytes do not count
        ("b", 1, "150 bytes .*, 50 of them of this client, whose share is 50"),
        ("c", 25, None),
        ("c", 1, "175 bytes"),
    ):
        with pytest.raises(Busy, match=message) if message else contextlib.nullcontext():
            admission.buffer(client, count)
    admission.free("a", 100)
    admission.buffer("a", 60)


async def waits(admission, count, *freed):
    """Returns whether `wait_for_room` waits at first; it must end when `freed` bytes are free."""
    waiting = asyncio.create_task(admission.wait_for_room("a", count))
    for _ in range(10):
        await asyncio.sleep(0)
    begun = not waiting.done()
    for bytes in freed:
        admission.free("a", bytes)
    await asyncio.wait_for(waiting, 60)
    return begun


async def test_a_stream_waits_for_room(admission):
    """A part that is larger than the room waits until it is alone, and is refused when counted."""
    assert not await waits(admission, 101)
    admission.buffer("a", 70)
    assert not await waits(admission, 30)
    assert await waits(admission, 31, 1) and admission.bytes.total == 69
    assert await waits(admission, 101, 60, 9)
    with pytest.raises(Busy):
        admission.buffer("a", 101)


def test_too_many_lines_are_refused(admission):
    admission.check_lines(5)
    with pytest.raises(TooLarge, match="may have 5 lines"):
        admission.check_lines(6)


async def test_a_drain_refuses_new_requests_and_waits_for_all_open_ones(admission):
    with contextlib.ExitStack() as one, contextlib.ExitStack() as two:
        for stack in (one, two):
            stack.enter_context(admission.count_request())
        assert await admission.drain(0.01) is False
        draining = asyncio.create_task(admission.drain(60))
        for stack in (one, two):
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="shutting down"):
                with admission.count_request():
                    pass
            assert not draining.done() and admission.open_requests
            stack.close()
    assert admission.open_requests == 0
    assert await draining is True


@pytest.mark.parametrize(
    "asked, given", [(None, 7.0), (3.0, 3.0), (0.0, 0.0), (-5.0, 0.0), (7.5, 7.0), (1e9, 7.0)]
)
async def test_a_client_sets_no_deadline_beyond_that_of_the_service(asked, given):
    """Its request would hold its place in the queue."""
    seconds = []

    async def submit(items, options, deadline, receive, client):
        seconds.append(deadline - asyncio.get_running_loop().time())
        return types.SimpleNamespace(results=items, tokens=1, waited=0.0)

    models = Models(Limits(deadline_seconds=7.0), Metrics(None))
    model = types.SimpleNamespace(name="en-de", queue=types.SimpleNamespace(submit=submit))
    with models.request("lines") as record:
        assert await models.answer(record, model, ["x"], seconds=asked) == ["x"]
    assert seconds == [pytest.approx(given, abs=0.1)]


@pytest.mark.parametrize("sends", [True, False])
async def test_a_request_of_a_client_that_left_is_open_until_its_work_has_ended(sends):
    """A stream computes its next event, or waits until the client takes one."""
    loop, ended = asyncio.get_running_loop(), []
    leaving = loop.create_future()

    async def events():
        try:
            yield "an event"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def send(message):
        if b"an event" in message.get("body", b""):
            loop.call_soon(leaving.set_result, None)
            if sends:
                await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        await unless_gone(leaving, EventStream(events()).stream_response(send))
    assert ended == [True]
