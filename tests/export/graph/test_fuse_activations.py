"""Activations become the one operator that ONNX has for them."""

import keras
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from support.exports import convert, counts, run

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.simplify import simplify

LINE = """
<ir_version: 8, opset_import: ["": 17]>
main (float[N, 3] x) => (float[N, 3] y)
<float offset = {{{offset}}}, float low = {{{low}}},
 float high = {{{high}}}, float slope = {{{slope}}}> {{
    moved = Add(x, offset)
    cut = Clip(moved, low, high)
    y = Mul(cut, slope)
}}
"""
X = np.linspace(-7, 7, 33, dtype="float32").reshape(11, 3)


def fused(**numbers):
    """The graph of a line before and after fusion."""
    before, after = (
        ir.from_proto(onnx.parser.parse_model(LINE.format(**numbers))) for _ in range(2)
    )
    simplify(after, hoisting=False)
    fuse_blocks(after)
    return before, after


@pytest.mark.parametrize("offset, high, slope", [(3.0, 6.0, 1 / 6), (0.5, 4.0, 0.25)])
def test_a_line_from_0_to_1_is_a_hard_sigmoid(offset, high, slope):
    before, after = fused(offset=offset, low=0.0, high=high, slope=slope)
    assert [node.op_type for node in after.graph] == ["HardSigmoid"]
    np.testing.assert_allclose(run(after, x=X)[0], run(before, x=X)[0], atol=1e-6)


@pytest.mark.parametrize("low, slope", [(-1.0, 1 / 6), (0.0, 0.2)], ids=["begin", "end"])
def test_a_line_that_begins_or_ends_elsewhere_is_left(low, slope):
    before, after = fused(offset=3.0, low=low, high=6.0, slope=slope)
    assert "HardSigmoid" not in [node.op_type for node in after.graph]
    np.testing.assert_allclose(run(after, x=X)[0], run(before, x=X)[0], atol=1e-6)


def test_hard_silu_of_keras_is_a_hard_sigmoid_and_a_product():
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Activation("hard_silu")(keras.layers.Dense(5)(x)))
    converted = convert(model)
    simplify(converted, hoisting=False)
    fuse_blocks(converted)
    found = counts(ir.to_proto(converted).graph)
    assert found["HardSigmoid"] == 1 and not found["Clip"]
