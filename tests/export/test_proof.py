"""The proof: unprovable models are refused, and a float32 copy must equal the passed model."""

import re

import keras
import numpy as np
import onnxruntime
import pytest
from helpers import exports
from keras import layers, ops

import keras_transformer as kt
from keras_transformer.export import ExportError, export_onnx
from keras_transformer.export.artefact import signature
from keras_transformer.export.proof import run_exported


@keras.saving.register_keras_serializable("test_proof")
class Factor(layers.Layer):
    """Has state that is neither a weight nor in its configuration."""

    factor = 1.0

    def call(self, x):
        return x * self.factor


class Unregistered(layers.Layer):
    def call(self, x):
        return x * 2.0


class WithoutConfig(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(x)


class Counts(layers.Layer):
    """Returns another number at each call."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + self.calls


def branches():
    """Returns a layer that reads the values of a tensor in Python."""
    return layers.Lambda(lambda x: x * 2 if float(ops.sum(x)) > 0 else x, output_shape=(4,))


def exported(model, folder, **options):
    """Exports a model and returns its ONNX Runtime session."""
    export_onnx(model, folder / "onnx", verbose=False, **options)
    return onnxruntime.InferenceSession(folder / "onnx" / signature.MODEL_FILE)


def model_of(*parts, size=4):
    """Returns a model that chains layers."""
    x = y = keras.Input((size,))
    for part in parts:
        y = part(y)
    return keras.Model(x, y)


def test_a_broken_file_names_the_check_it_failed(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ExportError, match="failed at onnx.checker"):
        run_exported([path], [])


def test_a_process_that_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ExportError, match="died with status 1"):
        run_exported([tmp_path], [])


@pytest.mark.parametrize(
    "layer, message",
    [
        (Counts, "other numbers for the same input"),
        (branches, "(?s)Failed at tracing.*use keras.ops"),
    ],
)
def test_errors_say_why_a_model_cannot_be_proven(layer, message, tmp_path):
    with pytest.raises(ExportError, match=message) as caught:
        exported(model_of(layer()), tmp_path)
    assert "report" not in str(caught.value) and not list(tmp_path.iterdir())


def test_outputs_without_names_need_a_dict(tmp_path):
    x = keras.Input((3,), name="x")
    for outputs in ([x], [ops.tanh(x)] * 2):
        with pytest.raises(ValueError, match=re.escape("keras.Model(inputs, {")):
            exported(keras.Model(x, outputs), tmp_path)


# The passed model and its float32 copy


def test_a_copy_that_differs_from_the_model_is_refused(tmp_path):
    factor = Factor()
    model = model_of(layers.Dense(2, dtype="mixed_bfloat16"), factor)
    session = exported(model, tmp_path)
    assert [value.name for value in session.get_inputs()] == [model.inputs[0].name]
    factor.factor = 5.0
    with pytest.raises(ExportError, match="rebuilt from its configuration"):
        exported(model, tmp_path)


def test_a_search_is_compared_with_the_model_that_was_passed(tmp_path, monkeypatch):
    model = exports.tiny(num_layers=1, dtype="mixed_bfloat16")
    copied = type(model).from_config
    monkeypatch.setattr(
        type(model), "from_config", lambda config: copied({**config, "norm_first": True})
    )
    with pytest.raises(ExportError, match="rebuilt from its configuration"):
        exported(model, tmp_path, search=kt.GreedySearch(), max_length=5)


def test_explicit_casts_stay(tmp_path):
    x, h = keras.Input((3,), name="x"), keras.Input((3,), dtype="float16", name="h")
    y = ops.cast(ops.cast(x * 1e5, "float16"), "float32")
    model = keras.Model([x, h], {"big": y, "half": ops.cast(x, "float16"), "same": h * 2})
    samples = [{"x": np.array([[0.1, -0.2, 3.0]], "float32"), "h": np.ones((1, 3), "float16")}]
    session = exported(model, tmp_path, samples=samples)
    big, half, same = session.run(["big", "half", "same"], samples[0])
    assert np.isinf(big[0, 2]) and half.dtype == same.dtype == np.float16


@pytest.mark.parametrize("layer", [Unregistered, WithoutConfig])
def test_only_reduced_models_are_copied_and_errors_say_how_to_fix_them(tmp_path, layer):
    assert exported(model_of(layer()), tmp_path).get_outputs()
    model = model_of(layers.Dense(2, dtype="mixed_bfloat16"), layer())
    with pytest.raises(ExportError, match="register.*get_config.*float32") as caught:
        exported(model, tmp_path)
    assert "report" not in str(caught.value)
