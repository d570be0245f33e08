"""`examples/why_self_attention.py` in its shortest form."""

import json

import numpy as np
import pytest
from support import scripts

from keras_transformer.export.runtime import Predictor


@pytest.fixture(scope="module")
def script():
    script = scripts.load("why_self_attention")
    script.LENGTH, script.LAYERS, script.DISTANCES = 32, 1, [0, 1, 31]
    return script


@pytest.fixture(scope="module")
def folder(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("why")
    script.main(f"--epochs 1 --rows 64 --longest 64 --output {folder}".split())
    return folder


@pytest.mark.full
def test_each_kind_of_layer_is_measured(script, folder):
    report = json.loads((folder / "score.json").read_text("utf-8"))
    assert list(report["score"]) == [f"recall over 31, {kind}" for kind in script.KINDS]
    assert all(len(share) == 3 for share in report["recall"].values())
    assert report["lengths"] == [64]
    assert report["milliseconds"].keys() == script.KINDS.keys()
    assert all(time > 0 for times in report["milliseconds"].values() for time in times)


@pytest.mark.full
def test_without_the_scale_the_gradient_of_large_keys_vanishes(folder):
    slopes = json.loads((folder / "score.json").read_text("utf-8"))["slopes"]
    scaled, plain, additive = slopes.values()
    assert scaled[-1] > 0.8 * scaled[0] and additive[-1] > 0.5 * scaled[0]
    assert plain[-1] < 0.35 * scaled[-1]


def test_restricted_attention_sees_its_block_and_the_one_before(script):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1, 64, 8)).astype("float32")
    layer = script.RestrictedSelfAttention(2, 4)
    before = np.asarray(layer(x))
    x[0, 20] += 1  # in the second block of 16
    changed = np.abs(np.asarray(layer(x)) - before).max(-1)[0] > 1e-6
    np.testing.assert_array_equal(np.flatnonzero(changed), np.arange(16, 48))


@pytest.mark.full
def test_the_page_of_plots_is_there(folder):
    assert (folder / "why_self_attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_answers(folder):
    (result,) = Predictor(folder / "onnx").predict(np.ones((1, 32), "int32"))
    assert result.error is None and result.label in map(str, range(16))
