"""Attention as one operator: ONNX Runtime's `MultiHeadAttention`, or `Attention` with projections.

Our layers compute attention with separate heads, (B, T, H, K), in about fifteen nodes: transposed
queries, keys and values, scaled scores, a softmax, a product with the values and a transpose back.
The operators take heads side by side, (B, T, H K), and add to the scores a bias of shape
(B or 1, H or 1, T, S).

Shapes: B batch, T queries, S keys, H heads, K size of a head, D d_model.
"""

import dataclasses

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import (
    MICROSOFT,
    add_initializer,
    all_nodes,
    attribute,
    integers,
    is_float32,
    number,
    only_reader,
    other_input,
    producer,
    replace_node,
    substitute,
)
from keras_transformer.export.graph.shape_data import Dims
from keras_transformer.export.graph.shapes import InferredShapes

# Replaces `query` in the name of a weight that packs queries, keys and values.
PACKED = "query_key_value"
# From this length on, `Attention` is slower than product and `MultiHeadAttention`.
LONG = 1000
# A free length counts as long if a table of at least this many positions is cut to it. The default
# of `LearnedPositionEncoding`, 1,024, does not indicate the length.
MOST_POSITIONS = 1500
# Index of the attention bias among the inputs of both operators.
BIAS_INPUT = 5


@dataclasses.dataclass(frozen=True)
class _Sequence:
    """Keys or values of an attention: new ones, new ones after a cache, or precomputed ones.

    Attributes:
        whole: all of them, (B, H, S, K).
        new: the ones computed here, (B, T, H, K), or `None` if `whole` is precomputed.
        past: the cache before the new ones, (B, H, S - T, K), or `None`.
    """

    whole: ir.Value
    new: ir.Value | None = None
    past: ir.Value | None = None


@dataclasses.dataclass(frozen=True)
class _Attention:
    """An attention as found around its softmax.

    output = heads_last(Softmax(scale query keys^T - negative_biases) visible values)

    Attributes:
        last: the node that writes the output (B, T, H, K).
        query: (B, T, H, K).
        keys, values: the attended sequences.
        scale: factor of the scores.
        negative_biases: subtracted from the scores, (B or 1, H or 1, T or 1, S) each.
        visible: 0 for a query with all keys masked out, which gets zeros and not a mean;
            (B, 1, T or 1, 1), or `None`.
    """

    last: ir.Node
    query: ir.Value
    keys: _Sequence
    values: _Sequence
    scale: float
    negative_biases: list[ir.Value]
    visible: ir.Value | None


def fuse_attention(model: ir.Model, shapes: InferredShapes) -> int:
    """Writes each attention as `MultiHeadAttention`, with a cache or a mask if it has one.

    before   output = heads_last(Softmax(scale query keys^T - negative_biases) visible values)
    after    output = MultiHeadAttention(query, keys, visible values, bias=-negative_biases)

    A step of a search attends to its cache as well:

    before   keys = Concat(past_key, heads_first(key)), values likewise; output as above
    after    output, keys, values = MultiHeadAttention(query, key, value, ..., past_key, past_value)

    Returns:
        Number of written operators.
    """
    count = 0
    for node in all_nodes(model.graph):
        attention = _read(node) if node.op_type == "Softmax" else None
        if attention is not None and _is_supported(attention, shapes):
            _write(attention, shapes)
            count += 1
    return count


def _read(softmax: ir.Node) -> _Attention | None:
    """Returns the attention around a softmax, or `None` if there is none."""
    scores, negative_biases = softmax.inputs[0], []
    while subtract := producer(scores, "Sub"):
        scores, negative_bias = subtract.inputs
        negative_biases.append(negative_bias)
    scores, scale = _without_scale(scores)
    weights, visible = softmax.outputs[0], None
    if multiply := only_reader(weights, "Mul"):
        weights, visible = multiply.outputs[0], other_input(multiply, weights)
    weighted = only_reader(weights, "MatMul")
    last = weighted and only_reader(weighted.outputs[0], "Transpose")
    if not producer(scores, "MatMul") or not last or weighted.inputs[0] is not weights:
        return None
    queries, columns = scores.producer().inputs
    queries, other_scale = _without_scale(queries)
    query = _transposed(queries, 0, 2, 1, 3)
    keys, values = _keys(columns), _sequence(weighted.inputs[1])
    heads_last = list(attribute(last, "perm", [])) == [0, 2, 1, 3]
    if query is None or keys is None or not heads_last:
        return None
    if attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    return _Attention(last, query, keys, values, scale * other_scale, negative_biases, visible)


def _without_scale(value: ir.Value) -> tuple[ir.Value, float]:
    """Splits a value into an unscaled value and a factor."""
    multiply = producer(value, "Mul")
    factor = number(multiply.inputs[1]) if multiply else None
    return (value, 1.0) if factor is None else (multiply.inputs[0], factor)


def _transposed(value: ir.Value, *order: int) -> ir.Value | None:
    """Returns the input of the Transpose of this order that computes a value, or `None`."""
    node = producer(value, "Transpose")
    return node.inputs[0] if node and list(attribute(node, "perm", [])) == list(order) else None


def _keys(columns: ir.Value) -> _Sequence | None:
    """Returns the keys that were transposed to (B, H, K, S), or `None`."""
    direct = _transposed(columns, 0, 2, 3, 1)  # as Keras' layer writes it
    if direct is not None:
        return _Sequence(columns, direct)
    keys = _transposed(columns, 0, 1, 3, 2)
    return None if keys is None else _sequence(keys)


def _sequence(whole: ir.Value) -> _Sequence:
    """Returns the parts of keys or values (B, H, S, K)."""
    joined = producer(whole, "Concat")
    if joined and attribute(joined, "axis", 0) == 2 and len(joined.inputs) == 2:
        new = _transposed(joined.inputs[1], 0, 2, 1, 3)
        if new is not None:
            return _Sequence(whole, new, joined.inputs[0])
    return _Sequence(whole, _transposed(whole, 0, 2, 1, 3))


def _is_supported(attention: _Attention, shapes: InferredShapes) -> bool:
    """Returns whether the shapes are known, and the operator takes them."""
    heads, keys, values = _heads(shapes, attention.query), attention.keys, attention.values
    if heads is None or not attention.scale:  # the operator takes a scale of 0 as its default
        return False
    if not is_float32(attention.query):
        return False
    rows = {shapes.dims[attention.query][0]}
    if (keys.new is None, keys.past is None) != (values.new is None, values.past is None):
        return False
    for sequence in (keys, values):
        dims = shapes.dims.get(sequence.whole) or ()
        ready = (dims[1], dims[3]) if len(dims) == 4 else None
        rows.update(dims[:1])
        # The operator also writes the keys with the past, at the place of the last node.
        if sequence.past is not None:
            readers = [use.node for use in sequence.whole.uses() if use.node.op_type != "Shape"]
            length = (shapes.dims.get(sequence.new) or (None, None))[1]
            if len(readers) > 1 or not isinstance(length, int):
                return False
        if heads != (ready if sequence.new is None else _heads(shapes, sequence.new)):
            return False
    if len(rows) > 1 and 1 in rows:  # the operator does not broadcast along the batch
        return False
    masks = [shapes.dims.get(mask) or () for mask in attention.negative_biases]
    visible = shapes.dims.get(attention.visible, (1, 1, 1, 1)) or ()
    if any(len(dims) != 4 or dims[1] not in (1, heads[0]) for dims in (*masks, visible)):
        return False
    length = (shapes.dims.get(keys.whole) or (None,) * 4)[3 if keys.new is None else 2]
    if any(dims[3] == 1 != length for dims in masks):
        return False
    return visible[1] == visible[3] == 1


def _heads(shapes: InferredShapes, value: ir.Value) -> Dims | None:
    """Returns number and size of the heads of (B, T, H, K) if known, else `None`."""
    dims = shapes.dims.get(value) or ()
    known = len(dims) == 4 and all(isinstance(size, int) for size in dims[2:])
    return dims[2:] if known else None


def _write(attention: _Attention, shapes: InferredShapes) -> None:
    """Replaces the attention's last node by one operator."""
    for sequence in (attention.keys, attention.values):
        if sequence.past is not None:
            _measure_past(sequence, shapes)
    tape, keys, values = ir.tape.Tape(), attention.keys, attention.values
    count, size = _heads(shapes, attention.query)

    def joined(value: ir.Value) -> ir.Value:  # (B, T, H, K) -> (B, T, H K)
        return tape.op("Reshape", [value, integers(tape, 0, 0, count * size)])

    query = joined(attention.query)
    key, value = (item.whole if item.new is None else joined(item.new) for item in (keys, values))
    visible = attention.visible
    # A `visible` for all queries of a sentence multiplies the values, else the output. Values of a
    # source are multiplied once, before the loop.
    early = visible is not None and shapes.dims[visible][2] == 1 and keys.past is None
    factor = visible
    if visible is not None and not (early and keys.new is None):
        factor = tape.op("Squeeze", [visible, integers(tape, 1)])  # (B, T or 1, 1)
    if early:
        value = tape.op("Mul", [value, factor])
    inputs = [query, key, value]
    if attention.negative_biases or keys.past is not None:
        inputs += [None, None, _bias(attention, shapes, tape)]
    if keys.past is not None:
        inputs += [keys.past, values.past]
    outputs = tape.op_multi_out(
        "MultiHeadAttention",
        inputs,
        {"num_heads": count, "scale": attention.scale},
        domain=MICROSOFT,
        num_outputs=1 if keys.past is None else 3,
    )
    output = outputs[0]
    if visible is not None and not early:
        output = tape.op("Mul", [output, factor])
    output = tape.op("Reshape", [output, integers(tape, 0, 0, count, size)])
    replace_node(attention.last, tape, output)
    for old, new in zip((keys.whole, values.whole), outputs[1:], strict=False):
        substitute(old, new)


def _measure_past(sequence: _Sequence, shapes: InferredShapes) -> None:
    """Computes the shape of keys from the past, because a bias needs it before the operator.

    before   Shape(Concat(past, new))
    after    Shape(past) + [0, 0, T, 0]
    """
    added = [0, 0, shapes.dims[sequence.new][1], 0]
    for node in [use.node for use in sequence.whole.uses() if use.node.op_type == "Shape"]:
        tape, ends = ir.tape.Tape(), (attribute(node, "start", 0), attribute(node, "end", None))
        past = tape.op("Shape", [sequence.past], dict(node.attributes))
        replace_node(node, tape, tape.op("Add", [past, integers(tape, *added[slice(*ends)])]))


def _bias(attention: _Attention, shapes: InferredShapes, tape: ir.tape.Tape) -> ir.Value | None:
    """Returns the bias of the scores; the operator does not broadcast it along the queries."""
    if not attention.negative_biases:
        return None
    bias = None
    for negative in attention.negative_biases:
        multiply = producer(negative, "Mul")
        if multiply and number(multiply.inputs[1]) == -1:
            part = multiply.inputs[0]
        else:
            part = tape.op("Neg", [negative])
        bias = part if bias is None else tape.op("Add", [bias, part])
    rows = {shapes.dims[negative][2] for negative in attention.negative_biases}
    columns = shapes.dims[negative][3]
    length = shapes.dims[attention.query][1]
    if rows != {1} or length == 1:
        return bias
    if columns == length:
        length = tape.op("Shape", [negative], {"start": 3})  # the same node for every block
    else:
        length = tape.op("Shape", [attention.query], {"start": 1, "end": 2})
    target = [integers(tape, 1, 1), length, integers(tape, 1)]
    return tape.op("Expand", [bias, tape.op("Concat", target, {"axis": 0})])


def pack_projections(graph: ir.Graph, shapes: InferredShapes, project: bool) -> None:
    """Computes queries, keys and values of each self-attention with one product.

    before   MultiHeadAttention(x q, x k, visible x v)
    after    MultiHeadAttention(Split(x [q k v])), the values multiplied by `visible`
    or       visible Attention(x, [q k v])              weight (D, 3 H K), visible (B, 1, 1)

    `Attention` projects its own inputs. On CPUs it takes a tenth to a quarter less time, but it
    holds its weights in float32. Over 1,500 vectors `MultiHeadAttention` takes a quarter less time,
    because it never holds all scores. A layer that is used twice keeps one packed
    weight.

    Args:
        graph: the outer graph of a model.
        shapes: its shapes.
        project: whether to write `Attention` if possible.
    """
    packed = {}  # weights that were put side by side -> the packed weight
    tables = {node.inputs[0] for node in graph if node.op_type == "Slice"}
    many = any(
        shapes.dims[table][0] >= MOST_POSITIONS for table in tables if table.const_value is not None
    )
    for node in all_nodes(graph):
        if node.op_type == "MultiHeadAttention":
            _, length, *_ = shapes.dims.get(node.inputs[0]) or (None, None)
            long = length >= LONG if isinstance(length, int) else many
            _pack(graph, node, shapes, project and not long, packed)


def _pack(
    graph: ir.Graph, node: ir.Node, shapes: InferredShapes, project: bool, packed: dict
) -> None:
    """Packs the projections of one attention; see `pack_projections`."""
    places, visible = [_place(node, index) for index in range(3)], None
    scaled = producer(node.inputs[2], "Mul")
    if scaled:
        places[2], visible = (scaled, 0), scaled.inputs[1]
    parts = [reader.inputs[index] for reader, index in places]
    split = producer(parts[0], "Split")
    is_packed = bool(split) and list(split.outputs) == parts
    projections = (
        [_projection(value, node.graph) for value in split.inputs[:1]]
        if is_packed
        else [_projection(value, node.graph) for value in parts]
    )
    if None in projections:
        return
    inputs, weights, biases = zip(*projections, strict=True)
    if len(set(inputs)) > 1 or len({bias is None for bias in biases}) > 1:
        return
    dims = {shapes.dims.get(part) for part in parts}
    factor = () if visible is None else shapes.dims.get(visible) or (None,)
    size = next(iter(dims)) or ()
    project = (
        project
        and len(node.outputs) == 1
        and places[1][0] is node
        and len(dims) == 1
        and len(size) == 3
        and set(factor[-2:]) <= {1}  # same effect on values and output
    )
    if is_packed and not project:
        return
    tape, name = ir.tape.Tape(), weights[0].name.replace("/query/", f"/{PACKED}/")
    weight = _joined(graph, name, weights, packed)
    bias = None
    if biases[0] is not None:
        bias = _joined(graph, name.replace("kernel", "bias"), biases, packed)
    if project:
        bias = _zeros(graph, weight, packed) if bias is None else bias
        added = [None, None, *node.inputs[BIAS_INPUT : BIAS_INPUT + 1]]
        options = {name: attribute(node, name, None) for name in ("num_heads", "scale")}
        output = tape.op(
            "Attention",
            [inputs[0], weight, bias, *(added if added[2:] else [])],
            options,
            domain=MICROSOFT,
        )
        replace_node(node, tape, output if visible is None else tape.op("Mul", [output, visible]))
        return
    rows = tape.op("MatMul", [inputs[0], weight])
    rows = rows if bias is None else tape.op("Add", [rows, bias])
    sizes = np.array([item.const_value.shape[1] for item in weights], np.int64)
    sizes = add_initializer(graph, f"{name}/sizes", sizes)
    new = tape.op_multi_out("Split", [rows, sizes], {"axis": -1}, num_outputs=3)
    products = {value.producer() for value in parts}
    next(item for item in node.graph if item in products).prepend(list(tape.nodes))
    for (reader, index), part in zip(places, new, strict=True):
        reader.replace_input_with(index, part)


def _place(node: ir.Node, index: int) -> tuple[ir.Node, int]:
    """Returns the node, and the number of its input, that reads a projected input of an attention.

    New keys and values are reshaped, before they are joined with cached ones.
    """
    value = node.inputs[index]
    while joined := producer(value, "Concat"):
        value = joined.inputs[-1]
    turned = producer(value, "Transpose")
    reshaped = turned and producer(turned.inputs[0], "Reshape")
    return (reshaped, 0) if reshaped and value is not node.inputs[index] else (node, index)


def _projection(value: ir.Value, graph: ir.Graph) -> tuple | None:
    """Returns input, weight and bias of the product that computes a value, or `None`."""
    add = producer(value, "Add")
    bias = add.inputs[1] if add else None
    multiply = producer(add.inputs[0] if add else value, "MatMul")
    if not multiply or multiply.graph is not graph or len(multiply.outputs[0].uses()) != 1:
        return None
    x, weight = multiply.inputs
    if weight.const_value is None or len(weight.const_value.shape) != 2:
        return None
    if bias is not None and (bias.const_value is None or len(bias.const_value.shape) != 1):
        return None
    return x, weight, bias


def _joined(graph: ir.Graph, name: str, weights: tuple, packed: dict) -> ir.Value:
    """Joins weights side by side to a weight of `graph`; the same one for the same weights."""
    if len(weights) == 1:
        return weights[0]
    if weights not in packed:
        array = np.concatenate([value.const_value.numpy() for value in weights], axis=-1)
        value = packed[weights] = add_initializer(graph, name, array, weight=True)
        value.meta["packed"] = [item.name for item in weights]  # for `quantize.is_kept`
    return packed[weights]


def _zeros(graph: ir.Graph, weight: ir.Value, packed: dict) -> ir.Value:
    """Returns a bias of zeros, shared by all projections of the same size."""
    size = weight.const_value.shape[1]
    if size not in packed:
        packed[size] = add_initializer(graph, f"zeros/{size}", np.zeros(size, np.float32))
    return packed[size]
