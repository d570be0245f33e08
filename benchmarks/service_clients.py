"""Clients of the service that others wrote, as a load, each kind in a process of its own.

    python benchmarks/service_clients.py KIND PORT MODEL CONCURRENCY FILE
    python benchmarks/service_clients.py KIND PORT MODEL - FILE --rate 50 --seconds 20

The first sends the lines of a file, `--lines` a request, so many requests at a time. The second
sends that many requests a second, whatever becomes of them. Standard output gets JSON: answers by
line where all were asked for, times, and how many requests got which status.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import json
import subprocess
import time
from pathlib import Path

import numpy as np


def numbered(lines, size):
    """Lists of lines, each with the number of its first one."""
    return [(start, lines[start : start + size]) for start in range(0, len(lines), size)]


def triton_request(module, port, model):
    """A function that asks for the translations of lines by tritonclient, made for one thread."""
    client = module.InferenceServerClient(f"127.0.0.1:{port}")

    def ask(lines):
        tensor = module.InferInput("text", [len(lines)], "BYTES")
        tensor.set_data_from_numpy(np.array([line.encode() for line in lines], object))
        return [text.decode() for text in client.infer(model, [tensor]).as_numpy("text")]

    return ask


def make_ask(kind, port, model):
    """A function from lines to translations, to be used by one thread."""
    if kind == "grpc":
        import tritonclient.grpc

        return triton_request(tritonclient.grpc, port + 1, model)
    if kind == "http":
        import tritonclient.http

        return triton_request(tritonclient.http, port, model)
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


def closed(args, lines):
    """All lines, with so many requests at a time."""
    work = collections.deque(numbered(lines * args.times, args.lines))
    answers, times = {}, []

    def loop(_):
        ask = make_ask(args.kind, args.port, args.model)
        while work:
            try:
                start, some = work.popleft()
            except IndexError:
                return
            begun = time.perf_counter()
            found = ask(some)
            times.append(time.perf_counter() - begun)
            answers.update(enumerate(found, start))

    count = int(args.concurrency)
    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(loop, range(count)))
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "times": times, "answers": [answers[i] for i in sorted(answers)]}


async def open_loop(args, lines):
    """Requests at a steady rate, by tritonclient's gRPC for asyncio."""
    import tritonclient.grpc.aio as triton

    statuses, times = collections.Counter(), []

    async def one(client, line):
        tensor = triton.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([line.encode()], object))
        begun = time.perf_counter()
        try:
            await client.infer(args.model, [tensor])
        except triton.InferenceServerException as error:
            statuses[str(error.status())] += 1
        else:
            statuses["OK"] += 1
            times.append(time.perf_counter() - begun)

    async with triton.InferenceServerClient(f"127.0.0.1:{args.port + 1}") as client:
        begun, tasks = time.perf_counter(), []
        for number in range(int(args.rate * args.seconds)):
            await asyncio.sleep(begun + number / args.rate - time.perf_counter())
            tasks.append(asyncio.create_task(one(client, lines[number % len(lines)])))
        await asyncio.gather(*tasks)
    return {"seconds": time.perf_counter() - begun, "times": times, "statuses": dict(statuses)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("grpc", "http", "libretranslate", "curl"))
    parser.add_argument("port", type=int)
    parser.add_argument("model")
    parser.add_argument("concurrency")
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=1, help="of a request")
    parser.add_argument("--times", type=int, default=1, help="all lines are sent")
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    lines = args.file.read_text("utf-8").splitlines()
    report = asyncio.run(open_loop(args, lines)) if args.rate else closed(args, lines)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
