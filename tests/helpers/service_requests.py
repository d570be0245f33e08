"""Valid, malformed and raw requests to a service."""

import contextlib
import json
import socket
import time

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
LINE = b"two dogs run along the beach ."
INFER = "/v2/models/en-de/infer"
HEAD = b"POST /lines/en-de HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"


def ask(running, path="/lines/en-de", body=LINE, headers=()):
    """Returns status, headers and body of the answer to a body, which is JSON if it is a dict."""
    if isinstance(body, dict):
        body, headers = json.dumps(body), {"Content-Type": JSON, **dict(headers)}
    return running.request("POST", path, body, headers)


def translate(running, **fields):
    """Returns status and JSON of the answer to a request of LibreTranslate."""
    status, _, answer = ask(running, "/translate", {"source": "en", "target": "de", **fields})
    return status, json.loads(answer)


def infer(data=("x",), shape=None, **fields):
    """Returns the body of an Open Inference Protocol request."""
    entry = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [len(data)] if shape is None else shape,
        "data": data,
    }
    return {"inputs": [entry | fields]}


def wait_for(holds, seconds=60):  # much more than it takes on a busy machine
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextlib.contextmanager
def connected(running, data=b""):
    """Yields a connection on which bytes have been sent."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as opened:
        opened.sendall(data)
        yield opened


def received(opened, text=None, times=1):
    """Returns the bytes up to `times` occurrences of a text, or to the end of the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while (text is None or found.count(text) < times) and (part := opened.recv(2**16)):
            found += part
    return found


def raw(running, data):
    """Sends bytes on a new connection. Returns the beginning of the answer."""
    with connected(running, data) as opened:
        return opened.recv(65536)
