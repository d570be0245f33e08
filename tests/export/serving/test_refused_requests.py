"""Refused requests: malformed requests, large heads, and other origins."""

import json

import pytest
from helpers import local_service
from helpers.service_requests import LINE, ask, infer, raw

from keras_transformer.export.serving.limits import Limits

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1]}
DETECT = b"POST /detect HTTP/1.1\nHost: localhost\n"
INFER = "/v2/models/en-de/infer"
SMALL = Limits(body_bytes=100_000)


@pytest.mark.parametrize(
    "fields, status",
    [
        ({"id": "\ud800"}, 400),
        ({"parameters": {"timeout": 10**400}}, 400),
        ({"shape": [10**4000, 10**4000]}, 400),
        ({"header": "0" * 20 + "1" * 5000}, 400),
        ({"outputs": [{"name": "text"}] * 2}, 400),
        ({"outputs": [{"name": "x" * 90_000}]}, 400),
        ({"parameters": {"timeout": "x" * 90_000}}, 400),
        ({"shape": [1] * 9_000}, 400),
        ({"outputs": [{"name": "text"}] * 2_000}, 400),
        ({"inputs": [{}] * 20_000}, 400),
        ({"name": "x" * 90_000}, 400),
        ({"datatype": "x" * 90_000}, 400),
        ({"shape": [{}] * 20_000}, 400),
        ({"binary": "x" * 90_000}, 400),
    ],
)
def test_malformed_requests_get_short_reasons(small, caplog, fields, status):
    body = infer(**{name: fields[name] for name in ("name", "datatype", "shape") if name in fields})
    if "binary" in fields:
        body["inputs"][0]["parameters"] = {"binary_data_size": fields["binary"]}
    body |= {
        name: fields[name] for name in ("id", "parameters", "outputs", "inputs") if name in fields
    }
    headers = {"Inference-Header-Content-Length": fields["header"]} if "header" in fields else {}
    found, _, answer = ask(small, INFER, json.dumps(body), headers)
    assert found == status and len(answer) < 400 and json.loads(answer)["error"]
    assert not caplog.records


@pytest.mark.parametrize(
    "place", ["x" * 60_000, "%F0%9F%98%80" * 5_000, f"en-de/versions/{'x' * 60_000}"]
)
def test_unknown_names_get_short_reasons(small, place):
    status, _, answer = ask(small, f"/v2/models/{place}/infer", json.dumps(infer()))
    assert status == 404 and len(answer) < 600 and json.loads(answer)["error"]


@pytest.mark.parametrize(
    "head, status",
    [
        (b"GET /live HTTP/1.1\nHost: localhost\nX: " + b"x" * 70_000 + b"\n\n", b"431"),
        (b"GET /live HTTP/1.1\nHost: localhost\n" + b"a: b\n" * 30_000 + b"\n", b"431"),
        (b"GET /live HTTP/1.1\n\n", b"400"),
        (DETECT + b"Content-Length: 1\nTransfer-Encoding: chunked\n\n0\n\n", b"400"),
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
        (
            b"POST /detect HTTP/1.1\nHost: localhost\nTransfer-Encoding: gzip, chunked\n\n0\n\n",
            b"501",
        ),
        (
            DETECT + b"Content-Encoding: identity\nContent-Encoding: gzip\nContent-Length: 0\n\n",
            b"415",
        ),
    ],
)
def test_heads_of_requests_get_the_right_status(small, head, status):
    assert raw(small, head.replace(b"\n", b"\r\n")).startswith(b"HTTP/1.1 " + status)


def test_allowed_hosts_pass(folder):
    running = local_service.Running(
        {"en-de": local_service.Pool(folder)}, allowed_hosts=["proxy.example"]
    )
    assert ask(running, headers={"Host": "proxy.example"})[0] == 200
    assert ask(running, headers={"Origin": "https://proxy.example"})[0] == 200
    assert ask(running, headers={"Origin": "https://evil.example"})[0] == 403
    assert ask(running, body=LINE, headers={"Host": "evil.example"})[0] == 403
    running.stop()
