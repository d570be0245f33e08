"""Fusion of our own subgraphs into ONNX's and ONNX Runtime's operators, by pattern rewriting.

What Keras and tf2onnx write for a layer norm is twelve nodes, for an attention about fifteen. A
decoding step is bound by the number of nodes wherever the model is small, so each pattern of ours
becomes the one operator that does the same: `LayerNormalization` of ONNX, and of the domain
`com.microsoft` `MultiHeadAttention` (with the decoder's growing cache where there is one),
`FusedMatMul` (products with a transposed matrix) and, for GPUs, `SkipLayerNormalization` (residual
+ norm). On CPUs the latter is slower than its parts: 83 us where they take 12, in ONNX Runtime
1.31.1 on one core with 128 rows of 128 numbers. There residuals are a `Sum`, because ONNX Runtime
would make that operator of an `Add` itself.

Shapes: B batch, T queries, S keys, H heads, K size of a head, D d_model, V vocabulary.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph.nodes import all_nodes, attribute
from keras_transformer.export.graph.nodes import add_initializer as constant
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.graph.sizes import product

MICROSOFT = "com.microsoft"
# Stands for `query` in the name of a weight that queries, keys and values were packed into.
PACKED = "query_key_value"


def fuse_blocks(model, skip_norms=False):
    """Rewrites the blocks of an `onnx_ir.Model` in place; the results stay as they are.

    Each set of rules sees the graph that the one before has left, with fresh knowledge of shapes.
    `skip_norms`: whether residual + norm become one operator, which wins on GPUs only.
    """
    rules = [index_rules, product_rules, norm_rules, cached_attention_rules, attention_rules]
    rules += [product_rules] + [residual_rules] * skip_norms + [projection_rules]
    for make in rules:
        changed = True
        while changed:
            known = simplify(model, hoisting=False)
            changed = pattern.RewriteRuleSet(make(known)).apply_to_model(model)
    pack_projections(model.graph)
    if not skip_norms:
        sum_residuals(model.graph)
    model.graph.opset_imports.setdefault(MICROSOFT, 1)


def _number(value):
    """The one number that a constant holds, or `None`."""
    tensor = None if value is None else value.const_value
    return float(tensor.numpy().flat[0]) if tensor is not None and tensor.size == 1 else None


def _vector(value):
    """The weight of shape (D,) behind `value`, which may be a reshaped view of it; or `None`."""
    producer = value.producer()
    if producer is not None and producer.op_type == "Reshape":
        value = producer.inputs[0]
    if value.const_value is None or len(value.const_value.shape) != 1:
        return None
    return value


def product_rules(known):
    """Products of vectors with matrices take their input as it is, without making it flat first."""

    def flat(op, x, shape, weight):
        return op.MatMul(op.Reshape(x, shape, _outputs=["rows"]), weight)

    def is_flat(context, x, weight, rows, **_):
        dims, matrix = known.dims.get(x), known.dims.get(weight)
        if not dims or not matrix or len(matrix) != 2 or len(known.dims.get(rows, ())) != 2:
            return False
        return len(dims) in (3, 4) and product(dims[2:]) == matrix[0]

    def as_it_is(op, x, shape, weight, **_):
        dims, size = known.dims[x], known.dims[weight][1]
        if len(dims) == 4:
            x = _joined(op, x)  # heads side by side
        target = op.Constant(value=ir.tensor(np.array([-1, size], np.int64)))
        return op.Reshape(op.MatMul(x, weight), target)

    def late_bias(op, x, shape, bias):
        return op.Add(op.Reshape(x, shape, _outputs=["flat"]), bias)

    def keeps_vectors(context, x, flat, bias=None, **_):
        dims, rows = known.dims.get(x), known.dims.get(flat)
        return bool(
            dims and rows and len(rows) == 2 and len(dims) > 2 and dims[-1] == rows[-1]
        ) and (bias is None or _vector(bias) is not None)

    def early_bias(op, x, shape, bias, **_):
        return op.Reshape(op.Add(x, bias), shape)

    def late_relu(op, x, shape):
        return op.Relu(op.Reshape(x, shape, _outputs=["flat"]))

    def early_relu(op, x, shape, **_):
        return op.Reshape(op.Relu(x), shape)

    def chosen(op, condition, one, other):
        return op.Add(
            op.Mul(op.Cast(condition, _outputs=["yes"]), one),
            op.Mul(other, op.Cast(op.Not(condition), _outputs=["no"])),
        )

    def chosen_by(op, condition, one, other, **_):
        return op.Where(condition, one, other)

    return [
        pattern.RewriteRule(flat, as_it_is, is_flat, remove_nodes=False),
        pattern.RewriteRule(late_bias, early_bias, keeps_vectors),
        pattern.RewriteRule(late_relu, early_relu, keeps_vectors),
        pattern.RewriteRule(chosen, chosen_by),
    ]


def index_rules(known):
    """Choice of one element for each index, and integers put in order: as ONNX has them."""

    def pick(op, x, indices, axes):
        return op.GatherND(x, op.Unsqueeze(indices, axes), _outputs=["picked"])

    def is_of_rows(context, x, indices, axes, picked):
        dims, rows = known.dims.get(x), known.dims.get(indices)
        batch_dims = attribute(picked.producer(), "batch_dims", 0)
        return bool(dims and rows and len(dims) == len(rows) == batch_dims + 1) and (
            _number(axes) in (-1, len(rows))
        )

    def pick_elements(op, x, indices, axes, picked):
        return op.GatherElements(x, indices, axis=len(known.dims[x]) - 1)

    def ascending(op, x, count):
        values, _ = op.TopK(op.Cast(op.Neg(x)), count, _outputs=["values", "indices"])
        return op.Neg(op.Cast(values, to=ir.DataType.INT64.value))

    def smallest(op, x, count, **_):
        return op.TopK(x, count, largest=0, _outputs=2)[0]

    return [
        pattern.RewriteRule(pick, pick_elements, is_of_rows),
        pattern.RewriteRule(ascending, smallest, lambda context, indices, **_: not indices.uses()),
    ]


def norm_rules(known):
    def norm(op, x, gamma, beta, epsilon):
        mean = op.ReduceMean(x, _outputs=["mean"])
        deviation = op.Sub(x, mean)
        variance = op.ReduceMean(op.Mul(deviation, deviation), _outputs=["variance"])
        scale = op.Mul(op.Reciprocal(op.Sqrt(op.Add(variance, epsilon))), gamma)
        return op.Add(op.Mul(x, scale), op.Add(op.Mul(op.Neg(mean), scale), beta))

    def over_last_axis(context, x, gamma, beta, epsilon, mean, variance):
        dims = known.dims.get(x)
        axes = [attribute(value.producer(), "axes", None) for value in (mean, variance)]
        kept = [attribute(value.producer(), "keepdims", 1) for value in (mean, variance)]
        return (
            dims is not None
            and all(list(item) in ([len(dims) - 1], [-1]) for item in axes if item is not None)
            and None not in axes
            and all(kept)
            and _number(epsilon) is not None
            and _vector(gamma) is not None
            and _vector(beta) is not None
        )

    def layer_normalization(op, x, gamma, beta, epsilon, **_):
        return op.LayerNormalization(
            x, _vector(gamma), _vector(beta), axis=-1, epsilon=_number(epsilon)
        )

    return [pattern.RewriteRule(norm, layer_normalization, over_last_axis)]


def _heads(known, value):
    """Number and size of the heads of (B, T, H, K), where they are known; else `None`."""
    dims = known.dims.get(value)
    if dims is None or len(dims) != 4 or not all(isinstance(size, int) for size in dims[2:]):
        return None
    return dims[2:]


def _is_heads_first(value):
    """Whether a Transpose puts heads before positions, or back."""
    return list(attribute(value.producer(), "perm", [])) == [0, 2, 1, 3]


def _joined(op, x):
    """(B, T, H, K) -> (B, T, H K)"""
    return op.Reshape(x, op.Constant(value=ir.tensor(np.array([0, 0, -1], np.int64))))


def _split(op, x, heads):
    """(B, T, H K) -> (B, T, H, K)"""
    shape = np.array([0, 0, heads, -1], np.int64)
    return op.Reshape(x, op.Constant(value=ir.tensor(shape)))


def cached_attention_rules(known):
    """Self-attention of the new tokens of a step to themselves and their cached past."""

    def attend(op, query, key, value, past_key, past_value, scale):
        return attend_own(op, query, key, value, past_key, past_value, scale, None)

    def attend_own(op, query, key, value, past_key, past_value, scale, penalty):
        """As above, several hypotheses sharing the cache of their sentence."""
        queries = op.Transpose(query, _outputs=["queries"])  # (B, H, T, K)
        keys = op.Concat(past_key, op.Transpose(key, _outputs=["new_keys"]), axis=2)
        values = op.Concat(past_value, op.Transpose(value, _outputs=["new_values"]), axis=2)
        scores = op.MatMul(op.Mul(queries, scale), op.Transpose(keys, _outputs=["columns"]))
        scores = scores if penalty is None else op.Sub(scores, penalty)
        heads = op.MatMul(op.Softmax(scores), values)
        return op.Transpose(heads, _outputs=["output"]), keys, values

    def fits(context, query, key, value, scale, columns, output, penalty=None, **rest):
        sizes = [_heads(known, item) for item in (query, key, value)]
        forbidden = known.dims.get(penalty)
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and (penalty is None or bool(forbidden) and len(forbidden) == 4 and forbidden[1] == 1)
            and _number(scale) is not None
            and list(attribute(columns.producer(), "perm", [])) == [0, 1, 3, 2]
            and all(
                _is_heads_first(item)
                for item in (rest["queries"], rest["new_keys"], rest["new_values"], output)
            )
        )

    def fused(op, query, key, value, past_key, past_value, scale, penalty=None, **_):
        heads, _ = _heads(known, query)
        bias = None if penalty is None else op.Neg(penalty)
        output, keys, values = op.MultiHeadAttention(
            _joined(op, query), _joined(op, key), _joined(op, value), None, None, bias,
            past_key, past_value,
            num_heads=heads, scale=_number(scale), _domain=MICROSOFT, _outputs=3,
        )  # fmt: skip
        return _split(op, output, heads), keys, values

    return [
        pattern.RewriteRule(attend, fused, fits),
        pattern.RewriteRule(attend_own, fused, fits),
    ]


def attention_rules(known):
    """Attention with a mask: of an encoder, of a decoder to its source, of a whole target."""

    def attend(op, query, key, value, scale, penalty, alive):
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(op.Transpose(key, _outputs=["keys"]), _outputs=["columns"])
        scores = op.Sub(op.MatMul(op.Mul(queries, scale), columns), penalty)
        weights = op.Mul(op.Softmax(scores), alive)
        heads = op.MatMul(weights, op.Transpose(value, _outputs=["values"]))
        return op.Transpose(heads, _outputs=["output"])

    def attend_memory(op, query, keys, values, scale, penalty, alive):
        """As above, keys and values (B, H, S, K) being ready."""
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(keys, _outputs=["columns"])
        scores = op.Sub(op.MatMul(op.Mul(queries, scale), columns), penalty)
        weights = op.Mul(op.Softmax(scores), alive)
        heads = op.MatMul(weights, values)
        return op.Transpose(heads, _outputs=["output"])

    def is_masked(scale, penalty, alive, columns):
        masks = [known.dims.get(item) for item in (penalty, alive)]
        return (
            _number(scale) is not None
            and list(attribute(columns.producer(), "perm", [])) == [0, 1, 3, 2]
            and all(item is not None and len(item) == 4 and item[1] == 1 for item in masks)
            and masks[1][3] == 1
        )

    def fits(
        context, query, key, value, scale, penalty, alive, queries, keys, values, columns, output
    ):
        sizes = [_heads(known, item) for item in (query, key, value)]
        moved = (queries, keys, values, output)
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and all(_is_heads_first(item) for item in moved)
            and is_masked(scale, penalty, alive, columns)
        )

    def fits_memory(context, query, keys, values, scale, penalty, alive, queries, columns, output):
        dims = [known.dims.get(item) for item in (keys, values)]
        size = _heads(known, query)
        return (
            size is not None
            and all(item is not None and (item[1], item[3]) == size for item in dims)
            and all(_is_heads_first(item) for item in (queries, output))
            and is_masked(scale, penalty, alive, columns)
        )

    def mask(op, query, penalty):
        """What the operator adds; it does not broadcast along the axis of the queries."""
        bias = op.Neg(penalty)
        if known.dims[penalty][2] != 1:
            return bias
        if known.dims[penalty][3] == known.dims[query][1]:
            rows = op.Shape(penalty, start=3)  # the same for every block
        else:
            rows = op.Shape(query, start=1, end=2)
        ones = op.Constant(value=ir.tensor(np.array([1, 1], np.int64)))
        one = op.Constant(value=ir.tensor(np.array([1], np.int64)))
        return op.Expand(bias, op.Concat(ones, rows, one, axis=0))

    def attention(op, query, keys, values, scale, penalty, alive):
        heads, _ = _heads(known, query)
        output = op.MultiHeadAttention(
            _joined(op, query), keys, values, None, None, mask(op, query, penalty),
            num_heads=heads, scale=_number(scale), _domain=MICROSOFT,
        )  # fmt: skip
        if known.dims[alive][2] != 1:
            # Rows of queries differ in whether they see anything: those that do not get zeros.
            axis = op.Constant(value=ir.tensor(np.array([1], np.int64)))
            output = op.Mul(output, op.Squeeze(alive, axis))  # (B, T, 1)
        return _split(op, output, heads)

    def fused(op, query, key, value, scale, penalty, alive, **_):
        values = _joined(op, value)
        if known.dims[alive][2] == 1:
            axis = op.Constant(value=ir.tensor(np.array([1], np.int64)))
            values = op.Mul(values, op.Squeeze(alive, axis))  # nothing to see: see zeros
        return attention(op, query, _joined(op, key), values, scale, penalty, alive)

    def fused_memory(op, query, keys, values, scale, penalty, alive, **_):
        # Scaling the values can be done once, before the loop, and so is free.
        values = op.Mul(values, alive) if known.dims[alive][2] == 1 else values
        return attention(op, query, keys, values, scale, penalty, alive)

    return [
        pattern.RewriteRule(attend, fused, fits),
        pattern.RewriteRule(attend_memory, fused_memory, fits_memory),
    ]


def residual_rules(known):
    """Residual + norm."""

    def same(one, other):
        dims = known.dims.get(one)
        return dims is not None and len(dims) == 3 and dims == known.dims.get(other)

    def post_norm(op, x, y, gamma, beta):
        return op.LayerNormalization(op.Add(x, y), gamma, beta, axis=-1, _outputs=["norm"])

    def post_norm_bias(op, x, y, bias, gamma, beta):
        sum_ = op.Add(x, op.Add(y, bias))
        return op.LayerNormalization(sum_, gamma, beta, axis=-1, _outputs=["norm"])

    def pre_norm(op, x, y, gamma, beta):
        sum_ = op.Add(x, y, _outputs=["sum_"])
        return sum_, op.LayerNormalization(sum_, gamma, beta, axis=-1, _outputs=["norm"])

    def epsilon(norm):
        return attribute(norm.producer(), "epsilon", 1e-5)

    def fused(op, x, y, gamma, beta, norm):
        return op.SkipLayerNormalization(
            x, y, gamma, beta, epsilon=epsilon(norm), _domain=MICROSOFT
        )

    def fused_bias(op, x, y, bias, gamma, beta, norm):
        return op.SkipLayerNormalization(
            x, y, gamma, beta, bias, epsilon=epsilon(norm), _domain=MICROSOFT
        )

    def fused_pre(op, x, y, gamma, beta, **rest):
        normed, _, _, sum_ = op.SkipLayerNormalization(
            x, y, gamma, beta, epsilon=epsilon(rest["norm"]), _domain=MICROSOFT, _outputs=4
        )
        return sum_, normed

    return [
        pattern.RewriteRule(
            post_norm_bias, fused_bias,
            lambda context, x, y, bias, **_: same(x, y) and _vector(bias) is not None,
        ),
        pattern.RewriteRule(post_norm, fused, lambda context, x, y, **_: same(x, y)),
        pattern.RewriteRule(
            pre_norm, fused_pre,
            lambda context, x, y, sum_, **_: same(x, y) and len(sum_.uses()) > 1,
        ),
    ]  # fmt: skip


def sum_residuals(graph):
    """Writes the residual before a norm as a `Sum` of two, which is as fast as an `Add`."""
    for norm in all_nodes(graph):
        add = norm.inputs[0].producer() if norm.op_type == "LayerNormalization" else None
        if add is not None and add.op_type == "Add":
            add.op_type = "Sum"


def projection_rules(known):
    """The projection to the vocabulary, by the embedding itself."""

    def project(op, x, embedding):
        return op.MatMul(x, op.Transpose(embedding, perm=[1, 0]))

    def fused_project(op, x, embedding):
        return op.FusedMatMul(x, embedding, transB=1, _domain=MICROSOFT)

    def is_weight(context, x, embedding):
        return embedding.const_value is not None

    return [pattern.RewriteRule(project, fused_project, is_weight)]


def pack_projections(graph):
    """Computes queries, keys and values of a self-attention in one product, then splits them."""
    for node in all_nodes(graph):
        if node.op_type != "MultiHeadAttention":
            continue
        products = [value.producer() if value is not None else None for value in node.inputs[:3]]
        scaled = products[2] if products[2] is not None and products[2].op_type == "Mul" else None
        if scaled is not None:
            products[2] = scaled.inputs[0].producer()
        biases = [None] * 3
        if all(item is not None and item.op_type == "Add" for item in products):
            biases = [item.inputs[1] for item in products]
            products = [item.inputs[0].producer() for item in products]
        if not all(_is_projection(item, products[0], node.graph) for item in products):
            continue
        if any(item is not None and item.const_value is None for item in biases):
            continue
        weights = [item.inputs[1] for item in products]
        name = weights[0].name.replace("/query/", f"/{PACKED}/")
        packed = _packed(graph, name, weights, axis=1)
        make = ir.tape.Tape()
        x = make.op("MatMul", [products[0].inputs[0], packed])
        if biases[0] is not None:
            x = make.op("Add", [x, _packed(graph, name.replace("kernel", "bias"), biases, axis=0)])
        sizes = [item.const_value.shape[1] for item in weights]
        split = constant(graph, f"{name}/sizes", sizes)
        parts = make.op_multi_out("Split", [x, split], {"axis": -1}, num_outputs=3)
        before = scaled or node
        before.prepend(list(make.nodes))
        node.replace_input_with(0, parts[0])
        node.replace_input_with(1, parts[1])
        if scaled is None:
            node.replace_input_with(2, parts[2])
        else:
            scaled.replace_input_with(0, parts[2])


def _is_projection(node, first, graph):
    return (
        node is not None
        and first is not None
        and node.op_type == "MatMul"
        and node.graph is graph
        and node.inputs[0] is first.inputs[0]
        and node.inputs[1].const_value is not None
        and len(node.outputs[0].uses()) == 1
    )


def _packed(graph, name, values, axis):
    array = np.concatenate([value.const_value.numpy() for value in values], axis=axis)
    packed = ir.Value(
        name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape)
    )
    packed.dtype = packed.const_value.dtype
    packed.meta["weight"] = True
    graph.register_initializer(packed)
    return packed
