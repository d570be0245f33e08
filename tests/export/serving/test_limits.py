"""The limits of a service: full queues, deadlines, large bodies, and shutdown."""

import concurrent.futures
import contextlib
import threading

import pytest
from helpers.service_requests import (
    HEAD,
    INFER,
    LINE,
    ask,
    connected,
    infer,
    raw,
    received,
    wait_for,
)

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.limits import Limits

SMALL = Limits(body_bytes=100_000, buffered_bytes=200_000, open_requests=2, waiting_lines=3)


@pytest.fixture(scope="module")
def expected(folder):
    (text,) = Translator(folder).translate([LINE])
    return text.encode() + b"\n"


@pytest.fixture(autouse=True)
def nothing_else_suffers(request, expected):
    """After each test, the service answers as before and buffers no refused bytes."""
    yield
    if "small" in request.fixturenames:
        small = request.getfixturevalue("small")
        assert small.request("POST", "/lines/en-de", LINE)[::2] == (200, expected)
        wait_for(lambda: small.metric("buffered_bytes") == 0)


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(10) as made:
        yield made


def test_open_requests_waiting_lines_and_their_time_are_limited(small, local, expected, threads):
    queue, begun = small.models.get("en-de").queue, len(local.batches)
    with contextlib.ExitStack() as stack:
        for _ in range(5):  # incomplete requests take no slot
            stack.enter_context(connected(small, HEAD.replace(b"/lines/en-de", INFER.encode())))
        wait_for(lambda: small.metric("open_requests") == 5)
        stack.enter_context(local.held())
        taken = [threads.submit(ask, small)]
        wait_for(lambda: len(local.batches) > begun)
        late = infer(["late"]) | {"parameters": {"timeout": 50_000}}
        assert (
            ask(small, headers={"Request-Timeout": "0.05"})[0] == ask(small, INFER, late)[0] == 504
        )
        taken += [threads.submit(ask, small, INFER, infer()) for _ in range(2)]
        wait_for(lambda: queue.waiting == 2)
        status, _, body = ask(small, INFER, infer())
        assert status == 429 and b"requests are open" in body
        taken.append(threads.submit(ask, small))  # streams have separate slots
        wait_for(lambda: queue.waiting == 3)
        status, headers, body = ask(small)
        assert status == 429 and headers["Retry-After"] == "1" and b"Repeat" in body
    assert {future.result()[0] for future in taken} == {200}
    assert taken[0].result()[2] == taken[-1].result()[2] == expected
    computed = [item for items, _ in local.batches[begun:] for item in items]
    assert sorted(computed, key=str) == [LINE, LINE, "x", "x"]  # no late request
    wait_for(lambda: small.metric("open_requests") == 0)


def test_a_large_body_is_refused_after_it_was_sent(small):
    for path, body, reason in (
        (INFER, b"x" * 5_000_000, b"100000 bytes"),
        (INFER, iter([b"x" * 50_000] * 100), b"100000 bytes"),  # in chunks
        ("/lines/en-de", b"x" * 150_000, b"A line may have"),
    ):
        status, _, answer = ask(small, path, body)
        assert status == 413 and reason in answer


def test_each_line_of_a_stream_is_answered_before_the_next_is_sent(small, expected):
    chunked = b"\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(small, b"PUT /lines/en-de HTTP/1.1" + chunked) as opened:
        for _ in range(2):
            opened.sendall(b"%x\r\n%s\n\r\n" % (len(LINE) + 1, LINE))
            assert expected in received(opened, expected)
        opened.sendall(b"0\r\n\r\n")
        assert received(opened, b"0\r\n\r\n")


def test_a_client_that_leaves_frees_its_request(small):
    with connected(small, HEAD + b"two"):
        wait_for(lambda: small.metric("open_requests") == 1)
    wait_for(lambda: small.metric("open_requests") == 0)


def test_a_failure_of_the_service_has_status_500_and_is_logged(small, local, caplog):
    local.fails.append(RuntimeError("broken"))
    status, _, body = ask(small)
    assert status == 500 and b"its log says why" in body and b"broken" not in body
    assert "a request has failed" in caplog.text


def test_a_panic_of_a_library_is_a_failure(small):
    class PanicException(BaseException):
        """As PyO3's, no `Exception`."""

    with pytest.raises(PanicException), small.models.request("lines") as record:
        raise PanicException
    assert record.status == 500


@pytest.mark.full
def test_a_drain_has_a_time_limit(start):
    going = start(drain_seconds=0.2)
    going.pools["en-de"].gate.clear()
    threading.Thread(target=lambda: raw(going, HEAD + LINE), daemon=True).start()
    wait_for(lambda: going.pools["en-de"].batches)
    assert going.stop() is False


@pytest.mark.parametrize("name", ["deadline_seconds", "buffered_bytes", "lines"])
@pytest.mark.parametrize("value", [0, float("nan"), float("inf"), 2**64])
def test_limits_are_finite(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be above 0 and at most"):
        Limits(**{name: value})


@pytest.mark.parametrize("seconds", [1e-5, 86400 * 30.0, 2**31 - 1])
def test_a_service_takes_any_finite_deadline(start, seconds):
    assert start(Limits(deadline_seconds=seconds)).stop()
