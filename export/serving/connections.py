"""HTTP connections: uvicorn's, with limits for everything that is not a body.

uvicorn has no limit of size or time for the head of a request, for trailers, and for an answer that
its client does not read. It closes a connection without an answer at an address that is not ASCII.
Here each of these ends with an answer or a closed connection. Packets are acknowledged at once: a
client that sends head and body apart waits for that, which Linux delays by 40 ms. A request to
change the protocol (`Upgrade`) is answered over HTTP/1.1.
"""

import socket
import struct
import sys
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TAKEN = 64 * 2**10  # bytes of an answer that a client must take in `write_seconds`
PIPELINED = 1000  # Maximum number of pipelined requests.
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: what was not taken is dropped
# Size of Linux' `tcp_info`, and the place of `tcpi_bytes_acked` in it.
TCP_INFO, BYTES_ACKED = 192, 120


class Connection(HttpToolsProtocol):
    """An HTTP connection. It is closed if the client exceeds a limit.

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
        self._data = self._again = b""

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
        if self._is_free():  # uvicorn waits for the next request without a limit
            self._begin_timer(None)

    def on_response_complete(self):
        super().on_response_complete()
        self._watch_answer()
        if not self._complete and self.cycle.response_complete and self._head_timer is None:
            self._begin_timer(None)  # the rest of the request has an end, too

    def data_received(self, data):
        self._acknowledge()
        self._beside += len(data)
        self._again = data
        try:
            while self._again and not self.transport.is_closing():
                self._data, self._again = self._again, b""
                super().data_received(self._data)
        except ValueError:  # an address that is no text
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._beside > self._limits.head_bytes and not self._complete:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif (
            self._complete
            and self._is_free()
            and not (self._head_timer or self.timeout_keep_alive_task)
        ):
            self._begin_timer(None)  # uvicorn ends its own at an empty line

    def _should_upgrade(self):
        """Has uvicorn call `handle_websocket_upgrade` where the parser ends at a head."""
        return self.parser.get_method() != b"CONNECT"

    def handle_websocket_upgrade(self):
        """Reads the request again without `Upgrade`: the parser has left out its body."""
        rest = self._data[sys.exception().args[0] :]
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)]
        head += [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._again = b"".join([*head, b"\r\n", rest])

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

    def _is_free(self):
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _watch_answer(self, before=None):
        """Closes the connection if the client stops reading the answer."""
        left = self.transport.get_write_buffer_size()
        if before is None and self._write_timer is not None:
            return  # it is watched already
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
            self._write_timer = self.loop.call_later(seconds, self._watch_answer, taken)

    def _refuse(self, status):
        """Closes the connection; says why, unless an answer was sent or begun."""
        self._end_timer()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the service does not read; the client may wait
            self._begin_timer(status)
            return
        free = self._is_free()
        if self._in_head and not free and status is HTTPStatus.REQUEST_TIMEOUT:
            self.cycle.keep_alive = False  # the connection ends after the answer
            return
        if status is not None and (free if self._in_head else not self.cycle.response_started):
            text = f"{status.phrase}\n"
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
            )
        self.transport.close()


def _acknowledged(opened) -> int:
    """The bytes of a socket that its client has acknowledged, as Linux counts them."""
    info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO)
    return struct.unpack_from("Q", info, BYTES_ACKED)[0]
