"""Ports for TensorFlow's servers, which need the numbers at start."""

import contextlib
import socket
from collections.abc import Iterator

# Lets a server of TensorFlow share a port with the socket that reserves it.
REUSE = {"TF_GRPC_REUSE_PORT": "1"}


@contextlib.contextmanager
def reserved(count: int) -> Iterator[list[int]]:
    """Yields reserved ports, which only servers with `REUSE` in their environment can bind."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("localhost", 0))  # it does not listen, so connections go to the server
        yield [one.getsockname()[1] for one in sockets]
