"""Damaged requests to every protocol of the service: answered or refused, without status 500.

    python tests/fuzz/protocols.py --count 100000 --seed 5 --out protocols.json

The service runs in this process, with small models. Three outcomes are wrong. The answer has a
status of 500 or above (except 501: unsupported method or encoding). There is no answer in time. The
service no longer answers a good request.
"""

import fuzzing  # isort: split

import collections
import contextlib
import io
import json
import os
import pathlib
import resource
import socket
import sys
import tempfile

import numpy as np
from damage import LINES, damaged
from helpers import artefacts, local_service, seeded_artefact, service_requests

import keras_transformer as kt

SECONDS, PATIENCE = 20, 0.1  # for an answer; before the sending side is closed
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
GOOD = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def http_request(path, body=b"", kind="", method="POST"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    head += [f"Content-Type: {kind}"] if kind else []
    return "\r\n".join([*head, "Connection: close", "", ""]).encode(), body


def binary_infer():
    """A request of the Open Inference Protocol with binary tensors."""
    entry = {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": {}}
    entry["parameters"]["binary_data_size"] = 14
    head = json.dumps({"inputs": [entry], "parameters": {"timeout": 2_000_000}}).encode()
    start, body = http_request("/v2/models/en-de/infer", head + b"\3\0\0\0two\3\0\0\0dog")
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n\r\n".encode()
    return start.removesuffix(b"\r\n") + extra, body


HTTP = {
    "lines": [
        http_request("/lines/en-de", b"two dogs\none cat\n"),
        http_request("/lines/en-de?format=json", b"two dogs\n"),
        http_request("/lines/story?seed=7", b"once\n"),
    ],
    "v2": [
        http_request("/v2/models/en-de/infer", service_requests.infer(["two dogs"]), JSON),
        http_request("/v2/models/story/infer", service_requests.infer(["once"]), JSON),
        binary_infer(),
        http_request("/v2/models/en-de", method="GET"),
    ],
    "libretranslate": [
        http_request("/translate", {"q": ["two dogs"], "source": "en", "target": "de"}, JSON),
        http_request("/translate", b"q=two+dogs&source=en&target=de&format=html", FORM),
        http_request("/languages", method="GET"),
    ],
    "openai": [
        http_request("/v1/completions", {"model": "story", "prompt": "once", "seed": 3}, JSON),
        http_request("/v1/completions", {"model": "story", "prompt": "on", "stream": True}, JSON),
        http_request("/v1/models", method="GET"),
    ],
    "pages": [http_request(path, method="GET") for path in ("/metrics", "/live", "/v2")],
}


def exchange(port, data):
    """Returns all bytes until the service closes the connection, or `None` if it does not.

    The sending side closes after `PATIENCE`, so the service stops waiting for more bytes.
    """
    found = []
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as opened:
        with contextlib.suppress(ConnectionError):  # refused before all was sent
            opened.sendall(data)
        while True:
            try:
                part = opened.recv(65536)
            except TimeoutError:
                if opened.gettimeout() == SECONDS:
                    return None
                opened.settimeout(SECONDS)
                opened.shutdown(socket.SHUT_WR)
                continue
            except ConnectionError:
                part = b""
            if not part:
                return b"".join(found)
            found.append(part)


def ask_http(port, random, kind):
    """Returns the outcome of a damaged request, and the request."""
    start, body = HTTP[kind][random.integers(0, len(HTTP[kind]))]
    if body and random.random() < 0.6:  # a whole request with a damaged body
        changed = damaged(body, random, is_text=body[:1] == b"{")
        size = f"Content-Length: {len(body)}".encode(), f"Content-Length: {len(changed)}".encode()
        sent = start.replace(*size) + changed
    else:
        sent = damaged(start + body, random, is_text=False)
    found = exchange(port, sent)
    if found is None:
        return "no answer", sent
    words = found.split(b" ", 2)
    status = words[1].decode("latin1") if found.startswith(b"HTTP/1.1 ") else "closed"
    return f"{status[0]}xx" if status < "500" else status, sent


def is_wrong(outcome):
    return outcome == "no answer" or outcome[0] == "5" and outcome != "501"


def memory():
    """Returns the resident memory of this process in MB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main():
    given = fuzzing.parser(__doc__, "requests of all protocols together").parse_args()
    count, wrong, resident = collections.Counter(), [], []
    kinds = [*HTTP]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        tokenizer = kt.Tokenizer.train(LINES, vocab_size=272)
        log = io.StringIO()
        made = {"en-de": artefacts.write, "story": seeded_artefact.write}
        pools = {
            name: local_service.Pool(write(folder / name, tokenizer))
            for name, write in made.items()
        }
        running = local_service.Running(pools, log=log)
        for index in range(given.count):
            random, kind = np.random.default_rng([given.seed, index]), kinds[index % len(kinds)]
            outcome, sent = ask_http(running.port, random, kind)
            count[kind, outcome] += 1
            if is_wrong(outcome):
                wrong.append({"index": index, "outcome": outcome, "request": repr(sent)[:2000]})
                print(json.dumps(wrong[-1]), flush=True)
            if index % max(1, given.count // 10) == 0:
                for pool in pools.values():
                    pool.batches.clear()  # only tests read these
                    pool.parts.clear()
                log.seek(0)
                log.truncate()
                resident.append(round(memory()))
                assert exchange(running.port, GOOD).startswith(b"HTTP/1.1 200 "), "not ready"
        assert running.stop()
    outcomes = sorted({outcome for _, outcome in count})
    rows = {kind: {o: count[kind, o] for o in outcomes if count[kind, o]} for kind in kinds}
    print(json.dumps(rows, indent=1), "\nresident MB:", resident)
    report = {"count": given.count, "seed": given.seed, "rows": rows}
    fuzzing.write(given.out, **report, resident_mb=resident, wrong=wrong)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
