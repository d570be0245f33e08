"""Server-sent events: a response in parts, each sent as soon as it is computed."""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

END = "[DONE]"  # the last event of OpenAI's protocol


class EventStream(StreamingResponse):
    """A response of server-sent events. The endpoint sends it while it watches the client.

    Args:
        events: async iterator of objects that become JSON.
    """

    def __init__(self, events: AsyncIterator[Any]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), 200, headers, "text/event-stream")


async def _lines(events: AsyncIterator[Any]) -> AsyncIterator[str]:
    async for event in events:
        yield f"data: {json.dumps(event)}\n\n"  # JSON writes no line ends
    yield f"data: {END}\n\n"
