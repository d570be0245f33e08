"""Mixed load on the service: good, damaged, abandoned and slow requests at the same time.

    python tests/fuzz/load.py --seconds 3600 --seed 5 --out load.json

The service runs in a separate process, with the command of the guide and small models. A good
request must have the same answer each time, or be refused because the service is busy. Damaged
requests are judged as in `protocols.py`. Memory, open files and threads of the service are measured
60 times. Their medians in the last quarter may exceed the second quarter by 5 (MB, files, threads).
At the end, the service must stop with status 0.
"""

import fuzzing  # isort: split

import collections
import contextlib
import http.client
import json
import pathlib
import socket
import statistics
import sys
import tempfile
import threading
import time

import numpy as np
import protocols
from damage import LINES
from helpers import artefacts, seeded_artefact
from protocols import HTTP, SECONDS, ask_http, is_wrong
from service_process import Service

import keras_transformer as kt

PAUSE = 0.1  # seconds between two requests of a client
READINGS = 60
MORE = {"resident_mb": 5, "files": 5, "threads": 5}  # allowed growth since the second quarter
GOOD = [
    (start, body)
    for name in ("lines", "v2", "libretranslate")
    for start, body in HTTP[name]
    if b"story/infer" not in start  # without a seed
]


class Clients:
    """Threads that send requests until `stop` is called.

    Attributes:
        count: {(kind, outcome): requests}.
        wrong: list of requests with a wrong outcome.
    """

    def __init__(self, port, seed):
        self.port, self.count, self.wrong = port, collections.Counter(), []
        self._answers, self._ended = {}, threading.Event()
        kinds = [self.good, self.good, self.damaged, self.abandoned, self.slow]
        self._threads = [
            threading.Thread(target=self._send, args=(kind, np.random.default_rng([seed, number])))
            for number, kind in enumerate(kinds)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, kind, random):
        while not self._ended.wait(PAUSE):
            try:
                outcome, sent = kind(random)
            except OSError as error:  # no connection, or no answer in time
                outcome, sent = f"no answer: {error}", b""
            self.count[kind.__name__, outcome] += 1
            if outcome.startswith(("no answer", "changed", "status")) or is_wrong(outcome):
                self.wrong.append({"kind": kind.__name__, "outcome": outcome, "sent": repr(sent)})

    def _answer(self, sent, parts):
        """Returns the outcome of a good request, sent in parts."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as opened:
            for part in parts:
                opened.sendall(part)
            response = http.client.HTTPResponse(opened)
            response.begin()
            body = response.read()
        if response.status in (200, 429):
            same = self._answers.setdefault(sent, body) == body
            return "busy" if response.status == 429 else "right" if same else "changed"
        return f"status {response.status}"

    def good(self, random):
        """Sends a request at once."""
        sent = b"".join(GOOD[random.integers(0, len(GOOD))])
        return self._answer(sent, [sent]), sent

    def slow(self, random):
        """Sends a request, a few bytes at a time."""
        sent = b"".join(GOOD[random.integers(0, len(GOOD))])
        parts = (sent[start : start + 40] for start in range(0, len(sent), 40))
        return self._answer(sent, (part for part in parts if not time.sleep(PAUSE))), sent

    def damaged(self, random):
        """Sends a damaged request."""
        return ask_http(self.port, random, [*HTTP][random.integers(0, len(HTTP))])

    def abandoned(self, random):
        """Sends a long request and leaves in its middle or before the end of the answer."""
        sent = b"".join(protocols.http_request("/lines/en-de", "\n".join(LINES * 5).encode()))
        sent = sent[: random.choice([len(sent), random.integers(1, len(sent))])]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PAUSE) as opened:
            with contextlib.suppress(TimeoutError):
                opened.sendall(sent)
                opened.recv(100)
        return "left", sent

    def stop(self):
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)


def reading(service):
    """Returns resident memory in MB, open files and threads of the service."""
    process = pathlib.Path(f"/proc/{service.process.pid}")
    return {
        "resident_mb": round(service.megabytes()["service"], 1),
        "files": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def grown(readings):
    """Returns readings that grew by more than `MORE`: {name: medians of two quarters}."""
    quarter = len(readings) // 4
    parts = readings[quarter : 2 * quarter], readings[-quarter:]
    medians = {n: [statistics.median(r[n] for r in part) for part in parts] for n in MORE}
    return {name: pair for name, pair in medians.items() if pair[1] > pair[0] + MORE[name]}


def main():
    parser = fuzzing.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = kt.Tokenizer.train(LINES, vocab_size=272)
        made = {"en-de": artefacts.write, "story": seeded_artefact.write}
        folders = [
            f"{name}={write(pathlib.Path(scratch) / name, tokenizer)}"
            for name, write in made.items()
        ]
        with Service(*folders) as service:
            clients, readings = Clients(service.port, given.seed), []
            for _ in range(READINGS):
                time.sleep(given.seconds / READINGS)
                readings.append(reading(service))
            clients.stop()
            status = service.stop()
    rows = collections.defaultdict(dict)
    for (kind, outcome), number in sorted(clients.count.items()):
        rows[kind][outcome] = number
    report = {"seconds": given.seconds, "seed": given.seed, "rows": rows, "readings": readings}
    report |= {"grown": grown(readings), "exit status": status, "wrong": clients.wrong[:100]}
    print(json.dumps({name: value for name, value in report.items() if name != "readings"}))
    print(*readings[:: READINGS // 10], sep="\n")
    fuzzing.write(given.out, **report)
    sys.exit(bool(report["grown"] or status or clients.wrong))


if __name__ == "__main__":
    main()
