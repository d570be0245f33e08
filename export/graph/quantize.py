"""Reduced precision of an ONNX graph: products of 8-bit integers, small weights, float16.

The weights are constants of the outer graph, and the loop's body reads them from there, so the
decoder is reduced like the encoder. Only products with weights and tables of embeddings change for
the integers; softmax, norms, log-probabilities and scores stay float32 in all cases. An embedding
that gives the logits, too, is there twice: as a table and as the weight of a product.

No product with weights stays float32 by default, because none is worth it: whichever `keep_float`
keeps, BLEU on Multi30k does not rise and a batch takes 10 to 40 % longer (docs, benchmarks).

Shapes: K rows and N columns of a weight, n blocks of a column; V rows of a table, D numbers each.
"""

import difflib

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.nodes import (
    MICROSOFT,
    add_initializer,
    all_nodes,
    attribute,
)
from keras_transformer.export.graph.simplify import clean

# Rows of a column that share a scale in `MatMulNBits`.
BLOCK = 32
# Bits of a number in a table of embeddings.
ROW_BITS = {"int8": 8, "weight_int8": 8, "weight_int4": 4}
# Its inputs are rounded to 8 bits, each block by itself. Without that, ONNX Runtime 1.31.1 unpacks
# the weights at every call: 59 ms a sentence of the README's translator where this takes 9.
ACCURACY_LEVEL = 4


def check_keep_float(keep_float, precision, paths):
    """Raises `TypeError` or `ValueError` unless all prefixes fit to one of the `paths`."""
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


def reduce_precision(model, precision, keep_float=()):
    """Rewrites an `onnx_ir.Model` in place.

    Args:
        model: result of `simplify` or `fuse_blocks`.
        precision: "float16", "int8", "weight_int8" or "weight_int4".
        keep_float: prefixes of Keras paths of weights that stay float32.

    Returns:
        How many weights were reduced. Those of convolutions, for one, never are.
    """
    keep = tuple(keep_float or ())
    if precision == "float16":
        from keras_transformer.export.graph.half import halve

        return halve(model, lambda weight: is_kept(weight, keep))
    write = {
        "int8": _integer_product,
        "weight_int8": lambda *arguments: _block_product(*arguments, bits=8),
        "weight_int4": lambda *arguments: _block_product(*arguments, bits=4),
    }[precision]
    made = {}  # name of a weight -> its reduced form, which all products with it share
    for node in all_nodes(model.graph):
        weight = _weight(node)
        if weight is not None and not is_kept(weight, keep):
            write(model.graph, node, weight, made)
    clean(model)  # products that are no more read no table
    tables = {}  # table -> its reduced form, which all who read it share
    for node in all_nodes(model.graph):
        if _is_lookup(node) and not is_kept(node.inputs[0], keep):
            _small_rows(model.graph, node, tables, ROW_BITS[precision])
    model.graph.opset_imports.setdefault(MICROSOFT, 1)
    clean(model)
    common.NameFixPass()(model)
    return len(made) + len(tables)


def is_kept(weight, keep):
    """Whether a weight, or one of those that were packed into it, has a path with such a prefix."""
    return any(path.startswith(keep) for path in weight.meta.get("packed", [weight.name]))


def _weight(node):
    """The weight (2-D, float32) of a product `x W` or `x W^T`, or `None`."""
    if node.op_type not in ("MatMul", "FusedMatMul") or len(node.inputs) != 2:
        return None
    weight = node.inputs[1]
    tensor = weight.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 2:
        return None
    return weight


def _is_lookup(node):
    """Whether a node picks rows of a table (V, D) of float32 that is only read like that."""
    table = node.inputs[0].const_value if node.op_type == "Gather" else None
    return (
        table is not None
        and table.dtype == ir.DataType.FLOAT
        and len(table.shape) == 2
        and attribute(node, "axis", 0) == 0
        and all(user.op_type == "Gather" for user, _ in node.inputs[0].uses())
    )


def _matrix(node, weight):
    """The float32 matrix (K, N) that the product's input is multiplied by."""
    array = weight.const_value.numpy()
    return array.T if attribute(node, "transB", 0) else array


def _replace(node, new, output):
    """Puts `new`, which gives what `output` was, in the place of `node`."""
    node.append(new) if output is node.outputs[0] else output.producer().append(new)
    result = new.outputs[0]
    result.type, result.shape = output.type, output.shape
    name = output.name
    output.name, result.name = f"{name}/float", name  # the model's outputs keep theirs
    output.replace_all_uses_with(result, replace_graph_outputs=True)


def quantize_columns(matrix):
    """int8 (K, N) and a float32 scale for each of the N columns: `matrix` is about q * scale."""
    scale = np.abs(matrix).max(axis=0) / 127.0
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return np.clip(np.rint(matrix / scale), -127, 127).astype(np.int8), scale


def _integer_product(graph, node, weight, made):
    """`DynamicQuantizeMatMul`: rows of the input are rounded to 8 bits when it runs.

    before   y = Add(MatMul(x, w), bias)
    after    y = DynamicQuantizeMatMul(x, q, scale, zero, bias)      w about q * scale
    """
    if weight.name not in made:
        quantized, scale = quantize_columns(_matrix(node, weight))
        made[weight.name] = (
            add_initializer(graph, f"{weight.name}/int8", quantized),
            add_initializer(graph, f"{weight.name}/scale", scale),
            add_initializer(graph, f"{weight.name}/zero", np.zeros(scale.shape, np.int8)),
        )
    inputs, output = [node.inputs[0], *made[weight.name]], node.outputs[0]
    users = [user for user, _ in output.uses()]
    if len(users) == 1 and users[0].op_type == "Add" and users[0].graph is node.graph:
        bias = next(value for value in users[0].inputs if value is not output)
        tensor = bias.const_value
        if tensor is not None and len(tensor.shape) == 1:
            inputs, output = [*inputs, bias], users[0].outputs[0]
    new = ir.Node(MICROSOFT, "DynamicQuantizeMatMul", inputs, num_outputs=1)
    _replace(node, new, output)


def quantize_blocks(matrix, bits):
    """Unsigned integers (N, n, BLOCK), middle at 2^(bits - 1), and float32 scales (N, n)."""
    rows, columns = matrix.shape
    padded = np.zeros((columns, -(-rows // BLOCK) * BLOCK), np.float32)
    padded[:, :rows] = matrix.T
    blocks = padded.reshape(columns, -1, BLOCK)  # (N, n, BLOCK)
    middle = 2 ** (bits - 1)
    # The entry that is largest in size gets the one integer that has no counterpart.
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    scale = np.where(largest != 0, largest / -middle, 1.0).astype(np.float32)
    integers = np.clip(np.rint(blocks / scale) + middle, 0, 2 * middle - 1).astype(np.uint8)
    return integers, scale[..., 0]


def _block_product(graph, node, weight, made, bits):
    """`MatMulNBits`: weights and inputs are rounded in small blocks of their own scale.

    before   y = MatMul(x, w)
    after    y = MatMulNBits(x, blocks, scale)
    """
    matrix = _matrix(node, weight)
    if weight.name not in made:
        integers, scale = quantize_blocks(matrix, bits)
        made[weight.name] = (
            add_initializer(graph, f"{weight.name}/int{bits}", _bytes(integers, bits)),
            add_initializer(graph, f"{weight.name}/scale", scale),
        )
    sizes = {"K": matrix.shape[0], "N": matrix.shape[1], "bits": bits, "block_size": BLOCK}
    sizes["accuracy_level"] = ACCURACY_LEVEL
    new = ir.Node(
        MICROSOFT,
        "MatMulNBits",
        [node.inputs[0], *made[weight.name]],
        [ir.AttrInt64(name, int(size)) for name, size in sizes.items()],
        num_outputs=1,
    )
    _replace(node, new, node.outputs[0])


def _small_rows(graph, node, made, bits):
    """`GatherBlockQuantized`: rows of a table are rounded in small blocks of their own scale.

    before   y = Gather(table, ids)
    after    y = GatherBlockQuantized(rows, ids, scale)
    """
    table, ids = node.inputs
    if table not in made:
        array = table.const_value.numpy()
        bits = 8 if array.shape[1] % 2 else bits  # a row is whole bytes
        integers, scale = quantize_blocks(array.T, bits)  # (V, n, BLOCK) and (V, n)
        rows = integers.reshape(len(array), -1)[:, : array.shape[1]]
        made[table] = (
            add_initializer(graph, f"{table.name}/rows", _bytes(rows, bits)),
            add_initializer(graph, f"{table.name}/rows_scale", scale),
            bits,
        )
    rows, scale, bits = made[table]
    sizes = {"gather_axis": 0, "quantize_axis": 1, "bits": bits, "block_size": BLOCK}
    options = [ir.AttrInt64(name, size) for name, size in sizes.items()]
    inputs = [rows, ids, scale]
    new = ir.Node(MICROSOFT, "GatherBlockQuantized", inputs, options, num_outputs=1)
    _replace(node, new, node.outputs[0])


def _bytes(integers, bits):
    """Integers of 8 bits as they are; two of 4 bits in a byte, the first in the lower half."""
    return integers if bits == 8 else integers[..., 0::2] | (integers[..., 1::2] << 4)
