"""A model's queue: requests in, lists of lines out, for replicas that are free.

A replica sorts a list by length and answers it in batches, as for a file. So nothing waits for a
batch to fill: a replica that is free gets what is there, at once, and what comes meanwhile is the
next list. Two rules make lists fuller, and neither costs an idle service anything:

- Clients that were answered together ask again together. After a list of several requests the next
  one waits for as many, a twentieth of the time that the last one took, `LINGER` at most.
- One list is sent ahead of the answers, so that a replica need not wait for the next; but only one
  that is worth a batch.

The queue is bounded. Where it is full a request is refused at once, and one that was taken in is
never dropped for want of room.
"""

import asyncio
import collections
import contextlib
import dataclasses
import time

from keras_transformer.export.serving.refusals import Busy, Late

LINGER = 0.05  # seconds
# Lists of one request that may wait or run at the same time: the others are not to wait for all.
LISTS_OF_A_REQUEST = 4


@dataclasses.dataclass
class Answered:
    """What became of the lines of a request.

    Attributes:
        results: list, one a line.
        tokens: int, tokens that the model read.
        waited: float, seconds in the queue.
    """

    results: list
    tokens: int
    waited: float


@dataclasses.dataclass
class _Part:
    items: list
    seed: int | None
    deadline: float | None
    answer: asyncio.Future
    since: float = dataclasses.field(default_factory=time.monotonic)


class LineQueue:
    """The bounded queue of one model. To be used in one event loop.

    Args:
        send: async function of a list of lines and a seed, which returns an object with `results`
            and `lengths`, a list each.
        calls: int, lists that are computed at the same time.
        list_lines: int, most lines of a list.
        most_waiting: int, lines that wait before requests are refused.
    """

    def __init__(self, send, calls=1, list_lines=256, most_waiting=512):
        self._send, self._list_lines, self._most = send, list_lines, most_waiting
        self._parts = collections.deque()
        self._arrived = asyncio.Condition()
        self._last, self._seconds = 1, 0.0  # requests of the last list, and its time
        self.waiting = 0
        ahead = max(1, min(32, list_lines))
        self._tasks = [
            asyncio.create_task(self._serve(least)) for least in [*[1] * calls, *[ahead] * calls]
        ]

    async def answer(self, items, seed=None, deadline=None):
        """Answers a request.

        Args:
            items: list of lines.
            seed: int or None. Only requests of one seed share a list.
            deadline: float, when the client waits no longer, by `time.monotonic`; or None. What has
                not begun by then is not done.

        Returns:
            `Answered`.

        Raises:
            Busy: too many lines wait.
            Late: the deadline is over.
        """
        if self.waiting >= self._most:
            raise Busy(f"{self.waiting} lines wait already. Repeat the request in a second.")
        gate, size = asyncio.Semaphore(LISTS_OF_A_REQUEST), self._list_lines

        async def one(start):
            async with gate:
                return await self._put(items[start : start + size], seed, deadline)

        tasks = [asyncio.ensure_future(one(start)) for start in range(0, len(items), size)]
        try:
            async with asyncio.timeout(deadline and max(0, deadline - time.monotonic())):
                parts = await asyncio.gather(*tasks)
        except TimeoutError as error:
            raise Late("The deadline of the request is over.") from error
        finally:
            for task in tasks:
                task.cancel()
        results = [result for part in parts for result in part.results]
        tokens, waits = sum(part.tokens for part in parts), [part.waited for part in parts]
        return Answered(results, tokens, max(waits, default=0.0))

    async def close(self):
        """Ends the tasks that send lists; what waits is not answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _put(self, items, seed, deadline):
        part = _Part(items, seed, deadline, asyncio.get_running_loop().create_future())
        self._parts.append(part)
        self.waiting += len(items)
        async with self._arrived:
            self._arrived.notify_all()
        return await part.answer

    async def _serve(self, least):
        """Sends one list after the other, each when there are at least so many lines."""
        while True:
            async with self._arrived:
                await self._arrived.wait_for(lambda: self.waiting >= least)
                if self._last > 1:
                    await self._linger(self._last)
                parts = self._take()
            if not parts:
                continue
            items = [item for part in parts for item in part.items]
            begun = time.monotonic()
            try:
                sent = await self._send(items, parts[0].seed)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # of any kind: who asked gets it, and the queue goes on
                for part in parts:
                    _finish(part, error=error)
                continue
            self._seconds = time.monotonic() - begun
            results, lengths = iter(sent.results), iter(sent.lengths)
            for part in parts:
                some = [next(results) for _ in part.items]
                tokens = sum(next(lengths) for _ in part.items)
                _finish(part, Answered(some, tokens, begun - part.since))

    async def _linger(self, count):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(LINGER, 0.05 * self._seconds)):
                await self._arrived.wait_for(lambda: len(self._parts) >= count)

    def _take(self):
        """The requests of the next list; those that nobody waits for any more are left out."""
        parts, lines = [], 0
        while self._parts:
            part = self._parts[0]
            if part.answer.done() or (part.deadline and part.deadline <= time.monotonic()):
                _finish(part, error=Late("The deadline of the request is over."))
            elif parts and (
                lines + len(part.items) > self._list_lines or part.seed != parts[0].seed
            ):
                break
            else:
                parts.append(part)
                lines += len(part.items)
            self._parts.popleft()
            self.waiting -= len(part.items)
        if parts:
            self._last = len(parts)
        return parts


def _finish(part, answered=None, error=None):
    if part.answer.done():  # the client has gone
        return
    if error is None:
        part.answer.set_result(answered)
    else:
        part.answer.set_exception(error)
