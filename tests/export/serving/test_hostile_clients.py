"""Slow, greedy or disconnected clients: the service still answers the others."""

import contextlib
import json
import select
import socket
import threading
import time

import pytest
from helpers import local_service
from helpers.service_requests import (
    LINE,
    ask,
    infer,
    wait_for,
)

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.limits import Limits

INFER = "/v2/models/en-de/infer"
SMALL = Limits(
    body_bytes=100_000,
    buffered_bytes=200_000,
    header_seconds=0.5,
    read_seconds=0.7,
    write_seconds=0.5,
    deadline_seconds=3.0,
)


@pytest.fixture(autouse=True)
def nothing_else_suffers(small):
    yield
    assert ask(small)[0] == 200
    wait_for(lambda: small.metric("buffered_bytes") == small.metric("open_requests") == 0)


@contextlib.contextmanager
def connected(running, head):
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as opened:
        opened.sendall(head.replace(b"\n", b"\r\n"))
        yield opened


def until_closed(opened):
    """Returns all bytes until the service closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := opened.recv(2**16):
            found += part
    return found


def until_ends(opened):
    """Returns all bytes up to the last chunk of an answer."""
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        assert (part := opened.recv(2**16))
        found += part
    return found


def test_a_refused_body_no_longer_counts_as_buffered(folder):
    limits = Limits(body_bytes=100_000, buffered_bytes=200_000)
    running = local_service.Running({"en-de": local_service.Pool(folder)}, limits)
    head = b"POST %s HTTP/1.1\nHost: localhost\nContent-Length: 150000\n\n" % INFER.encode()
    with connected(running, head) as opened:
        opened.sendall(b"x" * 60_000)
        wait_for(lambda: running.metric("buffered_bytes") == 60_000)
        opened.sendall(b"x" * 60_000)
        wait_for(lambda: running.metric("buffered_bytes") == 0)
        assert running.metric("open_requests") == 1
    running.stop()


def test_a_started_stream_waits_for_buffer_room(folder):
    limits = Limits(body_bytes=100_000, buffered_bytes=200_000)
    running = local_service.Running({"en-de": local_service.Pool(folder)}, limits)
    head = b"POST %s HTTP/1.1\nHost: localhost\nContent-Length: 99999\n\n"
    with connected(running, head.replace(b"99999", b"4") % b"/lines/en-de") as stream:
        stream.sendall(b"x\n")
        answer = b""
        while not answer.partition(b"\r\n\r\n")[2]:
            answer += stream.recv(1000)
        with contextlib.ExitStack() as others:
            for _ in range(2):
                other = others.enter_context(connected(running, head % INFER.encode()))
                other.sendall(b"x" * 99_998)
            held = 2 * 99_998
            wait_for(lambda: running.metric("buffered_bytes") == held)
            last = others.enter_context(connected(running, head % INFER.encode()))
            last.sendall(b"x" * 4)
            wait_for(lambda: running.metric("buffered_bytes") == 200_000)
            stream.sendall(b"x\n")
            stream.settimeout(0.3)
            with pytest.raises(TimeoutError):
                stream.recv(1000)
        stream.settimeout(10)
        assert until_ends(stream).endswith(b"0\r\n\r\n")
    running.stop()


def test_lines_count_as_buffered_bytes(small):
    head = b"POST /lines/en-de HTTP/1.1\nHost: localhost\nContent-Length: 99000\n\n"
    with connected(small, head) as first, connected(small, head) as second:
        for opened in (first, second):
            opened.sendall(b"x" * 90_000)
        wait_for(lambda: small.metric("buffered_bytes") == 180_000)
        status, _, body = ask(small, INFER, b"x" * 50_000)
        assert status == 429 and b"bytes are taken" in body


def test_a_stream_without_a_whole_line_times_out_even_if_bytes_arrive(small):
    head = b"POST /lines/en-de HTTP/1.1\nHost: localhost\nContent-Length: 99\n\n"
    with connected(small, head) as opened:
        opened.settimeout(0.1)
        for _ in range(60):
            opened.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                assert opened.recv(100).startswith(b"HTTP/1.1 408")
                return
    raise AssertionError("the stream goes on")


@pytest.mark.parametrize("path", [b"/live", b"/lines/en-de"])
@pytest.mark.parametrize("endless", [b"a: b\r\n", b"a: " + b"x" * 40_000])
def test_the_size_of_trailers_is_limited(small, path, endless):
    head = b"POST %s HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n0\n" % path
    with connected(small, head) as opened, contextlib.suppress(ConnectionError):
        for _ in range(1000):
            opened.sendall(endless * (41_000 // len(endless)))
        raise AssertionError("40 MB of trailers were taken")


@pytest.mark.parametrize("path", [b"/live", b"/lines/en-de", b"/v2/models/en-de/infer"])
def test_a_chunk_that_never_begins_times_out(small, path):
    head = b"POST %s HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n1;" % path
    with connected(small, head) as opened:
        until_closed(opened)


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
    local.gate.clear()
    request = b"POST /lines/en-de HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
    try:
        with connected(small, b"") as opened, pytest.raises(TimeoutError):
            opened.settimeout(1)
            for _ in range(1000):
                opened.sendall(request * 1000)
    finally:
        local.gate.set()


def test_a_client_cannot_raise_the_deadline_of_the_service(small, local):
    """The second request waits for the first, whose batch is abandoned after the deadline."""
    local.gate.clear()
    try:
        before = len(local.batches)
        first = threading.Thread(target=ask, args=(small,))
        first.start()
        wait_for(lambda: len(local.batches) > before)
        assert ask(small, headers={"Request-Timeout": "60"})[0] == 504
        first.join()
    finally:
        local.gate.set()


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


def test_measuring_a_large_request_does_not_block_others(folder):
    begun, go = threading.Event(), threading.Event()

    def measure(items):
        if len(items) > 1:
            begun.set()
            assert go.wait(120)
        return [1] * len(items)

    local = local_service.Pool(folder, measure)
    running = local_service.Running({"en-de": local})
    lines = json.dumps(infer(["x"] * 1000))
    asking = threading.Thread(target=ask, args=(running, INFER, lines))
    asking.start()
    assert begun.wait(60)
    try:
        assert running.request("POST", "/lines/en-de", LINE)[0] == 200
    finally:
        go.set()
        asking.join()
        running.stop()
