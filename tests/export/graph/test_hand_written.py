"""Attention and tables that users write in layers of their own."""

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from keras import layers, ops
from support.exports import convert, counts, run, session

from keras_transformer.export import export_onnx
from keras_transformer.export.graph import fuse_attention
from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.quantize import reduce_precision
from keras_transformer.export.graph.simplify import simplify

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Split(layers.Layer):
    """Self-attention of two heads whose queries, keys and values are thirds of one product.

    Args:
        gated: whether each key's value is multiplied by a number of its own.
    """

    def __init__(self, gated=False, **arguments):
        super().__init__(**arguments)
        self.gated = gated

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 18), name="w")

    def call(self, x):
        query, key, value = ops.split(ops.matmul(x, self.w), 3, axis=-1)
        if self.gated:
            value = value * x[:, :, :1]
        query, key, value = (
            ops.transpose(ops.reshape(part, (-1, ops.shape(x)[1], 2, 3)), (0, 2, 1, 3))
            for part in (query, key, value)
        )
        scores = ops.matmul(query * 0.7, ops.transpose(key, (0, 1, 3, 2)))
        y = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
        return ops.reshape(y, (-1, ops.shape(x)[1], 6))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 6)

    def get_config(self):
        return {**super().get_config(), "gated": self.gated}


class Projections(layers.Layer):
    """Self-attention with names that others use: q_proj, k_proj, v_proj."""

    def build(self, shape):
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, layers.Dense(6, name=name))
            getattr(self, name).build(shape)

    def call(self, x):
        query, key, value = (
            ops.transpose(ops.reshape(dense(x), (-1, ops.shape(x)[1], 2, 3)), (0, 2, 1, 3))
            for dense in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = ops.matmul(query * 0.7, ops.transpose(key, (0, 1, 3, 2)))
        y = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
        return ops.reshape(y, (-1, ops.shape(x)[1], 6))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 6)


class Columns(layers.Layer):
    """Rows and columns of one kind of table, by id."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def build(self, shape):
        self.table = self.add_weight(shape=(64, 64), name="table", initializer="normal")

    def call(self, ids):
        return ops.take(self.table, ids, axis=self.axis)


def model_of(layer, shape=(None, 4), dtype="float32"):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, dtype=dtype, name="x")
    return keras.Model(x, layer(x))


def fused(made):
    simplify(made)
    fuse_blocks(made)
    return made


@pytest.mark.parametrize("gated", [False, True])
def test_attention_after_an_equal_split_is_exported(tmp_path, gated):
    model = model_of(Split(gated))
    export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X})
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)
    made = onnx.load(tmp_path / "out" / "model.onnx").graph
    # A number a key does not do the same to the values as to the outputs.
    assert counts(made)["MultiHeadAttention" if gated else "Attention"] == 1


class Scores(layers.Layer):
    """Keras' attention, with the sums written by hand."""

    def call(self, x):
        x = ops.reshape(x, (-1, ops.shape(x)[1], 2, 2))
        scores = ops.einsum("btnh,bsnh->bnts", x, x) * 0.5
        return ops.einsum("bnts,bsnh->btnh", ops.softmax(scores), x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], 2, 2)


@pytest.mark.parametrize("layer", [Split, Projections, Scores])
@pytest.mark.parametrize("axis", [-1, 3, 2, 1])
def test_attention_is_fused_only_where_the_softmax_goes_along_the_keys(layer, axis):
    made = convert(model_of(layer()))
    (softmax,) = (node for node in made.graph if node.op_type == "Softmax")
    softmax.attributes["axis"] = ir.AttrInt64("axis", axis)
    (expected,) = run(made, x=X)
    (found,) = run(fused(made), x=X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found = counts(ir.to_proto(made).graph)
    assert found["MultiHeadAttention"] + found["Attention"] == (axis in (-1, 3))


@pytest.mark.parametrize("precision", ["int8", "weight_int4", "float16"])
def test_projections_of_any_name_are_kept_by_their_own_paths(precision):
    model = model_of(Projections(name="mine"))
    path = "mine/k_proj/kernel"
    assert path in [variable.path for variable in model.variables]
    for keep in ([], [path]):
        made = convert(model)
        fuse_blocks(made, precision)
        reduce_precision(made, precision, keep_float=keep)
        sizes = [
            value.const_value.size
            for value in made.graph.initializers.values()
            if value.const_value.dtype == ir.DataType.FLOAT and "kernel" in value.name
        ]
        assert (4 * 18 in sizes) == bool(keep)


@pytest.mark.parametrize("axis", [0, 1])
def test_only_rows_of_a_table_are_looked_up_in_integers(axis):
    model = model_of(Columns(axis), (3,), "int32")
    made = convert(model)
    simplify(made)
    reduced = reduce_precision(made, "int8")
    assert reduced == (1 if axis == 0 else 0)
    ids = np.array([[0, 5, 63], [7, 1, 2]], "int32")
    found, expected = run(made, x=ids)[0], np.asarray(model(ids))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_layers_and_models_may_have_any_name(tmp_path):
    x = keras.Input((4,), name="x")
    y = layers.Dense(2, name="größe: 1")(layers.Dense(3, name="_my layer")(x))
    model = keras.Model(x, {"y": y}, name="a model")
    export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X[0]})
    np.testing.assert_allclose(found, model(X[0])["y"], rtol=1e-4, atol=1e-5)


def test_an_export_is_written_without_a_fusion_that_fails(tmp_path, monkeypatch):
    def fails(graph, shapes, project):
        graph.remove(graph[-1])  # half-done work is undone
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(fuse_attention, "pack_projections", fails)
    model = model_of(Split())
    with pytest.warns(UserWarning, match="Fusing blocks failed.*slower"):
        export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X})
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)
    assert counts(onnx.load(tmp_path / "out" / "model.onnx").graph)["Softmax"] == 1
