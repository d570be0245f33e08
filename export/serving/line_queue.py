"""A model's queue: divides the lines of requests into batches of similar length for free workers.

A free worker takes the longest line of the request whose turn it is, and the waiting lines of any
request that are most similar in length. The longest line determines the cost of a batch. Lines
hardly wait for a batch to fill. Batches are not made ahead of time: the more lines wait, the less
padding their batches need.

It is the turn of the client that has used the least time of workers, and the requests of a client
take turns. So a client with a long request, or with many, does not delay others. A client that
comes, or comes back, starts with the fair share of the time so far. So it does not pay for long for
earlier requests, and new clients cannot keep the others waiting. A stream gives its worker back
after `SLICE_SECONDS` if other requests wait, and then waits for its next turn.

Clients whose requests ended together send the next ones together. If fewer requests wait than a
batch has just finished, its worker waits for a twentieth of the batch's time, `LINGER` at most.
An idle service does not wait.

The queue is bounded. If it is full, a client that has its share of it is refused at once. An
accepted request is never dropped for lack of room.
"""

import asyncio
import collections
import functools
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from keras_transformer.export.artefact.signature import TOKENIZER_FILE
from keras_transformer.export.serving.clients import Shares
from keras_transformer.export.serving.limits import THREAD_BYTES, on_thread_if_large
from keras_transformer.export.serving.refusals import Invalid, Late, WorkerLost
from keras_transformer.text.json_tokenizer import load_tokenizer
from keras_transformer.types import StrPath

LINGER = 0.05  # seconds
# Number of a request's longest waiting lines that may join another request's batch. Only these
# count as waiting.
NEXT_LINES = 64
SLICE_SECONDS = 0.25  # of a worker for a stream, while other lines wait
DEATHS = 2  # a request fails after this many workers died while computing it
# Batches may grow to twice the size when more than this many batches of tokens wait.
BATCHES_WAITING = 5
# Characters whose tokens are counted; the rest of a longer line is assumed to be similar.
SEEN = 1000
UNKNOWN = 16  # length of everything that is not read as text, such as arrays
Lines: TypeAlias = Sequence[str | bytes]
Options: TypeAlias = Mapping[str, Any] | None
Measure: TypeAlias = Callable[[Lines], list[int]]
Receive: TypeAlias = Callable[[Any], None]


class ByLine(tuple[Any, ...]):
    """The values of an option, one for each line of a request."""


class QueuedRequest:
    """A request in the queue.

    Attributes:
        items: list of lines.
        lengths: list of int, estimated tokens of each line.
        client: str, who sent it.
        options: the options that hold for all lines.
        by_line: the options that differ by line.
        results: list, one per line.
        tokens: int, tokens that the model read.
        since: float, when the request came, by `time.monotonic`.
        waited: float, seconds in the queue until the last line was taken.
        waiting: list of pairs: the length and the place of each line that waits, longest first.
        unfinished_lines: int, lines that have no result yet.
        alone: bool, whether the request shares no batch with others.
        deaths: int, workers that have died while they computed the request.
        done: future that ends with the last result, or with the error of the request.
        receive: function that gets the parts of a stream, or `None`.
    """

    def __init__(
        self,
        items: Lines,
        lengths: list[int],
        options: Options,
        receive: Receive | None = None,
        client: str = "",
    ) -> None:
        self.items: Lines = items
        self.lengths: list[int] = lengths
        self.client: str = client
        options = options or {}
        self.by_line: dict[str, ByLine] = {
            name: value for name, value in options.items() if isinstance(value, ByLine)
        }
        self.options: dict[str, Any] = {
            name: value for name, value in options.items() if name not in self.by_line
        }
        self.results: list[Any] = [None] * len(items)
        self.tokens: int = 0
        self.waited: float = 0.0
        self.since: float = time.monotonic()
        pairs = zip(lengths, range(len(items)), strict=True)
        self.waiting: list[tuple[int, int]] = sorted(pairs, reverse=True)
        self.unfinished_lines: int = len(items)
        self.receive: Receive | None = receive
        self.alone: bool = receive is not None
        self.deaths: int = 0
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def finish(self, place: int, result: Any, tokens: int) -> None:
        """Sets the result of a line."""
        self.results[place] = result
        self.tokens += tokens
        self.unfinished_lines -= 1
        if not self.unfinished_lines and not self.done.done():
            self.done.set_result(None)

    def may_share_a_batch(self, other: "QueuedRequest") -> bool:
        """Returns whether two requests may share a batch: they have the same options."""
        same = self.options == other.options and self.by_line.keys() == other.by_line.keys()
        return same and not (self.alone or other.alone)

    def emit(self, part: Any) -> bool:
        """Passes on a part of a stream, from any thread; returns whether the client still waits."""
        self._loop.call_soon_threadsafe(self.receive, part)
        return not self.done.done()

    def fail(self, error: Exception) -> None:
        """Ends the request with an error."""
        if not self.done.done():  # else the client has gone, or has the error of another batch
            self.done.set_exception(error)

    def retry(self, places: list[int]) -> None:
        """Puts lines back. They then share no batch with other requests."""
        self.alone = True
        self.waiting += [(self.lengths[place], place) for place in places]
        self.waiting.sort(reverse=True)


Batch: TypeAlias = list[tuple[QueuedRequest, int]]  # lines: requests and places in them


class LineQueue:
    """The bounded queue of one model. Use it in one event loop.

    Args:
        run_batch: async function of a list of lines and options, which returns a `BatchResult`.
            For a stream it also gets the argument `emit`, see `Engine.run_stream`.
        measure: function from a list of lines to their estimated lengths in tokens.
        workers: int, batches that are computed at the same time.
        batch_tokens: int, tokens of a batch, padding included; up to twice as many if many lines
            wait. A longer line is computed alone.
        most_waiting: int, lines of one client that wait before its requests are refused, as
            `Shares` counts them.

    Attributes:
        shares: `Shares` of the waiting lines; at most `NEXT_LINES` of each request count.
    """

    def __init__(
        self,
        run_batch: Callable[..., Awaitable[Any]],
        measure: Measure,
        workers: int = 1,
        batch_tokens: int = 512,
        most_waiting: int = 512,
    ) -> None:
        self._run_batch, self._measure = run_batch, measure
        self._batch_tokens = batch_tokens
        self._requests: collections.deque[QueuedRequest] = collections.deque()  # by turns
        self.shares: Shares = Shares(most_waiting, "lines wait already")
        # Seconds of workers that each client has used, and would have used if all got the same.
        self._used: dict[str, float] = {}
        self._fair_seconds = 0.0
        self._last_seconds = 1e-6  # of a batch
        self._free, self._workers = 0, workers
        self._suspect_runs = False
        self._arrived = asyncio.Event()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def submit(
        self,
        items: Lines,
        options: Options = None,
        deadline: float | None = None,
        receive: Receive | None = None,
        client: str = "",
    ) -> QueuedRequest:
        """Puts a request into the queue, and waits until it is finished.

        Args:
            items: list of lines.
            options: dict, of the search, or None. A `ByLine` has a value for each line. Only
                requests with the same options, apart from these values, share a batch.
            deadline: float, by the event loop's time; or None. Lines that are not in a batch by
                then are not computed.
            receive: function that gets the parts of a stream of one line, in the event loop; or
                `None`. The work ends when this coroutine is cancelled.
            client: str, who sends the request.

        Returns:
            The `QueuedRequest` with its results.

        Raises:
            Busy: too many lines of the client wait.
            Late: the deadline is over.
        """
        count = min(len(items), NEXT_LINES, self.shares.limit)
        self.shares.check(client, count)
        lengths = await on_thread_if_large(_characters(items), self._measure, items)
        self.shares.check(client, count)
        request = QueuedRequest(items, lengths, options, receive, client)
        if not items:
            return request
        self._used[client] = max(self._used_by(client), self._fair_seconds)
        self._requests.append(request)
        self._count()
        self._arrived.set()
        try:
            async with asyncio.timeout_at(deadline):
                await request.done
        except TimeoutError as error:
            raise Late("The deadline of the request is over.") from error
        finally:  # Remove the lines of failed or cancelled requests.
            if request.waiting:
                request.waiting.clear()
                self._count()
        return request

    async def close(self) -> None:
        """Ends the tasks that compute batches; lines that wait are not computed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Number of waiting lines, as `shares` counts them."""
        return self.shares.total

    def _count(self) -> None:
        """Drops requests without waiting lines, and counts the lines of the others."""
        self._requests = collections.deque(request for request in self._requests if request.waiting)
        self.shares.held.clear()
        for request in self._requests:
            self.shares.add(request.client, min(len(request.waiting), NEXT_LINES))

    def _used_by(self, client: str) -> float:
        return self._used.get(client, self._fair_seconds)

    def _charge(self, clients: Mapping[str, int], seconds: float) -> None:
        """Charges clients for a batch by their numbers of lines in it."""
        for client, lines in clients.items():
            share = seconds * lines / sum(clients.values())
            self._used[client] = self._used_by(client) + share

    async def _work(self) -> None:
        """Computes one batch after the other."""
        while True:
            self._free += 1
            while not (batch := self._take()):
                if self._free == self._workers:  # nothing waits or runs: all debts end
                    self._used, self._fair_seconds = {}, 0.0
                self._arrived.clear()
                await self._arrived.wait()
            self._free -= 1
            begun, expected = time.monotonic(), self._last_seconds
            clients = collections.Counter(request.client for request, _ in batch)
            self._charge(clients, expected)  # while it runs, another client has the next turn
            is_suspect = batch[0][0].deaths > 0
            self._suspect_runs |= is_suspect
            await self._finish_batch(batch, begun)
            self._last_seconds = time.monotonic() - begun
            self._charge(clients, self._last_seconds - expected)
            self._fair_seconds += self._last_seconds / len(self.shares.held.keys() | clients.keys())
            if is_suspect:
                self._suspect_runs = False
                self._arrived.set()
            batch_requests = len({request for request, _ in batch})
            if batch_requests > max(1, len(self._requests)):
                await asyncio.sleep(min(LINGER, 0.05 * (time.monotonic() - begun)))

    async def _finish_batch(self, batch: Batch, begun: float) -> None:
        items, first = [request.items[place] for request, place in batch], batch[0][0]
        run = self._run_batch
        if first.receive is not None:
            end = begun + SLICE_SECONDS
            run = functools.partial(run, emit=lambda part: first.emit(part) and self._goes_on(end))
        try:
            by_line = {
                name: ByLine(request.by_line[name][place] for request, place in batch)
                for name in first.by_line
            }
            result = await run(items, first.options | by_line)
            if result.rest is not None:
                self._pause(first, result.rest, begun)
                return
            lines = list(zip(batch, result.results, result.lengths, strict=True))
        except (WorkerLost, Invalid) as error:
            self._retry(batch, error)
        except Exception as error:  # of any kind: the requests get it, and the queue continues
            for request, _ in batch:
                request.fail(error)
        else:
            for (request, place), line_result, tokens in lines:
                request.waited = max(request.waited, begun - request.since)
                request.finish(place, line_result, tokens)

    def _goes_on(self, end: float) -> bool:
        """Returns whether a stream keeps its worker. Another thread asks."""
        return time.monotonic() < end or not self._requests

    def _pause(self, request: QueuedRequest, rest: Any, begun: float) -> None:
        """Puts the rest of a stream back into the queue, unless its client has gone."""
        if not request.done.done():
            request.items = [rest]
            request.since += time.monotonic() - begun  # not in the queue
            self._requests.append(request)
            request.retry([0])
            self._count()
            self._arrived.set()

    def _retry(self, batch: Batch, error: Exception) -> None:
        """Retries each request of a failed batch in its own batch.

        So a request that kills a worker or is refused fails alone. Requests whose worker has died
        are retried one after the other, because one of them may kill the next process, too.
        """
        places = collections.defaultdict(list)
        for request, place in batch:
            places[request].append(place)
        for request in places:
            request.deaths += isinstance(error, WorkerLost)
            if request.deaths >= DEATHS or len(places) == 1 and isinstance(error, Invalid):
                request.fail(error)
            elif not request.done.done():
                if not request.waiting:
                    self._requests.append(request)
                request.retry(places[request])
        self._count()
        self._arrived.set()

    def _take(self) -> Batch:
        """Takes the lines of the next batch out of the queue; an empty list if there is none."""
        order = sorted(self._requests, key=lambda request: self._used_by(request.client))
        turns = (one for one in order if not (one.deaths and self._suspect_runs))
        first = next(turns, None)
        if first is None:
            return []
        self._used = {  # without clients that would start with as much
            client: used
            for client, used in self._used.items()
            if used > self._fair_seconds or client in self.shares.held
        }
        longest = first.waiting[0][0]
        lines = [
            (abs(length - longest), length, place, request)
            for request in order
            if request is first or first.may_share_a_batch(request)
            for length, place in request.waiting[:NEXT_LINES]
        ]
        # Python's sort is stable: among equal lines, the earliest turn goes first.
        lines.sort(key=lambda line: line[0])
        tokens = sum(length for _, length, _, _ in lines)
        most = max(self._batch_tokens, min(2 * self._batch_tokens, tokens // BATCHES_WAITING))
        # If few lines wait and other workers are free, they get a share.
        most = min(most, tokens // self._free + longest)
        batch: Batch = []
        for _, length, place, request in lines:
            longest = max(longest, length)
            if batch and longest * (len(batch) + 1) > most:
                break
            batch.append((request, place))
            request.waiting.remove((length, place))
        self._requests.remove(first)
        self._requests.append(first)
        self._count()
        return batch


def _characters(items: Lines) -> int:
    """Returns about how many characters are read to measure lines."""
    first = (item[:SEEN] for item in items[:THREAD_BYTES] if isinstance(item, (str, bytes)))
    return len(items) + sum(map(len, first))


def make_measure(folder: StrPath) -> Measure:
    """Returns a function that estimates the lengths of lines in tokens.

    It uses the artefact's tokenizer, if there is one. A later artefact may have another tokenizer,
    but lines of similar length remain similar.
    """
    path = pathlib.Path(folder) / TOKENIZER_FILE
    if not path.exists():
        return lambda items: [UNKNOWN] * len(items)
    encode = load_tokenizer(path).encode

    def length(item: str | bytes) -> int:
        seen = item[:SEEN]
        text = seen.decode("utf-8", "replace") if isinstance(seen, bytes) else seen
        try:
            count = 1 + len(encode(text))  # and an end token
        except ValueError:  # half a surrogate pair: the line will be refused
            return 0
        return count * len(item) // max(1, len(seen))

    return lambda items: [length(item) for item in items]
