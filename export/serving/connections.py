"""uvicorn's HTTP connections, with time limits for clients that send or read slowly.

h11 limits the size of incomplete headers, trailers and chunk headers. uvicorn has no time limits:
headers may arrive slowly, a client may never send the rest of a request that already has its
response, and it may not read a response. Here each of these ends with a response or a closed
connection. Packets are acknowledged at once: a client that sends headers and body separately waits
for the acknowledgement, which Linux delays by 40 ms.
"""

import asyncio
import socket
import struct
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.export.serving.limits import TAKEN, Limits

RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: unread data is dropped
# Size of Linux' `tcp_info`, and the place of `tcpi_bytes_acked` in it.
TCP_INFO, BYTES_ACKED = 192, 120


class Connection(H11Protocol):
    """An HTTP connection. It is closed if the client exceeds a limit.

    Args:
        limits: `Limits`.
        arguments: as uvicorn passes them.
    """

    def __init__(self, limits: Limits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._client_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch_client()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._client_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        opened = self.transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_QUICKACK"):
            # Linux resets the option after each packet.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        super().data_received(data)
        self._watch_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_client()
        self._watch_response()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_response()

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that h11 cannot read; uvicorn calls it while handling h11's error."""
        error = sys.exception()
        assert isinstance(error, h11.RemoteProtocolError)
        self._refuse(HTTPStatus(error.error_status_hint))

    def _watch_client(self) -> None:
        """Limits the time until a connection without an open request has complete headers.

        Also limits the time for the rest of a request that already has its response.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            if self._client_timer is not None:
                self._client_timer.cancel()
                self._client_timer = None
        elif self._client_timer is None and not self.transport.is_closing():
            seconds, status = self._limits.header_seconds, HTTPStatus.REQUEST_TIMEOUT
            self._client_timer = self.loop.call_later(seconds, self._refuse, status)

    def _watch_response(self, before: int | None = None) -> None:
        """Closes the connection if the client stops reading the response."""
        left = self.transport.get_write_buffer_size()
        if before is None and self._write_timer is not None:
            return  # already watched
        self._write_timer = None
        if not left:
            return
        opened = self.transport.get_extra_info("socket")
        taken = -left if sys.platform != "linux" else _acknowledged(opened)
        if before is not None and taken - before < TAKEN:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()
        else:
            seconds = self._limits.write_seconds
            self._write_timer = self.loop.call_later(seconds, self._watch_response, taken)

    def _refuse(self, status: HTTPStatus) -> None:
        """Closes the connection, with a response unless one has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"{status.phrase}\n".encode()
            headers = [("content-type", "text/plain"), ("content-length", str(len(text)))]
            headers.append(("connection", "close"))
            for event in (
                h11.Response(status_code=status, headers=headers, reason=status.phrase),
                h11.Data(data=text),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
            if self.cycle is not None:  # the application may be about to answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self.transport.close()


def _acknowledged(opened: socket.socket) -> int:
    """Returns the bytes of a socket that its client has acknowledged, as Linux counts them."""
    info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO)
    return struct.unpack_from("Q", info, BYTES_ACKED)[0]
