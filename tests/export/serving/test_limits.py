"""The limits of a service: full queues, deadlines, malformed requests, and shutdown."""

import concurrent.futures
import contextlib
import json
import random
import socket
import threading

import pytest
from helpers import local_service
from helpers.service_requests import (
    HEAD,
    LINE,
    ask,
    infer,
    raw,
    wait_for,
)

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.limits import Limits

SMALL = Limits(
    body_bytes=100_000,
    buffered_bytes=200_000,
    lines=50,
    open_requests=20,
    waiting_lines=3,
    read_seconds=1.5,
    header_seconds=1.0,
)


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


def test_a_full_queue_refuses_in_every_protocol_and_loses_no_request(small, local, expected):
    queue = small.models.get("en-de").queue
    local.gate.clear()
    try:
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            # One request is computed, and the others fill the queue.
            first = pool.submit(ask, small)
            wait_for(lambda: local.batches and queue.waiting == 0)
            taken = [first, *(pool.submit(ask, small) for _ in range(SMALL.waiting_lines))]
            wait_for(lambda: queue.waiting == SMALL.waiting_lines)
            status, headers, body = ask(small)
            assert status == 429 and headers["Retry-After"] == "1" and b"Repeat" in body
            body = json.dumps(infer())
            assert ask(small, "/v2/models/en-de/infer", body)[0] == 429
            local.gate.set()
            assert {future.result()[::2] for future in taken} == {(200, expected)}
    finally:
        local.gate.set()
    assert queue.waiting == 0


def test_too_many_open_requests_are_refused(folder):
    local, limits = local_service.Pool(folder), Limits(open_requests=2)
    running = local_service.Running({"en-de": local}, limits)
    head = b"POST /v2/models/en-de/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    path, body = "/v2/models/en-de/infer", json.dumps(infer())
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        for _ in range(5):  # incomplete requests take no slot
            opened = socket.create_connection(("127.0.0.1", running.port))
            stack.enter_context(opened).sendall(head)
        wait_for(lambda: running.metric("open_requests") == 5)
        local.gate.clear()
        taken = [pool.submit(ask, running, path, body) for _ in range(2)]
        queue = running.models.get("en-de").queue
        try:
            wait_for(lambda: queue.waiting + sum(len(items) for items, _ in local.batches) == 2)
            status, _, answer = ask(running, path, body)
            assert status == 429 and b"requests are open" in answer
        finally:
            local.gate.set()
        assert {future.result()[0] for future in taken} == {200}
        assert ask(running)[0] == 200  # streams have separate slots
    wait_for(lambda: running.metric("open_requests") == 0)
    running.stop()


def test_late_requests_are_not_computed(small, local):
    local.gate.clear()
    try:
        before = len(local.batches)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = pool.submit(ask, small)
            wait_for(lambda: len(local.batches) == before + 1)
            late = pool.submit(ask, small, headers={"Request-Timeout": "0.05"})
            body = json.dumps(infer(["late"]) | {"parameters": {"timeout": 50_000}})
            also = pool.submit(ask, small, "/v2/models/en-de/infer", body)
            assert late.result()[0] == also.result()[0] == 504
            local.gate.set()
            assert running.result()[0] == 200
    finally:
        local.gate.set()
    assert ask(small)[0] == 200
    assert not any(b"late" in items for items, _ in local.batches)
    assert len(local.batches) == before + 2  # no late request was computed


JSON_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b"[" * 90_000,
    b'{"inputs": 7}',
    b'{"inputs": []}',
    b'{"inputs": [7]}',
    b'{"inputs": [{}]}',
    *(
        json.dumps(body).encode()
        for body in (
            {"inputs": infer()["inputs"] * 2},
            infer(name="other"),
            infer(name=None),
            infer(datatype="FP32"),
            infer(datatype=["BYTES"]),
            *(
                infer(shape=shape)
                for shape in ([2], [1, 2], [-1], [1.0], ["1"], [True], 1, {}, "1")
            ),
            infer(shape=[10**9, 10**9]),
            infer(shape=[1] * 9),
            *(infer(data, shape=[1]) for data in ([7], [None], [["x", "y"]], [{}], "x", 7, None)),
            infer(data=["x"] * 51),
            infer(parameters=7),
            infer(parameters={"binary_data_size": 1}),
            infer(parameters={"binary_data_size": "1"}),
            infer(parameters={"shared_memory_region": "x"}),
            infer() | {"parameters": [1]},
            infer() | {"outputs": [{"name": "no"}]},
            infer() | {"outputs": [{"name": ["text"]}]},
            infer() | {"outputs": "text"},
            infer() | {"outputs": [{"name": "text", "parameters": {"classification": 3}}]},
            *(infer() | {"parameters": {"timeout": value}} for value in (-1, "1", True, 1.5)),
            *(infer() | {"parameters": {"seed": value}} for value in (1, "1", [1])),
        )
    ),
]
BINARY = [
    (b"", "0"),
    (b"\1\0\0", None),
    (b"\1\0\0\0", None),
    (b"\xff\xff\xff\xffx", None),
    (b"\1\0\0\0xy", None),
    (b"\1\0\0\0x" * 2, None),
    (b"\1\0\0\0x", "-1"),
    (b"\1\0\0\0x", "99999"),
    (b"\1\0\0\0x", "9" * 5000),
    (b"\1\0\0\0x", "x"),
]


def test_malformed_json_and_binary_data_are_refused(small):
    place = "/v2/models/en-de/infer"
    for body in JSON_BODIES:
        status, _, answer = ask(small, place, body)
        assert 400 <= status < 500 and json.loads(answer)["error"], (body[:100], status)
    for data, length in BINARY:
        entry = {"name": "text", "datatype": "BYTES", "shape": [1]}
        entry["parameters"] = {"binary_data_size": len(data)}
        header = json.dumps({"inputs": [entry]}).encode()
        headers = {"Inference-Header-Content-Length": length or str(len(header))}
        status, _, answer = ask(small, place, header + data, headers)
        assert status == 400 and json.loads(answer)["error"], (data, length)


def test_random_damage_is_refused_or_answered(small):
    """Replaces random bytes. An answer has status 4xx, or 200 if the request is still valid."""
    draw = random.Random(7)
    good, statuses = json.dumps(infer(["two dogs", "x"])).encode(), set()
    for _ in range(150):
        damaged = bytearray(good)
        place = draw.randrange(len(damaged))
        damaged[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        statuses.add(ask(small, "/v2/models/en-de/infer", bytes(damaged))[0])
    assert statuses <= {200, 400, 413} and 400 in statuses


@pytest.mark.parametrize(
    "method, path, headers, status",
    [
        ("GET", "/nothing", {}, 404),
        ("DELETE", "/v2/models/en-de/infer", {}, 405),
        ("POST", "/lines/no", {}, 404),
        ("POST", "/lines/en-de?format=xml", {}, 400),
        ("POST", "/lines/en-de?seed=1", {}, 400),
        ("POST", "/lines/en-de?seed=x", {}, 400),
        ("POST", "/lines/en-de?sed=1", {}, 400),
        ("POST", "/lines/en-de", {"Content-Encoding": "gzip"}, 415),
        ("POST", "/lines/en-de", {"Request-Timeout": "soon"}, 400),
        ("POST", "/lines/en-de", {"Request-Timeout": "-1"}, 400),
        ("POST", "/v2/models/en-de/infer", {"Content-Encoding": "gzip"}, 415),
        ("POST", "/translate", {"Content-Type": "multipart/form-data"}, 400),  # no boundary
        ("POST", "/translate", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_wrong_addresses_and_headers_are_refused(small, method, path, headers, status):
    found, _, body = small.request(method, path, LINE, headers)
    assert found == status and json.loads(body)["error"]


def test_a_large_body_is_refused_after_it_was_sent(small):
    for body in (b"x" * 5_000_000, iter([b"x" * 50_000] * 100)):  # the second in chunks
        status, _, answer = ask(small, "/v2/models/en-de/infer", body)
        assert status == 413 and b"100000 bytes" in answer
    status, _, answer = ask(small, body=b"x" * 150_000)  # one line
    assert status == 413 and b"A line may have" in answer


def test_slow_clients_get_status_408(small):
    assert raw(small, b"POST /li").startswith(b"HTTP/1.1 408")
    assert raw(small, HEAD + b"two").startswith(b"HTTP/1.1 408")
    infer_head = HEAD.replace(b"lines/en-de", b"v2/models/en-de/infer")
    assert raw(small, infer_head + b"{").startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\0\1\2\3\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", b"40"),
        (b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: -3\r\n\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"400",
        ),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000, b"431"),
    ],
)
def test_invalid_http_is_refused(small, data, status):
    assert raw(small, data).startswith(b"HTTP/1.1 " + status)


def test_each_line_of_a_stream_is_answered_before_the_next_is_sent(small, expected):
    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as opened:
        chunked = b"\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        opened.sendall(b"PUT /lines/en-de HTTP/1.1" + chunked)
        for _ in range(2):
            opened.sendall(b"%x\r\n%s\n\r\n" % (len(LINE) + 1, LINE))
            found = b""
            while expected not in found:
                found += opened.recv(1000)
        opened.sendall(b"0\r\n\r\n")
        assert opened.recv(1000) == b"0\r\n\r\n"


def test_a_client_that_leaves_frees_its_request(small):
    with socket.create_connection(("127.0.0.1", small.port)) as opened:
        opened.sendall(HEAD + b"two")
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


def test_accepted_requests_are_answered_before_shutdown(folder, expected):
    local = local_service.Pool(folder)
    going = local_service.Running({"en-de": local})
    local.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        taken = pool.submit(ask, going)
        wait_for(lambda: local.batches)
        going.begin_to_stop()
        wait_for(lambda: going.models.admission.draining)
        assert ask(going)[0] == going.request("GET", "/ready")[0] == 503
        assert going.request("GET", "/live")[0] == 200
        local.gate.set()
        assert taken.result()[::2] == (200, expected)
    assert going.stop() is True


def test_a_drain_has_a_time_limit(folder):
    local = local_service.Pool(folder)
    going = local_service.Running({"en-de": local}, drain_seconds=0.2)
    local.gate.clear()
    thread = threading.Thread(target=lambda: raw(going, HEAD + LINE), daemon=True)
    thread.start()
    wait_for(lambda: local.batches)
    assert going.stop() is False


@pytest.mark.parametrize("name", ["deadline_seconds", "buffered_bytes", "lines"])
@pytest.mark.parametrize("value", [0, float("nan"), float("inf"), 2**64])
def test_limits_are_finite(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be above 0 and at most"):
        Limits(**{name: value})


@pytest.mark.parametrize("seconds", [1e-5, 86400 * 30.0, 2**31 - 1])
def test_a_service_takes_any_finite_deadline(folder, seconds):
    limits = Limits(deadline_seconds=seconds)
    assert local_service.Running({"en-de": local_service.Pool(folder)}, limits).stop()
