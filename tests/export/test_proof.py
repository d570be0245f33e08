"""What the proof feeds and compares: integers and booleans of all kinds, and the model passed."""

import re

import keras
import numpy as np
import onnxruntime
import pytest
from keras import layers, ops
from support import exports

import keras_transformer as kt
from keras_transformer.export import ExportError, export_onnx, verify
from keras_transformer.export.artefact import signature
from keras_transformer.export.tasks import ForwardTask


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
    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return self.dense(x)


class Counts(layers.Layer):
    """Gives another number at each call."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + self.calls


def exported(model, folder, **options):
    """The ONNX Runtime session of what `export_onnx` writes."""
    export_onnx(model, folder / "onnx", verbose=False, **options)
    return onnxruntime.InferenceSession(folder / "onnx" / signature.MODEL_FILE)


@pytest.fixture
def policy():
    """Sets the dtype policy for one test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


def test_made_up_inputs_hold_negative_zero_and_large_integers_and_both_booleans():
    i, j = keras.Input((None,), dtype="int32"), keras.Input((4,), dtype="int64")
    b, ids = keras.Input((), dtype="bool"), keras.Input((None,), dtype="int32", name="ids")
    outputs = {"i": i + 1, "j": j + 1, "b": ops.logical_not(b), "e": layers.Embedding(7, 2)(ids)}
    cases = ForwardTask(keras.Model([i, j, b, ids], outputs)).cases(None)
    for tensor in (i, j):
        values = np.concatenate([case[tensor.name].ravel() for case in cases])
        assert {-1, 0, 1} <= set(values.tolist())
        assert values.max() > 2**24 and values.min() < -(2**24)
    assert {True, False} == set(np.concatenate([case[b.name] for case in cases]).tolist())
    values = np.concatenate([case["ids"].ravel() for case in cases])
    assert values.min() >= 0 and values.max() < 7


def test_made_up_inputs_suit_the_model_where_that_can_be_found(tmp_path):
    x, i = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    model = keras.Model([x, i], [x[:, 10], layers.Embedding(8, 3)(i + 1)])
    exported(model, tmp_path)


def test_samples_are_asked_for_where_none_made_up_suits(tmp_path):
    x = keras.Input((None, 4))
    with pytest.raises(ExportError, match=r"(?s)made-up.*\(1, 33, 4\).*Pass samples=") as caught:
        exported(keras.Model(x, ops.reshape(x, (-1, 7919, 4))), tmp_path)
    assert "report" not in str(caught.value)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_and_booleans_are_compared_exactly(dtype, exact):
    expected = [{"ids": np.array([1_700_000_003, 0, 1], dtype)}]
    found = [{"ids": np.array([1_699_999_999, 1, 1], dtype)}]
    assert verify.compare_forward(expected, expected, 1e-4, exact) == 0
    with pytest.raises(ExportError, match="'ids'.*of 3") as caught:
        verify.compare_forward(expected, found, 0.3 if not exact else 1e9, exact)
    assert "tolerance" not in str(caught.value)


def test_dtypes_are_compared():
    expected, found = [{"y": np.array([1], "int32")}], [{"y": np.array([1], "int64")}]
    with pytest.raises(ExportError, match="'y' has dtype int64, Keras gives int32"):
        verify.compare_forward(expected, found, 1e-4)


def test_numbers_that_are_wrong_ask_for_no_larger_tolerance():
    expected, found = [{"y": np.ones(3, "float32")}], [{"y": np.array([1, 2, 1], "float32")}]
    with pytest.raises(ExportError) as caught:
        verify.compare_forward(expected, found, 1e-4)
    assert "Pass a larger" not in str(caught.value)
    with pytest.raises(ExportError, match="Pass a larger `tolerance`"):
        verify.compare_forward(expected, [{"y": np.array([1, 1.001, 1], "float32")}], 1e-4)


def test_a_model_that_changes_between_calls_is_named_as_such(tmp_path):
    x = keras.Input((3,))
    with pytest.raises(ExportError, match="other numbers for the same input"):
        exported(keras.Model(x, Counts()(x)), tmp_path)


class Branches(layers.Layer):
    """Reads the values of a tensor in Python."""

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

    def call(self, x):
        return x * 2 if float(ops.sum(x)) > 0 else x


def test_a_layer_that_cannot_be_traced_says_how_to_mend_it(tmp_path):
    x = keras.Input((3,))
    with pytest.raises(ExportError, match="(?s)Failed at tracing.*use keras.ops") as caught:
        exported(keras.Model(x, Branches()(x)), tmp_path)
    assert "report" not in str(caught.value)


# The model that is passed, and a copy of it in float32


def test_a_copy_that_is_not_the_model_is_refused(policy, tmp_path):
    policy("mixed_bfloat16")
    x, factor = keras.Input((4,)), Factor()
    model = keras.Model(x, factor(layers.Dense(2)(x)))
    exported(model, tmp_path)
    factor.factor = 5.0
    with pytest.raises(ExportError, match="rebuilt from its configuration"):
        exported(model, tmp_path)


def test_a_search_is_held_to_the_model_that_was_passed(tmp_path, monkeypatch):
    model = exports.tiny(num_layers=1, dtype="mixed_bfloat16")
    options = {"search": kt.GreedySearch(), "max_length": 5}
    exported(model, tmp_path, **options)
    copied = type(model).from_config

    def other(config):
        return copied({**config, "norm_first": True})

    monkeypatch.setattr(type(model), "from_config", other)
    with pytest.raises(ExportError, match="rebuilt from its configuration"):
        exported(model, tmp_path, **options)


def test_explicit_casts_stay(tmp_path):
    x, h = keras.Input((3,), name="x"), keras.Input((3,), dtype="float16", name="h")
    y = ops.cast(ops.cast(x * 1e5, "float16"), "float32")
    model = keras.Model([x, h], {"big": y, "half": ops.cast(x, "float16"), "same": h * 2})
    samples = [{"x": np.array([[0.1, -0.2, 3.0]], "float32"), "h": np.ones((1, 3), "float16")}]
    session = exported(model, tmp_path, samples=samples)
    big, half, same = session.run(["big", "half", "same"], samples[0])
    assert np.isinf(big[0, 2]) and half.dtype == same.dtype == np.float16


def test_a_copy_has_the_names_of_the_inputs(policy, tmp_path):
    policy("mixed_bfloat16")
    x = keras.Input((4,))
    session = exported(keras.Model(x, layers.Dense(2)(x)), tmp_path)
    assert [value.name for value in session.get_inputs()] == [x.name]


def test_float32_models_need_no_configuration(tmp_path):
    x = keras.Input((4,))
    exported(keras.Model(x, WithoutConfig(layers.Dense(3))(x)), tmp_path)


@pytest.mark.parametrize("layer", [Unregistered, lambda: WithoutConfig(layers.Dense(3))])
def test_a_model_that_cannot_be_copied_says_how_to_mend_it(policy, tmp_path, layer):
    policy("mixed_bfloat16")
    x = keras.Input((4,))
    model = keras.Model(x, layer()(layers.Dense(2)(x)))
    with pytest.raises(ExportError, match="register.*get_config.*float32") as caught:
        exported(model, tmp_path)
    assert "report" not in str(caught.value)


# Arguments


def test_a_least_length_above_the_most_is_told_at_once(tmp_path):
    search = kt.BeamSearch(2, min_length=5)
    with pytest.raises(ValueError, match="min_length=5.*at most 3"):
        exported(exports.tiny(num_layers=1), tmp_path, search=search, max_length=3)
    assert not list(tmp_path.iterdir())


def test_outputs_without_names_are_told_to_be_a_dict(tmp_path):
    x = keras.Input((3,), name="x")
    for outputs in ([x], [ops.tanh(x)] * 2):
        with pytest.raises(ValueError, match=re.escape("keras.Model(inputs, {")):
            exported(keras.Model(x, outputs), tmp_path)
