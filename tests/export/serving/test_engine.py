"""An engine whose artefact is replaced, and the estimated lengths of lines."""

import asyncio
import json
import shutil
import threading

import numpy as np
import pytest
from helpers import artefacts

from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.serving import engine as engine_module
from keras_transformer.export.serving.engine import Engine
from keras_transformer.export.serving.line_queue import SEEN, UNKNOWN, make_measure
from keras_transformer.export.serving.pools import LocalPool

LINE = artefacts.LINES[0]


@pytest.fixture
def replaced(tokenizer, tmp_path):
    """A folder, and a function that writes an artefact there and returns its version."""

    def replace(length):
        limits = {"source_length": length, "target_length": None, "extra_length": 0}
        artefacts.write(tmp_path / "out", tokenizer, limits=limits)
        return Translator(tmp_path / "out").manifest["checksum"][:12]

    replace(61)
    return tmp_path / "out", replace


def test_equal_prompts_get_different_samples_without_a_seed(seeded_folder, monkeypatch):
    seeds = iter((3, 5, 9))
    monkeypatch.setattr("secrets.randbelow", lambda limit: next(seeds))
    engine = Engine(seeded_folder, threads=1)
    prompts = ["one", "two", "one", "one"]
    found = [result.texts[0] for result in engine.run_batch(prompts).results]
    generator = Generator(seeded_folder)
    expected = [
        generator.generate([prompt], seed)[0]
        for prompt, seed in zip(prompts, (3, 3, 5, 9), strict=True)
    ]
    assert found == expected and len({found[0], *found[2:]}) == 3
    found = [result.texts[0] for result in engine.run_batch(prompts, {"seed": 3}).results]
    assert found == generator.generate(prompts, 3)  # no further number is drawn


def test_groups_without_equal_lines_cover_all_lines():
    array = np.arange(3)
    items = ["one", array, "two", "one", np.arange(3), "one"]
    assert engine_module._without_equal_lines(items) == [[0, 1, 2], [3, 4], [5]]
    assert engine_module._without_equal_lines([]) == []


@pytest.fixture
def opened(monkeypatch):
    """Functions that run in turn after a folder is opened, and one item per opening."""
    after, count, open_runner = [], [], engine_module.open_runner

    def counted(*arguments, **options):
        count.append(True)
        runner = open_runner(*arguments, **options)
        if after:
            after.pop(0)()
        return runner

    monkeypatch.setattr(engine_module, "open_runner", counted)
    return after, count


def test_an_artefact_that_replaces_another_is_loaded(replaced, caplog):
    folder, replace = replaced
    engine = Engine(folder, threads=1)
    version, expected = engine.describe().version, engine.run_batch([LINE]).results
    engine.reload()
    shutil.rmtree(folder)
    engine.reload()  # no folder: the old artefact stays in use
    folder.mkdir()
    (folder / "artefact.json").write_text("{}")
    for _ in range(2):
        engine.reload()
    assert sum("is not served" in record.message for record in caplog.records) == 1
    assert engine.describe().version == version and engine.run_batch([LINE]).results == expected

    version = replace(3)
    engine.reload()
    batch = engine.run_batch([LINE, ""])
    assert batch.description.version == version
    assert batch.results == Translator(folder).n_best([LINE, ""])
    assert "tokens" in batch.results[0].error and batch.lengths == [0, 0]


def test_a_damaged_folder_is_opened_again_only_when_it_changes(replaced, opened, caplog):
    folder, replace = replaced
    engine = Engine(folder, threads=1)
    model, manifest = (folder / name for name in ("model.onnx", "artefact.json"))
    whole, fields = model.read_bytes(), json.loads(manifest.read_text())
    model.write_bytes(whole[:100])
    del fields["checksum"]
    manifest.write_bytes(seal(fields | {"limits": fields["limits"] | {"source_length": 5}}))
    version = json.loads(manifest.read_text())["checksum"][:12]
    for _ in range(5):
        engine.reload()
    assert len(opened[1]) == 2 and engine.describe().version != version
    model.write_bytes(whole)  # the manifest stays as it is
    engine.reload()
    assert len(opened[1]) == 3 and engine.describe().version == version

    def fail():
        raise TypeError("unhashable")

    opened[0].append(fail)
    replace(5)
    engine.reload()
    assert "TypeError: unhashable" in caplog.text and engine.describe().version == version
    version = replace(11)
    engine.reload()
    assert engine.describe().version == version


def test_sessions_are_consistent_if_the_artefact_changes_during_opening(replaced, opened):
    """All sessions have the same version, whatever happens between their openings."""
    folder, replace = replaced
    engine = Engine(folder, threads=1, workers=2)
    replace(3)
    opened[0].extend([lambda: replace(5), lambda: None, lambda: None, lambda: replace(7)])
    for _ in range(3):
        engine.reload()
        versions = {engine.run_batch([""]).description.version for _ in range(2)}
        assert versions == {engine.describe().version}
    assert engine.describe().version == Translator(folder).manifest["checksum"][:12]


@pytest.mark.anyio
@pytest.mark.parametrize("copies, sessions", [(9, 3), (2.5, 2), (0.5, 1)])
async def test_workers_have_separate_sessions_within_the_memory_limit(
    folder, monkeypatch, copies, sessions
):
    translator = Translator(folder)
    size = sum(file["bytes"] for file in translator.manifest["files"].values())
    monkeypatch.setattr(engine_module, "SESSION_BYTES", int(copies * size))
    all_here, used, results = threading.Barrier(3, timeout=60), set(), Translator.results

    def recorded(runner, *arguments, **options):
        used.add(id(runner))
        all_here.wait()  # three batches at the same time
        return results(runner, *arguments, **options)

    monkeypatch.setattr(Translator, "results", recorded)

    pool = LocalPool(folder, 3, threads=1)
    await pool.open()
    batches = await asyncio.gather(*(pool.run_batch(artefacts.LINES) for _ in range(3)))
    await pool.close()
    monkeypatch.undo()
    expected = translator.n_best(artefacts.LINES)
    assert all(batch.results == expected for batch in batches)
    assert len(used) == sessions


def test_lengths_are_estimated_by_the_tokenizer(folder, tmp_path):
    measure = make_measure(folder)
    lines = [*artefacts.LINES, LINE.encode()]
    assert measure(lines) == Translator(folder).lengths(lines)
    assert measure([b"\xff", "\ud800", ""]) == [measure(["\ufffd"])[0], 0, 0]
    short, long = measure(["dog " * (SEEN // 4), "dog " * (3 * SEEN // 4)])
    assert long == 3 * short
    assert make_measure(tmp_path)(["[1, 2]", "[3]"]) == [UNKNOWN] * 2  # no tokenizer
