"""Workers that come to the doors over real sockets: batches, deaths, keys, strangers."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading

import pytest

from keras_transformer.export.serving import workers as module
from keras_transformer.export.serving.refusals import Refusal, Unavailable
from keras_transformer.export.serving.workers import BYTES, TRIES, Workers, work


def answer(items, seed):
    if items == ["fail"]:
        raise ValueError("no such line")
    return [f"{item} {seed}" for item in items]


METHODS = {"answer": answer, "describe": lambda: "a translator"}


def come(workers, methods=METHODS, key=None):
    """A worker, in a thread."""
    arguments = workers.address, key or workers.key, methods
    threading.Thread(target=work, args=arguments, daemon=True).start()


def come_and_die(workers, received=None):
    """A worker that shows the key, waits for its first batch, and dies of it."""

    def live():
        with socket.create_connection(workers.address) as link, link.makefile("rwb") as file:
            module._introduce(file, workers.key)
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
    both = threading.Barrier(2, timeout=60)

    def wait(items, seed):
        both.wait()  # passes where two are here
        return items

    async def use(workers):
        come(workers, {"answer": wait})
        come(workers, {"answer": wait})
        return await asyncio.gather(workers.answer(["a"]), workers.answer(["b"]))

    assert using(use, calls=2) == [["a"], ["b"]]


def test_a_batch_is_given_to_another_worker_where_one_dies():
    received = []

    async def use(workers):
        for _ in range(TRIES - 1):
            come_and_die(workers, received)
        await until_idle(workers, TRIES - 1)
        come(workers)
        return await workers.answer(["a"], 3)

    assert using(use) == ["a 3"] and len(received) == TRIES - 1


def test_a_batch_of_which_all_workers_die_is_refused():
    async def use(workers):
        for _ in range(TRIES):
            come_and_die(workers)
        with pytest.raises(Unavailable, match=f"{TRIES} workers died"):
            await workers.answer(["a"])

    using(use)


def test_where_a_process_of_many_workers_dies_another_gets_the_batch():
    code = (
        "import sys, threading, time\n"
        "from keras_transformer.export.serving.workers import work\n"
        "arguments = ('127.0.0.1', int(sys.argv[1])), bytes.fromhex(sys.argv[2]), "
        "{'answer': lambda items, seed: time.sleep(600)}\n"
        "for _ in range(2 * 8): threading.Thread(target=work, args=arguments).start()\n"
    )

    async def use(workers):
        command = [sys.executable, "-c", code, str(workers.address[1]), workers.key.hex()]
        with subprocess.Popen(command) as process:
            await until_idle(workers, 16)
            asked = [asyncio.create_task(workers.answer([name], 1)) for name in "abcdefgh"]
            await until(lambda: workers._idle.qsize() <= 8)
            process.kill()
            come(workers)
            return await asyncio.gather(*asked)

    assert using(use, calls=16) == [[f"{name} 1"] for name in "abcdefgh"]


def test_a_worker_is_there_for_the_next_batch_after_one_that_it_cannot_send():
    async def use(workers):
        come(workers, {"answer": lambda items, seed: threading.Lock() if items == ["x"] else items})
        with pytest.raises(Refusal, match="pickle"):
            await workers.answer(["x"])
        return await workers.answer(["a"])

    assert using(use) == ["a"]


def test_a_worker_that_fails_otherwise_comes_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.05)
    failures, answer_one = [MemoryError()], module._answer

    def fail_once(*arguments):
        if failures:
            raise failures.pop()
        answer_one(*arguments)

    monkeypatch.setattr(module, "_answer", fail_once)

    async def use(workers):
        come(workers)
        return await workers.answer(["a"], 1)

    assert using(use) == ["a 1"] and not failures


def test_it_closes_though_a_worker_does_not_read():
    async def use(workers):
        await workers.open()
        link = socket.create_connection(workers.address)
        await asyncio.to_thread(introduce, link, workers.key)
        await until_idle(workers, 1)
        asked = asyncio.create_task(workers.answer(["x" * 2**24]))
        await until(lambda: not workers._idle.qsize())  # it has the batch
        await workers.close()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        link.close()
        return True

    assert using(use)


@pytest.mark.parametrize("reset", [False, True])
def test_a_worker_that_died_while_idle_gets_no_batch(reset):
    async def use(workers):
        links = [socket.create_connection(workers.address) for _ in range(TRIES + 1)]
        await workers.open()
        for link in links:
            await asyncio.to_thread(introduce, link, workers.key)
        come(workers)
        await until_idle(workers, TRIES + 2)
        for link in links:
            if reset:  # as where its machine has started again
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
        await until(lambda: sum(module._lives(*one) for one in workers._idle._queue) == 1)
        return [await workers.answer(["b"], count) for count in range(3)]

    assert using(use) == [["b 0"], ["b 1"], ["b 2"]]


def introduce(link, key):
    with link.makefile("rwb") as file:
        module._introduce(file, key)


async def until_idle(workers, count):
    """Waits until so many workers are idle."""
    await workers.open()
    await until(lambda: workers._idle.qsize() >= count)


async def until(holds):
    """Waits until something holds; `using` sets the limit."""
    while not holds():
        await asyncio.sleep(0.001)


def test_an_error_of_the_replica_is_told_and_the_worker_goes_on():
    async def use(workers):
        come(workers)
        with pytest.raises(Refusal, match="no such line"):
            await workers.answer(["fail"])
        return await workers.answer(["a"], 1)

    assert using(use) == ["a 1"]


def test_the_answer_to_a_batch_that_was_given_up_reaches_nobody(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.05)
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
    monkeypatch.setattr(module, "AGAIN", 0.05)
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
    monkeypatch.setattr(module, "AGAIN", 0.05)

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
