"""Operators that tf2onnx converts differently from TensorFlow."""

import operator

import keras
import numpy as np
import onnx_ir as ir
import pytest
import tensorflow as tf
from helpers.exports import (
    Function,
    built,
    check_export,
    convert,
    fused,
    numbers,
    operators,
    run,
)
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


def each(function, *choices, **options):
    """Returns functions of x: the function of x and of each choice."""
    return [lambda x, choice=choice: function(x, choice, **options) for choice in choices]


def along(function, *axes):
    """Returns functions of x: the function along each of some axes."""
    return [lambda x, axis=axis: function(x, axis=axis) for axis in axes]


def holds(functions, *arrays, free=False):
    """Compares ONNX Runtime with Keras; returns the graph of all functions."""
    shape = [None if free and axis == 0 else n for axis, n in enumerate(arrays[0].shape[1:])]
    layer = Function(lambda x: {f"y{i:02}": each(x) for i, each in enumerate(functions)})
    model = built(layer, *shape, dtype=arrays[0].dtype.name)
    made = fused(model)
    onnx_model.restore_outputs(made.graph, list(model.output))
    for array in arrays:
        for expected, found in zip(model(array).values(), run(made, x=array), strict=True):
            expected = np.asarray(expected)
            assert found.dtype == expected.dtype and found.shape == expected.shape
            if expected.dtype.kind in "iub":
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)
    return made


def divisions(dtype, *divisors):
    """Returns quotients and remainders of x."""
    divisors = [ops.cast(divisor, dtype) for divisor in divisors]
    return each(operator.floordiv, *divisors) + each(operator.mod, *divisors)


def shifts(dtype):
    counts = [ops.cast(count, dtype) for count in (0, 1, 5, 31, 70)]
    shifted = each(ops.right_shift, *counts) + each(ops.left_shift, *counts[:3])
    return [*shifted, lambda x: ops.right_shift(x, x)]


def classes(function):
    """Returns functions that mark classes by 1, along axes and in dtypes."""
    return [
        lambda x, axis=axis, dtype=dtype: function(x, 5, axis=axis, dtype=dtype)
        for axis in (-1, 1)
        for dtype in ("float32", "int32", "bool")
    ]


COMPARISONS = [
    *along(ops.sort, -1, 0),
    lambda x: ops.argsort(x, axis=-1),
    lambda x: ops.top_k(x, 2)[0],
    lambda x: ops.top_k(x, 2)[1],
    lambda x: ops.cast(x < LARGE + 1, "int32"),
    lambda x: ops.cast(x > ops.flip(x, 1), "int32"),
    lambda x: ops.argmax(x, axis=-1),
    ops.bitwise_not,
]
EXTREMES = along(ops.argmax, -1, 1, None) + along(ops.argmin, -1, 1, None)
PRODUCTS = [
    *along(ops.prod, 1, 2, (1, 2), None),
    lambda x: ops.prod(x, axis=-1, keepdims=True),
    lambda x: ops.cumprod(x, axis=1),
]
SMALL = [
    ops.expm1,
    ops.celu,
    lambda x: ops.logaddexp(x, -x),
    lambda x: ops.cast(ops.signbit(x), "int32"),
    lambda x: ops.log1p(ops.maximum(x, -0.9)),
]
# A product with 0 would give NaN for an infinite number.
SELECTIONS = [lambda x: ops.where(x * 2 > 3, 0.5, x), lambda x: ops.where(x < 0, x, ops.exp(x))]
ROLLS = [
    *[lambda x, axis=axis: ops.roll(x, -7, axis=axis) for axis in (0, 1, -1)],
    lambda x: ops.roll(x, (2, -1), axis=(0, 1)),
]
BOUNDS = [-1.0, 0.0, 2.0]
ORDERED = np.array(BOUNDS, "float32")
BUCKETS = [
    lambda x: ops.digitize(x, ORDERED),
    layers.Discretization(BOUNDS),
    lambda x: ops.searchsorted(ORDERED, x[0], side="left"),
    lambda x: ops.searchsorted(ORDERED, x[0], side="right"),
]
ANGLES = [lambda x, n=n: ops.arctan2(x, ops.roll(x, n, axis=1)) for n in range(8)]
SIGNS = np.array([[-0.0, 0.0, -0.0, 0.0, 3.0, -3.0, 0.25, -0.25]], "float32")
ANGLED = np.concatenate([SIGNS, SIGNS[:, ::-1], np.float32([[np.inf, -np.inf] * 4])])
PAIRS = np.stack([INTEGERS, INTEGERS[::-1] + 1])
X = numbers(3, 5, 4)
# {name: (functions, arrays)}
CASES = {
    **{
        f"{dtype} divided as in Python": (divisions(dtype, 3, -3, 7, 100), [INTEGERS.astype(dtype)])
        for dtype in ("int8", "int32", "int64")
    },
    "remainders of large floats": (divisions("float32", 3.0, -3.0, 0.7), [FLOATS]),
    "no class for negative ids": (classes(ops.one_hot) + classes(ops.multi_hot), [INTEGERS]),
    "comparisons of int32": (COMPARISONS, [INTEGERS]),
    "comparisons of int64": (COMPARISONS, [INTEGERS.astype("int64") * 1_000_003]),
    "extremes of floats": (EXTREMES, [FLOATS]),
    "extremes of integers": (EXTREMES, [INTEGERS]),
    "extremes of booleans": (EXTREMES, [BOOLEANS]),
    "small numbers": (SMALL, [UNIT, -0.0 * np.abs(UNIT)]),
    "selections": (SELECTIONS, [np.array([[np.inf, 1.0, -np.inf, -2.0]], "float32")]),
    "the sign of zero": ([*ANGLES, *each(ops.arctan2, -0.1, 0.1)], [ANGLED]),
    **{
        f"shifts of {dtype}": (shifts(dtype), [(INTEGERS.astype("int64") * factor).astype(dtype)])
        for dtype, factor in (("int8", 1), ("int32", 1), ("int64", 1_000_003), ("uint8", 1))
    },
    "buckets": (BUCKETS, [FLOATS]),
    "numbers below 0, halved": ([lambda x: ops.top_k(x, 3)[0] // 2], [INTEGERS]),
}
# The same for axes of any size.
FREE = {
    "products of int32": (PRODUCTS, [PAIRS, PAIRS[:, :0], PAIRS[:0]]),
    "products of int64": (
        PRODUCTS,
        [array.astype("int64") for array in (PAIRS, PAIRS[:, :0], PAIRS[:0])],
    ),
    "rolls": (ROLLS, [X, X[:1], X[:, :1], X[:0], X[:, :0]]),
    "cumulative products": (along(ops.cumprod, 1, 2, -1), [X, X[:, :1], X[:0]]),
    "cumulative products of integers": (
        along(ops.cumprod, 1, 2, -1),
        [np.int32([[[-2, 3], [0, 1], [5, -1]]])],
    ),
}


@pytest.mark.full("the sign of zero", "products of int32")
@pytest.mark.parametrize("name", [*CASES, *FREE])
def test_operators_give_the_numbers_of_keras(name):
    functions, arrays = (CASES | FREE)[name]
    made = holds(functions, *arrays, free=name in FREE)
    assert len(made.graph.outputs) == len(functions)


def test_computed_divisors_may_be_negative_but_not_zero():
    def both(x):
        return ops.concatenate([x // x[:, 1:2], x % x[:, 1:2]], axis=1)

    made = holds([both], np.array([[-7, 2], [7, -2], [0, 5], [-(2**31), 3], [6, -3]], "int32"))
    with pytest.raises(Exception, match="out of data bounds"):
        run(made, x=np.array([[1, 0]], "int32"))


def test_pooling_over_a_short_axis_is_empty():
    array = numbers(3, 11, 4)
    pools = [layers.MaxPooling1D, layers.AveragePooling1D]
    kinds = [(2, 2, "valid"), (2, 3, "valid"), (3, 2, "valid"), (3, 2, "same")]
    functions = [pool(size, strides, padding) for pool in pools for size, strides, padding in kinds]
    made = holds(functions, *(array[:, :length] for length in (11, 7, 6, 3)), free=True)
    shapes = [found.shape for found in run(made, x=array[:, :1])]  # TensorFlow crashes
    assert shapes == ([(3, 0, 4)] * 3 + [(3, 1, 4)]) * 2


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
    # TensorFlow may give the scope of another layer the name of this one.
    other = Function(ops.tanh, name="dense_1")(layers.Dense(16, name="dense")(x))
    model = keras.Model(x, Function(function, name="own_layer")(other))
    with pytest.raises(ExportError, match=f"(?s){message}") as caught:
        convert(model)
    assert "dense" not in str(caught.value)


def test_layers_without_a_conversion_are_refused_by_name():
    mel = layers.MelSpectrogram(128, 64, sampling_rate=8000, num_mel_bins=8, name="mel")
    with pytest.raises(ExportError, match="'mel'.*no complex numbers"):
        convert(built(mel, 800))
    decoder = Function(lambda x: ops.ctc_decode(x, ops.full((ops.shape(x)[0],), 5))[0][0])
    with pytest.raises(ExportError, match="CTCGreedyDecoder.*'function.*'.*Return the logits"):
        convert(built(decoder, 5, 3))
    with pytest.raises(ExportError, match="BitwiseAnd"):
        convert(built(Function(lambda x: ops.bitwise_and(x, 6)), 4, dtype="int32"))


def test_indices_are_divided_by_one_node():
    """Indices are never negative, so the quotient needs no correction."""
    found = operators(holds([lambda x: ops.top_k(x, 3)[1] // 2], numbers(3, 7)))
    assert (found["Div"], found["Mod"]) == (1, 0)


def test_an_exported_model_computes_with_integers_as_keras_does(tmp_path):
    model = built(
        lambda ids: {
            "hours": ids // 3600 % 24,
            "hot": ops.one_hot(ids, 5),
            "many": ops.multi_hot(ids, 5),
            "sorted": ops.sort(ids, axis=-1),
            "best": ops.top_k(ids, 2)[0],
            "less": ops.cast(ids < LARGE + 1, "int32"),
        },
        4,
        dtype="int32",
    )
    written = check_export(model, tmp_path / "out", rtol=0, inputs={"x": INTEGERS})
    assert {value.name for value in written.output} == model.output.keys()


def branches(x):
    """Runs one of two branches; the second one returns its input."""
    return ops.cond(ops.sum(x) > 0, lambda: ops.exp(x), lambda: x) + 1


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


def swap(x):
    return ops.while_loop(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, z, y), (0, x, x * 2))[1]


@pytest.mark.parametrize(
    "functions",
    [
        [branches, lambda x: branches(ops.tanh(x)), lambda x: ops.diag(x[:, 0]), swap],
        [branch_in_loops(1), branch_in_loops(2)],
        [  # computed indices and sizes are folded
            lambda x: ops.median(x, axis=-1),
            lambda x: ops.quantile(x, 0.3, axis=-1),
            *[lambda x, i=i: ops.take(x, i, axis=1) for i in ([0, -1], [[0, -1], [2, 1]])],
        ],
    ],
    ids=["values passed on", "branches in loops", "indices and sizes"],
)
def test_branches_and_loops_give_the_numbers_of_keras(functions):
    array = numbers(3, 4)
    made = holds(functions, array, -array)
    assert len(made.graph.outputs) == len(functions)


def test_a_crop_of_pictures_of_any_size_is_refused(tmp_path):
    """Keras enlarges small pictures; a graph traced without sizes does not."""
    with pytest.raises(ExportError, match="Give the Input a fixed height"):
        export_onnx(built(layers.CenterCrop(2, 3), None, None, 3), tmp_path / "out", verbose=False)
    assert not (tmp_path / "out").exists()
    fixed = built(layers.CenterCrop(2, 3), 7, 7, 3)
    check_export(fixed, tmp_path / "out", inputs={"x": numbers(2, 7, 7, 3)})


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
