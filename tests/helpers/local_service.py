"""A service in this process for tests, with a pool whose batches can be held back."""

import asyncio
import contextlib
import http.client
import json
import math
import socket
import threading
import time

from keras_transformer.export.serving.front_end import run_server
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.metrics import Metrics
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.pools import LocalPool


class Pool(LocalPool):
    """The default service's pool with one worker, which a test controls.

    Args:
        folder: an artefact.

    Attributes:
        gate: threading.Event; batches wait for it. Initially set.
        batches: the received batches, with their seeds.
        fails: list of exceptions that the next batches raise in turn.
        parts: the received parts of streams, one for each step.
        most_steps: int or inf; streams wait at this number of parts.
    """

    def __init__(self, folder):
        super().__init__(folder, threads=1)
        self.gate, self.batches, self.fails = threading.Event(), [], []
        self.gate.set()
        self.parts, self.most_steps = [], math.inf

    @contextlib.contextmanager
    def held(self):
        """Holds batches back within the block."""
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    async def run_batch(self, items, seed=None):
        self.batches.append((items, seed))
        if self.fails:
            raise self.fails.pop(0)
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return await super().run_batch(items, seed)

    async def run_stream(self, prompt, options, emit):
        parts = self.parts  # of this stream, also if a test begins a new list

        def emit_and_wait(part):
            parts.append(part)
            goes_on = emit(part)
            while goes_on and len(parts) >= self.most_steps:
                time.sleep(0.005)
            return goes_on

        return await super().run_stream(prompt, options, emit_and_wait)


class Running:
    """Models behind HTTP, in a thread with its own event loop, until `stop` or the block ends.

    Args:
        pools: dict from names to `Pool`.
        limits: `Limits`.
        log: file for the log.
        clients: `Clients`.
        server: more arguments of `run_server`.

    Attributes:
        pools, log: as above.
        port: int.
        models: the service's `Models`.
    """

    def __init__(self, pools, limits=None, log=None, drain_seconds=60, clients=None, **server):
        self.pools, self.log, self._up = pools, log, threading.Event()
        self._arguments = limits or Limits(), drain_seconds, clients, server
        self.answered = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._up.wait(120)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._thread.is_alive():
            self.stop()

    async def _run(self):
        limits, drain_seconds, clients, server = self._arguments
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        metrics = Metrics(self.log)
        self.models = Models(limits, metrics, clients)
        for name, pool in self.pools.items():
            self.models.add(name, pool, await pool.open())
        with socket.create_server(("127.0.0.1", 0)) as opened:
            self.answered = await run_server(
                self.models,
                self._stop,
                opened=opened,
                drain_seconds=drain_seconds,
                listening=self._listening,
                **server,
            )
        await self.models.close()
        metrics.close()

    def _listening(self, port):
        self.port = port
        self._up.set()

    def request(self, method, path, body=None, headers=(), timeout=60):
        """Returns status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def openai(self, key="-"):
        """Returns a client of the package `openai`."""
        import openai

        address = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=address, api_key=key, max_retries=0)

    def rows(self):
        """Returns the rows of the log."""
        return [json.loads(row) for row in self.log.getvalue().splitlines()]

    def metric(self, name):
        """Returns a metric of `/metrics` without labels."""
        page = self.request("GET", "/metrics")[2].decode()
        return float(page.partition(f"\nkeras_transformer_{name} ")[2].split("\n")[0])

    def pass_time(self, seconds):
        """Moves the clock of deadlines forward, so that no test waits for one."""

        def move():
            clock = self._loop.time
            self._loop.time = lambda: clock() + seconds

        self._loop.call_soon_threadsafe(move)

    def begin_to_stop(self):
        """Acts like SIGTERM."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self):
        """Stops it. Returns whether all was answered."""
        self.begin_to_stop()
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.answered
