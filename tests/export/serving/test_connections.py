"""HTTP connections: slow clients keep them, and stalled clients lose them."""

import contextlib
import json
import socket
import threading
import time

import pytest
from helpers.service_requests import INFER, ask, connected, infer, received, wait_for

from keras_transformer.export.serving.limits import Limits

SMALL = Limits(header_seconds=0.5, read_seconds=5, write_seconds=2)
BODY = json.dumps(infer()).encode()
HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n".encode()
REQUEST = HEAD + b"\r\n" + BODY
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n\r\n"


@pytest.mark.full
def test_a_client_that_reads_slowly_and_steadily_keeps_its_connection(small):
    """The answers fill all buffers again and again."""
    request = LIVE.replace(b"/live", b"/live/?" + b"x" * 60_000)  # the redirect is as long

    def send():
        with contextlib.suppress(OSError):
            opened.sendall(request * 500)

    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        opened.settimeout(60)
        opened.connect(("127.0.0.1", small.port))
        sending = threading.Thread(target=send)
        sending.start()
        end = time.monotonic() + 2.5 * SMALL.write_seconds
        while time.monotonic() < end:
            assert (part := opened.recv(2**15))
            time.sleep(len(part) / 1_500_000)
    sending.join()


@pytest.mark.parametrize("token", [b"h2c", b"websocket"])
@pytest.mark.parametrize("cut", [0, 40, len(HEAD) + 60])
def test_a_body_is_read_even_if_the_request_asks_for_an_upgrade(small, token, cut):
    data = HEAD + UPGRADE % token + BODY
    with connected(small) as opened:
        for _ in range(2):
            opened.sendall(data[:cut])
            time.sleep(0.02)
            opened.sendall(data[cut:])
            assert b'"model_name"' in received(opened, b'"error"')


def test_many_pipelined_upgrade_requests_are_answered(small):
    with connected(small, (LIVE.removesuffix(b"\r\n") + UPGRADE % b"x") * 900) as opened:
        assert received(opened, b"live\n", 900).count(b"200 OK") == 900


def test_a_pipelined_body_has_its_own_timeout(small):
    with connected(small, REQUEST + REQUEST[:-5]) as opened:
        received(opened, b"model_name")
        time.sleep(2 * SMALL.header_seconds)
        opened.sendall(REQUEST[-5:])
        assert b"model_name" in received(opened, b"model_name")


def test_a_stalled_head_does_not_cut_off_the_previous_answer(small, local):
    with connected(small) as opened:
        with local.held():
            opened.sendall(REQUEST + HEAD[:20])
            time.sleep(2 * SMALL.header_seconds)
        assert b"model_name" in received(opened)  # then the connection ends


def test_empty_lines_do_not_keep_a_connection_open(small):
    with connected(small, LIVE) as opened:
        received(opened, b"live\n")
        opened.settimeout(0.1)
        end = time.monotonic() + 60  # it takes `header_seconds`, or for ever
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                opened.sendall(b"\r\n")
                with contextlib.suppress(TimeoutError):
                    if not opened.recv(100):
                        break
        assert time.monotonic() < end
    assert ask(small)[0] == 200
    wait_for(lambda: small.metric("open_requests") == 0)


CHUNKED = b"\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data, status",
    [
        # These read no body, so the answer may be on its way when the rest arrives.
        (b"GET /live HTTP/1.1" + CHUNKED + b"0\r\n" + b"a: b\r\n" * 20_000, b"431|200"),
        (b"GET /metrics HTTP/1.1" + CHUNKED + b"0\r\n" + b"a: b\r\n" * 20_000, b"431|200"),
        (b"GET /live HTTP/1.1" + CHUNKED + b"zz\r\n", b"400"),
        (b"GET /live HTTP/1.1" + CHUNKED + b"1\r\nxyz", b"400"),
        (b"GET /nothing HTTP/1.1" + CHUNKED + b"-1\r\n", b"400"),
        (b"POST /detect HTTP/1.1" + CHUNKED + b"0\r\n" + b"a: b\r\n" * 20_000, b"431"),
        (b"POST /translate HTTP/1.1" + CHUNKED + b"2\r\n{}zz\r\n", b"400"),
        (b"POST /v2/models/en-de/infer HTTP/1.1" + CHUNKED + b"zz\r\n", b"400"),
        (b"POST /lines/en-de HTTP/1.1" + CHUNKED + b"4\r\ndog\n\r\nzz\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1" + CHUNKED + b"1\r\n{\r\nzz\r\n", b"400"),
        (b"GET /live HTTP/1.1\r\nHost: x.example" + CHUNKED[17:] + b"zz\r\n", b"400"),
    ],
)
def test_a_refused_rest_of_a_request_is_no_failure(small, caplog, data, status):
    """The application answers the request while its rest is refused."""
    with connected(small, data) as opened:
        found = received(opened)
    expected = tuple(b"HTTP/1.1 " + one for one in status.split(b"|"))
    assert found.startswith(expected) and found.count(b"HTTP/1.1 ") == 1
    assert ask(small)[0] == 200
    wait_for(lambda: small.metric("open_requests") == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
