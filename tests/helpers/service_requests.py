"""Valid, malformed and raw requests to a service."""

import socket
import time

LINE = b"two dogs run along the beach ."
HEAD = b"POST /lines/en-de HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"


def ask(running, path="/lines/en-de", body=LINE, headers=()):
    return running.request("POST", path, body, headers)


def infer(data=("x",), shape=None, **fields):
    """Returns the body of an Open Inference Protocol request."""
    entry = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [len(data)] if shape is None else shape,
        "data": data,
    }
    return {"inputs": [entry | fields]}


def wait_for(holds):
    end = time.monotonic() + 60  # much more than it takes on a busy machine
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def raw(running, data, then=b"", pause=0.0):
    """Sends bytes on a new connection. Returns the answer."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as opened:
        opened.sendall(data)
        time.sleep(pause)
        if then:
            opened.sendall(then)
        opened.settimeout(60)
        return opened.recv(65536)
