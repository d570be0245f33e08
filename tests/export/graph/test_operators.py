"""Operators that tf2onnx converts differently from TensorFlow."""

import keras
import numpy as np
import onnx_ir as ir
import pytest
import tensorflow as tf
from helpers.exports import convert, fused, numbers, operators, run, session
from keras import layers, ops

from keras_transformer.export import ExportError, export_onnx, onnx_model
from keras_transformer.export.graph import conversion

LARGE = 1_700_000_001  # not exact in float32
INTEGERS = np.array(
    [
        [-1, -2, -4, 5],
        [7, 0, -7, 6],
        [LARGE + 2, LARGE, LARGE + 1, 7],
        [-LARGE, 3, -(2**31), 2**31 - 1],
    ],
    "int32",
)
FLOATS = np.array(
    [[-1.5, 0.0, -0.0, 1e9], [-0.3, 1e-6, -1e9, 0.7], [2.0, -1.0, -2.0, 1.0]], "float32"
)
UNIT = np.array([[-0.9, 0.0, 1e-6, 0.5], [-1e-7, 0.25, 3.0, -3.0]], "float32")
BOOLEANS = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]], bool)


class Does(layers.Layer):
    """Wraps a function in a layer, so that Keras traces it as a whole."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_spec(self, x):
        return keras.src.backend.compute_output_spec(self.function, x)


def holds(functions, *arrays, free=False):
    """Compares ONNX Runtime with Keras; returns the graph of all functions."""
    functions = functions if isinstance(functions, list) else [functions]
    shape = [None if free and axis == 0 else n for axis, n in enumerate(arrays[0].shape[1:])]
    x = keras.Input(shape, dtype=arrays[0].dtype.name, name="x")
    model = keras.Model(x, {f"y{i}": Does(each)(x) for i, each in enumerate(functions)})
    made = fused(model)
    onnx_model.restore_outputs(made.graph, list(model.output_names))
    for array in arrays:
        for expected, found in zip(model(array).values(), run(made, x=array), strict=True):
            expected = np.asarray(expected)
            assert found.dtype == expected.dtype and found.shape == expected.shape
            if expected.dtype.kind in "iub":
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)
    return made


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_are_divided_as_in_python(dtype):
    divisors = [ops.cast(divisor, dtype) for divisor in (3, -3, 7, 100)]
    functions = [lambda x, y=y: x // y for y in divisors] + [lambda x, y=y: x % y for y in divisors]
    holds(functions, INTEGERS.astype(dtype))


def test_computed_divisors_may_be_negative_but_not_zero():
    def both(x):
        return ops.concatenate([x // x[:, 1:2], x % x[:, 1:2]], axis=1)

    array = np.array([[-7, 2], [7, -2], [0, 5], [-(2**31), 3], [6, -3]], "int32")
    made = holds(both, array)
    with pytest.raises(Exception, match="out of data bounds"):
        run(made, x=np.array([[1, 0]], "int32"))


def test_remainders_of_large_floats_are_exact():
    divisors = (3.0, -3.0, 0.7)
    holds(
        [lambda x, y=y: x % y for y in divisors] + [lambda x, y=y: x // y for y in divisors], FLOATS
    )


def test_negative_ids_are_no_class():
    each = [(axis, dtype) for axis in (-1, 1) for dtype in ("float32", "int32", "bool")]
    one = [lambda x, a=a, d=d: ops.one_hot(x, 5, axis=a, dtype=d) for a, d in each]
    many = [lambda x, a=a, d=d: ops.multi_hot(x, 5, axis=a, dtype=d) for a, d in each]
    holds(one + many, INTEGERS)


COMPARISONS = [
    lambda x: ops.sort(x, axis=-1),
    lambda x: ops.sort(x, axis=0),
    lambda x: ops.argsort(x, axis=-1),
    lambda x: ops.top_k(x, 2)[0],
    lambda x: ops.top_k(x, 2)[1],
    lambda x: ops.cast(x < LARGE + 1, "int32"),
    lambda x: ops.cast(x > ops.flip(x, 1), "int32"),
    lambda x: ops.argmax(x, axis=-1),
    ops.bitwise_not,
]


@pytest.mark.parametrize("factor", [1, 1_000_003])
def test_large_integers_are_compared_exactly(factor):
    holds(COMPARISONS, INTEGERS.astype("int32" if factor == 1 else "int64") * factor)


@pytest.mark.parametrize("array", [FLOATS, INTEGERS, BOOLEANS], ids=["float", "int", "bool"])
def test_argmax_and_argmin_of_any_dtype(array):
    axes = (-1, 1, None)
    largest = [lambda x, axis=axis: ops.argmax(x, axis=axis) for axis in axes]
    holds(largest + [lambda x, axis=axis: ops.argmin(x, axis=axis) for axis in axes], array)


def test_small_numbers_are_not_lost():
    functions = [ops.expm1, ops.celu, lambda x: ops.logaddexp(x, -x)]
    functions.append(lambda x: ops.cast(ops.signbit(x), "int32"))
    functions.append(lambda x: ops.log1p(ops.maximum(x, -0.9)))
    holds(functions, UNIT, -0.0 * np.abs(UNIT))


def test_where_ignores_the_other_number():
    """A product with 0 would give NaN for an infinite number."""
    array = np.array([[np.inf, 1.0, -np.inf, -2.0]], "float32")
    holds(
        [lambda x: ops.where(x * 2 > 3, 0.5, x), lambda x: ops.where(x < 0, x, ops.exp(x))], array
    )


def test_arctan2_respects_the_sign_of_zero():
    signs = np.array([[-0.0, 0.0, -0.0, 0.0, 3.0, -3.0, 0.25, -0.25]], "float32")
    array = np.concatenate([signs, signs[:, ::-1], np.float32([[np.inf, -np.inf] * 4])])
    angles = [lambda x, n=n: ops.arctan2(x, ops.roll(x, n, axis=1)) for n in range(8)]
    angles += [lambda x, y=y: ops.arctan2(x, y) for y in (-0.1, 0.1)]
    holds(angles, array)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_shifts_match_tensorflow(dtype):
    shifts = [ops.cast(count, dtype) for count in (0, 1, 5, 31, 70)]
    functions = [lambda x, n=n: ops.right_shift(x, n) for n in shifts]
    functions += [lambda x, n=n: ops.left_shift(x, n) for n in shifts[:3]]
    functions.append(lambda x: ops.right_shift(x, x))
    factor = 1_000_003 if dtype == "int64" else 1
    holds(functions, (INTEGERS.astype("int64") * factor).astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_products_of_integers_are_exact(dtype):
    functions = [lambda x, axis=axis: ops.prod(x, axis=axis) for axis in (1, 2, (1, 2), None)]
    functions.append(lambda x: ops.prod(x, axis=-1, keepdims=True))
    functions.append(lambda x: ops.cumprod(x, axis=1))
    array = np.stack([INTEGERS, INTEGERS[::-1] + 1]).astype(dtype)
    holds(functions, array, array[:, :0], array[:0], free=True)


def test_pooling_over_a_short_axis_is_empty():
    array = numbers(3, 11, 4)
    pools = [layers.MaxPooling1D, layers.AveragePooling1D]
    kinds = [(2, 2, "valid"), (2, 3, "valid"), (3, 2, "valid"), (3, 2, "same")]
    functions = [pool(size, strides, padding) for pool in pools for size, strides, padding in kinds]
    made = holds(functions, *(array[:, :length] for length in (11, 7, 6, 3)), free=True)
    shapes = [found.shape for found in run(made, x=array[:, :1])]  # TensorFlow crashes
    assert shapes == ([(3, 0, 4)] * 3 + [(3, 1, 4)]) * 2


def test_rolling_serves_an_empty_axis():
    array = numbers(3, 5, 4)
    functions = [lambda x, axis=axis: ops.roll(x, -7, axis=axis) for axis in (0, 1, -1)]
    functions.append(lambda x: ops.roll(x, (2, -1), axis=(0, 1)))
    holds(functions, array, array[:1], array[:, :1], array[:0], array[:, :0], free=True)


def test_cumulative_products():
    array = numbers(3, 5, 2)
    functions = [lambda x, axis=axis: ops.cumprod(x, axis=axis) for axis in (1, 2, -1)]
    holds(functions, array, array[:, :1], array[:0], free=True)
    holds(functions, np.int32([[[-2, 3], [0, 1], [5, -1]]]), free=True)


def test_digitize_discretization_and_searchsorted():
    bounds = [-1.0, 0.0, 2.0]
    ordered = np.array(bounds, "float32")
    functions = [lambda x: ops.digitize(x, ordered), layers.Discretization(bounds)]
    for side in ("left", "right"):
        functions.append(lambda x, side=side: ops.searchsorted(ordered, x[0], side=side))
    holds(functions, FLOATS)


def test_bitwise_and_is_refused_by_name():
    with pytest.raises(ExportError, match="BitwiseAnd"):
        holds(lambda x: ops.bitwise_and(x, 6), INTEGERS)


class Function(layers.Layer):
    """Applies a function."""

    def __init__(self, function):
        super().__init__(name="own_layer")
        self.function = function

    def call(self, x):
        return self.function(x)


def scan(reverse):
    def step(total, x):
        return total + x, total + x

    return lambda x: ops.scan(step, ops.zeros_like(x[0]), x, reverse=reverse)[1]


COMPLEX = "'own_layer'.*no complex numbers.*LogMel.*STFTSpectrogram"
SCAN = "While.*'own_layer'.*keras.ops.scan.*RNN"


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: ops.fft((x, x))[0], COMPLEX),
        (lambda x: ops.fft2((x, x))[1], COMPLEX),
        (lambda x: ops.ifft2((x, x))[0], COMPLEX),
        (lambda x: ops.rfft(x)[0], COMPLEX),
        (lambda x: ops.irfft(ops.rfft(x)), COMPLEX),
        (lambda x: ops.stft(x, 8, 4, 8)[1], COMPLEX),
        (scan(False), SCAN),
        (scan(True), SCAN),
        (lambda x: ops.bitwise_xor(ops.cast(x, "int32"), 6), "BitwiseXor in the layer 'own_layer'"),
        (lambda x: ops.erfinv(x), "Erfinv.*'own_layer'.*SavedModel"),
    ],
)
def test_refusals_name_the_operator_the_layer_and_the_remedy(function, message):
    x = keras.Input((16,), batch_size=3, name="x")
    other = Function(ops.tanh)
    other.name = "dense_1"  # TensorFlow may give the scope of another layer this name
    model = keras.Model(x, Function(function)(other(layers.Dense(16, name="dense")(x))))
    with pytest.raises(ExportError, match=f"(?s){message}") as caught:
        convert(model)
    assert "dense" not in str(caught.value)


def test_layers_without_a_conversion_are_refused_by_name():
    x = keras.Input((800,), name="x")
    mel = layers.MelSpectrogram(
        fft_length=128, sequence_stride=64, sampling_rate=8000, num_mel_bins=8, name="mel"
    )
    with pytest.raises(ExportError, match="'mel'.*no complex numbers"):
        convert(keras.Model(x, mel(x)))
    x = keras.Input((5, 3), name="x")
    decoded = Function(lambda x: ops.ctc_decode(x, ops.full((ops.shape(x)[0],), 5))[0][0])(x)
    with pytest.raises(ExportError, match="CTCGreedyDecoder.*'own_layer'.*Return the logits"):
        convert(keras.Model(x, decoded))


def test_indices_are_divided_by_one_node():
    """Indices are never negative, so the quotient needs no correction."""
    x = numbers(3, 7)
    made = holds(lambda x: ops.top_k(x, 3)[1] // 2, x)
    found = operators(made)
    assert (found["Div"], found["Mod"]) == (1, 0)
    holds(lambda x: ops.top_k(x, 3)[0] // 2, INTEGERS)  # numbers may be below 0


def test_an_exported_model_computes_with_integers_as_keras_does(tmp_path):
    ids = keras.Input((4,), dtype="int32", name="ids")
    outputs = {
        "hours": ids // 3600 % 24,
        "hot": ops.one_hot(ids, 5),
        "many": ops.multi_hot(ids, 5),
        "sorted": ops.sort(ids, axis=-1),
        "best": ops.top_k(ids, 2)[0],
        "less": ops.cast(ids < LARGE + 1, "int32"),
    }
    model = keras.Model(ids, outputs)
    export_onnx(model, tmp_path / "out", verbose=False)
    found = dict(
        zip(outputs, session(tmp_path / "out").run(list(outputs), {"ids": INTEGERS}), strict=True)
    )
    for name, expected in model(INTEGERS).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def branches(x):
    """Runs one of two branches; the second one returns its input."""
    return ops.cond(ops.sum(x) > 0, lambda: ops.exp(x), lambda: x) + 1


def test_branches_and_loops_may_pass_values_on():
    def swap(x):
        return ops.while_loop(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, z, y), (0, x, x * 2))[
            1
        ]

    functions = [branches, lambda x: branches(ops.tanh(x)), lambda x: ops.diag(x[:, 0]), swap]
    array = numbers(3, 4)
    holds(functions, array, -array, array[:1])


def branch_in_loops(count):
    """Returns a function with a branch inside `count` loops. Only one branch reads `sums`."""

    def step(x):
        sums = ops.cumsum(x, axis=-1)
        return ops.cond(
            ops.sum(x) > 0,
            lambda: ops.stack([sums[:, i] for i in range(4)], axis=1) - 2,
            lambda: x + 1,
        )

    def repeated(inner):
        return lambda x: ops.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, inner(y)), (0, x))[
            1
        ]

    for _ in range(count):
        step = repeated(step)
    return step


def test_loops_may_hold_branches():
    array = numbers(3, 4)
    holds([branch_in_loops(1), branch_in_loops(2)], array, -array)


def test_computed_indices_and_sizes_are_folded():
    functions = [
        lambda x: ops.median(x, axis=-1),
        lambda x: ops.quantile(x, 0.3, axis=-1),
        lambda x: ops.take(x, [0, -1], axis=1),
        lambda x: ops.take(x, [[0, -1], [2, 1]], axis=1),
    ]
    array = numbers(3, 4)
    holds(functions, array, array[:1])


def test_a_crop_of_pictures_of_any_size_is_refused(tmp_path):
    """Keras enlarges small pictures; a graph traced without sizes does not."""
    for size, message in ((None, "Give the Input a fixed height"), (7, None)):
        x = keras.Input((size, size, 3), name="x")
        model = keras.Model(x, layers.CenterCrop(2, 3)(x))
        if message is None:
            export_onnx(model, tmp_path / "out", verbose=False)
            continue
        with pytest.raises(ExportError, match=message):
            export_onnx(model, tmp_path / "out", verbose=False)
        assert not (tmp_path / "out").exists()


def updated(x, update, start):
    """Returns the result by XLA's rule: the update is moved back until it fits."""
    start = [max(0, min(i, n - k)) for i, n, k in zip(start, x.shape, update.shape, strict=True)]
    x = x.copy()
    x[tuple(slice(i, i + k) for i, k in zip(start, update.shape, strict=True))] = update
    return x


def converted_update(known, of_update, dtype="float32"):
    """Converts `slice_update` of these shapes, with `None` for an axis of any size."""
    specs = {
        "x": tf.TensorSpec(known, dtype, "x"),
        "update": tf.TensorSpec(of_update, dtype, "update"),
        "start": tf.TensorSpec([len(known)], "int32", "start"),
    }
    traced = conversion.trace(
        lambda x, update, start: {"y": keras.ops.slice_update(x, start, update)}, [], specs
    )
    model, _ = conversion.convert(traced, [], onnx_model.OPSET)
    model.ir_version = onnx_model.IR_VERSION
    return model


def arrays(*shapes, dtype="float32"):
    return [(9 * numbers(*shape)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_token_is_written_into_a_cache_of_any_size(dtype):
    model = converted_update((None, None, 3, 5), (None, None, 3, 5), dtype)
    for batch, length, tokens, place in ((2, 7, 1, 4), (1, 3, 2, 0), (4, 1, 1, 0), (0, 7, 1, 2)):
        x, update = arrays((batch, length, 3, 5), (batch, tokens, 3, 5), dtype=dtype)
        start = np.array([0, place, 0, 0], "int32")
        (found,) = run(model, x=x, update=update, start=start)
        np.testing.assert_array_equal(found, updated(x, update, start))


@pytest.mark.parametrize("known", [(7, 5, 3), (None, None, None)], ids=["known", "unknown"])
@pytest.mark.parametrize("start", [(1, 2, 1), (6, 4, 2), (-1, 0, 1), (0, 0, 0)], ids=str)
def test_every_axis_may_be_updated_and_places_are_moved_back(known, start):
    """TensorFlow's kernel, too, follows XLA's rule."""
    of_update = (2, 3, 1) if known[0] else known
    x, update = arrays((7, 5, 3), (2, 3, 1))
    start = np.array(start, "int32")
    (found,) = run(converted_update(known, of_update), x=x, update=update, start=start)
    np.testing.assert_array_equal(found, updated(x, update, start))
    np.testing.assert_array_equal(found, keras.ops.slice_update(x, start, update))


def test_only_the_axes_that_may_differ_are_indexed():
    """Along the axes behind them, the update is written whole."""
    model = converted_update((None, 7, 3, 5), (None, 1, 3, 5))
    (scattered,) = [node for node in model.graph if node.op_type == "ScatterND"]
    x, update = arrays((2, 7, 3, 5), (2, 1, 3, 5))
    indices = scattered.inputs[1]
    model.graph.outputs.append(indices)
    indices.type = ir.TensorType(ir.DataType.INT64)
    _, found = run(model, x=x, update=update, start=np.array([0, 4, 0, 0], "int32"))
    assert found.tolist() == [[[0, 4]], [[1, 4]]]


def test_an_update_of_the_whole_tensor_replaces_it():
    model = converted_update((2, 3), (2, 3), "int32")
    x, update = arrays((2, 3), (2, 3), dtype="int32")
    (found,) = run(model, x=x, update=update, start=np.array([1, 1], "int32"))
    np.testing.assert_array_equal(found, update)
    assert operators(model)["ScatterND"] == 0
