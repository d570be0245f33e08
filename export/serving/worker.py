"""A worker: a thread of a replica that computes batches for the service, over one connection.

A message is its length, eight bytes, and a pickle. As a pickle can do anything, both sides show
first that they know a key, without telling it; Ray hands it to the replicas. Each second a worker
sends a message of length 0, also while it computes. So a process that was stopped is noticed.
"""

import contextlib
import hmac
import logging
import pickle
import secrets
import socket
import struct
import threading
import time

from keras_transformer.export.serving.limits import FAILED, REASON, Invalid, Refusal

logger = logging.getLogger("ray.serve")
BEAT = 1.0  # seconds between signs of life
# Seconds in which a worker shows that it knows the key, and after which it comes again.
WELCOME, AGAIN = 10.0, 1.0
BYTES = 32  # of a key, a challenge, a proof
LENGTH = struct.Struct("!Q")


class Failed:
    """An answer that says why a worker has none.

    Args:
        error: the exception.
    """

    def __init__(self, error: Exception) -> None:
        invalid = isinstance(error, ValueError)
        self._invalid, self._reason = invalid, repr(error)[:REASON] if invalid else FAILED

    def refusal(self) -> Refusal:
        """The refusal that the client gets."""
        if self._invalid:
            return Invalid(f"A replica has refused the request: {self._reason}")
        return Refusal(self._reason)


def work(address, key, methods):
    """Answers the service. Connects again if the connection breaks, until the service is gone.

    Args:
        address, key: of `Workers`.
        methods: dict from what may be asked to functions.
    """
    while True:
        try:
            with socket.create_connection(address, timeout=WELCOME) as link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with link.makefile("rwb") as file:
                    introduce(file, key)
                    link.settimeout(None)
                    with _beating(link) as send:
                        while True:
                            send(_answered(file, methods))
        except ConnectionRefusedError:  # the doors are gone, and others will have another address
            return
        except (OSError, EOFError):
            time.sleep(AGAIN)
        except Exception:  # of any kind: a worker that ends does not come back
            logger.exception("a worker has failed, and comes again")
            time.sleep(AGAIN)


@contextlib.contextmanager
def _beating(link):
    """Sends signs of life within the block; yields a function that sends a message."""
    lock, ended = threading.Lock(), threading.Event()

    def send(data):
        with lock:
            link.sendall(data)

    def beat():
        with contextlib.suppress(OSError):  # the worker notices it, too
            while not ended.wait(BEAT):
                send(LENGTH.pack(0))

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield send
    finally:
        ended.set()


def introduce(file, key):
    """Both sides show that they know the key.

    Args:
        file: of a connection to `Workers`, to be read and written.
        key: bytes, of `Workers`.

    Raises:
        PermissionError: the other side does not know it.
    """
    ours = secrets.token_bytes(BYTES)
    file.write(ours)
    file.flush()
    shown, theirs = _read(file, BYTES), _read(file, BYTES)
    if not hmac.compare_digest(shown, proof(key, b"doors", ours)):
        raise PermissionError
    file.write(proof(key, b"worker", theirs))
    file.flush()


def _answered(file, methods):
    """The message that answers the next question."""
    (length,) = LENGTH.unpack(_read(file, LENGTH.size))
    data = _read(file, length)
    try:
        name, *arguments = pickle.loads(data)
        return message(methods[name](*arguments))
    except Exception as error:  # of any kind: it goes to who asked, and the worker goes on
        if not isinstance(error, ValueError):
            logger.exception("a worker has failed at a batch")
        return message(Failed(error))


def message(content) -> bytes:
    """The bytes that are sent for an object."""
    data = pickle.dumps(content)
    return LENGTH.pack(len(data)) + data


def _read(file, count):
    found = file.read(count)
    if len(found) < count:
        raise EOFError
    return found


def proof(key: bytes, who: bytes, challenge: bytes) -> bytes:
    """Shows that one side knows the key."""
    return hmac.digest(key, who + challenge, "sha256")
