"""Pools of threads and of Ray replicas: batches, errors, lost replicas, hanging workers."""

import asyncio
import contextlib
import os
import pathlib
import signal
import threading
import time

import pytest
from helpers import faulty_engine, tiers

from keras_transformer.export.ray_cluster import running_ray
from keras_transformer.export.serving import engine, pools, ray_pool
from keras_transformer.export.serving.line_queue import LineQueue
from keras_transformer.export.serving.pools import LocalPool
from keras_transformer.export.serving.ray_pool import RayPool
from keras_transformer.export.serving.refusals import Invalid, Refusal, WorkerLost


@pytest.fixture(scope="module")
def ray():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))  # for `helpers`
        with running_ray("local", num_cpus=2) as module:
            yield module


@pytest.fixture(params=["local", tiers.full("ray")])
def using(request, monkeypatch, tmp_path):
    """A function that runs an async function with a pool of four workers and its queue."""
    for module in (pools, ray_pool):
        monkeypatch.setattr(module, "Engine", faulty_engine.FaultyEngine)
    faulty_engine.HANGING.clear()
    if request.param == "ray":
        ray = request.getfixturevalue("ray")

    def run(use):
        async def opened():
            if request.param == "ray":
                pool = RayPool(ray, tmp_path, 2, 0, 2)
            else:
                pool = LocalPool(tmp_path, 4)
            await pool.open()
            queue = LineQueue(pool.run_batch, lambda items: [1] * len(items), pool.workers, 2)
            try:
                return await asyncio.wait_for(use(pool, queue), 120)
            finally:
                await queue.close()
                await pool.close()

        return asyncio.run(opened())

    yield run
    faulty_engine.HANGING.set()


def test_a_closed_pool_leaves_no_thread(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "FOLDER_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(engine.Engine, "_open", lambda self: (None, None))
    before = set(threading.enumerate())
    one = engine.Engine(tmp_path)
    (watching,) = set(threading.enumerate()) - before
    one.close()
    watching.join(5)
    assert not watching.is_alive()


def on_ray(test):
    """Marks a test that needs replicas."""
    return pytest.mark.parametrize("using", [tiers.full("ray")], indirect=True)(test)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.02)


def test_batches_are_computed_at_the_same_time(using):
    async def use(pool, queue):
        begun = time.monotonic()
        options = [{"seed": seed} for seed in range(4)]
        batches = await asyncio.gather(*(pool.run_batch(["sleep"], one) for one in options))
        return [batch.results for batch in batches], time.monotonic() - begun

    results, seconds = using(use)
    assert results == [[f"sleep {seed}"] for seed in range(4)] and seconds < 9


@pytest.mark.parametrize(
    "line, kind, message",
    [
        ("refuse", Invalid, "too long"),
        ("fail", Refusal, "its log says why"),
    ],
)
def test_errors_reach_the_client_and_the_worker_continues(using, line, kind, message):
    async def use(pool, queue):
        for _ in range(pool.workers):
            with pytest.raises(kind, match=message):
                await pool.run_batch([line])
        return (await pool.run_batch(["a"], {"seed": 3})).results

    assert using(use) == ["a 3"]


def test_a_request_that_the_model_refuses_fails_alone(using):
    async def use(pool, queue):
        requests = (
            queue.submit(lines, {"seed": 1}) for lines in (["a"], ["refuse"], ["b"], ["c"] * 9)
        )
        return await asyncio.gather(*requests, return_exceptions=True)

    first, refused, *others = using(use)
    assert isinstance(refused, Invalid)
    assert [request.results for request in (first, *others)] == [["a 1"], ["b 1"], ["c 1"] * 9]


@pytest.mark.parametrize("using", ["local", tiers.nightly("ray")], indirect=True)
def test_a_hanging_batch_occupies_only_its_worker(using):
    async def use(pool, queue):
        hanging = [asyncio.create_task(pool.run_batch(["hang"])) for _ in range(pool.workers - 1)]
        await asyncio.sleep(0.2)
        for batch in hanging:
            batch.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        return [(await pool.run_batch(["a"], {"seed": 1})).results for _ in range(5)], pool.ready

    assert using(use) == ([["a 1"]] * 5, True)


@pytest.mark.parametrize("using", ["local"], indirect=True)
def test_a_pool_of_hanging_threads_is_not_ready_until_one_continues(using):
    async def use(pool, queue):
        hanging = [asyncio.create_task(pool.run_batch(["hang"])) for _ in range(pool.workers)]
        await asyncio.sleep(0.2)
        for batch in hanging:
            batch.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        before = pool.ready
        faulty_engine.HANGING.set()
        await until(lambda: pool.ready)
        return before, (await pool.run_batch(["a"], {"seed": 1})).results

    assert using(use) == (False, ["a 1"])


@on_ray
def test_a_replica_that_hangs_is_replaced(using):
    async def use(pool, queue):
        first = {(await pool.run_batch(["a"])).replica for _ in range(2 * pool.workers)}
        hanging = [asyncio.create_task(pool.run_batch(["hang"])) for _ in range(pool.workers)]
        await asyncio.sleep(0.2)
        for batch in hanging:
            batch.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        before = pool.ready
        await until(lambda: pool.ready)
        return first, before, await pool.run_batch(["a"], {"seed": 1})

    first, before, batch = using(use)
    assert not before and batch.results == ["a 1"] and batch.replica not in first


@on_ray
@pytest.mark.parametrize("line", ["break", tiers.nightly("lock")])
def test_other_errors_of_a_replica_are_logged(using, caplog, line):
    async def use(pool, queue):
        with pytest.raises(Refusal, match="its log says why"):
            await pool.run_batch([line])
        return (await pool.run_batch(["a"], {"seed": 1})).results

    assert using(use) == ["a 1"] and "a replica has failed" in caplog.text


@on_ray
def test_a_replica_that_dies_is_replaced_and_no_request_fails(using):
    async def use(pool, queue):
        first = (await pool.run_batch(["a"])).replica
        slow = [asyncio.create_task(queue.submit(["sleep"], {"seed": seed})) for seed in range(4)]
        await asyncio.sleep(0.5)
        os.kill(int(first), signal.SIGKILL)
        results = [(await request).results for request in slow]
        replicas = set()
        while len(replicas - {first}) < 2:  # the survivor, then the new replica
            await queue.submit(["a"])  # no request fails
            with contextlib.suppress(WorkerLost):
                replicas.add((await pool.run_batch(["a"])).replica)
        return results

    assert using(use) == [[f"sleep {seed}"] for seed in range(4)]


@on_ray
def test_a_request_that_kills_replicas_fails_and_others_are_answered(using):
    async def use(pool, queue):
        requests = (queue.submit(lines, {"seed": 1}) for lines in (["a", "b"], ["die", "c"], ["d"]))
        return await asyncio.gather(*requests, return_exceptions=True), pool.ready

    (first, poisoned, last), _ = using(use)
    assert (first.results, last.results) == (["a 1", "b 1"], ["d 1"])
    assert isinstance(poisoned, WorkerLost)


@pytest.mark.nightly
@on_ray
def test_a_replica_that_is_stopped_counts_as_lost(using, monkeypatch):
    monkeypatch.setattr(ray_pool, "LOST_AFTER_SECONDS", 3.0)

    async def use(pool, queue):
        first = (await pool.run_batch(["a"])).replica
        begun = [asyncio.create_task(queue.submit(["sleep"], {"seed": seed})) for seed in range(4)]
        await asyncio.sleep(1)
        os.kill(int(first), signal.SIGSTOP)
        return [(await request).results for request in begun]

    assert using(use) == [[f"sleep {seed}"] for seed in range(4)]


@on_ray
def test_a_folder_that_cannot_be_opened_is_an_error_at_the_start(using, monkeypatch, tmp_path, ray):
    class NoEngine(faulty_engine.FaultyEngine):
        def __init__(self, folder, **options):
            raise ValueError("no artefact")

    monkeypatch.setattr(ray_pool, "Engine", NoEngine)

    async def open_pool():
        await RayPool(ray, tmp_path).open()

    with pytest.raises(RuntimeError, match="no artefact"):
        asyncio.run(open_pool())
