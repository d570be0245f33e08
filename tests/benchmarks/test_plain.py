"""The comparison with plain tf2onnx: its file computes the model, and files are timed in turn."""

import sys
import time
from pathlib import Path

import keras
import numpy as np
import onnxruntime
import pytest
from keras import layers

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from plain import in_turn, plain_file  # noqa: E402

pytestmark = pytest.mark.full


def test_plain_file_computes_the_model_and_is_timed(tmp_path):
    inputs = {name: keras.Input((None, 3), name=name) for name in ("b", "a")}
    model = keras.Model(inputs, layers.Dense(2)(inputs["b"] - 2.0 * inputs["a"]))
    path = tmp_path / "plain.onnx"
    plain_file(model, path)
    random = np.random.default_rng(0)
    feed = {name: random.normal(size=(2, 5, 3)).astype("float32") for name in inputs}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feed)
    np.testing.assert_allclose(found, model(feed), rtol=1e-4, atol=1e-5)
    files = {"one": path, "same": path}
    seconds = in_turn(files, feed, rounds=3, shortest=1e-3, clock=time.thread_time)
    assert list(seconds) == ["one", "same"] and all(0 < s < 1 for s in seconds.values())
