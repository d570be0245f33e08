"""HTTP connections: uvicorn's, with limits for what comes before a request's body.

uvicorn waits for ever for the head of a request and takes one of any size, and closes a connection
without a word at an address that is not ASCII. Here each of these gets an answer. And what comes is
acknowledged at once: a client that sends head and body apart waits with the body until the head is,
for which Linux takes 40 ms of its own accord.
"""

import socket
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 2**10
HEAD_SECONDS = 10.0


class Connection(HttpToolsProtocol):
    """A connection whose client has `HEAD_SECONDS` and `HEAD_BYTES` for the head of a request."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._head_bytes, self._timer = 0, None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc):
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self):
        if self._timer is None:
            self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self):
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data):
        self._acknowledge()
        in_head = self._timer is not None
        if in_head:
            self._head_bytes += len(data)
        try:
            super().data_received(data)
        except ValueError:  # an address that is no text
            self.send_400_response("Invalid HTTP request received.")
            return
        if in_head and self._timer is not None and self._head_bytes > HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _acknowledge(self):
        """Linux forgets the option, so it is set for each packet."""
        opened = self.transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_QUICKACK"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _begin_head(self):
        self._head_bytes = 0
        self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def _end_head(self):
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status):
        self._end_head()
        if self.transport.is_closing():
            return
        text = f"{status.phrase}\n"
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
            f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
        )
        self.transport.close()
