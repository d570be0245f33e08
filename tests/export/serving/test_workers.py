"""Workers that come to the doors over real sockets: batches, deaths, keys, strangers."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.export.serving import worker
from keras_transformer.export.serving import workers as module
from keras_transformer.export.serving.limits import Invalid, Refusal, Unavailable, WorkerLost
from keras_transformer.export.serving.line_queue import DEATHS, LineQueue
from keras_transformer.export.serving.worker import BYTES, introduce, work
from keras_transformer.export.serving.workers import Workers
from keras_transformer.startup import SERVES


def answer(items, seed):
    if items == ["fail"]:
        raise ValueError("no such line")
    if items == ["break"]:
        raise ZeroDivisionError("secret")
    return [f"{item} {seed}" for item in items]


SERVING = {**os.environ, SERVES: "1"}  # a process without frameworks starts sooner
METHODS = {"answer": answer, "describe": lambda: "a translator"}


def come(workers, methods=METHODS, key=None):
    """A worker, in a thread that `sys.exit` ends."""

    def live():
        with contextlib.suppress(SystemExit):
            work(workers.address, key or workers.key, methods)

    threading.Thread(target=live, daemon=True).start()


def come_and_die(workers, received=None):
    """A worker that shows the key, waits for its first batch, and dies of it."""

    def live():
        with socket.create_connection(workers.address) as link, link.makefile("rwb") as file:
            introduce(file, workers.key)
            if file.read(1) and received is not None:
                received.append(True)

    threading.Thread(target=live, daemon=True).start()


def using(use, calls=1, **options):
    """What an async function of `Workers` returns."""

    async def run():
        workers = Workers(calls, len, **options)
        try:
            return await asyncio.wait_for(use(workers), 60)
        finally:
            await workers.close()

    return asyncio.run(run())


def test_a_worker_answers_one_batch_after_the_other():
    async def use(workers):
        come(workers)
        found = [await workers.answer([f"line {count}"], count) for count in range(50)]
        long = ["x" * 1000] * 1000  # more than a buffer of either side
        return found, await workers.answer(long, 1) == answer(long, 1), await workers.describe()

    found, long, description = using(use)
    assert found == [[f"line {count} {count}"] for count in range(50)]
    assert long and description == "a translator"


def test_workers_answer_at_the_same_time():
    both = threading.Barrier(2, timeout=20)

    def wait(items, seed):
        both.wait()  # passes where two are here
        return items

    async def use(workers):
        come(workers, {"answer": wait})
        come(workers, {"answer": wait})
        return await asyncio.gather(workers.answer(["a"]), workers.answer(["b"]))

    assert using(use, calls=2) == [["a"], ["b"]]


class Sent:
    """What a queue takes from a worker."""

    def __init__(self, results):
        self.results, self.lengths = results, [1] * len(results)


def sending(items, seed):
    return Sent(answer(items, seed))


def queue_of(workers, calls=1):
    return LineQueue(workers.answer, lambda items: [1] * len(items), calls)


def test_a_batch_is_given_to_another_worker_where_one_dies():
    received = []

    async def use(workers):
        queue = queue_of(workers)
        come_and_die(workers, received)
        await until_idle(workers, 1)
        asked = asyncio.create_task(queue.answer(["a"], 3))
        while not received:
            await asyncio.sleep(0.01)
        come(workers, {"answer": sending})
        found = (await asked).results
        await queue.close()
        return found

    assert using(use) == ["a 3"] and received == [True]


def test_a_request_that_kills_workers_fails_and_its_neighbours_are_answered():
    died = []

    def answer_or_die(items, seed):
        if "poison" in items:
            died.append(items)
            sys.exit()
        return sending(items, seed)

    async def use(workers):
        queue = queue_of(workers)
        asked = [queue.answer(lines, 1) for lines in (["a", "b"], ["poison", "c"], ["d"])]
        asked = asyncio.gather(*asked, return_exceptions=True)
        for _ in range(4):
            come(workers, {"answer": answer_or_die})
        found = await asked
        await queue.close()
        return found, workers.alive

    (first, poisoned, last), alive = using(use)
    assert (first.results, last.results) == (["a 1", "b 1"], ["d 1"])
    assert isinstance(poisoned, WorkerLost) and len(died) == DEATHS == 2
    assert len(died[0]) > len(died[1]) == 2 and alive == 2


def test_a_request_that_the_model_refuses_is_invalid_and_its_neighbours_are_answered():
    def read(items, seed):
        if "long" in items:
            raise ValueError("the array has 30000 rows")
        return sending(items, seed)

    async def use(workers):
        queue = queue_of(workers)
        asked = [queue.answer(lines, 1) for lines in (["a"], ["long"], ["b"])]
        asked = asyncio.gather(*asked, return_exceptions=True)
        come(workers, {"answer": read})
        found = await asked
        await queue.close()
        return found

    first, refused, last = using(use)
    assert first.results == ["a 1"] and last.results == ["b 1"]
    assert isinstance(refused, Invalid) and "30000 rows" in str(refused)


def test_where_a_process_of_many_workers_dies_another_gets_the_batch():
    code = (
        "import sys, threading, time\n"
        "from keras_transformer.export.serving.worker import work\n"
        "arguments = ('127.0.0.1', int(sys.argv[1])), bytes.fromhex(sys.argv[2]), "
        "{'answer': lambda items, seed: time.sleep(600)}\n"
        "for _ in range(2 * 8): threading.Thread(target=work, args=arguments).start()\n"
    )

    async def use(workers):
        command = [sys.executable, "-c", code, str(workers.address[1]), workers.key.hex()]
        with subprocess.Popen(command, env=SERVING) as process:
            await until_idle(workers, 16)
            queue = queue_of(workers, 8)
            asked = []
            for count, name in enumerate("abcdefgh"):
                asked.append(asyncio.create_task(queue.answer([name], 1)))
                while workers.idle > 15 - count:
                    await asyncio.sleep(0.01)
            process.kill()
            come(workers, {"answer": sending})
            found = [answered.results for answered in await asyncio.gather(*asked)]
            await queue.close()
            return found

    assert using(use, calls=16) == [[f"{name} 1"] for name in "abcdefgh"]


def test_a_worker_whose_process_was_stopped_is_noticed_and_its_batch_goes_elsewhere(monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 2.5)
    code = (
        "import sys, time\n"
        "from keras_transformer.export.serving.worker import work\n"
        "work(('127.0.0.1', int(sys.argv[1])), bytes.fromhex(sys.argv[2]), "
        "{'answer': lambda items, seed: time.sleep(600)})\n"
    )

    async def use(workers):
        command = [sys.executable, "-c", code, str(workers.address[1]), workers.key.hex()]
        with subprocess.Popen(command, env=SERVING) as process:
            try:
                await until_idle(workers, 1)
                asked = asyncio.create_task(workers.answer(["a"], 1))
                await asyncio.sleep(1.5 * module.SILENCE)  # signs of life come while it computes
                assert workers.alive == 1 and not asked.done()
                process.send_signal(signal.SIGSTOP)
                while workers.alive:
                    await asyncio.sleep(0.05)
                come(workers)
                return await asked
            finally:
                process.kill()

    assert using(use) == ["a 1"]


def test_a_worker_is_there_for_the_next_batch_after_one_that_it_cannot_send(caplog):
    async def use(workers):
        come(workers, {"answer": lambda items, seed: threading.Lock() if items == ["x"] else items})
        with pytest.raises(Refusal, match="its log says why"):
            await workers.answer(["x"])
        return await workers.answer(["a"])

    assert using(use) == ["a"] and "pickle" in caplog.text


class Unreadable:
    """Its pickle cannot be read."""

    def __reduce__(self):
        return int, ("no number",)


def test_a_question_that_cannot_be_read_is_answered_and_the_worker_goes_on():
    async def use(workers):
        come(workers)
        with pytest.raises(Refusal, match="no number"):
            await workers.answer([Unreadable()])
        return await workers.answer(["a"], 1)

    assert using(use) == ["a 1"]


def test_it_closes_though_a_worker_does_not_read():
    async def use(workers):
        await workers.open()
        link = socket.create_connection(workers.address)
        await asyncio.to_thread(show_key, link, workers.key)
        asked = asyncio.create_task(workers.answer(["x" * 2**24]))
        await asyncio.sleep(0.2)
        await workers.close()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        link.close()
        return True

    assert using(use)


@pytest.mark.parametrize("reset", [False, True])
def test_a_worker_that_died_while_idle_gets_no_batch(reset):
    async def use(workers):
        links = [socket.create_connection(workers.address) for _ in range(5)]
        await workers.open()
        for link in links:
            await asyncio.to_thread(show_key, link, workers.key)
        come(workers)
        await until_idle(workers, 6)
        for link in links:
            if reset:  # as where its machine has started again
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
        while workers.alive > 1:
            await asyncio.sleep(0.01)
        return [await workers.answer(["b"], count) for count in range(3)]

    assert using(use) == [["b 0"], ["b 1"], ["b 2"]]


def show_key(link, key):
    with link.makefile("rwb") as file:
        introduce(file, key)


async def until_idle(workers, count):
    """Waits until so many workers are idle."""
    await workers.open()
    end = time.monotonic() + 20
    while workers.idle < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_an_error_of_the_replica_is_logged_and_the_worker_goes_on(caplog):
    async def use(workers):
        come(workers)
        with pytest.raises(Refusal, match="its log says why"):
            await workers.answer(["break"])
        return await workers.answer(["a"], 1)

    assert using(use) == ["a 1"] and "ZeroDivisionError: secret" in caplog.text


def test_a_wrong_value_is_told_and_the_worker_goes_on():
    async def use(workers):
        come(workers)
        with pytest.raises(Refusal, match="no such line"):
            await workers.answer(["fail"])
        return await workers.answer(["a"], 1)

    assert using(use) == ["a 1"]


def test_the_answer_to_a_batch_that_was_given_up_reaches_nobody(monkeypatch):
    monkeypatch.setattr(worker, "AGAIN", 0.05)
    begun, go = threading.Event(), threading.Event()

    def slow(items, seed):
        begun.set()
        assert items == ["b"] or go.wait(20)
        return items

    async def use(workers):
        come(workers, {"answer": slow})
        given_up = asyncio.create_task(workers.answer(["a"]))
        assert await asyncio.to_thread(begun.wait, 20)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        go.set()
        return await workers.answer(["b"])  # by the same worker, which came again

    assert using(use) == ["b"]


def test_without_a_worker_the_batch_is_refused(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)

    async def use(workers):
        with pytest.raises(Unavailable, match="No replica answers"):
            await workers.answer(["a"])

    using(use)


def test_who_does_not_know_the_key_gets_no_batch(monkeypatch):
    monkeypatch.setattr(module, "WELCOME", 0.3)
    got = []

    async def use(workers):
        come(workers, {"answer": lambda *batch: got.append(batch)}, key=b"k" * BYTES)
        strangers = [socket.create_connection(workers.address) for _ in range(3)]
        strangers[0].sendall(b"x" * BYTES * 2)  # a wrong proof
        strangers[1].sendall(b"GET / HTTP/1.1\r\n\r\n")  # and then silence, as the third's
        come(workers)
        found = await workers.answer(["a"], 1)
        for stranger in strangers:  # no stranger waits for ever
            stranger.settimeout(20)
            while await asyncio.to_thread(stranger.recv, 4096):
                pass
            stranger.close()
        return found

    assert using(use) == ["a 1"] and not got


def test_a_worker_takes_nothing_from_doors_that_do_not_know_the_key(monkeypatch):
    monkeypatch.setattr(worker, "AGAIN", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as false:
        false.settimeout(20)
        arguments = false.getsockname(), b"k" * BYTES, {"answer": answer}
        threading.Thread(target=work, args=arguments, daemon=True).start()
        for _ in range(2):  # it comes again, and again shows nothing
            link, _ = false.accept()
            with link:
                link.settimeout(20)
                assert len(link.recv(4096)) == BYTES
                link.sendall(bytes(2 * BYTES))
                assert link.recv(4096) == b""


def test_a_worker_ends_where_nobody_listens_any_more(monkeypatch):
    monkeypatch.setattr(worker, "AGAIN", 0.05)

    async def use(workers):
        thread = threading.Thread(target=work, args=(workers.address, workers.key, METHODS))
        thread.start()
        return await workers.answer(["a"], 1), thread

    found, thread = using(use)
    thread.join(20)
    assert found == ["a 1"] and not thread.is_alive()


def test_workers_of_another_family_of_addresses():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def use(workers):
        come(workers)
        return await workers.answer(["a"], 1)

    assert using(use, host="::1") == ["a 1"]
