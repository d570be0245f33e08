"""Reduced precision: integers and scales, reduced loops, and small losses of accuracy."""

import functools
import itertools
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import exports, tiers
from helpers.exports import (
    BEAM,
    MAX_LENGTH,
    Function,
    body,
    built,
    convert,
    counts,
    graph,
    numbers,
    operators,
    parsed,
    run,
    source,
    tiny,
)
from keras import layers, ops
from onnx import TensorProto

from keras_transformer.export import ExportError, export_onnx, tasks
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.quantize import (
    quantize_blocks,
    quantize_columns,
    reduce_precision,
)
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.proof import comparison
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.search import GreedySearch

INTEGERS = ("int8", "int16x8", "weight_int8", "weight_int4")
BITS = {"int8": 8, "int16x8": 8, "weight_int8": 8, "weight_int4": 4}
OPERATOR = {
    "int8": "DynamicQuantizeMatMul",
    "int16x8": "DynamicQuantizeMatMul",
    "weight_int8": "MatMulNBits",
    "weight_int4": "MatMulNBits",
}


@functools.cache
def fused(search, precision):
    """Returns the shared graph, fused. It is cached: copy it before a change."""
    return exports.fused(exports.shared_graph(search), precision)


def reduced(search, precision, **arguments):
    model = graph(fused(search, precision))
    reduce_precision(model, precision, **arguments)
    return model


def with_weight(weight, inputs, nodes, precision=None, **options):
    """Returns a graph of nodes from `inputs` to `y` that read "layer/kernel", and reduces it."""
    model = parsed(f"""
        main ({inputs}, float[{weight.shape[0]}, {weight.shape[1]}] "layer/kernel") => (float y)
        {{ {nodes} }}
    """)
    value = model.graph.inputs.pop()
    value.const_value = ir.tensor(weight, name=value.name)
    model.graph.register_initializer(value)
    model.graph.outputs[0].shape = None
    model.graph.opset_imports["com.microsoft"] = 1
    if precision:
        reduce_precision(model, precision, **options)
    return model


def test_each_column_has_a_scale():
    matrix = np.array([[127.0, 1.0, 0.0], [-63.3, -0.7, 0.0]], np.float32)
    quantized, scale = quantize_columns(matrix)
    assert quantized.tolist() == [[127, 127, 0], [-63, -89, 0]]
    np.testing.assert_allclose(scale, [1.0, 1 / 127, 1.0], rtol=1e-6)


def test_blocks_hold_their_largest_entry_exactly():
    matrix = np.zeros((37, 1), np.float32)
    matrix[3], matrix[5], matrix[35], matrix[36] = 4.0, -1.2, 0.15, 7.0
    integers, scale = quantize_blocks(matrix, 4)
    assert integers.shape == (1, 2, 32)
    assert scale.tolist() == [[-0.5, -0.875]]
    assert integers[0, 0, 3] == 0 and integers[0, 0, 5] == 10  # 8 + value / scale
    assert integers[0, 1, 4] == 0 and integers[0, 1, 5] == 8


def test_weights_that_were_integers_stay_exact():
    random = np.random.default_rng(5)
    integers = random.integers(-100, 101, (67, 11))
    integers[:, 3] = 5 * random.integers(-20, 21, 67)  # few of the possible integers
    steps = np.repeat([0.0371, 0.00293], [5, 6]).astype(np.float32)  # two matrices side by side
    matrix = (integers * steps).astype(np.float32)
    quantized, scale = quantize_columns(matrix)
    np.testing.assert_allclose(quantized * scale, matrix, rtol=1e-5)
    blocks, scale = quantize_blocks(matrix[:, 5:], 8)
    values = (blocks.astype(np.float32) - 128) * scale[..., None]
    np.testing.assert_allclose(values.reshape(6, -1)[:, :67].T, matrix[:, 5:], rtol=1e-5)
    matrix[7, 2] += 0.3 * steps[2]  # no integer
    quantized, scale = quantize_columns(matrix)
    assert np.abs(quantized[:, 2]).max() == 127
    np.testing.assert_allclose((quantized * scale)[:, 4], matrix[:, 4], rtol=1e-5)


def rounded(matrix, bits):
    """Returns the matrix (K, N) after rounding in blocks, and the step of each entry."""
    integers, scale = quantize_blocks(matrix, bits)
    blocks = (integers.astype(np.float32) - 2 ** (bits - 1)) * scale[..., None]
    steps = np.broadcast_to(np.abs(scale)[..., None], blocks.shape)
    rows, columns = matrix.shape
    return [array.reshape(columns, -1)[:, :rows].T for array in (blocks, steps)]


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_half_a_step_at_most(bits):
    matrix = numbers(67, 5)
    back, step = rounded(matrix, bits)
    error = np.abs(back - matrix)
    # The entry opposite to the largest one has no exact integer and may lose a whole step.
    assert np.all(error <= 1.001 * step) and np.mean(error <= 0.501 * step) > 0.97


SHARED = """
    a = MatMul(x, "layer/kernel")
    b = MatMul(a, "layer/kernel")
    c = Loop <body = step (int64 i, bool go, float[N, 37] state)
        => (bool on, float[N, 37] next) {
            on = Identity(go)
            next = MatMul(state, "layer/kernel")
        }> (steps, true, b)
    y = MatMul(c, "layer/kernel")
"""


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
def test_a_weight_of_several_products_does_not_saturate(precision):
    weight = np.eye(37, dtype=np.float32)[::-1] * 2 + 1  # sums of pairs exceed 16 bits
    inputs = "float[N, 37] x, int64 steps, bool true"
    model = with_weight(weight, inputs, SHARED, precision)
    sink_weights(model.graph)
    assert [value.const_value.size for value in model.graph.initializers.values()].count(
        37 * 37
    ) == 1
    x = np.abs(numbers(5, 37)) + 1
    (found,) = run(model, x=x, steps=np.array(1), true=np.array(True))
    expected = x @ np.linalg.matrix_power(weight, 4)
    np.testing.assert_allclose(found, expected, rtol=0.02 if precision == "int8" else 1e-4)


def test_two_products_can_share_a_small_weight():
    weight, x = numbers(5, 5), numbers(7, 5)
    nodes = 'a = MatMul(x, "layer/kernel")  y = MatMul(a, "layer/kernel")'
    (found,) = run(with_weight(weight, "float[N, 5] x", nodes, "int8"), x=x)
    expected = x @ weight @ weight
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("width", [11, 3])
@pytest.mark.parametrize("with_bias", [True, False])
def test_inputs_can_have_sixteen_bits(width, with_bias):
    integers = np.random.default_rng(0).integers(-127, 128, (37, width)).astype(np.float32)
    integers[:2] = [[127], [1]]  # so that the scale of each column is found again
    weight, bias, x = integers / 64, numbers(width), numbers(5, 37)
    nodes = 'z = MatMul(x, "layer/kernel")  y = Add(z, bias)'
    model = with_weight(weight, f"float[N, 37] x, float[{width}] bias", nodes)
    if with_bias:  # a constant
        model.graph.inputs[1].const_value = ir.tensor(bias, name="bias")
        model.graph.register_initializer(model.graph.inputs.pop(1))
    feed = {} if with_bias else {"bias": bias}
    short, long = graph(model), graph(model)
    reduce_precision(short, "int8")
    reduce_precision(long, "int16x8")
    errors = [np.abs(run(made, x=x, **feed)[0] - x @ weight - bias).max() for made in (short, long)]
    assert errors[1] < errors[0] / 100
    np.testing.assert_array_equal(run(long, x=0 * x, **feed)[0], np.tile(bias, (5, 1)))


def test_rows_can_have_separate_scales():
    weight, x = numbers(37, 11), numbers(5, 37)
    x[3], x[4] = 1000 * x[3], 0
    errors = []
    for row_scales in (False, True):
        node = 'z = MatMul(x, "layer/kernel")  y = Add(z, one)'
        inputs = "float[N, 37] x, float[11] one"
        model = with_weight(weight, inputs, node, "int8", row_scales=row_scales)
        (found,) = run(model, x=x, one=np.ones(11, np.float32))
        errors.append(np.abs(found - 1 - x @ weight).max(axis=1))
    shared, own = errors
    assert (shared[:3] > 1).all() and (own[:3] < 0.2).all() and own[4] == 0
    np.testing.assert_allclose(shared[3], own[3], rtol=0.5)


@pytest.mark.parametrize("precision", INTEGERS)
def test_products_use_the_rounded_weight(precision):
    weight, x = numbers(37, 11), numbers(5, 37)
    node = 'y = MatMul(x, "layer/kernel")'
    model = with_weight(weight, "float[N, 37] x", node, precision)
    (found,) = run(model, x=x)
    if precision in ("int8", "int16x8"):
        integers, scale = quantize_columns(weight)
        expected = x @ (integers * scale)
        tolerance = 0.2 if precision == "int8" else 1e-3  # the input is rounded as well
    else:
        back, _ = rounded(weight, BITS[precision])
        expected, tolerance = x @ back, 1e-4
        for rows in (slice(0, 32), slice(32, 37)):  # the input's blocks are rounded as well
            half_step = np.abs(x[:, rows]).max(axis=1, keepdims=True) / 127 / 2
            tolerance = tolerance + half_step * np.abs(back[rows]).sum(axis=0)
    assert np.all(np.abs(found - expected) <= tolerance)
    assert np.abs(found - expected).max() > 0


@pytest.mark.parametrize("size", [64, 50, 13])
@pytest.mark.parametrize("precision", INTEGERS)
def test_lookups_read_the_rounded_table(precision, size):
    rows = numbers(37, size)
    model = with_weight(rows, "int32[N, T] ids", 'y = Gather("layer/kernel", ids)', precision)
    back = rounded(rows.T, 8 if size % 2 else BITS[precision])[0].T
    for ids in ([[0, 36, 7], [7, -1, 2]], np.zeros((0, 3))):
        ids = np.array(ids, "int32")
        np.testing.assert_allclose(run(model, ids=ids)[0], back[ids], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", INTEGERS)
def test_a_table_shared_with_the_logits_is_reduced(precision):
    rows, ids = numbers(301, 64), np.arange(20, dtype="int32")[None]
    nodes = """
        x = Gather("layer/kernel", ids)
        y = com.microsoft.FusedMatMul<transB = 1>(x, "layer/kernel")
    """
    model = with_weight(rows, "int32[N, T] ids", nodes, precision)
    assert ir.DataType.FLOAT not in {
        value.const_value.dtype
        for value in model.graph.initializers.values()
        if value.const_value.size == rows.size
    }
    exact = rows[ids] @ rows.T
    assert np.abs(run(model, ids=ids)[0] - exact).std() < 0.15 * exact.std()


@pytest.mark.parametrize("axis", [0, 1])
def test_only_rows_of_a_table_are_looked_up_in_integers(axis):
    take = Function(lambda ids, table: ops.take(table, ids, axis=axis), (64, 64))
    model = built(take, 3, dtype="int32")
    converted = convert(model)
    simplify(converted)
    assert reduce_precision(converted, "int8") == (1 if axis == 0 else 0)
    ids = np.array([[0, 5, 63], [7, 1, 2]], "int32")
    found, expected = run(converted, x=ids)[0], np.asarray(model(ids))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_an_encoder_in_four_bits_keeps_no_table_in_float():
    model = tiny("encode", vocab_size=997, num_layers=1, d_model=64, d_ff=65)
    plain = exports.fused(model, "weight_int4")
    small, kept = graph(plain), graph(plain)
    reduce_precision(small, "weight_int4")
    reduce_precision(kept, "weight_int4", ["token_embedding"])
    assert operators(small)["GatherBlockQuantized"] == 1 and operators(small)["Gather"] == 0
    assert operators(kept)["GatherBlockQuantized"] == 0
    sizes = [len(ir.to_proto(each).SerializeToString()) for each in (small, plain, kept)]
    assert sizes[0] < 0.25 * sizes[1] < sizes[2]
    ids = source(5, 7, vocab_size=997)
    (exact,), (found,) = run(plain, source_ids=ids), run(small, source_ids=ids)
    assert np.abs(found - exact).std() < 0.3 * exact.std()


@pytest.mark.full("int16x8", "weight_int4", "weight_int8")
@pytest.mark.parametrize("precision", INTEGERS)
def test_loop_body_is_reduced_like_the_encoder(precision):
    made = ir.to_proto(reduced(BEAM, precision))
    inside, outside = counts(made.graph, 2), counts(made.graph, 0)
    for found in (inside, outside):
        assert found[OPERATOR[precision]] >= 2 * 4
        assert found["MatMul"] == found["FusedMatMul"] == 0
    # Two blocks of q k v, output, query, output, hidden, output; and the logits.
    products = 2 * (2 * 6 + 1) if precision == "int16x8" else 2 * 6 + 1
    assert inside[OPERATOR[precision]] == products


@pytest.mark.full
@pytest.mark.parametrize(
    "precision, loss",
    [
        ("int8", 0.05),
        ("int16x8", 0.02),
        ("weight_int8", 0.05),
        ("weight_int4", 0.5),
        ("float16", 0.005),
    ],
)
def test_logits_lose_little(precision, loss):
    feed = {"source_ids": source(3, 7), "target_ids": source(3, 5, seed=1)}
    feed["source_ids"][2] = 0  # float16 must not make NaN of a mask that hides everything
    (exact,) = run(graph(exports.shared_graph()), **feed)
    (found,) = run(reduced(None, precision), **feed)
    assert found.dtype == np.float32
    assert np.abs(found - exact).mean() <= loss * np.abs(exact - exact.mean()).mean()


def damaged(model, precision, kind):
    """Returns a copy of a reduced model with zero, negated or shuffled reduced weights."""
    copy, random = graph(model), np.random.default_rng(0)
    reduced = [
        name for name in copy.graph.initializers if name.endswith(("/int8", "/int4", "/half"))
    ]
    assert reduced
    for name in reduced:
        if kind == "negated" and precision != "float16":
            name = name.rpartition("/")[0] + "/scale"
        value = copy.graph.initializers[name]
        array = value.const_value.numpy()
        arrays = {
            "zero": np.full_like(
                array, {"weight_int4": 0x88, "weight_int8": 128}.get(precision, 0)
            ),
            "negated": -array,
            "shuffled": random.permutation(array.ravel()).reshape(array.shape),
        }
        value.const_value = ir.tensor(arrays[kind], name=name)
    return copy


@functools.cache
def proof(search):
    """Returns the task, its cases and Keras' results."""
    model = exports.shared_model()
    task = tasks.SearchTask(model, search, MAX_LENGTH) if search else tasks.ForwardTask(model)
    cases = task.cases(None)
    return task, cases, [task.expected(case) for case in cases]


@pytest.mark.full
@pytest.mark.parametrize(
    "precision, search",
    tiers.quick(
        itertools.product([*INTEGERS, "float16"], [None, BEAM]),
        ("int8", BEAM),
        nightly=[
            *itertools.product(INTEGERS[1:], [None, BEAM]),
            *(("int8", None), ("float16", BEAM)),
        ],
    ),
)
def test_proof_tells_rounding_from_damage(precision, search):
    task, cases, expected = proof(search)
    made = reduced(search, precision)
    # 10% more: rounding decides which hypotheses are scored, and differs between processors.
    tolerance = 1.1 * comparison.TOLERANCES[precision]

    def check(tried):
        names = [value.name for value in tried.graph.outputs]
        found = [dict(zip(names, run(tried, **case), strict=True)) for case in cases]
        task.compare(cases, expected, found, tolerance, exact=False)

    check(graph(made))
    for kind in ("zero", "negated", "shuffled"):
        with pytest.raises(ExportError, match="differ from Keras' by .* of their spread"):
            check(damaged(made, precision, kind))


def test_float16_keeps_caches_small_and_scores_exact():
    made = ir.to_proto(reduced(BEAM, "float16"))
    inside, _ = body(made)
    kinds = [value.type.tensor_type.elem_type for value in inside.input]
    assert kinds.count(TensorProto.FLOAT16) == 2 * 2  # keys and values of two blocks
    # Sums of log-probabilities; and penalties that tell hypotheses of a sentence apart.
    assert kinds.count(TensorProto.FLOAT) == 2 + 2
    kernels = [
        item.data_type for item in made.graph.initializer if item.name.endswith("kernel/half")
    ]
    assert len(kernels) == 2 * 4 + 2 * 8 and set(kernels) == {TensorProto.FLOAT16}
    assert not [item.name for item in made.graph.initializer if item.name.endswith("kernel")]
    ids, scores = run(ir.from_proto(made), source_ids=source())
    exact, exact_scores = run(graph(exports.shared_graph(BEAM)), source_ids=source())
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, exact_scores, rtol=0.01)
    assert ids.shape == exact.shape


PACKED = "self_attention/query_key_value/kernel"
HIDDEN = "feed_forward/hidden/kernel"


@pytest.mark.parametrize("precision", ["int8", "weight_int8", "weight_int4", "float16"])
@pytest.mark.parametrize(
    "path, kernel",
    [
        ("feed_forward", HIDDEN),
        # packed weights are kept by their own paths
        ("self_attention/query/kernel", PACKED),
        ("self_attention/key/kernel", PACKED),
        ("self_attention/value/kernel", PACKED),
    ],
)
def test_chosen_weights_stay_float(precision, path, kernel):
    made = reduced(None, precision, keep_float=[f"decoder_block_0/{path}"])
    kinds = {value.name: value.const_value.dtype for value in made.graph.initializers.values()}
    assert kinds[f"decoder_block_0/{kernel}"] == ir.DataType.FLOAT
    assert f"decoder_block_1/{kernel}" not in kinds


@pytest.mark.parametrize(
    "keep_float, precision, error, told",
    [
        (["decoder_block_9"], "int8", ValueError, r"'decoder_block_9'.*nearest: \['decoder_block_"),
        (["decoder_block_0/self_attention/query_key_value"], "int8", ValueError, "query/kernel'"),
        ("decoder_block_0", "int8", TypeError, "list of weights' paths, but 'decoder_block_0'"),
        (["decoder_block_0"], "float32", ValueError, "in precision float32 all weights stay"),
    ],
)
def test_weights_to_keep_are_checked_before_the_work(tmp_path, keep_float, precision, error, told):
    with pytest.raises(error, match=told):
        export_onnx(
            exports.shared_model(), tmp_path / "out", precision=precision, keep_float=keep_float
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_packed_weights_stay_float_in_an_export(tmp_path):
    model, out = tiny("encode", num_layers=1), tmp_path / "out"
    keep = ["encoder_block_0/self_attention/key"]
    export_onnx(model, out, precision="int8", keep_float=keep, verbose=False)
    names = {item.name for item in onnx.load(out / "model.onnx").graph.initializer}
    assert f"encoder_block_0/{PACKED}" in names


@pytest.mark.full
def test_an_int8_export_is_smaller_and_checks_its_tolerance(tmp_path):
    model = tiny(num_layers=1, d_model=64, d_ff=131)
    options = {"precision": "int8", "max_length": MAX_LENGTH, "verbose": False}
    manifest = export_onnx(model, tmp_path / "int8", search=GreedySearch(), **options)
    assert manifest["precision"] == "int8"
    float_bytes = 4 * model.count_params()
    assert manifest["files"]["model.onnx"]["bytes"] < 0.6 * float_bytes
    with pytest.raises(ExportError, match="Parity of the scores.*spread.*keep_float"):
        export_onnx(model, tmp_path / "strict", search=GreedySearch(), tolerance=1e-9, **options)
    assert not (tmp_path / "strict").exists()


@pytest.mark.full("weight_int8", "weight_int4", "float16")
@pytest.mark.parametrize("precision", ["float16", *INTEGERS])
def test_a_model_without_reducible_weights_warns_and_stays_float32(tmp_path, precision):
    model = built(layers.Conv2D(4, 3, use_bias=False), 7, 5, 3)
    with pytest.warns(UserWarning, match=f"{precision}' changed nothing.*4[0-9]{{2}} bytes"):
        manifest = export_onnx(model, tmp_path / "out", precision=precision, verbose=False)
    assert manifest["precision"] == "float32"


# Models that Keras has quantized


def dense(*units):
    return [layers.Dense(size, activation="relu") for size in units]


def with_adapter():
    layer = layers.Dense(12)
    layer.build((None, 12))
    layer.enable_lora(2)
    return [layer, *dense(3)]


BY_KERAS = {
    "two layers": lambda: dense(12, 5),
    "three layers": lambda: dense(12, 12, 5),
    "one layer twice": lambda: [layers.Dense(12)] * 2,
    "one layer three times": lambda: [*[layers.Dense(12)] * 3, *dense(5)],
    "a block": lambda: [EncoderBlock(2, 17)],
    "a block twice": lambda: [EncoderBlock(2, 17)] * 2,
    "einsum": lambda: [layers.EinsumDense("abc,cd->abd", (None, 12)), *dense(5)],
    "einsum twice": lambda: [layers.EinsumDense("abc,cd->abd", (None, 12))] * 2,
    "adapter": with_adapter,
    "a table": lambda: [layers.Embedding(31, 12), *dense(12, 5)],
}


def quantized(name, mode):
    """Returns a model that applies the layers of a row of `BY_KERAS`, after its quantization."""
    shape, dtype = ((None,), "int32") if name == "a table" else ((None, 12), None)
    chain = BY_KERAS[name]()
    model = built(
        lambda x: functools.reduce(lambda y, layer: layer(y), chain, x), *shape, dtype=dtype
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of layers that it leaves in float
        model.quantize(mode)
    return model


@pytest.mark.parametrize("name", tiers.quick(BY_KERAS, "two layers", "one layer three times"))
@pytest.mark.usefixtures("forked_proofs")
def test_int8_layers_of_keras_are_exported(name, tmp_path):
    """The proof opens the file with "session.x64quantprecision" and compares it with Keras."""
    export_onnx(quantized(name, "int8"), tmp_path / "out", verbose=False)
    assert counts(onnx.load(tmp_path / "out" / "model.onnx").graph)["MatMulInteger"]


@pytest.mark.parametrize("mode", ["int4", "float8"])
def test_other_modes_of_keras_are_refused(mode):
    with pytest.raises(ExportError, match=f"quantized 'dense.*' to {mode}.*weight_int4"):
        convert(quantized("two layers", mode))
