"""An artefact beside its Keras model: the same tokens are counted, in a process of its own."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support import exports  # noqa: E402

from keras_transformer.export import (  # noqa: E402
    ExportError,
    apart,
    export_onnx,
    export_saved_model,
    side_by_side,
)
from keras_transformer.export.side_by_side import Comparison, compare_with_keras  # noqa: E402

LINES = [*exports.LINES, "a red dog", "two men run , a dog 's hat ."]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model and what was exported of it."""
    folder = tmp_path_factory.mktemp("side_by_side") / "onnx"
    model = exports.tiny()
    export_onnx(
        model, folder, exports.tokenizer(), exports.BEAM, max_length=7, text=True, verbose=False
    )
    return model, folder


@pytest.fixture
def batches_of_two(monkeypatch):
    monkeypatch.setattr(side_by_side, "BATCH_SIZE", 2)


class Bounded:
    """The search as it was exported, with its largest number of tokens."""

    def __init__(self, max_length=7):
        self.max_length = max_length

    def __call__(self, model, source_ids):
        return exports.BEAM(model, source_ids, self.max_length)


def test_keras_and_the_artefact_agree(exported, batches_of_two):
    model, folder = exported
    found = compare_with_keras(model, exports.tokenizer(), Bounded(), folder, LINES)
    assert found.sentences == found.same_tokens == len(LINES) == 6
    assert found.keras_seconds > 0 and found.onnx_seconds > 0 and found.text_seconds > 0
    assert f"the same tokens in {len(LINES)} of {len(LINES)}" in str(found)


def test_sentences_that_differ_are_counted(exported, batches_of_two):
    class Cut(Bounded):
        """Gives another first token to the first sentence of each batch."""

        def __call__(self, model, source_ids):
            result = super().__call__(model, source_ids)
            ids = np.array(result.ids)
            ids[0, 0, 0] = 4 if ids[0, 0, 0] != 4 else 5
            return result._replace(ids=ids)

    model, folder = exported
    found = compare_with_keras(model, exports.tokenizer(), Cut(), folder, LINES)
    assert (found.same_tokens, found.sentences) == (3, 6) and found.same_texts <= 3


def test_the_process_has_no_framework_and_takes_lines_in_order(exported, tmp_path):
    model, folder = exported
    job = tmp_path / "job.npz"
    ids = exports.source(rows=2)
    np.savez(job, folder=str(folder), lines=np.array(LINES), **{"ids/0": ids, "ids/1": ids[:1]})
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


def test_without_a_text_model_tokens_alone_are_compared():
    model, folder, search = (
        exports.shared_model(),
        exports.shared_artefact(),
        Bounded(exports.MAX_LENGTH),
    )
    found = compare_with_keras(model, exports.tokenizer(), search, folder, LINES[:3])
    assert found.same_texts is None and found.text_seconds is None and found.same_tokens == 3
    assert "strings" not in str(found)


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
    model, _ = exported
    with pytest.raises(ExportError, match=r"(?s)nowhere died with status 1: .*ArtefactError"):
        compare_with_keras(model, exports.tokenizer(), Bounded(), tmp_path / "nowhere", LINES)


def test_there_must_be_a_line(exported):
    with pytest.raises(ValueError, match="at least one line"):
        compare_with_keras(exported[0], exports.tokenizer(), Bounded(), exported[1], [])
