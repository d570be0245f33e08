"""Workers: the threads of replicas that compute batches, each with a connection to the doors.

A worker comes to the process of the doors and is given batches until one of the two ends. So the
doors look for nobody: a replica that Ray has started again is there as soon as its workers are. Ray
starts replicas and watches them; batches do not pass it, for a batch that does takes 4 ms of
processor time, as much as a small model needs for half a line.

A message is its length, eight bytes, and a pickle. As a pickle can do anything, both sides show
first that they know a key, without telling it; Ray hands it to the replicas.
"""

import asyncio
import hmac
import logging
import pickle
import secrets
import socket
import struct
import time

from keras_transformer.export.serving.refusals import Refusal, Unavailable

logger = logging.getLogger("ray.serve")
# How often a batch is sent where the worker that had it has died, and the seconds before the second
# time, which double: the other connections of its process break in the meantime.
TRIES, PAUSE = 4, 0.1
# Seconds that a batch waits for a worker: a replica that has died may have been the only one, and a
# large artefact takes a while to open.
PATIENCE = 300.0
# Seconds in which a worker shows that it knows the key, and after which it comes again.
WELCOME, AGAIN = 10.0, 1.0
BYTES = 32  # of a key, a challenge, a proof
_LENGTH = struct.Struct("!Q")
# A machine that is gone is noticed in about 20 seconds, where the system can be told so.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}


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
    """

    def __init__(self, calls, measure, batch_tokens=512, host="127.0.0.1"):
        self.calls, self.measure, self.batch_tokens = calls, measure, batch_tokens
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        _set_options(self._socket)
        self.address, self.key = self._socket.getsockname()[:2], secrets.token_bytes(BYTES)
        self._idle, self._writers, self._server = asyncio.Queue(), set(), None

    async def open(self):
        """Takes those who come, from now on; the first question does so, too."""
        if self._server is None:
            opening = asyncio.start_server(self._welcome, sock=self._socket)
            self._server = asyncio.create_task(opening)
        await asyncio.shield(self._server)

    async def answer(self, items, seed=None):
        """The `Sent` of a batch. A batch whose worker dies is given to another one.

        Raises:
            Unavailable: there is no worker.
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
        for writer in list(self._writers):
            self._let_go(writer)
        await asyncio.sleep(0)  # the event loop closes them

    async def _ask(self, *question):
        await self.open()
        for tried in range(TRIES):
            reader, writer = worker = await self._next()
            done = False
            try:
                writer.write(_message(question))
                await writer.drain()
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                answer = pickle.loads(await reader.readexactly(length))
                done = True
            except (OSError, EOFError):  # its process has died
                await asyncio.sleep(PAUSE * 2**tried)
                continue
            finally:
                if done:
                    self._idle.put_nowait(worker)
                else:  # also where the batch was given up: an answer to it may still come
                    self._let_go(writer)
            if isinstance(answer, Failed):
                raise Refusal(f"A replica has failed: {answer.reason}")
            return answer
        raise Unavailable(f"{TRIES} workers died at it. Repeat the request later.")

    async def _next(self):
        """The worker that has been idle for longest."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    reader, writer = await self._idle.get()
                    if _lives(reader, writer):
                        return reader, writer
                    self._let_go(writer)  # it died while it was idle
        except TimeoutError as error:
            raise Unavailable("No replica answers. Repeat the request later.") from error

    async def _welcome(self, reader, writer):
        self._writers.add(writer)
        try:
            async with asyncio.timeout(WELCOME):
                theirs, ours = await reader.readexactly(BYTES), secrets.token_bytes(BYTES)
                writer.write(_proof(self.key, b"doors", theirs) + ours)
                shown = await reader.readexactly(BYTES)
            if not hmac.compare_digest(shown, _proof(self.key, b"worker", ours)):
                raise PermissionError
        except (OSError, EOFError):  # a timeout is an OSError
            self._let_go(writer)
        else:
            self._leave_out_dead()
            self._idle.put_nowait((reader, writer))

    def _leave_out_dead(self):
        for _ in range(self._idle.qsize()):
            worker = self._idle.get_nowait()
            if _lives(*worker):
                self._idle.put_nowait(worker)
            else:
                self._let_go(worker[1])

    def _let_go(self, writer):
        self._writers.discard(writer)
        writer.transport.abort()  # what it has not taken, it need not have


def _lives(reader, writer):
    return not (reader.at_eof() or reader.exception() or writer.is_closing())


class Failed:
    """What a worker answers where it could not.

    Args:
        error: the exception.
    """

    def __init__(self, error):
        self.reason = repr(error)


def work(address, key, methods):
    """Answers the doors; comes again where the connection breaks, until nobody listens there.

    Args:
        address, key: of `Workers`.
        methods: dict from what may be asked to functions.
    """
    while True:
        try:
            with socket.create_connection(address, timeout=WELCOME) as link:
                _set_options(link)
                with link.makefile("rwb") as file:
                    _introduce(file, key)
                    link.settimeout(None)
                    while True:
                        _answer(file, methods)
        except ConnectionRefusedError:  # the doors are gone, and others will have another address
            return
        except (OSError, EOFError):
            time.sleep(AGAIN)
        except Exception:  # of any kind: a worker that ends is missed by nobody
            logger.exception("a worker has failed, and comes again")
            time.sleep(AGAIN)


def _introduce(file, key):
    """Both sides show that they know the key."""
    ours = secrets.token_bytes(BYTES)
    file.write(ours)
    file.flush()
    shown, theirs = _read(file, BYTES), _read(file, BYTES)
    if not hmac.compare_digest(shown, _proof(key, b"doors", ours)):
        raise PermissionError
    file.write(_proof(key, b"worker", theirs))
    file.flush()


def _answer(file, methods):
    """One question, and its answer."""
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size))
    name, *arguments = pickle.loads(_read(file, length))
    try:
        answer = _message(methods[name](*arguments))
    except Exception as error:  # of any kind: it goes to who asked, and the worker goes on
        answer = _message(Failed(error))
    file.write(answer)
    file.flush()


def _message(content):
    data = pickle.dumps(content)
    return _LENGTH.pack(len(data)) + data


def _read(file, count):
    found = file.read(count)
    if len(found) < count:
        raise EOFError
    return found


def _proof(key, who, challenge):
    return hmac.digest(key, who + challenge, "sha256")


def _set_options(link):
    """Messages leave at once, and a machine that is gone is noticed."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
