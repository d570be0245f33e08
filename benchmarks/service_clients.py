"""Third-party clients as a load for the service, one kind per process.

    python benchmarks/service_clients.py KIND PORT MODEL CONCURRENCY FILE
    python benchmarks/service_clients.py KIND PORT MODEL - FILE --rate 50 --seconds 20

The first sends the lines of a file, `--lines` per request, with CONCURRENCY requests at a time. The
second sends `--rate` requests per second, without waiting for answers. Both print JSON: times, and
either answers by line and CPU seconds, or the number of requests by status.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import json
import resource
import subprocess
import time
from pathlib import Path

import numpy as np
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException


def numbered(lines, size):
    """Returns lists of lines, each with the number of its first line."""
    return [(start, lines[start : start + size]) for start in range(0, len(lines), size)]


def tensor_of(lines):
    """Makes the input of a request of tritonclient."""
    tensor = triton.InferInput("text", [len(lines)], "BYTES")
    tensor.set_data_from_numpy(np.array([line.encode() for line in lines], object))
    return tensor


def texts_of(answer):
    return [text.decode() for text in answer.as_numpy("text")]


def make_ask(kind, port, model):
    """Returns a function from lines to translations, for one thread."""
    if kind == "libretranslate":
        from libretranslatepy import LibreTranslateAPI

        client = LibreTranslateAPI(f"http://127.0.0.1:{port}/")
        source, target = model.split("-")
        # A text is translated line by line, and its lines come back in order.
        return lambda lines: client.translate("\n".join(lines), source, target).split("\n")

    def curl(lines):
        address = f"http://127.0.0.1:{port}/lines/{model}"
        command = ["curl", "--silent", "--show-error", "--fail", "-T", "-", address]
        data = "".join(f"{line}\n" for line in lines).encode()
        done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=600)
        return done.stdout.decode().removesuffix("\n").split("\n")

    return curl


class Work:
    """Requests to send, and answers to sent ones."""

    def __init__(self, lines, size):
        self._left = collections.deque(numbered(lines, size))
        self._answers, self.times = {}, []

    def __iter__(self):
        """Yields remaining requests to any number of loops: number of the first line, lines."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._left.popleft()

    def answered(self, start, found, begun):
        self.times.append(time.perf_counter() - begun)
        self._answers.update(enumerate(found, start))

    def answers(self):
        """Returns the answers by line."""
        return [self._answers[number] for number in sorted(self._answers)]


def closed(args, lines):
    """Sends all lines, with a fixed number of requests at a time."""
    work, count = Work(lines * args.times, args.lines), int(args.concurrency)
    begun, cpu = time.perf_counter(), cpu_seconds()
    if args.kind == "http":
        asyncio.run(in_one_thread(args, work, count))
    else:
        in_threads(args, work, count)
    used = {"seconds": time.perf_counter() - begun, "cpu": cpu_seconds() - cpu}
    return used | {"times": work.times, "answers": work.answers()}


def cpu_seconds():
    """Returns the CPU seconds of this process and its finished children."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def in_threads(args, work, count):
    """Sends requests from threads, each with a separate client."""

    def loop(_):
        ask = make_ask(args.kind, args.port, args.model)
        for start, some in work:
            begun = time.perf_counter()
            work.answered(start, ask(some), begun)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(loop, range(count)))


def connected(args):
    """Returns a client with as many connections as requests."""
    return triton.InferenceServerClient(f"127.0.0.1:{args.port}", conn_limit=0)


async def in_one_thread(args, work, count):
    """Sends requests by tritonclient's asyncio client."""

    async def loop(client):
        for start, some in work:
            begun = time.perf_counter()
            answer = await client.infer(args.model, [tensor_of(some)])
            work.answered(start, texts_of(answer), begun)

    async with connected(args) as client:
        await asyncio.gather(*(loop(client) for _ in range(count)))


async def open_loop(args, lines):
    """Sends requests at a steady rate, by tritonclient's asyncio client."""
    statuses, times = collections.Counter(), []

    async def one(client, line):
        tensor, begun = tensor_of([line]), time.perf_counter()
        try:
            await client.infer(args.model, [tensor])
        except InferenceServerException as error:
            statuses[str(error.status())] += 1
        else:
            statuses["OK"] += 1
            times.append(time.perf_counter() - begun)

    async with connected(args) as client:
        begun, tasks = time.perf_counter(), []
        for number in range(int(args.rate * args.seconds)):
            await asyncio.sleep(begun + number / args.rate - time.perf_counter())
            tasks.append(asyncio.create_task(one(client, lines[number % len(lines)])))
        await asyncio.gather(*tasks)
    return {"seconds": time.perf_counter() - begun, "times": times, "statuses": dict(statuses)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("http", "libretranslate", "curl"))
    parser.add_argument("port", type=int)
    parser.add_argument("model")
    parser.add_argument("concurrency")
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=1, help="per request")
    parser.add_argument("--times", type=int, default=1, help="repetitions of all lines")
    parser.add_argument("--rate", type=float, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    lines = args.file.read_text("utf-8").splitlines()
    report = asyncio.run(open_loop(args, lines)) if args.rate else closed(args, lines)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
