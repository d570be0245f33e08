"""The layout "steps" runs on CUDA as a whole, as ONNX Runtime demands of a CUDA graph.

`cuda_kernels.json` lists the types of ONNX Runtime's CUDA kernels, from its documentation, for the
operators of our exports. So this needs no GPU. Values that stay on the host are no fault:

- constants;
- results of `Shape` and `Size`, which ONNX Runtime keeps there;
- nodes that compute only with such sizes, constants of at most 100 elements and graph inputs, which
  ONNX Runtime prefers on the CPU (`GetCpuPreferredNodes`), unless a number of them is a float16.

CUDA kernels read the inputs of `HOST_INPUTS` from the host, such as the shape of a Reshape. A step
copies nothing between host and device if only these read values that are on the host.
"""

import json
import math
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import exports, tiers
from onnx import TensorProto

import keras_transformer as kt
from keras_transformer.export.graph.cuda import HOST_INPUTS, SIZES, fit_cuda

KERNELS = json.loads(pathlib.Path(__file__).with_name("cuda_kernels.json").read_text("utf-8"))[
    "kernels"
]
RULES = [kt.NoRepeatNgrams(3), kt.RepetitionPenalty(1.3), kt.ForbiddenWords([[7, 9]]), kt.Terms()]
RECORDS = {"token_scores": True, "alignments": True}
ASKED = {"options": ("min_length", "target_prefix", "beam_width")}
# Search, kind of model and options of the export.
SEARCHES = {
    "greedy": (exports.GREEDY, "translate", {}),
    "beam": (kt.BeamSearch(3, 0.6, constraints=RULES, **RECORDS), "translate", ASKED),
    "sampling": (exports.SAMPLING, "generate", {}),
    "beam, weights in 8 bits": (exports.BEAM, "translate", {"precision": "weight_int8"}),
}


def dtype(number):
    """Returns the table's name of a type."""
    return TensorProto.DataType.Name(number).lower()


def missing_kernels(graph):
    """Lists the nodes of a graph without a CUDA kernel, with the types of their inputs."""
    known = {value.name: dtype(value.type.tensor_type.elem_type) for value in graph.input}
    known |= {tensor.name: dtype(tensor.data_type) for tensor in graph.initializer}
    missing = []
    for node in graph.node:
        name = ".".join(filter(None, (node.domain, node.op_type)))
        read = [known.get(value, "") for value in node.input]  # "" for an input that is left out
        if name not in KERNELS:
            missing.append((name, *read))
            continue
        row = KERNELS[name]
        found = {}
        for parameter, each in zip(repeated(row["inputs"], len(read)), read, strict=True):
            if each and found.setdefault(parameter, each) != each:
                raise ValueError(f"{name} reads two types as {parameter}: {read}")
        allowed = {
            parameter: row["types"].get(parameter, each) for parameter, each in found.items()
        }
        if any(each not in allowed[parameter].split() for parameter, each in found.items()):
            missing.append((name, *read))
        parameters = repeated(row["outputs"], len(node.output))
        for value, parameter in zip(node.output, parameters, strict=True):
            known[value] = found.get(parameter) or only_type(row, node, parameter)
    return missing


def repeated(parameters, count):
    """Returns the parameters of `count` inputs or outputs; the last one may repeat."""
    return (parameters + parameters[-1:] * count)[:count]


def only_type(row, node, parameter):
    """Returns the type of an output that does not depend on the types of inputs."""
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Cast":
        return dtype(attributes["to"])
    if node.op_type == "ConstantOfShape":
        return dtype(attributes["value"].data_type) if "value" in attributes else "float"
    (one,) = row["types"].get(parameter, parameter).split()
    return one


def copies(graph):
    """Lists the inputs of nodes that are copied between host and device in each run."""
    constants = {tensor.name for tensor in graph.initializer}
    small = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) <= 100}
    small -= {each.name for each in graph.initializer if each.data_type == TensorProto.FLOAT16}
    small |= {value.name for value in graph.input}
    host, found = set(), []
    for node in graph.node:
        by_design = HOST_INPUTS.get(node.op_type, ())
        read = {name: index in by_design for index, name in enumerate(node.input) if name}
        wants_sizes = any(read[name] for name in read.keys() & host)
        stays = read.keys() & host and read.keys() <= host | small and not wants_sizes
        if node.op_type not in SIZES:
            found += [
                (node.op_type, name)
                for name, on_host in read.items()
                if name not in constants and (stays or on_host) != (name in host)
            ]
        if stays or node.op_type in SIZES:
            host.update(node.output)
    return found


def graphs(name):
    """Returns the graphs of a search's two files."""
    search, kind, options = SEARCHES[name]
    folder = exports.artefact(search, kind, layout="steps", **options)
    return [onnx.load(folder / file).graph for file in ("first.onnx", "step.onnx")]


@pytest.mark.full
@pytest.mark.parametrize("name", tiers.quick(SEARCHES, "greedy"))
def test_every_node_has_a_kernel_and_a_step_copies_nothing(name):
    first, step = graphs(name)
    assert missing_kernels(first) == missing_kernels(step) == []
    assert copies(step) == []


INTEGERS = """
agraph (int32[B, T] x, int64[B, N, 1] places, int64[4] pads) => (int32[B, N] y, int32[C, U] z)
<int32 fill = {-7}> {
    y = GatherND<batch_dims = 1>(x, places)
    z = Pad(x, pads, fill)
}
"""
PLACES = {
    "x": np.array([[2**31 - 1, -(2**31), 2**24 + 1], [5, 0, -1]], np.int32),
    "places": np.array([[[1], [0]], [[2], [1]]]),
    "pads": np.array([0, 1, 1, 0]),
}
SIZES_AS_NUMBERS = """
agraph (float[B, T] x, int64[2] target, int64 most) => (float[C, D] y, int64 least, int64[1] rest)
<int64 last = {1}, int64[1] one = {1}, int64[1] two = {2}, int64[1] axes = {0}> {
    y = Reshape(x, target)
    sizes = Shape(x)
    length = Gather(sizes, last)
    least = Min(most, length)
    part = Slice(sizes, one, two)
    single = Unsqueeze(least, axes)
    rest = Sub(part, single)
}
"""
LENGTHS = {"x": np.zeros((2, 3), np.float32), "target": np.array([3, 2]), "most": np.array(2)}


@pytest.mark.parametrize(
    "text, inputs, problems, least, left",
    [
        (INTEGERS, PLACES, missing_kernels, 2, []),  # integers are computed in wider types
        # sizes reach the device without copies, except the one of the caller
        (SIZES_AS_NUMBERS, LENGTHS, copies, 2, [("Reshape", "target")]),
    ],
    ids=["integers", "sizes"],
)
def test_other_graphs_are_rewritten_for_cuda(text, inputs, problems, least, left):
    before, after = exports.parsed(text), exports.parsed(text)
    assert len(problems(ir.to_proto(before).graph)) >= least
    fit_cuda(after)
    assert problems(ir.to_proto(after).graph) == left
    exports.same_results(before, after, rtol=0, **inputs)
