"""Server-sent events: a response in parts, each sent as soon as it is computed."""

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

END = "[DONE]"  # the last event of OpenAI's protocol


class EventStream(StreamingResponse):
    """A response of server-sent events. The endpoint sends it while it watches the client.

    Args:
        events: async generator of objects that become JSON. It is closed if the client leaves.
    """

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), 200, headers, "text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Sends the events."""
        async with contextlib.aclosing(self._events):
            await super().stream_response(send)


async def _lines(events: AsyncGenerator[Any]) -> AsyncGenerator[str]:
    async for event in events:
        yield f"data: {json.dumps(event)}\n\n"  # JSON writes no line ends
    yield f"data: {END}\n\n"
