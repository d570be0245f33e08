"""Tiny models for the exporters' tests, and counts of operators in graphs.

Sizes are distinct primes where the layers allow it, so that swapped axes show.
"""

import collections
import functools
import hashlib

import keras
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
from helpers import shared

from keras_transformer.export import export_onnx
from keras_transformer.export.artefact import signature
from keras_transformer.models import CausalTransformer, Transformer, TransformerEncoder
from keras_transformer.search import BeamSearch, GreedySearch, Sampling
from keras_transformer.text.tokenizer import Tokenizer

MAX_LENGTH = 11
BEAM = BeamSearch(3, 0.6)
DETAILED = BeamSearch(3, 0.6, token_scores=True, alignments=True)
GREEDY = GreedySearch(min_length=3)
SAMPLING = Sampling(0.9, 20, 0.95, num_samples=2)
LINES = ["a man 's hat , red .", "two words", "ein mann fährt fahrrad .", "the dog runs"]
VOCAB = 286  # the pieces of LINES: each id that a model writes must be one
MODELS = {"translate": Transformer, "generate": CausalTransformer, "encode": TransformerEncoder}


def tokenizer():
    return Tokenizer.train(LINES, vocab_size=VOCAB)


def tiny(kind="translate", vocab_size=VOCAB, **arguments):
    """Returns a model with random weights. None is 0 or 1, so that each has an effect."""
    keras.utils.set_random_seed(7)
    sizes = {"num_layers": 2, "d_model": 12, "num_heads": 2, "d_ff": 17, **arguments}
    model = MODELS[kind](vocab_size, **sizes)
    random = np.random.default_rng(3)
    for variable in model.trainable_variables:
        noise = random.normal(0, 0.2, variable.shape)
        variable.assign(keras.ops.convert_to_numpy(variable).astype("float32") + noise)
    return model


class Function(keras.layers.Layer):
    """A layer that calls a function of its inputs and of weights of the given shapes."""

    def __init__(self, function, *shapes, initializer="glorot_uniform", **options):
        super().__init__(**options)
        self.function, self.shapes, self.initializer = function, shapes, initializer

    def build(self, *inputs):
        self.arrays = [self.add_weight(shape, self.initializer) for shape in self.shapes]

    def call(self, inputs):
        return self.function(inputs, *self.arrays)


def built(layer, *shape, dtype=None):
    """Returns a model of one input "x". A function may apply several layers to it."""
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, dtype=dtype, name="x")
    return keras.Model(x, layer(x))


def settled(model):
    """Makes weights and statistics neither 0 nor 1; returns the model."""
    random = np.random.default_rng(3)
    for variable in model.variables:
        if "float" in variable.dtype:
            variable.assign(variable + random.uniform(0.1, 0.5, variable.shape))
    return model


def source(rows=5, length=7, vocab_size=VOCAB, seed=0):
    """Returns ids (B, S) of several lengths, padded on the right. The last row is one token."""
    ids = np.random.default_rng(seed).integers(4, vocab_size, (rows, length)).astype("int32")
    for row in range(rows):
        ids[row, max(1, length - 2 * row) :] = 0
    return ids


def session_options():
    """Returns options: one thread, no log, no saturating 8-bit sums as on older processors."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def session(path):
    """Returns a session of an artefact or file. Replaced files are opened again."""
    path = path / signature.MODEL_FILE if path.is_dir() else path
    return _session(path, path.stat().st_mtime_ns)


@functools.cache
def _session(path, changed):
    return onnxruntime.InferenceSession(path, session_options(), providers=["CPUExecutionProvider"])


def counts(graph, depth=None, level=0):
    """Counts the operators of an ONNX graph; `depth` 0: outside of loops, 1: in bodies."""
    found = collections.Counter()
    for node in graph.node:
        if depth in (None, level):
            found[node.op_type] += 1
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += counts(attribute.g, depth, level + 1)
    return found


def body(model):
    """Returns the body of the loop over steps, inside the loop over phases, and the loop."""
    graph, loops = model.graph, []
    while loop := next((node for node in graph.node if node.op_type == "Loop"), None):
        graph = loop.attribute[0].g
        loops.append(loop)
    assert len(loops) == 2
    return graph, loops[-1]


def convert(model, search=None):
    """Converts a Keras model to an `onnx_ir.Model`, neither simplified nor fused."""
    from keras_transformer.export import onnx_model, tasks
    from keras_transformer.export.staging import Progress

    task = tasks.SearchTask(model, search, MAX_LENGTH) if search else tasks.ForwardTask(model)
    return onnx_model.convert(task, Progress(verbose=False))


def graph(converted):
    """Returns a copy of a converted graph that tests may change."""
    copy = converted.clone(deep_copy=False)
    for name, value in converted.graph.initializers.items():
        copy.graph.initializers[name].meta.update(value.meta)
    return copy


def fused(model, precision="float32"):
    """Returns the fused graph of a Keras model or converted graph, as an export writes it."""
    from keras_transformer.export.graph.fuse import fuse_blocks

    converted = convert(model) if isinstance(model, keras.Model) else graph(model)
    fuse_blocks(converted, precision)
    return converted


def operators(model):
    """Counts the operators of an `onnx_ir.Model`, loops included."""
    return counts(ir.to_proto(model).graph)


def parsed(text):
    """Parses ONNX's textual form into an `onnx_ir.Model`."""
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{text}'))


def check(model, exported, rtol=1e-4, **inputs):
    """Compares the results of an `onnx_ir.Model` and the Keras model."""
    for result, array in zip(run(exported, **inputs), results(model, inputs).values(), strict=True):
        np.testing.assert_allclose(result, array, rtol=rtol, atol=1e-5)


def same_results(before, after, rtol=1e-4, **inputs):
    """Compares the results of an `onnx_ir.Model` before and after a rewrite."""
    for one, other in zip(run(before, **inputs), run(after, **inputs), strict=True):
        assert other.dtype == one.dtype
        np.testing.assert_allclose(other, one, rtol=rtol, atol=min(rtol, 1e-5))


def results(model, inputs):
    """Returns the results of a Keras model: a dict from the names of outputs to arrays."""
    arrays = [inputs[tensor.name] for tensor in model.inputs]
    found = model(arrays if len(arrays) > 1 else arrays[0])
    return found if isinstance(found, dict) else dict(zip(model.output_names, [found], strict=True))


def check_export(model, folder, *, rtol=1e-4, inputs, **options):
    """Exports a model, and compares the results of its file with Keras'; returns the graph."""
    export_onnx(model, folder, verbose=False, **options)
    expected = results(model, inputs)
    names = list(expected) if len(expected) > 1 else None
    for result, array in zip(session(folder).run(names, inputs), expected.values(), strict=True):
        np.testing.assert_allclose(result, array, rtol=rtol, atol=1e-5)
    return onnx.load(folder / signature.MODEL_FILE).graph


def numbers(*shape):
    """Returns normal random numbers, the same at each call."""
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def run(model, **inputs):
    """Runs an `onnx_ir.Model` in ONNX Runtime. Missing options come from `BEAM`."""
    made = ir.to_proto(model).SerializeToString()
    settings = session_options()
    opened = onnxruntime.InferenceSession(made, settings, providers=["CPUExecutionProvider"])
    options = {**BEAM.call_defaults, "max_length": np.array([MAX_LENGTH], np.int32)}
    missing = {value.name for value in opened.get_inputs()} & options.keys() - inputs.keys()
    return opened.run(None, inputs | {name: options[name] for name in missing})


# Made once and shared. Tests must not change them.


@functools.cache
def shared_model(kind="translate"):
    return tiny(kind)


def artefact(search=BEAM, kind="translate", **options):
    """Returns the folder that `export_onnx` writes for a shared model with the tokenizer.

    All pytest workers share it, except in tests of the exporter's proof, refusals and staging.

    Args:
        search: the search, with `MAX_LENGTH`; `None` for the forward pass. Defaults to `BEAM`.
        kind: key of `MODELS`. Defaults to "translate".
        **options: as in `export_onnx`. Defaults to `text=True` for `BEAM`, to an input
            `target_prefix` for `DETAILED`, else to none.
    """
    if kind == "translate" and not options and search in (BEAM, DETAILED):
        options = {"text": True} if search is BEAM else {"options": ("target_prefix",)}

    def write(path):
        model = shared_model(kind)
        length = MAX_LENGTH if search else None
        export_onnx(model, path, tokenizer(), search, max_length=length, verbose=False, **options)

    arguments = repr((search, kind, sorted(options.items())))
    return shared.once(f"{kind}-{hashlib.sha256(arguments.encode()).hexdigest()[:16]}", write)


@functools.cache
def shared_graph(search=None):
    """Returns the converted graph of a search, or of the forward pass."""
    return convert(shared_model(), search)
