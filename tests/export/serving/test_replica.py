"""A replica whose artefact is replaced, and how long it takes lines to be."""

import asyncio
import json
import shutil
import threading

import pytest
from support import artefacts

from keras_transformer.export.artefact.manifest import seal
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


def replaced(folder, tokenizer, length):
    """Puts an artefact in the place of another; gives its version."""
    limits = {"source_length": length, "target_length": None, "extra_length": 0}
    artefacts.write(folder, tokenizer, limits=limits)
    return Translator(folder).manifest["checksum"][:12]


def test_a_damaged_folder_is_opened_again_only_when_it_changes(tokenizer, tmp_path, monkeypatch):
    folder, opened = artefacts.write(tmp_path / "out", tokenizer), []
    replica = Replica(str(folder), threads=1)
    open_runner = replica_module.open_runner

    def counted(*arguments, **options):
        opened.append(True)
        return open_runner(*arguments, **options)

    monkeypatch.setattr(replica_module, "open_runner", counted)
    model = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(model[:100])
    version = replaced_manifest(folder)
    for _ in range(5):
        replica.look()
    assert len(opened) == 1 and replica.describe().version != version
    (folder / "model.onnx").write_bytes(model)  # the manifest stays as it is
    replica.look()
    assert len(opened) == 2 and replica.describe().version == version


def replaced_manifest(folder):
    """Seals a manifest anew with another limit; gives its version."""
    manifest = json.loads((folder / "artefact.json").read_text())
    del manifest["checksum"]
    manifest["limits"] = {"source_length": 5, "target_length": None, "extra_length": 0}
    sealed = seal(manifest)
    (folder / "artefact.json").write_bytes(sealed)
    return json.loads(sealed)["checksum"][:12]


def test_any_error_of_a_new_artefact_is_logged_and_the_next_one_is_taken_up(
    tokenizer, tmp_path, monkeypatch, caplog
):
    folder = artefacts.write(tmp_path / "out", tokenizer)
    replica = Replica(str(folder), threads=1)
    errors, open_runner = (
        [TypeError("unhashable"), ImportError("tokenizers")],
        replica_module.open_runner,
    )

    def failing(*arguments, **options):
        if errors:
            raise errors.pop()
        return open_runner(*arguments, **options)

    monkeypatch.setattr(replica_module, "open_runner", failing)
    with caplog.at_level("WARNING", "ray.serve"):
        for length in (5, 7):
            replaced(folder, tokenizer, length)
            replica.look()
    assert "TypeError: unhashable" in caplog.text and "ImportError: tokenizers" in caplog.text
    version = replaced(folder, tokenizer, 11)
    replica.look()
    assert replica.describe().version == version


def test_an_artefact_that_is_replaced_while_it_is_opened_is_not_mixed(
    tokenizer, tmp_path, monkeypatch
):
    """Both workers answer with one version, whatever happens between their sessions."""
    folder = artefacts.write(tmp_path / "out", tokenizer)
    replica = Replica(str(folder), threads=1, workers=2)
    lengths, open_runner = [7, 5], replica_module.open_runner
    replaced(folder, tokenizer, 3)

    def replacing(*arguments, **options):
        runner = open_runner(*arguments, **options)
        if lengths:
            replaced(folder, tokenizer, lengths.pop())
        return runner

    monkeypatch.setattr(replica_module, "open_runner", replacing)
    for _ in range(3):
        replica.look()
        versions = {replica.answer([""], worker=worker).description.version for worker in (0, 1)}
        assert versions == {replica.describe().version}
    assert replica.describe().version == Translator(folder).manifest["checksum"][:12]


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
