"""The workers of a model's replicas: connections that take batches.

Workers connect to the service, so the service needs no discovery. A worker is given batches until
one of the two ends. A replica that Ray has started again is there as soon as its workers are. Ray
starts replicas and watches them; batches do not pass it, for a batch that does takes 4 ms of
processor time, as much as a small model needs for half a line.
"""

import asyncio
import hmac
import pickle
import secrets
import socket

from keras_transformer.export.serving.limits import Unavailable, WorkerLost
from keras_transformer.export.serving.worker import (
    BYTES,
    LENGTH,
    WELCOME,
    Failed,
    message,
    proof,
)

# Workers that may get a batch, one after the other, if each falls silent.
TRIES = 4
# Seconds that a batch waits for a worker: a replica that has died may have been the only one, and a
# large artefact takes a while to open.
PATIENCE = 300.0
# Seconds without a sign of life until a worker counts as lost: its process was stopped, or its
# machine is gone.
SILENCE = 20.0


class Workers:
    """The workers of the replicas of one artefact, as the doors see them.

    Args:
        calls: int, how many workers there are where all replicas are well.
        measure: function of a list of lines: a guess of their lengths.
        batch_tokens: int, tokens of a batch; up to twice as many where many lines wait.
        host: str, the address of this machine at which workers come.

    Attributes:
        address: host and port, where they come.
        key: bytes, what they must know.
        alive, idle: int, workers that are connected, and of these the ones without a batch.
    """

    def __init__(self, calls, measure, batch_tokens=512, host="127.0.0.1"):
        self.calls, self.measure, self.batch_tokens = calls, measure, batch_tokens
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address, self.key = self._socket.getsockname()[:2], secrets.token_bytes(BYTES)
        self._idle, self._workers, self._server = asyncio.Queue(), set(), None

    @property
    def alive(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> int:
        return self._idle.qsize()

    async def open(self):
        """Takes those who come, from now on; the first question does so, too."""
        if self._server is None:
            opening = asyncio.start_server(self._welcome, sock=self._socket)
            self._server = asyncio.create_task(opening)
        await asyncio.shield(self._server)

    async def answer(self, items, seed=None):
        """The `Sent` of a batch. A batch whose worker falls silent is given to another one.

        Raises:
            WorkerLost: the process of the worker has died.
            Unavailable: there is no worker.
            Invalid: the lines are not what the model reads.
            Refusal: the worker has failed at it.
        """
        return await self._ask("answer", items, seed)

    async def describe(self):
        """The `Description` of what they serve."""
        return await self._ask("describe")

    async def close(self):
        """Takes no more workers, and lets all go."""
        if self._server is not None:
            (await self._server).close()
        self._socket.close()
        for worker in list(self._workers):
            worker.abort()
        await asyncio.sleep(0)  # the event loop closes them

    async def _ask(self, *question):
        await self.open()
        for _ in range(TRIES):
            worker, done = await self._next(), False
            try:
                answer = await worker.ask(question)
                done = True
            except TimeoutError:
                continue
            finally:
                if done and worker in self._workers:
                    self._idle.put_nowait(worker)
                else:  # also where the batch was given up: an answer to it may still come
                    worker.abort()
            if isinstance(answer, Failed):
                raise answer.refusal()
            return answer
        raise Unavailable(
            f"{TRIES} workers stopped responding to this batch. Repeat the request later."
        )

    async def _next(self):
        """The worker that has been idle for longest."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._idle.get()
        except TimeoutError as error:
            raise Unavailable("No replica answers. Repeat the request later.") from error

    async def _welcome(self, reader, writer):
        try:
            async with asyncio.timeout(WELCOME):
                theirs, ours = await reader.readexactly(BYTES), secrets.token_bytes(BYTES)
                writer.write(proof(self.key, b"doors", theirs) + ours)
                shown = await reader.readexactly(BYTES)
            if not hmac.compare_digest(shown, proof(self.key, b"worker", ours)):
                raise PermissionError
        except (OSError, EOFError):  # a timeout is an OSError
            writer.transport.abort()
            return
        worker = _Worker(reader, writer)
        self._workers.add(worker)
        self._idle.put_nowait(worker)
        await worker.listen()
        self._workers.discard(worker)
        for _ in range(self._idle.qsize()):
            if (other := self._idle.get_nowait()) is not worker:
                self._idle.put_nowait(other)


class _Worker:
    """A worker's connection, as the service sees it.

    Args:
        reader, writer: of asyncio, after both sides have shown that they know the key.
    """

    def __init__(self, reader, writer):
        self._reader, self._writer, self._answer = reader, writer, None

    async def ask(self, question):
        """The answer to a question.

        Raises:
            WorkerLost: the connection broke: the process has died.
            TimeoutError: there was no sign of life.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._writer.write(message(question))
        return await self._answer

    async def listen(self):
        """Takes answers and signs of life until the connection breaks."""
        try:
            while True:
                (length,) = LENGTH.unpack(await self._read(LENGTH.size))
                if length:
                    self._finish(pickle.loads, await self._read(length))
        except TimeoutError as error:
            self._finish(_raise, error)
        except (OSError, EOFError):
            self._finish(_raise, WorkerLost("A worker died at the request."))
        self.abort()

    def abort(self):
        """Breaks the connection; what the worker has not read is dropped."""
        self._writer.transport.abort()

    async def _read(self, count):
        found = bytearray()
        while len(found) < count:
            async with asyncio.timeout(SILENCE):
                part = await self._reader.read(count - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def _finish(self, function, argument):
        """Sets the answer to what a function returns or raises."""
        if self._answer is None or self._answer.done():
            return
        try:
            self._answer.set_result(function(argument))
        except Exception as error:  # of any kind: who asked gets it
            self._answer.set_exception(error)


def _raise(error):
    raise error
