"""Pools of threads and of Ray replicas: batches, errors, lost replicas, hanging workers."""

import asyncio
import contextlib
import functools
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

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def ray():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))  # for `helpers`
        with running_ray("local", num_cpus=2) as module:
            yield module


@pytest.fixture(params=["local", tiers.full("ray")])
def kind(request, monkeypatch):
    """The class of a pool of four workers, with its arguments."""
    for module in (pools, ray_pool):
        monkeypatch.setattr(module, "Engine", faulty_engine.FaultyEngine)
    if request.param == "ray":
        return functools.partial(RayPool, request.getfixturevalue("ray"), replicas=2, workers=2)
    return functools.partial(LocalPool, workers=4)


@pytest.fixture
async def pool(kind, tmp_path):
    faulty_engine.HANGING.clear()
    made = kind(tmp_path)
    await made.open()
    yield made
    await made.close()
    faulty_engine.HANGING.set()


@pytest.fixture
async def queue(pool):
    made = LineQueue(pool.run_batch, lambda items: [1] * len(items), pool.workers, 2)
    yield made
    await made.close()


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
    return pytest.mark.parametrize("kind", [tiers.full("ray")], indirect=True)(test)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.02)


async def abandon(pool, count):
    """Begins batches that hang, and cancels them."""
    hanging = [asyncio.create_task(pool.run_batch(["hang"])) for _ in range(count)]
    await asyncio.sleep(0.2)
    for batch in hanging:
        batch.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.full
async def test_batches_are_computed_at_the_same_time(pool):
    begun = time.monotonic()
    batches = [pool.run_batch(["sleep"], {"seed": seed}) for seed in range(4)]
    results = [batch.results for batch in await asyncio.gather(*batches)]
    assert results == [[f"sleep {seed}"] for seed in range(4)] and time.monotonic() - begun < 9


@pytest.mark.parametrize(
    "line, error, message",
    [("refuse", Invalid, "too long"), ("fail", Refusal, "its log says why")],
)
async def test_errors_reach_the_client_and_the_worker_continues(pool, line, error, message):
    for _ in range(pool.workers):
        with pytest.raises(error, match=message):
            await pool.run_batch([line])
    assert (await pool.run_batch(["a"], {"seed": 3})).results == ["a 3"]


@pytest.mark.parametrize("kind", ["local", tiers.nightly("ray")], indirect=True)
async def test_a_hanging_batch_occupies_only_its_worker(pool):
    await abandon(pool, pool.workers - 1)
    for _ in range(5):
        assert (await pool.run_batch(["a"], {"seed": 1})).results == ["a 1"]
    assert pool.ready


@pytest.mark.parametrize("kind", ["local"], indirect=True)
async def test_a_pool_of_hanging_threads_is_not_ready_until_one_continues(pool):
    await abandon(pool, pool.workers)
    assert not pool.ready
    faulty_engine.HANGING.set()
    await until(lambda: pool.ready)
    assert (await pool.run_batch(["a"], {"seed": 1})).results == ["a 1"]


@on_ray
async def test_a_replica_that_hangs_is_replaced(pool):
    first = {(await pool.run_batch(["a"])).replica for _ in range(2 * pool.workers)}
    await abandon(pool, pool.workers)
    assert not pool.ready
    await until(lambda: pool.ready)
    batch = await pool.run_batch(["a"], {"seed": 1})
    assert batch.results == ["a 1"] and batch.replica not in first


@on_ray
@pytest.mark.parametrize("line", ["break", tiers.nightly("lock")])
async def test_other_errors_of_a_replica_are_logged(pool, caplog, line):
    with pytest.raises(Refusal, match="its log says why"):
        await pool.run_batch([line])
    assert (await pool.run_batch(["a"], {"seed": 1})).results == ["a 1"]
    assert "a replica has failed" in caplog.text


@on_ray
async def test_a_replica_that_dies_is_replaced_and_no_request_fails(pool, queue):
    first = (await pool.run_batch(["a"])).replica
    slow = [asyncio.create_task(queue.submit(["sleep"], {"seed": seed})) for seed in range(4)]
    await asyncio.sleep(0.5)
    os.kill(int(first), signal.SIGKILL)
    assert [(await one).results for one in slow] == [[f"sleep {seed}"] for seed in range(4)]
    replicas = set()
    while len(replicas - {first}) < 2:  # the survivor, then the new replica
        await queue.submit(["a"])  # no request fails
        with contextlib.suppress(WorkerLost):
            replicas.add((await pool.run_batch(["a"])).replica)


@on_ray
async def test_a_request_that_kills_replicas_fails_and_others_are_answered(queue):
    requests = [queue.submit(items, {"seed": 1}) for items in (["a", "b"], ["die", "c"], ["d"])]
    first, poisoned, last = await asyncio.gather(*requests, return_exceptions=True)
    assert (first.results, last.results) == (["a 1", "b 1"], ["d 1"])
    assert isinstance(poisoned, WorkerLost)


@pytest.mark.nightly
@on_ray
async def test_a_replica_that_is_stopped_counts_as_lost(pool, queue, monkeypatch):
    monkeypatch.setattr(ray_pool, "LOST_AFTER_SECONDS", 3.0)
    first = (await pool.run_batch(["a"])).replica
    begun = [asyncio.create_task(queue.submit(["sleep"], {"seed": seed})) for seed in range(4)]
    await asyncio.sleep(1)
    os.kill(int(first), signal.SIGSTOP)
    assert [(await one).results for one in begun] == [[f"sleep {seed}"] for seed in range(4)]


@on_ray
async def test_a_folder_that_cannot_be_opened_is_an_error_at_the_start(kind, monkeypatch, tmp_path):
    class NoEngine(faulty_engine.FaultyEngine):
        def __init__(self, folder, **options):
            raise ValueError("no artefact")

    monkeypatch.setattr(ray_pool, "Engine", NoEngine)
    with pytest.raises(RuntimeError, match="no artefact"):
        await kind(tmp_path).open()
