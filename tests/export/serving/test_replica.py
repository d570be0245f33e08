"""A replica whose artefact is replaced, and how long it takes lines to be."""

import asyncio
import shutil
import threading

import pytest
from support import artefacts

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving import replica as replica_module
from keras_transformer.export.serving.measure import SEEN, UNKNOWN, make_measure
from keras_transformer.export.serving.replica import Replica
from keras_transformer.export.serving.workers import Workers


def test_a_replica_takes_up_what_replaces_its_artefact(tokenizer, tmp_path, caplog):
    folder, line = artefacts.write(tmp_path / "out", tokenizer), artefacts.LINES[0]
    replica = Replica(str(folder), threads=1)
    version = replica.describe().version
    replica.look()
    assert replica.describe().version == version

    shutil.rmtree(folder)
    replica.look()  # nothing is there: the old one answers
    expected = replica.answer([line]).results
    folder.mkdir()
    (folder / "artefact.json").write_text("{}")
    with caplog.at_level("WARNING", "ray.serve"):
        replica.look()
        replica.look()
    assert sum("is not served" in record.message for record in caplog.records) == 1
    assert replica.answer([line]).results == expected

    limits = {"source_length": 3, "target_length": None, "extra_length": 0}
    artefacts.write(folder, tokenizer, limits=limits)
    replica.look()
    sent = replica.answer([line, ""])
    assert sent.description.version != version and sent.results == Translator(folder).n_best(
        [line, ""]
    )
    assert "tokens" in sent.results[0].error and sent.lengths == [0, 0]


@pytest.mark.parametrize("copies, sessions", [(9, 3), (2.5, 2), (0.5, 1)])
def test_workers_have_sessions_of_their_own_as_far_as_memory_goes(
    folder, monkeypatch, copies, sessions
):
    translator = Translator(folder)
    size = sum(file["bytes"] for file in translator.manifest["files"].values())
    monkeypatch.setattr(replica_module, "SESSION_BYTES", int(copies * size))
    all_here, used, answers = threading.Barrier(3, timeout=60), set(), replica_module.answers

    def recorded(runner, *arguments):
        used.add(id(runner))
        all_here.wait()  # three batches at the same time
        return answers(runner, *arguments)

    monkeypatch.setattr(replica_module, "answers", recorded)

    async def use():
        workers = Workers(3, len)
        Replica(str(folder), threads=1, workers=3, doors=(workers.address, workers.key))
        asked = [workers.answer(artefacts.LINES) for _ in range(3)]
        sent = await asyncio.wait_for(asyncio.gather(*asked), 60)
        await workers.close()
        return sent

    expected = translator.n_best(artefacts.LINES)
    assert all(one.results == expected for one in asyncio.run(use()))
    assert len(used) == sessions


def test_lines_are_as_long_as_the_model_reads_them(folder):
    lines = [*artefacts.LINES, artefacts.LINES[0].encode()]
    assert make_measure(folder)(lines) == Translator(folder).lengths(lines)


def test_odd_and_long_lines_have_a_length(folder, tmp_path):
    measure = make_measure(folder)
    assert measure([b"\xff", "\ud800", ""]) == [measure(["\ufffd"])[0], 0, 0]
    short, long = measure(["dog " * (SEEN // 4), "dog " * (3 * SEEN // 4)])
    assert long == 3 * short
    assert make_measure(tmp_path)(["[1, 2]", "[3]"]) == [UNKNOWN] * 2  # no tokenizer
