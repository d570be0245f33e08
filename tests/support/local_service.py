"""What the tests of the service share: a stub of its replicas, and both doors in a thread.

The stub opens an artefact in this process, as a replica does in its own, so that everything but Ray
is tested without the seconds that Ray takes to start.
"""

import asyncio
import http.client
import socket
import threading

from keras_transformer.export.serving.doors import serve_doors
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.measure import make_measure
from keras_transformer.export.serving.metrics import Metrics
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.replica import Replica


class Local:
    """Replicas in this process, without Ray.

    Args:
        folder: an artefact.

    Attributes:
        gate: threading.Event; batches wait for it. Set at the beginning.
        batches: the batches that came, with their seeds.
        fails: list of exceptions, which the next batches raise one after the other.
    """

    calls, batch_tokens, alive = 1, 512, True

    def __init__(self, folder):
        self.replica, self.measure = Replica(str(folder), threads=1), make_measure(folder)
        self.gate, self.batches, self.fails = threading.Event(), [], []
        self.gate.set()

    async def answer(self, items, seed=None):
        self.batches.append((items, seed))
        if self.fails:
            raise self.fails.pop(0)
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return await asyncio.to_thread(self.replica.answer, items, seed)

    async def describe(self):
        return self.replica.describe()


class Running:
    """Models behind both doors, in a thread with an event loop of its own.

    Args:
        replicas: dict from names to `Local`.
        limits: `Limits`.
        log: file for the log.

    Attributes:
        port, grpc_port: int.
        models: the service's `Models`.
    """

    def __init__(self, replicas, limits=None, log=None, drain_seconds=10, allowed_hosts=()):
        self._replicas, self._up = replicas, threading.Event()
        self._arguments = limits or Limits(), log, drain_seconds, allowed_hosts
        self.answered = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._up.wait(30)

    async def _run(self):
        limits, log, drain_seconds, hosts = self._arguments
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        metrics = Metrics(log)
        self.models = Models(limits, metrics)
        for name, some in self._replicas.items():
            await self.models.add(name, some)
        with socket.create_server(("127.0.0.1", 0)) as opened:
            self.answered = await serve_doors(
                self.models, opened, 0, self._stop, drain_seconds, self._listening, hosts
            )
            for name in self.models.names():
                await self.models.get(name).queue.close()
        metrics.close()

    def _listening(self, port, grpc_port):
        self.port, self.grpc_port = port, grpc_port
        self._up.set()

    def request(self, method, path, body=None, headers=(), timeout=20):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def metric(self, name):
        """A number of `/metrics` that has no labels."""
        page = self.request("GET", "/metrics")[2].decode()
        return float(page.partition(f"\nkeras_transformer_{name} ")[2].split("\n")[0])

    def begin_to_stop(self):
        """What SIGTERM does."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self):
        """Stops it, and says whether all was answered."""
        self.begin_to_stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answered
