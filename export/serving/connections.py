"""HTTP connections: uvicorn's, with limits for everything that is not a body.

uvicorn has no limit of size or time for the head of a request, for trailers, and for an answer that
its client does not read. It closes a connection without an answer at an address that is not ASCII.
Here each of these ends with an answer or a closed connection. Packets are acknowledged at once: a
client that sends head and body apart waits for that, which Linux delays by 40 ms.
"""

import socket
import struct
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TAKEN = 64 * 2**10  # bytes of an answer that a client must take in `write_seconds`
PIPELINED = 1000  # requests that a client may send before the first one is answered
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: what was not taken is dropped


class Connection(HttpToolsProtocol):
    """A connection whose client keeps to the limits, or loses it.

    Args:
        limits: `Limits`.
        arguments: as uvicorn passes them.
    """

    def __init__(self, limits, **arguments):
        super().__init__(**arguments)
        self._limits = limits
        # Bytes of the headers of a message, and bytes since its last byte of body.
        self._headers = self._beside = 0
        self._head_timer = self._write_timer = None
        self._in_head, self._complete = True, True

    def connection_made(self, transport):
        super().connection_made(transport)
        self._begin_timer(HTTPStatus.REQUEST_TIMEOUT)

    def connection_lost(self, exc):
        self._end_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self):
        self._headers = self._beside = 0
        self._in_head, self._complete = True, False
        if self._head_timer is None:
            self._begin_timer(HTTPStatus.REQUEST_TIMEOUT)
        super().on_message_begin()

    def on_url(self, url):
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name, value):
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self):
        self._end_timer()
        self._in_head = False
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED:
            self.transport.abort()

    def on_body(self, body):
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self):
        self._complete = True
        self._end_timer()
        super().on_message_complete()
        if self.cycle.response_complete:  # uvicorn waits for the next request without a limit
            self._begin_timer(None)

    def on_response_complete(self):
        super().on_response_complete()
        self._watch_answer()
        if not self._complete and self._head_timer is None:
            self._begin_timer(None)  # the rest of the request has an end, too

    def data_received(self, data):
        self._acknowledge()
        self._beside += len(data)
        try:
            super().data_received(data)
        except ValueError:  # an address that is no text
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._beside > self._limits.head_bytes and not self._complete:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def send_400_response(self, msg):
        if self._headers > self._limits.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def pause_writing(self):
        super().pause_writing()
        self._watch_answer()

    def _count(self, size):
        self._headers += size
        if self._headers > self._limits.head_bytes:
            raise ValueError("too large")  # uvicorn calls `send_400_response`

    def _acknowledge(self):
        """Linux forgets the option, so it is set for each packet."""
        opened = self.transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_QUICKACK"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _begin_timer(self, status):
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._refuse, status)

    def _end_timer(self):
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_answer(self, before=None):
        """Ends the connection where its client does not take the answer."""
        left = self.transport.get_write_buffer_size()
        if before is None and self._write_timer is not None:
            return  # it is watched already
        self._write_timer = None
        if before is not None and left > max(0, before - TAKEN):
            opened = self.transport.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()
        elif left:
            seconds = self._limits.write_seconds
            self._write_timer = self.loop.call_later(seconds, self._watch_answer, left)

    def _refuse(self, status):
        """Closes the connection; says why, unless an answer was sent or begun."""
        self._end_timer()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the service does not read; the client may wait
            self._begin_timer(status)
            return
        free = self.cycle is None or self.cycle.response_complete
        if status is not None and (free if self._in_head else not self.cycle.response_started):
            text = f"{status.phrase}\n"
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
            )
        self.transport.close()
