"""Slow, greedy or disconnected clients: the service still answers the others."""

import contextlib
import select
import socket
import threading
import time

import pytest
from helpers.service_requests import INFER, ask, connected, received, wait_for

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.limits import Limits

LARGE = {"body_bytes": 100_000, "buffered_bytes": 200_000}
SMALL = Limits(
    **LARGE, header_seconds=0.5, read_seconds=0.7, write_seconds=0.5, deadline_seconds=3.0
)


@pytest.fixture(autouse=True)
def nothing_else_suffers(small):
    yield
    assert ask(small)[0] == 200
    wait_for(lambda: small.metric("buffered_bytes") == small.metric("open_requests") == 0)


def begun(running, path, length=None, data=b""):
    """Connects, and sends the head of a request, and the beginning of its body."""
    kind = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
    return connected(running, head.encode() + data)


def test_a_refused_body_no_longer_counts_as_buffered(start):
    running = start(Limits(**LARGE))
    with begun(running, INFER, 150_000, b"x" * 60_000) as opened:
        wait_for(lambda: running.metric("buffered_bytes") == 60_000)
        opened.sendall(b"x" * 60_000)
        wait_for(lambda: running.metric("buffered_bytes") == 0)
        assert running.metric("open_requests") == 1


def test_a_started_stream_waits_for_buffer_room(start):
    running = start(Limits(**LARGE))
    with begun(running, "/lines/en-de", 4, b"x\n") as stream:
        received(stream, b"\n\r\n", 2)  # the head, and the first line
        with contextlib.ExitStack() as others:
            for path, length, held in (
                (INFER, 99_998, 99_998),
                ("/lines/en-de", 99_998, 199_996),
                (INFER, 4, 200_000),
            ):
                others.enter_context(begun(running, path, 99_999, b"x" * length))
                wait_for(lambda held=held: running.metric("buffered_bytes") == held)
            status, _, body = ask(running, INFER, b"x" * 50_000)
            assert status == 429 and b"bytes are taken" in body
            stream.sendall(b"x\n")
            stream.settimeout(0.3)
            with pytest.raises(TimeoutError):
                stream.recv(1000)
        stream.settimeout(10)
        assert received(stream, b"0\r\n\r\n").endswith(b"0\r\n\r\n")


def test_a_stream_without_a_whole_line_times_out_even_if_bytes_arrive(small):
    with begun(small, "/lines/en-de", 99) as opened:
        opened.settimeout(0.1)
        for _ in range(60):
            opened.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                assert opened.recv(100).startswith(b"HTTP/1.1 408")
                return
    raise AssertionError("the stream goes on")


@pytest.mark.parametrize("path", ["/live", "/lines/en-de"])
@pytest.mark.parametrize("endless", [b"a: b\r\n", b"a: " + b"x" * 40_000])
def test_the_size_of_trailers_is_limited(small, path, endless):
    with begun(small, path, data=b"0\r\n") as opened, contextlib.suppress(ConnectionError):
        for _ in range(1000):
            opened.sendall(endless * (41_000 // len(endless)))
        raise AssertionError("40 MB of trailers were taken")


@pytest.mark.parametrize("path", ["/live", "/lines/en-de", INFER])
def test_a_chunk_that_never_begins_times_out(small, path):
    with begun(small, path, data=b"1;") as opened:
        received(opened)


def test_a_connection_with_an_unread_answer_is_closed(small):
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.connect(("127.0.0.1", small.port))
        opened.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 900)
        poll, end = select.poll(), time.monotonic() + 60
        poll.register(opened, 0)  # reports a reset
        while not poll.poll(100):
            assert time.monotonic() < end


def test_endless_pipelined_requests_are_not_buffered(small, local):
    """The service stops reading, so the client cannot send."""
    request = b"POST /lines/en-de HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
    with local.held(), connected(small) as opened, pytest.raises(TimeoutError):
        opened.settimeout(1)
        for _ in range(1000):
            opened.sendall(request * 1000)


@pytest.mark.full
def test_a_hanging_batch_is_abandoned(small, monkeypatch):
    """The service has one worker. It is ready again when the batch ends."""
    go, results = threading.Event(), Translator.results

    def hang(runner, items, **options):
        assert list(items) != [b"hang"] or go.wait(60)
        return results(runner, items, **options)

    monkeypatch.setattr(Translator, "results", hang)
    assert small.request("GET", "/ready")[0] == 200
    assert ask(small, body=b"hang")[0] == 504
    for path in ("/ready", "/v2/health/ready", "/v2/models/en-de/ready"):
        assert small.request("GET", path)[0] == 503
    assert small.request("GET", "/live")[0] == 200
    go.set()
    wait_for(lambda: small.request("GET", "/ready")[0] == 200)
