"""`keras.ops.slice_update` in ONNX, which writes caches of a fixed size."""

import keras
import numpy as np
import onnx_ir as ir
import pytest
import tensorflow as tf
from support.exports import counts, run

from keras_transformer.export.graph import conversion

OPSET = 17


def updated(x, update, start):
    """What XLA says: the update is moved back until it fits."""
    start = [max(0, min(i, n - k)) for i, n, k in zip(start, x.shape, update.shape, strict=True)]
    x = x.copy()
    x[tuple(slice(i, i + k) for i, k in zip(start, update.shape, strict=True))] = update
    return x


def converted(known, of_update, dtype="float32"):
    """`slice_update` of tensors of these shapes, `None` for an axis of any size."""
    specs = {
        "x": tf.TensorSpec(known, dtype, "x"),
        "update": tf.TensorSpec(of_update, dtype, "update"),
        "start": tf.TensorSpec([len(known)], "int32", "start"),
    }
    traced = conversion.trace(
        lambda x, update, start: {"y": keras.ops.slice_update(x, start, update)}, [], specs
    )
    model, _ = conversion.convert(traced, [], OPSET)
    model.ir_version = 8
    return model


def arrays(shape, of_update, dtype="float32"):
    random = np.random.default_rng(0)
    return [random.normal(0, 9, size).astype(dtype) for size in (shape, of_update)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_token_is_written_into_a_cache_of_any_size(dtype):
    model = converted((None, None, 3, 5), (None, None, 3, 5), dtype)
    for batch, length, tokens, place in ((2, 7, 1, 4), (1, 3, 2, 0), (4, 1, 1, 0), (0, 7, 1, 2)):
        x, update = arrays((batch, length, 3, 5), (batch, tokens, 3, 5), dtype)
        start = np.array([0, place, 0, 0], "int32")
        (found,) = run(model, x=x, update=update, start=start)
        np.testing.assert_array_equal(found, updated(x, update, start))


@pytest.mark.parametrize("known", [(7, 5, 3), (None, None, None)], ids=["known", "unknown"])
@pytest.mark.parametrize("start", [(1, 2, 1), (6, 4, 2), (-1, 0, 1), (0, 0, 0)], ids=str)
def test_every_axis_may_be_updated_and_places_are_moved_back(known, start):
    """TensorFlow's own kernel does the same, XLA's rule."""
    of_update = (2, 3, 1) if known[0] else known
    x, update = arrays((7, 5, 3), (2, 3, 1))
    start = np.array(start, "int32")
    (found,) = run(converted(known, of_update), x=x, update=update, start=start)
    np.testing.assert_array_equal(found, updated(x, update, start))
    np.testing.assert_array_equal(found, keras.ops.slice_update(x, start, update))


def test_only_the_axes_that_may_differ_are_indexed():
    """Behind the last of them an update is written whole."""
    model = converted((None, 7, 3, 5), (None, 1, 3, 5))
    (scattered,) = [node for node in model.graph if node.op_type == "ScatterND"]
    x, update = arrays((2, 7, 3, 5), (2, 1, 3, 5))
    indices = scattered.inputs[1]
    model.graph.outputs.append(indices)
    indices.type = ir.TensorType(ir.DataType.INT64)
    _, found = run(model, x=x, update=update, start=np.array([0, 4, 0, 0], "int32"))
    assert found.tolist() == [[[0, 4]], [[1, 4]]]


def test_an_update_of_the_whole_is_all_there_is():
    model = converted((2, 3), (2, 3), "int32")
    x, update = arrays((2, 3), (2, 3), "int32")
    (found,) = run(model, x=x, update=update, start=np.array([1, 1], "int32"))
    np.testing.assert_array_equal(found, update)
    assert counts(ir.to_proto(model).graph)["ScatterND"] == 0
