"""Convolutions: channels stay first between them, and norms are folded into filters."""

import keras
import numpy as np
import onnx_ir as ir
import pytest
from helpers.exports import check, fused, numbers, operators, parsed, run
from keras import layers

from keras_transformer.export.graph.channels_first import keep_channels_first
from keras_transformer.export.graph.fuse_convolutions import fuse_convolutions
from keras_transformer.export.graph.simplify import simplify


def weighted(text):
    """Parses ONNX's textual form into an `onnx_ir.Model` and marks float constants as weights."""
    model = parsed(text)
    for value in model.graph.initializers.values():
        value.meta["weight"] = value.dtype == ir.DataType.FLOAT
    return model


def compare(text, rewrite, **inputs):
    """Returns the rewritten graph of `text` after comparing the results of both."""
    model = weighted(text)
    rewrite(model)
    simplify(model)
    for one, two in zip(run(weighted(text), **inputs), run(model, **inputs), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)
    return model


def channels_first(model):
    keep_channels_first(model.graph, simplify(model))


def names(model):
    return [node.op_type for node in model.graph]


PICTURE = """
main (float[N, 3, 6, 5] x) => ({outputs})
<float[3, 3, 1, 1] w = {{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0}},
 float[3] b = {{0.5, -0.25, 4.0}}, float half = {{0.5}},
 float[1, 1, 5, 1] columns = {{1, 2, 3, 4, 5}},
 int64[8] widths = {{0, 1, 2, 0, 0, 0, 3, 0}}, int64[4] ones = {{-1, 1, 1, 3}}> {{
    before = Conv(x, w)
    last = Transpose<perm = [0, 2, 3, 1]>(before)
    {nodes}
}}
"""


def picture(nodes, outputs="float[N, ?, ?, ?] y"):
    return PICTURE.format(nodes=nodes, outputs=outputs)


THROUGH = {
    "numbers by themselves": "z = Relu(last)",
    "a scalar": "z = Mul(half, last)",
    "a number a channel": "z = Add(last, b)",
    "the same value twice": "z = Mul(last, last)",
    "a residual": "r = Relu(last) s = Add(last, r) z = Relu(s)",
    "channels joined": "r = Relu(last) z = Concat<axis = 3>(r, last, r)",
    "columns joined": "z = Concat<axis = -2>(last, last)",
    "padding": "z = Pad(last, widths)",
    "a number a picture and channel": """
        m = ReduceMean<axes = [1, 2], keepdims = 0>(last) n = Reshape(m, ones) z = Mul(last, n)""",
    "a mean that keeps its axes": "m = ReduceMean<axes = [1, 2]>(last) z = Sub(last, m)",
}


@pytest.mark.parametrize("nodes", THROUGH.values(), ids=THROUGH)
def test_transposes_between_convolutions_cancel(nodes):
    text = picture(
        f"""{nodes} first = Transpose<perm = [0, 3, 1, 2]>(z)
        y = MaxPool<kernel_shape = [2, 2], auto_pad = "VALID">(first)"""
    )
    model = compare(text, channels_first, x=numbers(2, 3, 6, 5))
    assert "Transpose" not in names(model)


def test_means_over_space_are_poolings():
    text = picture(
        """z = Relu(last) m = ReduceMean<axes = [1, 2], keepdims = 0>(z)
        k = ReduceMax<axes = [-3, -2], keepdims = 1>(z) y = Neg(m) v = Neg(k)""",
        "float[N, ?] y, float[N, ?, ?, ?] v",
    )
    model = compare(text, channels_first, x=numbers(2, 3, 6, 5))
    assert {"GlobalAveragePool", "GlobalMaxPool"} < set(names(model))
    assert names(model).count("Transpose") == 1  # of the maxima, one number per channel


STAYING = {
    "a softmax over channels": "z = Softmax<axis = 3>(last)",
    "a number a column": "z = Add(last, columns)",
    "a mean over channels": "z = ReduceMean<axes = [3]>(last)",
}


@pytest.mark.parametrize("nodes", STAYING.values(), ids=STAYING)
def test_operators_along_an_axis_keep_channels_last(nodes):
    text = picture(f"{nodes} y = Transpose<perm = [0, 3, 1, 2]>(z)")
    model = compare(text, channels_first, x=numbers(2, 3, 6, 5))
    assert names(model).count("Transpose") == 2


def test_other_readers_keep_channels_last():
    text = picture(
        """z = Relu(last) first = Transpose<perm = [0, 3, 1, 2]>(z) y = Conv(first, w)
        v = Softmax<axis = 3>(z)""",
        "float[N, ?, ?, ?] y, float[N, ?, ?, ?] v",
    )
    model = compare(text, channels_first, x=numbers(2, 3, 6, 5))
    assert names(model).count("Transpose") == 1


def fold(model):
    fuse_convolutions(model, simplify(model))


NORM = """
    v = Add(variance, epsilon) d = Sqrt(v) r = Reciprocal(d) s = Mul(r, gamma)
    m = Mul(mean, s) o = Sub(beta, m) scaled = Mul(c, s) n = Add(scaled, o)
"""
CONVOLUTION = """
main (float[N, 2, 4, 5] x) => ({outputs})
<float[1, 2, 2, 3] w = {{1.5, 2.0, 0.1, -2.0, 1.0, 0.3, 0.7, 3.0, -4.0, 0.9, 0.6, 5.0}},
 float[3] b = {{0.5, -0.25, 4.0}}, float epsilon = {{0.001}}, float half = {{0.5}},
 float[3, 1, 1] gamma = {{1.5, -2.0, 0.25}}, float[3, 1, 1] beta = {{0.5, 7.0, -1.0}},
 float[3, 1, 1] mean = {{30.0, 20.0, -10.0}}, float[3, 1, 1] variance = {{0.1, 2.0, 0.0}},
 float[4, 1] rows = {{1.0, 2.0, 3.0, 4.0}}> {{
    kernel = Transpose<perm = [3, 2, 0, 1]>(w)
    {nodes}
}}
"""


def convolution(nodes, outputs="float[N, 3, ?, ?] y"):
    return CONVOLUTION.format(nodes=nodes, outputs=outputs)


FOLDED = {
    "a norm": f"c = Conv(x, kernel) {NORM} y = Relu(n)",
    "a norm behind an offset": f"c = Conv(x, kernel, b) {NORM} y = Relu(n)",
    "a product only": "c = Conv(x, kernel) n = Mul(gamma, c) y = Relu(n)",
    "a sum only": "c = Conv(x, kernel) n = Add(beta, c) y = Relu(n)",
    "scalars": "c = Conv(x, kernel) m = Mul(c, half) n = Add(half, m) y = Relu(n)",
    "filters in another order": "c = Conv(x, kernel, b) y = Relu(c)",
}


@pytest.mark.parametrize("nodes", FOLDED.values(), ids=FOLDED)
def test_products_and_sums_are_folded_into_convolutions(nodes):
    model = compare(convolution(nodes), fold, x=numbers(2, 2, 4, 5))
    assert names(model) == ["Conv", "Relu"]


def test_filters_are_rounded_once():
    model = compare(convolution(FOLDED["a norm behind an offset"]), fold, x=numbers(2, 2, 4, 5))
    weights = {
        name: value.const_value.numpy()
        for name, value in weighted(convolution(FOLDED["a norm"])).graph.initializers.items()
    }
    exact = {name: array.astype("float64") for name, array in weights.items()}
    scale = (exact["gamma"] / np.sqrt(exact["variance"] + exact["epsilon"])).ravel()
    offset = (exact["b"] - exact["mean"].ravel()) * scale + exact["beta"].ravel()
    filters = exact["w"].transpose(3, 2, 0, 1) * scale[:, None, None, None]
    (conv,) = (node for node in model.graph if node.op_type == "Conv")
    for value, wanted in zip(conv.inputs[1:], (filters, offset), strict=True):
        np.testing.assert_array_equal(value.const_value.numpy(), wanted.astype("float32"))
        assert value.name.startswith("w/")


LEFT = {
    "read by others": ("n = Mul(c, gamma) y = Relu(n) v = Neg(c)", ["Conv", "Mul", "Neg", "Relu"]),
    "different along space": ("y = Mul(c, rows) v = Neg(x)", ["Conv", "Mul", "Neg"]),
}


@pytest.mark.parametrize("nodes, left", LEFT.values(), ids=LEFT)
def test_other_products_stay(nodes, left):
    outputs = "float[N, 3, ?, ?] y, float[N, ?, ?, ?] v"
    text = convolution(f"c = Conv(x, kernel) {nodes}", outputs)
    model = compare(text, fold, x=numbers(2, 2, 4, 5))
    assert sorted(names(model)) == left


def test_a_convolution_that_is_used_twice_has_its_filters_once():
    nodes = f"""c = Conv(x, kernel) {NORM} y = Relu(n)
        u = Neg(x) e = Conv(u, kernel) f = Mul(e, s) g = Add(f, o) z = Relu(g)"""
    text = convolution(nodes, "float[N, 3, ?, ?] y, float[N, 3, ?, ?] z")
    model = compare(text, fold, x=numbers(2, 2, 4, 5))
    first, second = (node for node in model.graph if node.op_type == "Conv")
    assert first.inputs[1:] == second.inputs[1:]
    assert len(model.graph.initializers) == 2


def test_a_norm_without_a_convolution_is_one_operator():
    nodes = f"t = Conv(x, kernel) c = Relu(t) {NORM} y = Relu(n)"
    model = compare(convolution(nodes), fold, x=numbers(2, 2, 4, 5))
    assert names(model) == ["Conv", "Relu", "BatchNormalization", "Relu"]


def settled(model):
    """Makes weights and statistics neither 0 nor 1; returns the model."""
    random = np.random.default_rng(3)
    for variable in model.variables:
        if "seed" not in variable.path:
            variable.assign(variable + random.uniform(0.1, 0.5, variable.shape))
    return model


def residual_network():
    """Returns a stem, two residual blocks and a head, as in ResNets and MobileNets."""
    x = image = keras.Input((13, 11, 3), name="image")
    x = layers.MaxPooling2D(2)(layers.ZeroPadding2D(1)(layers.Conv2D(5, 3)(x)))
    for options in ({}, {"scale": False}):
        y = layers.ReLU(6)(layers.BatchNormalization(**options)(x))
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(7, 1, use_bias=False)(y)))
        y = layers.DepthwiseConv2D(3, padding="same")(y)
        y = layers.Activation("silu")(layers.BatchNormalization(center=False)(y))
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(7, 1, activation="hard_sigmoid")(gate)
        y = layers.Conv2D(5, 1)(layers.Multiply()([y, gate]))
        x = layers.Add()([x, y])
    x = layers.Concatenate()([x, layers.Conv2D(5, 3, padding="same", groups=5)(x)])
    return settled(keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x))))


def test_residual_networks_have_few_operators_beside_convolutions():
    keras.utils.set_random_seed(3)
    model = residual_network()
    exported = fused(model)
    found = operators(exported)
    assert found["Transpose"] == 1 and found["Conv"] == 2 + 2 * 4
    # Per block: two for silu and one for the gate, whose activation is one operator.
    assert found["Mul"] == 2 * 3 and found["HardSigmoid"] == 2
    assert found["GlobalAveragePool"] == 2 + 1
    assert found["BatchNormalization"] == 2  # behind a sum
    assert not found.keys() & {"Sqrt", "Reciprocal", "Reshape"}
    for batch in (1, 3):
        check(model, exported, image=numbers(batch, 13, 11, 3))


@pytest.mark.parametrize(
    "layer, shape",
    [
        (layers.Conv1DTranspose(3, 4, strides=3, output_padding=2), (7, 2)),
        (layers.Conv2DTranspose(3, (4, 5), strides=(3, 2), output_padding=(2, 1)), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 3, strides=3, output_padding=(0, 2)), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 3, strides=2, output_padding=1, padding="same"), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 2, strides=3), (6, 7, 2)),  # a kernel smaller than its stride
        (layers.Conv3DTranspose(3, 2, strides=2, output_padding=(1, 0, 1)), (2, 3, 5, 2)),
    ],
)
def test_transposed_convolutions_may_have_output_padding(layer, shape):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, name="x")
    model = keras.Model(x, layers.Dense(2)(layer(x)))
    check(model, fused(model), x=numbers(3, *shape))
