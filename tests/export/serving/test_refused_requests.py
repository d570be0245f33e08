"""Refused requests: malformed requests, large heads, slow clients, and other origins."""

import json

import pytest
from helpers.service_requests import INFER, LINE, ask, infer, raw

from keras_transformer.export.serving.limits import Limits

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1]}
DETECT = b"POST /detect HTTP/1.1\nHost: localhost\n"
SMALL = Limits(body_bytes=100_000, lines=50, read_seconds=1.5, header_seconds=1.0)


def binary(data, size=None, header=None):
    """Returns the body and the headers of a request with binary data."""
    entry = {**TENSOR, "parameters": {"binary_data_size": len(data) if size is None else size}}
    fields = json.dumps({"inputs": [entry]}).encode()
    return fields + data, {"Inference-Header-Content-Length": header or str(len(fields))}


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b"[" * 90_000,
    {"inputs": 7},
    {"inputs": []},
    {"inputs": [7]},
    {"inputs": [{}]},
    {"inputs": [{}] * 20_000},
    {"inputs": infer()["inputs"] * 2},
    *(infer(name=name) for name in ("other", None, "x" * 90_000)),
    *(infer(datatype=datatype) for datatype in ("FP32", ["BYTES"], "x" * 90_000)),
    *(infer(shape=shape) for shape in ([2], [1, 2], [-1], [1.0], ["1"], [True], 1, {}, "1")),
    *(infer(shape=shape) for shape in ([10**9] * 2, [10**4000] * 2, [1] * 9, [1] * 9000)),
    infer(shape=[{}] * 20_000),
    *(infer(data, shape=[1]) for data in ([7], [None], [["x", "y"]], [{}], "x", 7, None)),
    infer(parameters=7),
    *(infer(parameters={"binary_data_size": size}) for size in (1, "1", "x" * 90_000)),
    infer(parameters={"shared_memory_region": "x"}),
    infer() | {"id": "\ud800"},
    infer() | {"parameters": [1]},
    infer() | {"outputs": "text"},
    *(infer() | {"outputs": [{"name": name}]} for name in ("no", ["text"], "x" * 90_000)),
    *(infer() | {"outputs": [{"name": "text"}] * times} for times in (2, 2000)),
    infer() | {"outputs": [{"name": "text", "parameters": {"classification": 3}}]},
    *(infer() | {"parameters": {"timeout": value}} for value in (-1, "1", True, 1.5, 10**400)),
    infer() | {"parameters": {"timeout": "x" * 90_000}},
    *(infer() | {"parameters": {"seed": value}} for value in (1, "1", [1])),
]
BINARY = [
    binary(b"", header="0"),
    binary(b"\1\0\0"),
    binary(b"\1\0\0\0"),
    binary(b"\xff\xff\xff\xffx"),
    binary(b"\1\0\0\0xy"),
    binary(b"\1\0\0\0x" * 2),
    binary(b"\1\0\0\0x", size="x" * 90_000),
    *(
        binary(b"\1\0\0\0x", header=header)
        for header in ("-1", "99999", "9" * 5000, "0" * 20 + "1" * 5000, "x")
    ),
]


def test_malformed_requests_get_short_reasons(small, caplog):
    for body, headers in [*((body, {}) for body in BODIES), *BINARY]:
        status, _, answer = ask(small, INFER, body, headers)
        assert status == 400 and len(answer) < 400 and json.loads(answer)["error"], (body, answer)
    assert ask(small, INFER, infer(["x"] * 51))[0] == 413
    assert not caplog.records


@pytest.mark.parametrize(
    "place", ["x" * 60_000, "%F0%9F%98%80" * 5_000, f"en-de/versions/{'x' * 60_000}"]
)
def test_unknown_names_get_short_reasons(small, place):
    status, _, answer = ask(small, f"/v2/models/{place}/infer", infer())
    assert status == 404 and len(answer) < 600 and json.loads(answer)["error"]


@pytest.mark.parametrize(
    "method, path, headers, status",
    [
        ("GET", "/nothing", {}, 404),
        ("DELETE", INFER, {}, 405),
        ("POST", "/lines/no", {}, 404),
        ("POST", "/lines/en-de?seed=1", {}, 400),
        ("POST", "/lines/en-de", {"Request-Timeout": "soon"}, 400),
        ("POST", "/lines/en-de", {"Request-Timeout": "-1"}, 400),
        ("POST", "/translate", {"Content-Type": "multipart/form-data"}, 400),  # no boundary
        ("POST", "/translate", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_wrong_addresses_and_headers_are_refused(small, method, path, headers, status):
    found, _, body = small.request(method, path, LINE, headers)
    assert found == status and json.loads(body)["error"]
    assert (status == 405) == (b"DELETE is not allowed here. Use POST." in body)


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\0\1\2\3\n\n", b"400"),
        (b"GET / HTTP/9.9\n\n", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\nHost: localhost\n\n", b"40"),
        (b"GET /%ff%fe HTTP/1.1\nHost: localhost\n\n", b"404"),
        (b"GET / HTTP/1.1\nX: " + b"x" * 200_000, b"431"),
        (b"GET /live HTTP/1.1\nHost: localhost\nX: " + b"x" * 70_000 + b"\n\n", b"431"),
        (b"GET /live HTTP/1.1\nHost: localhost\n" + b"a: b\n" * 30_000 + b"\n", b"431"),
        (b"GET /live HTTP/1.1\n\n", b"400"),
        (DETECT + b"Content-Length: 1\nTransfer-Encoding: chunked\n\n0\n\n", b"400"),
        (DETECT + b"Content-Length: -3\n\n", b"400"),
        (DETECT + b"Transfer-Encoding: chunked\n\nzz\n", b"400"),
        (DETECT + b"Transfer-Encoding: gzip, chunked\n\n0\n\n", b"501"),
        (
            DETECT + b"Content-Encoding: identity\nContent-Encoding: gzip\nContent-Length: 0\n\n",
            b"415",
        ),
        # Slow clients.
        (b"POST /li", b"408"),
        (b"POST /lines/en-de HTTP/1.1\nHost: localhost\nContent-Length: 30\n\ntwo", b"408"),
        (
            b"POST /v2/models/en-de/infer HTTP/1.1\nHost: localhost\nContent-Length: 30\n\n{",
            b"408",
        ),
        # Other hosts and origins.
        (b"GET /live HTTP/1.1\nHost: localhost\nHost: localhost\n\n", b"400"),
        (b"GET /live HTTP/1.1\nHost: localhost\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: LOCALHOST:8080\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: [::1]:8080\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: localhost.:8080\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: [::ffff:127.0.0.1]\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: [::ffff:10.0.0.1]\n\n", b"403"),
        (b"GET /live HTTP/1.0\n\n", b"200"),
        (b"GET /live HTTP/1.0\nOrigin: http://evil.example\n\n", b"400"),
        (b"GET /live HTTP/1.1\nHost: evil.example\n\n", b"403"),
        (b"GET /live HTTP/1.1\nHost: 127.0.0.1.evil.example:8080\n\n", b"403"),
        (b"GET /live HTTP/1.1\nHost: localhost:1\nOrigin: http://localhost:1\n\n", b"200"),
        (b"GET /live HTTP/1.1\nHost: localhost:1\nOrigin: http://localhost:2\n\n", b"403"),
        (b"GET /live HTTP/1.1\nHost: localhost:1\nOrigin: http://evil.example\n\n", b"403"),
        (b"GET /live HTTP/1.1\nHost: localhost:1\nOrigin: null\n\n", b"403"),
    ],
    ids=lambda value: repr(value)[2:70],
)
def test_requests_get_the_right_status(small, data, status):
    assert raw(small, data.replace(b"\n", b"\r\n")).startswith(b"HTTP/1.1 " + status)


def test_allowed_hosts_pass(start):
    running = start(allowed_hosts=["proxy.example"])
    for headers, status in (
        ({"Host": "proxy.example"}, 200),
        ({"Origin": "https://proxy.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ):
        assert ask(running, headers=headers)[0] == status
