"""Quantization-aware training: the copy computes the same integers as ONNX Runtime.

Results are exact on processors whose 8-bit products do not saturate, e.g. with VNNI.
"""

import numpy as np
import pytest
from helpers import exports
from helpers.tiers import quick
from keras import ops

import keras_transformer as kt
from keras_transformer.export import onnx_model, tasks
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.staging import Progress
from keras_transformer.training import quantization


def int8_graph(model):
    task, progress = tasks.ForwardTask(as_float32(model)), Progress(verbose=False)
    return onnx_model._make_graph(task, "int8", True, (), progress)[0]


def inputs_of(model, seed=0):
    ids = exports.source(seed=seed)
    # segment ids are 0 to 2
    return {x.name: ids % 3 if x.name == "segment_ids" else ids for x in model.inputs}


def products(graph):
    """Returns the nodes of integer products by the names of their weights."""
    nodes = [node for node in graph.graph if node.op_type == "DynamicQuantizeMatMul"]
    return {node.inputs[1].name.removesuffix("/int8"): node for node in nodes}


def run_all(graph, nodes, inputs):
    """Returns inputs and outputs of nodes, by name."""
    shown = {value.name: value for node in nodes for value in (node.inputs[0], node.outputs[0])}
    graph.graph.outputs.extend(v for v in shown.values() if v not in graph.graph.outputs)
    names = [value.name for value in graph.graph.outputs]
    return dict(zip(names, exports.run(graph, **inputs), strict=True))


SIZES = {"num_layers": 1, "d_model": 38, "d_ff": 67}
MODELS = {
    "post-norm": ("translate", {"use_bias": True}),
    "recurrent": ("translate", {"recurrent_decoder": True, "output_bias": True}),
    "two vocabularies": ("translate", {"target_vocab_size": exports.VOCAB, "tie_output": False}),
    "causal": ("generate", {"norm_first": True, "positions": "rotary", "key_dim": 18}),
    "encoder": ("encode", {"num_segments": 2}),
}


@pytest.mark.parametrize("name", quick(MODELS, "encoder"))
def test_every_product_equals_the_exported_graph(name):
    kind, arguments = MODELS[name]
    model = exports.tiny(kind, **SIZES, **arguments)
    aware = kt.quantization_aware(model)
    graph = int8_graph(aware)
    nodes, inputs = products(graph), inputs_of(model)
    values = run_all(graph, nodes.values(), inputs)
    for node in nodes.values():
        x, weight, scale, _, *bias = [
            values[v.name] if v.const_value is None else v.const_value.numpy() for v in node.inputs
        ]
        kernel = ops.convert_to_tensor(weight * scale)
        found = np.asarray(quantization.integer_product(x, kernel)) + (bias[0] if bias else 0)
        np.testing.assert_array_equal(found, values[node.outputs[0].name])
    expected = np.asarray(aware(inputs if len(inputs) > 1 else next(iter(inputs.values()))))
    found = values[graph.graph.outputs[0].name]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_copy_of_a_compiled_model_is_not_compiled():
    def own_loss(y_true, y_pred):
        return y_pred[..., 0]

    model = exports.tiny("encode", num_layers=1)
    model.compile("adam", own_loss)
    assert not kt.quantization_aware(model).compiled
