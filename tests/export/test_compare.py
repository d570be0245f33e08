"""An artefact beside its Keras model: the same tokens are counted, in a process of its own."""

import datetime
import json
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support import exports  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.export import (  # noqa: E402
    Comparison,
    apart,
    compare,
    compare_with_keras,
    export_onnx,
    export_saved_model,
)
from keras_transformer.export.artefact.manifest import seal  # noqa: E402
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact  # noqa: E402

LINES = [*exports.LINES, "a red dog", "two men run , a dog 's hat ."]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model and what was exported of it."""
    folder = tmp_path_factory.mktemp("compare") / "onnx"
    model = exports.tiny()
    export_onnx(
        model, folder, exports.tokenizer(), exports.BEAM, max_length=7, text=True, verbose=False
    )
    return model, folder


@pytest.fixture
def batches_of_two(monkeypatch):
    monkeypatch.setattr(compare, "BATCH_SIZE", 2)


def test_keras_and_the_artefact_agree(exported, batches_of_two):
    model, folder = exported
    found = compare_with_keras(model, folder, LINES)
    assert found.sentences == found.same_tokens == len(LINES) == 6
    assert found.keras_seconds > 0 and found.onnx_seconds > 0 and found.text_seconds > 0
    assert f"the same tokens in {len(LINES)} of {len(LINES)}" in str(found)


def test_sentences_that_differ_are_counted(exported, batches_of_two):
    model, folder = exported
    other = exports.tiny()
    other.set_weights([weight * 0.5 for weight in model.get_weights()])
    found = compare_with_keras(other, folder, LINES)
    assert found.same_tokens < found.sentences == 6 and found.same_texts < 6


def test_references_give_bleu_and_chrf(exported):
    model, folder = exported
    found = compare_with_keras(model, folder, LINES, LINES)
    assert set(found.keras_scores) == {"BLEU", "chrF"} and found.keras_scores == found.onnx_scores
    assert "BLEU: Keras" in str(found)
    with pytest.raises(ValueError, match="6 lines and 1 references"):
        compare_with_keras(model, folder, LINES, LINES[:1])


def test_references_without_sacrebleu_say_what_to_install(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match="pip install sacrebleu"):
        compare_with_keras(*exported, LINES, LINES)


def test_samples_of_a_language_model_are_compared(tmp_path):
    model, search = exports.tiny("generate", num_layers=1), kt.Sampling(0.9, 20, num_samples=2)
    export_onnx(model, tmp_path / "x", exports.tokenizer(), search, max_length=5, verbose=False)
    assert compare_with_keras(model, tmp_path / "x", LINES[:3]).same_tokens == 3


def test_the_command_line_tells_the_same(exported, tmp_path, capsys):
    model, folder = exported
    model.save(tmp_path / "model.keras")
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n", "utf-8")
    paths = [str(tmp_path / "model.keras"), str(folder), str(tmp_path / "lines.txt")]
    assert compare.main([*paths, paths[-1]]) == 0
    told = capsys.readouterr().out
    assert "the same tokens in 6 of 6" in told and "chrF" in told
    assert compare.main([*paths[:2], str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err


def test_what_reads_no_text_is_refused(exported, tmp_path):
    export_onnx(exports.tiny("encode", num_layers=1), tmp_path / "x", verbose=False)
    with pytest.raises(ValueError, match="search that reads text.*no tokenizer"):
        compare_with_keras(exported[0], tmp_path / "x", LINES)


def test_a_line_that_is_too_long_is_named(exported, tmp_path):
    with pytest.raises(ValueError, match="Line 2 has .* at most 512"):
        compare_with_keras(*exported, ["a", "a red dog " * 400])


def test_the_process_has_no_framework_and_takes_lines_in_order(exported, tmp_path):
    model, folder = exported
    job = tmp_path / "job.npz"
    ids = exports.source(rows=2)
    parts = {"seed": np.int32(1), "ids/0": ids, "ids/1": ids[:1]}
    np.savez(job, folder=str(folder), lines=np.array(LINES), **parts)
    code = f"""
import runpy, sys
sys.argv = ["apart.py", {str(job)!r}]
runpy.run_path({apart.__file__!r}, run_name="__main__")
print([name for name in {apart.FRAMEWORKS!r} if sys.modules.get(name)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    report, loaded = done.stdout.splitlines()
    report = json.loads(report)
    assert loaded == "[]" and len(report["token_ids"]) == 3 and len(report["texts"]) == len(LINES)
    assert report["token_ids"][0] == report["token_ids"][2]


def test_without_a_text_model_tokens_alone_are_compared(exported, tmp_path):
    model, _ = exported
    folder = tmp_path / "onnx"
    export_onnx(model, folder, exports.tokenizer(), exports.BEAM, max_length=7, verbose=False)
    found = compare_with_keras(model, folder, LINES[:3])
    assert found.same_texts is None and found.text_seconds is None and found.same_tokens == 3
    assert "strings" not in str(found)


def test_the_exporter_tells_and_stores_the_differences(exported, tmp_path, capfd):
    options = {"max_length": 7, "precision": "int8"}
    manifest = export_onnx(exported[0], tmp_path / "x", search=exports.BEAM, **options)
    proof, told = manifest["proof"], capfd.readouterr().err
    assert 0 < proof["largest_difference"] < 0.15 and proof["relative_to"] == "spread"
    assert proof["cases"] == 3 and proof["lines"] == 6 and proof["same_tokens"][1] == 6
    assert datetime.date.fromisoformat(proof["date"])
    assert "6 lines, largest difference from Keras" in told and "of 6 lines" in told
    assert read_artefact(tmp_path / "x").manifest == manifest


@pytest.mark.parametrize(
    "change",
    [{"lines": "6"}, {"same_tokens": [True, 6]}, {"more": 1}, {"largest_difference": None}],
)
def test_a_proof_that_no_exporter_writes_is_refused(exported, change):
    manifest = read_artefact(exported[1]).manifest
    manifest = {**manifest, "proof": {**manifest["proof"], **change}}
    with pytest.raises(ValueError, match="proof"):
        seal(manifest)
    del manifest["proof"]
    seal(manifest)  # as earlier releases wrote it


def test_exports_tell_their_progress_and_nothing_else(exported, tmp_path, capfd):
    folder, tokenizer = tmp_path / "saved_model", exports.tokenizer()
    export_saved_model(exported[0], folder, tokenizer, exports.BEAM, max_length=7)
    lines = capfd.readouterr().err.splitlines()
    assert lines and [line for line in lines if not re.fullmatch(r".* \.\.\. [\d.]+ s", line)] == []


def test_times_are_told_beside_each_other():
    told = str(Comparison(500, 499, 498, 3.0, 1.5, 1.25))
    assert "Keras 3.00 s" in told and "without TensorFlow 1.50 s (2.0 times as fast)" in told
    assert "499 of 500" in told and "1.25 s; the same text in 498 of 500" in told


def test_an_artefact_that_is_not_there_is_named(exported, tmp_path):
    with pytest.raises(ArtefactError, match="nowhere is not an artefact"):
        compare_with_keras(exported[0], tmp_path / "nowhere", LINES)


def test_there_must_be_a_line(exported):
    with pytest.raises(ValueError, match="at least one line"):
        compare_with_keras(*exported, [])
