"""Conversion of a Keras function to an ONNX graph, before any rewriting.

The function is traced with the model's weights as *arguments*: `keras.StatelessScope` replaces the
variables by them. So the graph that the converter reads has no large constants. After the
conversion each weight becomes an initializer with its Keras path as its name.

Two kinds of tensors are constants from the start: weights of recurrent layers, because tf2onnx
writes `LSTM` only if it can read them, and eager tensors of a layer, which TensorFlow captures.
"""

import contextlib
import logging.handlers
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import onnx
import onnx_ir as ir
import tensorflow as tf

# Its imports fill tf2onnx's registry of operators, which tfonnx needs.
import tf2onnx.convert  # noqa: F401
from tensorflow.python.grappler import tf_optimizer
from tf2onnx import tfonnx

from keras_transformer.export.graph.nodes import all_nodes
from keras_transformer.export.graph.tf2onnx_patches import HANDLERS
from keras_transformer.export.staging import ExportError

# Attributes of nodes and functions that TensorFlow would not inline, or would replace.
NOT_INLINED = ("_XlaMustCompile", "_noinline", "_lower_using_switch_merge", "api_implements")
# TensorFlow's operators without a conversion that gives the same numbers, and the remedy.
COMPLEX = (
    "ONNX has no complex numbers. For spectra use kt.LogMel or keras.layers.STFTSpectrogram, which "
    "are products, or compute them before the model"
)
REFUSED = {
    **dict.fromkeys(("Complex", "Real", "Imag", "Conj", "Angle", "IFFT", "IRFFT"), COMPLEX),
    "CTCGreedyDecoder": "Return the logits, and decode them outside of the model",
}
LOOP = (
    "Loops that collect a result of each step, such as keras.ops.scan, are not supported. Use "
    "keras.layers.RNN with a cell, or an operation on the whole axis, such as keras.ops.cumsum"
)
REMEDIES = {**REFUSED, **dict.fromkeys(("While", "StatelessWhile"), LOOP)}
OTHERWISE = "Replace the operation in the model, or report it with the model's configuration"


class Traced(NamedTuple):
    """A traced function.

    Attributes:
        function: concrete function whose inputs are the variables' values, then the inputs, then
            captured eager tensors.
        layers: dict from the scopes in the names of its nodes to the layers' names.
    """

    function: Any
    layers: Mapping[str, str]


def trace(
    function: Callable[..., dict[str, Any]],
    variables: Sequence[keras.Variable],
    specs: dict[str, tf.TensorSpec],
) -> Traced:
    """Traces `function(**inputs)` with `variables` as the first inputs.

    Args:
        function: takes tensors by keyword, one per item of `specs`; returns a dict of tensors.
        variables: Keras variables that it reads.
        specs: dict from input names to `tf.TensorSpec`.

    Returns:
        `Traced`.

    Raises:
        ExportError: the function reads a TensorFlow resource, such as a lookup table.
    """

    def stateless(values: list[Any], inputs: dict[str, Any]) -> dict[str, Any]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            outputs = function(**inputs)
            # An output that is a variable has a value of `values` only in this scope.
            return {name: tf.convert_to_tensor(output) for name, output in outputs.items()}

    weights = [
        tf.TensorSpec(variable.shape, variable.dtype, name=f"weight_{i}")
        for i, variable in enumerate(variables)
    ]
    with _valid_scopes() as layers:
        traced = tf.function(stateless, autograph=False).get_concrete_function(weights, specs)
    captured = [
        inner.name
        for outer, inner in traced.graph.captures
        if not hasattr(outer, "numpy") or outer.dtype in (tf.resource, tf.variant)
    ]
    if captured:
        raise ExportError(
            f"The traced model reads {captured}, neither weight nor input nor constant. Hold such "
            "state as Keras weights."
        )
    return Traced(traced, layers)


@contextlib.contextmanager
def _valid_scopes() -> Iterator[dict[str, str]]:
    """Allows any layer name. Keras opens a scope for each; graphs allow few characters.

    Yields:
        A dict that is filled with the scopes, which TensorFlow numbers, and the layers' names.
    """
    scope, layers = tf.name_scope, {}

    class Scope(scope):
        def __init__(self, name: str) -> None:
            super().__init__(re.sub(r"[^\w.\\/>-]|^_", "x", name, flags=re.ASCII))
            self.layer = name

        def __enter__(self) -> str:
            opened = super().__enter__()
            layers[opened.rstrip("/")] = self.layer
            return opened

    tf.name_scope = Scope
    try:
        yield layers
    finally:
        tf.name_scope = scope


def _at(name: str, layers: Mapping[str, str]) -> str:
    """Returns " in the layer 'x'", the innermost one that wrote a node, or " at" and its name."""
    scope = name
    while "/" in scope:
        scope = scope.rpartition("/")[0]
        if scope in layers:
            return f" in the layer {layers[scope]!r}"
    return f" at {name}"


def check_layers(model: keras.Model) -> None:
    """Raises `ExportError` for a layer that a graph cannot compute.

    `CenterCrop` enlarges pictures that are smaller than the crop. It uses a Python condition, which
    is false when the layer is traced with free sizes.
    """
    for layer in model._flatten_layers():
        mode = getattr(layer, "quantization_mode", None)
        if mode not in (None, "int8"):
            raise ExportError(
                f"Keras has quantized {layer.path!r} to {mode}, which ONNX opset 17 cannot hold; "
                "it can hold int8. Export the model as it was before model.quantize, and pass "
                "precision='weight_int4' or 'int8'."
            )
        nodes = layer._inbound_nodes if isinstance(layer, keras.layers.CenterCrop) else ()
        shapes = [tensor.shape for node in nodes for tensor in node.input_tensors]
        if any(None in shape[1:] for shape in shapes):
            raise ExportError(
                f"{layer.name!r}, a CenterCrop, gets pictures of a free size, {shapes[0]}, and "
                "enlarges pictures that are smaller than its crop. A graph cannot do this. Give "
                "the Input a fixed height and width, or crop by slicing."
            )


def constant_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the `constants` of `convert`: variables of layers such as `keras.layers.LSTM`."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]
    return [variable for layer in layers for variable in layer.variables]


def convert(
    traced: Traced,
    variables: Sequence[keras.Variable],
    opset: int,
    constants: Iterable[keras.Variable] = (),
) -> tuple[ir.Model, dict[str, keras.Variable]]:
    """Converts a concrete function from `trace` to an ONNX model without values of weights.

    Args:
        traced: result of `trace`.
        variables: the variables that were traced.
        opset: version of ONNX's own operators.
        constants: the `variables` whose values the converter must read.

    Returns:
        A pair: `onnx_ir.Model` whose graph inputs are the weights, named by their paths and made
        unique, then the inputs; and a dict from these names to the variables. Captured tensors and
        `constants` are initializers.

    Raises:
        ExportError: an operator has no counterpart in ONNX; all of them are named.
    """
    traced, layers = traced
    inputs = [tensor.name for tensor in traced.inputs]
    outputs = [tensor.name for tensor in traced.structured_outputs.values()]
    order = sorted(traced.structured_input_signature[0][1])  # as TensorFlow flattens a dict
    taken = {*order, *traced.structured_outputs}
    names = _unique((variable.path for variable in variables), taken)
    renamed = dict(zip(inputs, names + order, strict=False))  # captured tensors keep their names
    renamed.update({tensor.name: name for name, tensor in traced.structured_outputs.items()})
    chosen = {id(variable) for variable in constants}
    arrays = {
        tensor: keras.ops.convert_to_numpy(variable)
        for tensor, variable in zip(inputs, variables, strict=False)
        if id(variable) in chosen
    }
    arrays.update({inner.name: outer.numpy() for outer, inner in traced.graph.captures})
    with _problems() as problems, tf.device("/cpu:0"):
        frozen = _frozen(traced, inputs, outputs, arrays)
        _check_refused(frozen, layers)
        inputs = [name for name in inputs if name not in arrays]
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(frozen, name="")
            try:
                converted = tfonnx.process_tf_graph(
                    graph,
                    opset=opset,
                    input_names=inputs,
                    output_names=outputs,
                    tensors_to_rename=renamed,
                    custom_op_handlers=HANDLERS,
                ).make_model("keras_transformer")
            except Exception as error:  # tf2onnx raises many types, some without a common base
                raise _conversion_error(error, problems, graph, layers) from error
    _drop_element_shapes(converted.graph)
    model = ir.from_proto(converted)
    _check_operators(model, layers)
    return model, dict(zip(names, variables, strict=True))


def _check_refused(graph: tf.compat.v1.GraphDef, layers: Mapping[str, str]) -> None:
    """Raises an `ExportError` that names an operator of `REFUSED`, its layer and the remedy."""
    functions = [node for function in graph.library.function for node in function.node_def]
    for node in [*graph.node, *functions]:
        if node.op in REFUSED:
            raise ExportError(
                f"{node.op}{_at(node.name, layers)} has no counterpart in ONNX that gives "
                f"the same numbers. {REFUSED[node.op]}."
            )


def _conversion_error(
    error: Exception,
    problems: Sequence[logging.LogRecord],
    graph: tf.Graph,
    layers: Mapping[str, str],
) -> ExportError:
    """Returns the error of a failed conversion; it names the operators, their layers, a remedy."""
    kinds = {operation.name: operation.type for operation in graph.get_operations()}
    lines = [record.getMessage().partition("\n")[0] for record in problems]
    details = "; ".join(lines) or "no details"
    failed = {name: kinds[name] for name in re.findall(r"[^\s'\[:]+", details) if name in kinds}
    named = [f"{kind}{_at(name, layers)}" for name, kind in failed.items()]
    remedy = next((REMEDIES[kind] for kind in failed.values() if kind in REMEDIES), OTHERWISE)
    return ExportError(
        f"{', '.join(named) or f'The graph ({details})'} could not be converted to ONNX: {error}. "
        f"{remedy}."
    )


def _frozen(
    traced: Any, inputs: list[str], outputs: list[str], arrays: dict[str, Any]
) -> tf.compat.v1.GraphDef:
    """Returns the function's graph for tf2onnx, with some inputs replaced by constants.

    Args:
        traced: result of `trace`.
        inputs, outputs: names of its tensors.
        arrays: dict from names of inputs to their values.
    """
    frozen = traced.graph.as_graph_def()
    _allow_inlining(frozen)
    for node in frozen.node:
        array = arrays.get(f"{node.name}:0")
        if array is not None:
            constant = tf.compat.v1.NodeDef(name=node.name, op="Const")
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
            constant.attr["dtype"].type = constant.attr["value"].tensor.dtype
            node.CopyFrom(constant)
    with tf.Graph().as_default():
        kept = [name for name in inputs if name not in arrays] + outputs
        return _optimized(frozen, kept)


def _optimized(graph: tf.compat.v1.GraphDef, kept: list[str]) -> tf.compat.v1.GraphDef:
    """Folds constants and inlines functions, as tf2onnx does.

    TensorFlow's "tfg" optimizer would also move operations into the only branch that reads them.
    It rebuilds the loops around this branch, and their values lose their shapes.

    Args:
        graph: the graph.
        kept: names of its inputs and outputs.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.infer_shapes = True
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs, too
    options.optimizers.extend(["constfold", "function", "dependency"])
    options.function_optimization = options.AGGRESSIVE
    options.disable_tfg_optimizer = True
    options.experimental_disable_folding_quantization_emulation = True
    meta = tf.compat.v1.train.export_meta_graph(graph_def=graph)
    meta.collection_def["train_op"].node_list.value.extend(kept)
    return tf_optimizer.OptimizeGraph(config, meta)


def _allow_inlining(graph: tf.compat.v1.GraphDef) -> None:
    """Lets TensorFlow inline all functions but branches and bodies of loops.

    Without these attributes, TensorFlow does not compile a grouped convolution (in Keras a
    `tf.function(jit_compile=True)`), does not turn branches and loops into jumps, and does not
    replace recurrent layers by kernels of GPUs.
    """
    functions = graph.library.function
    nodes = [node for function in functions for node in function.node_def]
    for item in [*graph.node, *functions, *nodes]:
        for name in NOT_INLINED:
            item.attr.pop(name, None)


def _drop_element_shapes(graph: onnx.GraphProto) -> None:
    """Removes the second input of each Identity that was a list of a loop's inputs.

    tf2onnx leaves the list's element shape there, which only its own optimizer would remove.
    """
    for node in graph.node:
        if node.op_type == "Identity":
            del node.input[1:]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _drop_element_shapes(attribute.g)


def _unique(paths: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Makes paths unique, because a shared model may have two weights of one path.

    They also differ from the names that inputs and outputs have `taken`.
    """
    seen, names = dict.fromkeys(taken, 1), []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        names.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return names


@contextlib.contextmanager
def _problems() -> Iterator[list[logging.LogRecord]]:
    """Collects the errors that tf2onnx logs, and keeps all its lines off the terminal."""
    handler = logging.handlers.BufferingHandler(sys.maxsize)
    handler.setLevel(logging.ERROR)
    logger = logging.getLogger("tf2onnx")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield handler.buffer
    finally:
        logger.handlers, logger.propagate = before


def _check_operators(model: ir.Model, layers: Mapping[str, str]) -> None:
    """Raises an `ExportError` that names every operator that ONNX lacks."""
    opset, unmapped = model.opset_imports[""], {}
    for node in all_nodes(model.graph):
        try:
            onnx.defs.get_schema(node.op_type, opset, node.domain)
        except onnx.defs.SchemaError:
            unmapped.setdefault(node.op_type, node.name)
    if unmapped:
        names = ", ".join(f"{name}{_at(place, layers)}" for name, place in sorted(unmapped.items()))
        raise ExportError(
            f"Operators without a counterpart in ONNX opset {opset}: {names}. Replace "
            "them in the model, or export a SavedModel, which supports them."
        )


def fill_weights(model: ir.Model, variables: dict[str, keras.Variable]) -> None:
    """Turns the weights among the graph's inputs into initializers with their values.

    Weights that the graph never reads, such as the seeds of dropout, are removed.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if value.name in variables:
            value.meta["weight"] = True
    for value in [value for value in graph.inputs if value.name in variables]:
        graph.inputs.remove(value)
        if value.uses():
            array = keras.ops.convert_to_numpy(variables[value.name])
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
            value.meta["weight"] = True
            graph.register_initializer(value)
