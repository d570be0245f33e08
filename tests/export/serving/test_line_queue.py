"""The queue of a model, and a replica whose artefact is replaced: without doors and without Ray."""

import asyncio
import shutil
import types

import pytest
from support import artefacts

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.cluster import TRIES, Replicas
from keras_transformer.export.serving.line_queue import LineQueue
from keras_transformer.export.serving.refusals import Busy, Late, Unavailable
from keras_transformer.export.serving.replica import Replica


class Sender:
    """Doubles numbers, once it is let; remembers the lists that it got."""

    def __init__(self):
        self.lists, self.free = [], asyncio.Event()

    async def __call__(self, items, seed):
        self.lists.append((list(items), seed))
        await self.free.wait()
        if "bad" in items:
            raise ZeroDivisionError
        results = [2 * item for item in items]
        return types.SimpleNamespace(results=results, lengths=[1] * len(items))


def queued(test, **options):
    """Runs a test, a coroutine function of a queue and its sender."""

    async def run():
        sender = Sender()
        queue = LineQueue(sender, **options)
        try:
            await asyncio.wait_for(test(queue, sender), 10)
        finally:
            await queue.close()

    asyncio.run(run())


async def begun(queue, sender, *requests, seed=None):
    """Tasks of requests, of which the first is being computed while the others wait."""
    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(queue.answer(request, seed)))
        await asyncio.sleep(0.02)
    assert sender.lists[0][0] == requests[0]
    return tasks


def test_what_comes_while_a_list_is_computed_is_the_next_list():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [2, 3], [4])
        assert len(sender.lists) == 1 and queue.waiting == 3
        sender.free.set()
        answers = [await task for task in tasks]
        assert [answer.results for answer in answers] == [[2], [4, 6], [8]]
        assert [answer.tokens for answer in answers] == [1, 2, 1]
        assert [items for items, _ in sender.lists] == [[1], [2, 3, 4]] and queue.waiting == 0

    queued(test)


def test_a_list_worth_a_batch_is_sent_ahead():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [*range(40)])
        assert len(sender.lists) == 2
        sender.free.set()
        assert len((await tasks[1]).results) == 40

    queued(test)


def test_a_long_request_is_parted_and_put_together():
    async def test(queue, sender):
        sender.free.set()
        assert (await queue.answer([*range(23)])).results == [*range(0, 46, 2)]
        assert max(len(items) for items, _ in sender.lists) <= 5
        assert (await queue.answer([])).results == []

    queued(test, list_lines=5)


def test_seeds_are_kept_apart():
    async def test(queue, sender):
        tasks = await begun(queue, sender, [1], [2], seed=7)
        tasks += [asyncio.create_task(queue.answer([3], 8))]
        await asyncio.sleep(0.02)
        sender.free.set()
        assert [(await task).results for task in tasks] == [[2], [4], [6]]
        assert [seed for _, seed in sender.lists] == [7, 7, 8]

    queued(test)


def test_a_full_queue_refuses_and_late_requests_are_left_out():
    async def test(queue, sender):
        loop = asyncio.get_running_loop()
        (first,) = await begun(queue, sender, [1])
        with pytest.raises(Late):
            await queue.answer(["late", "late"], deadline=loop.time() + 0.05)
        kept = asyncio.create_task(queue.answer([5]))
        await asyncio.sleep(0.02)
        with pytest.raises(Busy, match="3 lines wait already"):
            await queue.answer([6])
        sender.free.set()
        assert (await first).results == [2] and (await kept).results == [10]
        assert "late" not in [item for items, _ in sender.lists for item in items]

    queued(test, most_waiting=3)


def test_an_error_reaches_those_of_its_list_and_no_other():
    async def test(queue, sender):
        sender.free.set()
        with pytest.raises(ZeroDivisionError):
            await queue.answer(["bad"])
        assert (await queue.answer([1])).results == [2]

    queued(test)


def test_a_replica_takes_up_what_replaces_its_artefact(tokenizer, tmp_path, caplog):
    folder, line = artefacts.write(tmp_path / "out", tokenizer), artefacts.LINES[0]
    replica = Replica(str(folder), threads=1)
    version = asyncio.run(replica.describe()).version
    replica.look()
    assert asyncio.run(replica.describe()).version == version

    shutil.rmtree(folder)
    replica.look()  # nothing is there: the old one answers
    expected = asyncio.run(replica.answer([line])).results
    folder.mkdir()
    (folder / "artefact.json").write_text("{}")
    with caplog.at_level("WARNING", "ray.serve"):
        replica.look()
        replica.look()
    assert sum("is not served" in record.message for record in caplog.records) == 1
    assert asyncio.run(replica.answer([line])).results == expected

    limits = {"source_length": 3, "target_length": None, "extra_length": 0}
    artefacts.write(folder, tokenizer, limits=limits)
    replica.look()
    sent = asyncio.run(replica.answer([line, ""]))
    assert sent.version != version and sent.results == Translator(folder).n_best([line, ""])
    assert "tokens" in sent.results[0].error and sent.lengths == [0, 0]


def test_a_list_is_sent_again_until_a_replica_answers(monkeypatch):
    ray = pytest.importorskip("ray.exceptions")
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    answers = []

    class Method:
        async def remote(self, items, seed):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    replicas = Replicas(types.SimpleNamespace(answer=Method()), 1)
    answers[:] = [ray.RayActorError(), ray.RayActorError(), "found"]
    assert asyncio.run(replicas.answer(["x"])) == "found" and len(waits) == 2
    answers[:] = [ray.RayActorError()] * TRIES
    with pytest.raises(Unavailable, match="No replica answers"):
        asyncio.run(replicas.answer(["x"]))
    assert not answers
