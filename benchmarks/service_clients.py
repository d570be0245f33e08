"""Third-party clients as a load for the service, and what it is compared with; each in a process.

A task has the "kind" of client, the "port" and the "model" of the service, and a "file" of lines.
"""

import asyncio
import collections
import concurrent.futures
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path

import bench
import numpy as np

SPELL = 0.5  # seconds


def closed(task):
    """Sends all lines, with a fixed number of requests at a time.

    Args:
        task: dict with "lines" per request, "times" that the lines are repeated, and "concurrency",
            the number of requests at a time.

    Returns:
        Dict with seconds and CPU seconds of this process, the time of each request, and answers.
    """
    lines, size = read(task) * task["times"], task["lines"]
    left = iter([(start, lines[start : start + size]) for start in range(0, len(lines), size)])
    answers, times = {}, []

    def answered(start, texts, begun):
        times.append(time.perf_counter() - begun)
        answers.update(enumerate(texts, start))

    def thread(_):
        ask = CLIENTS[task["kind"]](task)
        for start, some in left:
            begun = time.perf_counter()
            answered(start, ask(some), begun)

    async def requests(client):
        for start, some in left:
            begun = time.perf_counter()
            answer = await client.infer(task["model"], [tensor_of(some)])
            answered(start, [text.decode() for text in answer.as_numpy("text")], begun)

    async def in_one_thread():
        async with connected(task) as client:
            await asyncio.gather(*(requests(client) for _ in range(task["concurrency"])))

    begun, cpu = time.perf_counter(), cpu_seconds()
    if task["kind"] == "http":
        asyncio.run(in_one_thread())
    else:
        with concurrent.futures.ThreadPoolExecutor(task["concurrency"]) as pool:
            list(pool.map(thread, range(task["concurrency"])))
    used = {"seconds": time.perf_counter() - begun, "cpu": cpu_seconds() - cpu}
    return used | {"times": times, "answers": [answers[number] for number in sorted(answers)]}


def steady(task):
    """Sends "rate" requests per second for "seconds" by tritonclient, without waiting for answers.

    Returns:
        Dict with the time of each accepted request, and the number of requests by status.
    """
    from tritonclient.utils import InferenceServerException

    lines, statuses, times = read(task), collections.Counter(), []

    async def one(client, line):
        tensor, begun = tensor_of([line]), time.perf_counter()
        try:
            await client.infer(task["model"], [tensor])
        except InferenceServerException as error:
            statuses[str(error.status())] += 1
        else:
            statuses["OK"] += 1
            times.append(time.perf_counter() - begun)

    async def requests():
        async with connected(task) as client, asyncio.TaskGroup() as group:
            begun = time.perf_counter()
            for number in range(int(task["rate"] * task["seconds"])):
                await asyncio.sleep(begun + number / task["rate"] - time.perf_counter())
                group.create_task(one(client, lines[number % len(lines)]))

    asyncio.run(requests())
    return {"times": times, "statuses": dict(statuses)}


def read(task):
    return Path(task["file"]).read_text("utf-8").splitlines()


def connected(task):
    """Returns tritonclient's client, with as many connections as requests."""
    import tritonclient.http.aio as triton

    return triton.InferenceServerClient(f"127.0.0.1:{task['port']}", conn_limit=0)


def tensor_of(lines):
    """Makes the input of a request of tritonclient."""
    import tritonclient.http.aio as triton

    tensor = triton.InferInput("text", [len(lines)], "BYTES")
    tensor.set_data_from_numpy(np.array([line.encode() for line in lines], object))
    return tensor


def libretranslate(task):
    """Returns a function from lines to translations."""
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(f"http://127.0.0.1:{task['port']}/")
    languages = task["model"].split("-")
    # A text is translated line by line, and its lines come back in order.
    return lambda lines: client.translate("\n".join(lines), *languages).split("\n")


def curl(task):
    """Returns a function from lines to translations."""
    address = f"http://127.0.0.1:{task['port']}/lines/{task['model']}"
    command = ["curl", "--silent", "--show-error", "--fail", "-T", "-", address]

    def ask(lines):
        data = "".join(f"{line}\n" for line in lines).encode()
        done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=600)
        return done.stdout.decode().removesuffix("\n").split("\n")

    return ask


# Clients that run in threads, beside "http".
CLIENTS = {"libretranslate": libretranslate, "curl": curl}


def cpu_seconds():
    """Returns the CPU seconds of this process and its finished children."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def whole_file(task):
    """Translates the file "times" times by `Translator`; returns seconds, CPU and answers."""
    from keras_transformer.export.runtime import Translator

    lines, translator = read(task), Translator(task["folder"], workers=task["workers"])
    translator.translate(lines[:20])
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in range(task["times"]):
        answers = translator.translate(lines)
    used = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    return used | {"answers": answers}


def spells(task):
    """Measures how evenly the machine runs: one thread per core translates a line repeatedly.

    On a virtual machine, a neighbour may slow the cores for seconds. Load averages and processor
    times do not show this, and a busy service falls behind in such a spell.

    Returns:
        Dict with the median and the slowest of the mean times per half second, relative to the
        fastest.
    """
    from keras_transformer.export.runtime import Translator

    line = read(task)[0]

    def times(_):
        translator = Translator(task["folder"], threads=1, spinning=False)
        found, begun = collections.defaultdict(list), time.perf_counter()
        while (start := time.perf_counter() - begun) < task["seconds"]:
            found[start // SPELL].append(bench.timed(lambda: translator.translate([line]))[0])
        means = [statistics.fmean(some) for some in found.values()][2:]  # without the first second
        return [mean / min(means) for mean in means]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        slower = [one for core in pool.map(times, range(os.cpu_count())) for one in core]
    return {"median": statistics.median(slower), "slowest": max(slower)}
