"""A model's queue: requests in, batches of lines of similar length out, for workers that are free.

A worker that is free takes a line of the request whose turn it is and, beside it, those waiting
lines that are most like it in length, whoever asked for them: a batch costs what its longest line
costs. So nothing waits for a batch to fill, none is kept from its turn by others, and a request of
many lines does not stand before one of few. Nothing is sent ahead of the workers: what waits longer
finds better company, and the more wait, the more of them can share a batch without much padding.

Clients that were answered together ask again together. So where fewer requests wait than a batch
has just answered, its worker gives them a twentieth of the time that the batch took, `LINGER` at
most, before it takes what is there. An idle service waits for nobody.

The queue is bounded. Where it is full a request is refused at once, and one that was taken in is
never dropped for want of room.
"""

import asyncio
import collections
import dataclasses
import pathlib
import time

from keras_transformer.data.json_tokenizer import load_tokenizer
from keras_transformer.export.runtime.signature import TOKENIZER_FILE
from keras_transformer.export.serving.bodies import aside
from keras_transformer.export.serving.limits import Busy, Invalid, Late, WorkerLost

LINGER = 0.05  # seconds
# Lines of a request, longest first, among which company is looked for; only these fill the queue.
NEXT_LINES = 64
DEATHS = 2  # workers that may die at the lines of a request
# Where so many times the tokens of a batch wait, batches grow with them, to twice as many.
BATCHES_WAITING = 5
# Characters that are looked at; the rest of a longer line is taken to be like them.
SEEN = 1000
# Said of everything that is not read as text, such as arrays.
UNKNOWN = 16


@dataclasses.dataclass
class Answered:
    """What became of the lines of a request.

    Attributes:
        results: list, one a line.
        tokens: int, tokens that the model read.
        waited: float, seconds in the queue until the last line was taken.
    """

    results: list
    tokens: int = 0
    waited: float = 0.0


class _Request:
    """A request's lines that wait, as pairs of length and place, longest first."""

    def __init__(self, items, lengths, seed):
        self.items, self.lengths, self.seed = items, lengths, seed
        self.since = time.monotonic()
        self.waiting = sorted(zip(lengths, range(len(items)), strict=True), reverse=True)
        self.open, self.alone, self.deaths = len(items), False, 0
        self.answered = Answered([None] * len(items))
        self.done = asyncio.get_running_loop().create_future()

    def finish(self, place, result, tokens):
        self.answered.results[place] = result
        self.answered.tokens += tokens
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(self.answered)

    def fail(self, error):
        if not self.done.done():  # else the client has gone, or has the error of another batch
            self.done.set_exception(error)


class LineQueue:
    """The bounded queue of one model. To be used in one event loop.

    Args:
        send: async function of a list of lines and a seed, which returns an object with `results`
            and `lengths`, a list each.
        measure: function of a list of lines: how long each is, a list of int. May be a guess.
        calls: int, batches that are computed at the same time.
        batch_tokens: int, tokens of a batch, padding included; up to twice as many where many lines
            wait. A longer line is a batch of its own.
        most_waiting: int, lines that wait before requests are refused.

    Attributes:
        waiting: int, how many lines wait; of each request no more than `NEXT_LINES` count.
    """

    def __init__(self, send, measure, calls=1, batch_tokens=512, most_waiting=512):
        self._send, self._measure = send, measure
        self._batch_tokens, self._most = batch_tokens, most_waiting
        self._requests, self.waiting = collections.deque(), 0  # by turns
        self._arrived, self._free = asyncio.Event(), 0
        self._tasks = [asyncio.create_task(self._work()) for _ in range(calls)]

    async def answer(self, items, seed=None, deadline=None):
        """Answers a request.

        Args:
            items: list of lines.
            seed: int or None. Only requests of one seed share a batch.
            deadline: float, when the client waits no longer, by the event loop's time; or None.
                What has not begun by then is not done.

        Returns:
            `Answered`.

        Raises:
            Busy: too many lines wait.
            Late: the deadline is over.
        """
        if not items:
            return Answered([])
        self._check_room()
        lengths = await aside(SEEN * len(items), self._measure, items)
        self._check_room()
        request = _Request(items, lengths, seed)
        self._requests.append(request)
        self.waiting += min(len(items), NEXT_LINES)
        self._arrived.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await request.done
        except TimeoutError as error:
            raise Late("The deadline of the request is over.") from error
        finally:  # Remove the lines of failed or cancelled requests.
            if request.waiting:
                request.waiting.clear()
                self._leave_out_empty()

    def _check_room(self):
        if self.waiting >= self._most:
            raise Busy(f"{self.waiting} lines wait already. Repeat the request in a second.")

    def _leave_out_empty(self):
        """Forgets the requests of which no line waits, and counts the lines of the others."""
        self._requests = collections.deque(request for request in self._requests if request.waiting)
        self.waiting = sum(min(len(request.waiting), NEXT_LINES) for request in self._requests)

    async def close(self):
        """Ends the tasks that send batches; what waits is not answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self):
        """Sends one batch after the other."""
        while True:
            self._free += 1
            while not self._requests:
                self._arrived.clear()
                await self._arrived.wait()
            lines = self._take()
            self._free -= 1
            begun = time.monotonic()
            items = [request.items[place] for request, place in lines]
            try:
                sent = await self._send(items, lines[0][0].seed)
                answers = list(zip(lines, sent.results, sent.lengths, strict=True))
            except (WorkerLost, Invalid) as error:
                self._part(lines, error)
                continue
            except Exception as error:  # of any kind: who asked gets it, and the queue goes on
                for request, _ in lines:
                    request.fail(error)
                continue
            for (request, place), result, tokens in answers:
                request.answered.waited = max(request.answered.waited, begun - request.since)
                request.finish(place, result, tokens)
            if 1 < len({request for request, _ in lines}) > len(self._requests):
                await asyncio.sleep(min(LINGER, 0.05 * (time.monotonic() - begun)))

    def _part(self, lines, error):
        """Retries each request of a failed batch in its own batch.

        So the one that kills a worker or is refused fails,
        and its neighbours do not.
        """
        requests = {request: None for request, _ in lines}
        for request in requests:
            request.deaths += isinstance(error, WorkerLost)
            if request.deaths >= DEATHS or len(requests) == 1 and isinstance(error, Invalid):
                request.fail(error)
            elif not request.done.done():
                request.alone = True
                if not request.waiting:
                    self._requests.append(request)
                places = [place for one, place in lines if one is request]
                request.waiting += [(request.lengths[place], place) for place in places]
                request.waiting.sort(reverse=True)
        self._leave_out_empty()
        self._arrived.set()

    def _take(self):
        """The lines of the next batch, pairs of a request and a place in it."""
        first = self._requests[0]
        longest = first.waiting[0][0]
        lines = [
            (abs(length - longest), length, place, request)
            for request in self._requests
            if request is first or not (first.alone or request.alone or request.seed != first.seed)
            for length, place in request.waiting[:NEXT_LINES]
        ]
        # Python's sort is stable: of equal lines those go first whose turn is first.
        lines.sort(key=lambda line: line[0])
        tokens, taken = sum(line[1] for line in lines), []
        most = max(self._batch_tokens, min(2 * self._batch_tokens, tokens // BATCHES_WAITING))
        # Where few lines wait and other workers are free, they get a part.
        most = min(most, tokens // self._free + longest)
        for _, length, place, request in lines:
            longest = max(longest, length)
            if taken and longest * (len(taken) + 1) > most:
                break
            taken.append((request, place))
            request.waiting.remove((length, place))
        self._requests.rotate(-1)
        self._leave_out_empty()
        return taken


def make_measure(folder):
    """A function of a list of lines, str or bytes: a guess of the tokens of each, a list of int.

    The tokenizer of an artefact makes it, where there is one. An artefact that replaces the one in
    the folder may have another; its lines are still about as long, one beside the other.
    """
    path = pathlib.Path(folder) / TOKENIZER_FILE
    if not path.exists():
        return lambda items: [UNKNOWN] * len(items)
    encode = load_tokenizer(path).encode

    def length(item):
        some = item[:SEEN]
        text = some.decode("utf-8", "replace") if isinstance(some, bytes) else some
        try:
            count = 1 + len(encode(text))  # and an end token
        except ValueError:  # half a surrogate pair: the line will be refused
            return 0
        return count * len(item) // max(1, len(some))

    return lambda items: [length(item) for item in items]
