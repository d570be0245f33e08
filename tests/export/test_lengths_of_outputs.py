"""Outputs that are longer or shorter than the input: their axes have names of their own."""

import keras
import numpy as np
import onnxruntime
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import export


def longer(x):
    y = kt.ClassToken()(x)
    return {"same": keras.layers.Dense(4)(x), "longer": y, "scaled": y / (ops.abs(y) + 1)}


def shorter(x):
    return {"same": x * 2, "shorter": keras.layers.MaxPooling1D(2)(x), "flat": ops.sum(x, axis=1)}


@pytest.mark.parametrize("outputs", [longer, shorter])
def test_outputs_of_other_lengths_run_beside_those_of_the_inputs_length(outputs, tmp_path):
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, outputs(x))
    manifest = export.export_onnx(model, tmp_path / "out", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for rows, length in ((3, 5), (2, 11)):
        array = np.random.default_rng(length).normal(size=(rows, length, 4)).astype("float32")
        expected = model(array)
        names = [output.name for output in session.get_outputs()]
        for name, found in zip(names, session.run(None, {"x": array}), strict=True):
            np.testing.assert_allclose(found, expected[name], atol=1e-5)
    axes = {output["name"]: output["axes"][1] for output in manifest["outputs"]}
    assert axes["same"] == manifest["inputs"][0]["axes"][1]
    assert axes["same"] not in [axis for name, axis in axes.items() if name != "same"]
