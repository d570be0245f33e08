"""Reduces the precision of an ONNX graph: products of 8-bit integers, small weights, float16.

The weights are constants of the outer graph, and the loop's body reads them from there, so the
decoder is reduced like the encoder. Integers replace only products with weights and tables of
embeddings; softmax, norms, log-probabilities and scores stay float32. An embedding that also
computes logits is written twice: as a table and as the weight of a product.

By default no product with weights stays float32. Any `keep_float` makes a batch 10 to 40 % slower
and does not raise BLEU on Multi30k (docs, benchmarks).

ONNX Runtime rewrites the weights of a `DynamicQuantizeMatMul` on processors with AVX2 and without
VNNI, where products of signed bytes saturate. It fails if two products of a graph read one weight,
and it skips weights of outer graphs. So each product reads a separate constant: here by a Flatten,
in loops by `loops.sink_weights`. The file holds the weight once. Zero points are separate, too, so
equal constants are not merged.

Shapes: K rows and N columns of a weight, n blocks of a column; V rows of a table, D numbers each.
"""

import difflib
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.half import halve
from keras_transformer.export.graph.nodes import (
    MICROSOFT,
    add_initializer,
    all_nodes,
    attribute,
    only_reader,
    other_input,
    replace_node,
    substitute,
)
from keras_transformer.export.graph.simplify import clean
from keras_transformer.types import Array

# Rows of a column that share a scale in `MatMulNBits`.
BLOCK = 32
# Bits of a number in a table of embeddings.
ROW_BITS = {"int8": 8, "int16x8": 8, "weight_int8": 8, "weight_int4": 4}
# Precisions whose products have a scale for each column of a weight.
COLUMN_SCALES = ("int8", "int16x8")
# Rounds its inputs to 8 bits, each block separately. Otherwise ONNX Runtime 1.31.1 unpacks the
# weights at every call: 59 ms a sentence of the README's translator instead of 9.
ACCURACY_LEVEL = 4


def check_keep_float(keep_float: Sequence[str], precision: str, paths: Sequence[str]) -> None:
    """Raises `TypeError` or `ValueError` unless each prefix fits one of the `paths`."""
    if not isinstance(keep_float or (), (list, tuple)):
        raise TypeError(
            f"keep_float must be a list of weights' paths, but {keep_float!r} was passed. For one "
            "path pass a list of one."
        )
    if keep_float and precision == "float32":
        raise ValueError(
            f"keep_float names {list(keep_float)}, but in precision float32 all weights stay "
            "float. Leave it out, or choose a reduced precision."
        )
    for prefix in keep_float or ():
        if not any(path.startswith(prefix) for path in paths):
            near = difflib.get_close_matches(prefix, paths, n=3, cutoff=0.0)
            raise ValueError(
                f"keep_float names {prefix!r}, but no weight's path starts with it. Of the model's "
                f"{len(paths)} paths these are nearest: {near}."
            )


def reduce_precision(
    model: ir.Model, precision: str, keep_float: Sequence[str] = (), row_scales: bool = False
) -> int:
    """Reduces the precision of a model in place.

    Args:
        model: result of `simplify` or `fuse_blocks`.
        precision: "float16", "int8", "int16x8", "weight_int8" or "weight_int4".
        keep_float: prefixes of Keras paths of weights that stay float32.
        row_scales: whether "int8" rounds each row of an input with its own scale. Defaults to
            `False`: all rows share one. In the body of a loop they always do, and in "int16x8".

    Returns:
        Number of weights that were reduced. Weights of convolutions never are.
    """
    prefixes = tuple(keep_float or ())

    def is_kept(weight: ir.Value) -> bool:  # it, or a weight that was packed into it
        paths = weight.meta.get("packed", [weight.name])
        return any(path.startswith(prefixes) for path in paths)

    if precision == "float16":
        return halve(model, is_kept)
    bits = ROW_BITS[precision]
    integers, blocks = _Integers(model.graph), {}
    for node in all_nodes(model.graph):
        weight = _weight(node)
        if weight is None or is_kept(weight):
            continue
        if precision in COLUMN_SCALES:
            remainders = precision == "int16x8"
            by_row = row_scales and node.graph is model.graph and not remainders
            _integer_product(node, weight, integers, by_row, remainders)
        else:
            _block_product(model.graph, node, weight, blocks, bits)
    clean(model, constants=False)  # removed products read no table
    tables = {}  # table -> its reduced form, which all its readers share
    for node in all_nodes(model.graph):
        if _is_lookup(node) and not is_kept(node.inputs[0]):
            _small_rows(model.graph, node, tables, bits)
    model.graph.opset_imports.setdefault(MICROSOFT, 1)
    clean(model, constants=False)
    common.NameFixPass()(model)
    return len({name for name, _ in [*integers.rounded, *blocks]}) + len(tables)


def _weight(node: ir.Node) -> ir.Value | None:
    """Returns the weight (2-D, float32) of a product `x W` or `x W^T`, or `None`."""
    product = node.op_type in ("MatMul", "FusedMatMul") and len(node.inputs) == 2
    return node.inputs[1] if product and _is_float_matrix(node.inputs[1]) else None


def _is_lookup(node: ir.Node) -> bool:
    """Returns whether a node picks rows of a float32 table (V, D) that only Gather reads.

    Rows that do not depend on an input, such as the ranges of a bias of positions, stay float32.
    """
    return (
        node.op_type == "Gather"
        and node.inputs[1].const_value is None
        and _is_float_matrix(node.inputs[0])
        and attribute(node, "axis", 0) == 0
        and all(user.op_type == "Gather" for user, _ in node.inputs[0].uses())
    )


def _is_float_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == 2


def _matrix(node: ir.Node, weight: ir.Value) -> Array:
    """Returns the float32 matrix (K, N) that multiplies the product's input."""
    array = weight.const_value.numpy()
    return array.T if attribute(node, "transB", 0) else array


def _form(node: ir.Node, weight: ir.Value) -> tuple[str, bool]:
    """Returns the weight's name, and whether the product reads it transposed."""
    return weight.name, bool(attribute(node, "transB", 0))


def _replace(
    output: ir.Value, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, int]
) -> None:
    """Replaces the node that computes `output` by an operator of ONNX Runtime."""
    attributes = [ir.AttrInt64(name, int(value)) for name, value in attributes.items()]
    node = ir.Node(MICROSOFT, op_type, inputs, attributes)
    output.producer().append(node)
    substitute(output, node.outputs[0])


def _known_steps(matrix: Array, most: int) -> Array:
    """Finds the step of each column (K, N) with entries up to `most` times a step; 0 elsewhere.

    Such weights were integers before, such as Firefox's. With this step as scale they stay exact.
    """
    sizes = np.abs(matrix)
    least = np.where(sizes > 0, sizes, np.inf).min(axis=0)  # (N,)
    least = np.where(np.isfinite(least), least, 1.0)  # a column of zeros

    def fit(columns: Array, step: Array) -> Array:
        counts = sizes[:4, columns] / step[columns]
        near = np.abs(counts - np.rint(counts)).max(axis=0) < 1e-3
        columns = columns[near]  # all rows of these only
        counts = sizes[:, columns] / step[columns]
        near = np.abs(counts - np.rint(counts)).max(axis=0) < 1e-3
        largest = counts.max(axis=0)
        return columns[near & (largest > 0.5) & (largest < most + 0.5)]

    steps = np.zeros(len(least), np.float32)
    # The smallest entry is one to three steps: of all columns, if they share a step, or of one.
    for step in (np.full_like(least, least.min()), least, least / 2, least / 3):
        columns = fit(np.flatnonzero(steps == 0), step)
        steps[columns] = step[columns]
    return steps


def quantize_columns(matrix: Array) -> tuple[Array, Array]:
    """Returns int8 q (K, N) and a float32 scale for each column: `matrix` is about q * scale."""
    steps = _known_steps(matrix, 127)
    scale = np.where(steps > 0, steps, np.abs(matrix).max(axis=0) / 127.0)
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return np.clip(np.rint(matrix / scale), -127, 127).astype(np.int8), scale


def separate_products(graph: ir.Graph) -> None:
    """Lets no two products of `model.quantize("int8")` read the same constant.

    Otherwise ONNX Runtime 1.31 cannot open the file with "session.x64quantprecision". tf2onnx gives
    all products one zero point, which is 0 and may be left out. A shared weight passes a chain of
    `Flatten`, as in `_Integers`.

    before   MatMulInteger(x, q, 0, 0); MatMulInteger(y, q, 0, 0)
    after    MatMulInteger(x, q); MatMulInteger(y, Flatten(q))
    """
    last: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in all_nodes(graph):
        if node.op_type == "MatMulInteger":
            node.resize_inputs(2)
            weight = node.inputs[1]
            key = weight, id(node.graph)
            if key in last and weight.is_initializer() and len(weight.shape) == 2:
                node.replace_input_with(1, _flattened(last[key], node))
            last[key] = node.inputs[1]


def _flattened(matrix: ir.Value, node: ir.Node) -> ir.Value:
    """Returns the same matrix as another constant, computed before `node`."""
    flatten = ir.Node("", "Flatten", [matrix])
    node.prepend(flatten)
    flatten.outputs[0].type, flatten.outputs[0].shape = matrix.type, matrix.shape
    return flatten.outputs[0]


class _Integers:
    """The integers, scales and zero points that products with rounded weights read.

    Args:
        graph: the outer graph, which holds the weights.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        # Name of a weight, and whether it is transposed -> q, scale.
        self.rounded: dict[tuple[str, bool], tuple[ir.Value, ir.Value]] = {}
        # The same and the id of a graph -> the integers that the last product there reads.
        self.last: dict[tuple[str, bool, int], ir.Value] = {}

    def __call__(self, node: ir.Node, weight: ir.Value) -> list[ir.Value]:
        """Returns q, scale and zero of a weight for one more product at the place of `node`."""
        form = _form(node, weight)
        if form not in self.rounded:
            quantized, scale = quantize_columns(_matrix(node, weight))
            self.rounded[form] = (
                add_initializer(self.graph, f"{weight.name}/int8", quantized),
                add_initializer(self.graph, f"{weight.name}/scale", scale),
            )
        integers, scale = self.rounded[form]
        key = *form, id(node.graph)
        if key in self.last:  # a chain: equal nodes with equal inputs would become one
            integers = _flattened(self.last[key], node)
        self.last[key] = integers
        zeros = np.zeros(scale.shape, np.int8)
        return [integers, scale, add_initializer(self.graph, f"{weight.name}/zero", zeros)]


def _integer_product(
    node: ir.Node, weight: ir.Value, integers: _Integers, row_scales: bool, remainders: bool
) -> None:
    """Writes `DynamicQuantizeMatMul`, which rounds the input to 8 bits when it runs.

    before   y = Add(MatMul(x, w), bias)
    after    y = DynamicQuantizeMatMul(x, q, scale, zero, bias)      w about q * scale

    With `row_scales` the rows of x are divided by their largest size before rounding:

    after    r = ReduceMax(Abs(x)); y = Add(Mul(DynamicQuantizeMatMul(x / r, ...), r), bias)

    With `remainders` the rest that rounding leaves is rounded as well, and multiplied by the same
    weight, so x has 16 bits:

    after    r = Sub(x, DequantizeLinear(DynamicQuantizeLinear(x)))
             y = Add(DynamicQuantizeMatMul(x, ...), DynamicQuantizeMatMul(r, ..., bias))
    """
    x, output = node.inputs[0], node.outputs[0]
    tape = ir.tape.Tape()

    def product(rows: ir.Value, *bias: ir.Value) -> ir.Value:
        inputs = [rows, *integers(node, weight), *bias]
        return tape.op("DynamicQuantizeMatMul", inputs, domain=MICROSOFT)

    if row_scales:
        least = tape.op("Constant", [], {"value": ir.tensor(np.float32(1e-30))})  # rows of zeros
        size = tape.op("ReduceMax", [tape.op("Abs", [x])], {"axes": [-1], "keepdims": 1})
        size = tape.op("Max", [size, least])
        replace_node(node, tape, tape.op("Mul", [product(tape.op("Div", [x, size])), size]))
        return
    add = only_reader(output, "Add")
    bias = other_input(add, output) if add else None
    columns = _matrix(node, weight).shape[1:]
    if bias is None or bias.const_value is None or tuple(bias.const_value.shape) != columns:
        add, bias = node, None
    biases = [] if bias is None else [bias]
    if remainders:
        whole = product(x)
        parts = tape.op_multi_out("DynamicQuantizeLinear", [x], num_outputs=3)
        remainder = tape.op("Sub", [x, tape.op("DequantizeLinear", parts)])
        result = tape.op("Add", [whole, product(remainder, *biases)])
    else:
        result = product(x, *biases)
    replace_node(add, tape, result)


def quantize_blocks(matrix: Array, bits: int) -> tuple[Array, Array]:
    """Returns unsigned integers (N, n, BLOCK), 2^(bits - 1) for 0, and float32 scales (N, n)."""
    rows, columns = matrix.shape
    padded = np.zeros((columns, -(-rows // BLOCK) * BLOCK), np.float32)
    padded[:, :rows] = matrix.T
    blocks = padded.reshape(columns, -1, BLOCK)  # (N, n, BLOCK)
    middle = 2 ** (bits - 1)
    # The largest entry in size maps to -middle, the only integer without a positive counterpart.
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    scale = np.where(largest != 0, largest / -middle, 1.0)
    steps = _known_steps(blocks.reshape(-1, BLOCK).T, middle - 1).reshape(scale.shape)
    scale = np.where(steps > 0, steps, scale).astype(np.float32)
    integers = np.clip(np.rint(blocks / scale) + middle, 0, 2 * middle - 1).astype(np.uint8)
    return integers, scale[..., 0]


def _packed(integers: Array, bits: int) -> Array:
    """Packs two 4-bit integers in a byte, the first in the lower half; keeps 8-bit integers."""
    return integers if bits == 8 else integers[..., 0::2] | (integers[..., 1::2] << 4)


def _block_product(
    graph: ir.Graph, node: ir.Node, weight: ir.Value, products: dict, bits: int
) -> None:
    """Writes `MatMulNBits`: weights and inputs are rounded in small blocks with a scale each.

    before   y = MatMul(x, w)
    after    y = MatMulNBits(x, blocks, scale)
    """
    matrix, form = _matrix(node, weight), _form(node, weight)
    if form not in products:
        integers, scale = quantize_blocks(matrix, bits)
        products[form] = (
            add_initializer(graph, f"{weight.name}/int{bits}", _packed(integers, bits)),
            add_initializer(graph, f"{weight.name}/scale", scale),
        )
    sizes = {"K": matrix.shape[0], "N": matrix.shape[1], "bits": bits, "block_size": BLOCK}
    options = {**sizes, "accuracy_level": ACCURACY_LEVEL}
    inputs = [node.inputs[0], *products[form]]
    _replace(node.outputs[0], "MatMulNBits", inputs, options)


def _small_rows(graph: ir.Graph, node: ir.Node, tables: dict, bits: int) -> None:
    """Writes `GatherBlockQuantized`: rows are rounded in small blocks with a scale each.

    before   y = Gather(table, ids)
    after    y = GatherBlockQuantized(rows, ids, scale)
    """
    table, ids = node.inputs
    if table not in tables:
        array = table.const_value.numpy()
        bits = 8 if array.shape[1] % 2 else bits  # a row is whole bytes
        integers, scale = quantize_blocks(array.T, bits)  # (V, n, BLOCK) and (V, n)
        rows = integers.reshape(len(array), -1)[:, : array.shape[1]]
        tables[table] = (
            add_initializer(graph, f"{table.name}/rows", _packed(rows, bits)),
            add_initializer(graph, f"{table.name}/rows_scale", scale),
            bits,
        )
    rows, scale, bits = tables[table]
    options = {"gather_axis": 0, "quantize_axis": 1, "bits": bits, "block_size": BLOCK}
    _replace(node.outputs[0], "GatherBlockQuantized", [rows, ids, scale], options)
