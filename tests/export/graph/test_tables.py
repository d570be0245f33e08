"""Tables of embeddings in reduced precision: rows that are right by hand, and smaller files."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from support.exports import convert, counts, graph, run, source, tiny

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.quantize import quantize_blocks, reduce_precision

BITS = {"int8": 8, "weight_int8": 8, "weight_int4": 4}


def lookup(table, product=False):
    """A graph that reads rows of a table, and multiplies them by it where `product` is set."""
    rows, size = table.shape
    last = 'out = com.microsoft.FusedMatMul<transB = 1>(y, "layer/table")'
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        main (int32[?, ?] ids, float[{rows}, {size}] "layer/table") => (float[?, ?, ?] out) {{
            y = Gather("layer/table", ids)
            {last if product else "out = Identity(y)"}
        }}
    """)
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "layer/table"))
    return ir.from_proto(proto)


def table(rows, size):
    return np.random.default_rng(0).standard_normal((rows, size)).astype("float32")


@pytest.mark.parametrize("size", [64, 50, 13])
@pytest.mark.parametrize("precision", BITS)
def test_rows_are_those_of_the_rounded_table(precision, size):
    model, rows = lookup(table(37, size)), table(37, size)
    reduce_precision(model, precision)
    bits = 8 if size % 2 else BITS[precision]
    integers, scale = quantize_blocks(rows.T, bits)
    back = ((integers.astype("float32") - 2 ** (bits - 1)) * scale[..., None]).reshape(37, -1)
    for ids in ([[0, 36, 7], [7, -1, 2]], np.zeros((0, 3))):
        ids = np.array(ids, "int32")
        (found,) = run(model, ids=ids)
        np.testing.assert_allclose(found, back[ids, :size], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", BITS)
def test_a_table_that_gives_logits_is_reduced_for_both(precision):
    model, rows = lookup(table(301, 64), product=True), table(301, 64)
    reduce_precision(model, precision)
    sizes = {value.const_value.dtype for value in model.graph.initializers.values()
             if value.const_value.size == 301 * 64}  # fmt: skip
    assert ir.DataType.FLOAT not in sizes
    ids = np.arange(20, dtype="int32")[None]
    (found,) = run(model, ids=ids)
    exact = rows[ids] @ rows.T
    assert np.abs(found - exact).std() < 0.15 * exact.std()


def test_an_encoder_in_four_bits_keeps_no_table_in_float():
    converted = convert(tiny("encode", vocab_size=997, num_layers=1, d_model=64, d_ff=65))
    plain = graph(converted)
    fuse_blocks(plain, "weight_int4")
    made, kept = graph(plain), graph(plain)
    reduce_precision(made, "weight_int4")
    reduce_precision(kept, "weight_int4", ["token_embedding"])
    found = counts(ir.to_proto(made).graph)
    assert found["GatherBlockQuantized"] == 1 and found["Gather"] == 0
    assert counts(ir.to_proto(kept).graph)["GatherBlockQuantized"] == 0
    size = {model: len(ir.to_proto(model).SerializeToString()) for model in (plain, made, kept)}
    assert size[made] < 0.25 * size[plain] < size[kept]
    ids = source(5, 7, vocab_size=997)
    (exact,), (found,) = run(plain, source_ids=ids), run(made, source_ids=ids)
    assert np.abs(found - exact).std() < 0.3 * exact.std()
