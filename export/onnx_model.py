"""Export to ONNX: one file that holds the model and the whole search, proven before it is handed over."""

import contextlib
import importlib.metadata
import json
import shutil
import sys
import time

import keras
import numpy as np
import onnx
import onnx_ir as ir
import tensorflow as tf

from keras_transformer.export import conversion, quantize, signature, verify
from keras_transformer.export.fuse import fuse_blocks
from keras_transformer.export.simplify import simplify
from keras_transformer.export.staging import ExportError, digest, staged
from keras_transformer.models import CausalTransformer
from keras_transformer.decoding import EXTRA_LENGTH
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

# The oldest opset with LayerNormalization: the older, the more runtimes there are.
OPSET = 17
# IR version that goes with it.
IR_VERSION = 8
# Protocol buffers end at 2 GiB; some room is left for the graph itself.
LARGEST_FILE = 2**31 - 2**24
MAX_SOURCE_LENGTH = 512
PACKAGES = ("keras-transformer-onnx", "tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime")


def export_onnx(
    model,
    path,
    tokenizer=None,
    search=None,
    precision="float32",
    *,
    max_length=None,
    max_source_length=MAX_SOURCE_LENGTH,
    fuse=True,
    keep_float=None,
    text=False,
    samples=None,
    tolerance=None,
    verbose=True,
):
    """Writes a folder that ONNX Runtime serves without TensorFlow: model, search, tokenizer, JSON.

    The encoder, the decoder with its caches and the search become one graph: ids in, ids and scores
    out. Before the folder appears, its file has passed `onnx.checker`, has run in a process without
    TensorFlow, and has been held to Keras' results on several batch sizes and lengths. The folder's
    parts are described in `keras_transformer.export.signature`.

    Args:
        model: `Transformer` or `CausalTransformer` with `search`; without, any functional Keras
            model. Its weights are exported in float32, whatever its dtype policy.
        path: folder to write. An earlier export at this place is replaced in one move, at the end.
        tokenizer: `Tokenizer` to put beside the model. Defaults to `None`: ids only.
        search: `GreedySearch`, `BeamSearch` or `Sampling`. Defaults to `None`: the forward pass.
            The graph of a `Sampling` has a second input, the scalar `seed`.
        precision: "float32"; "float16" for GPUs; for CPUs "int8" (products of 8-bit integers),
            "weight_int8" and "weight_int4" (small weights, float32 arithmetic).
        max_length: most generated tokens, the end mark included. Defaults to `None`: the source's
            length + 50, or what a model with learned positions can hold.
        max_source_length: longest source that the artefact says it serves. Defaults to 512, or to
            the model's own `max_length`.
        fuse: whether blocks become ONNX Runtime's fused operators (domain `com.microsoft`). `False`
            gives a graph of ONNX's own operators only. Defaults to `True`.
        keep_float: names of weights that reduced precisions leave in float32, as prefixes of their
            Keras paths. Defaults to `quantize.KEEP_FLOAT[precision]`.
        text: whether to write a second file, strings in and out, for onnxruntime-extensions.
        samples: arrays of ids (B, S) to prove the search on, or dicts of inputs for a forward
            pass. Defaults to `None`: random ones.
        tolerance: largest relative difference from Keras' numbers. Defaults to
            `verify.TOLERANCES[precision]`.
        verbose: whether to tell on stderr what is being done. Defaults to `True`.

    Returns:
        The manifest, a dict with the content of `artefact.json`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, before anything is done.
        ExportError: conversion or a check failed. What was at `path` is as before.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> export_onnx(model, "out/onnx", search=BeamSearch(4), precision="int8")  # doctest: +SKIP
    """
    check_arguments(model, tokenizer, search, max_length, max_source_length)
    if precision not in signature.PRECISIONS:
        raise ValueError(
            f"precision must be one of {signature.PRECISIONS}, but {precision!r} was passed."
        )
    if text and (tokenizer is None or search is None):
        raise ValueError("text=True needs a tokenizer and a search: pass both, or leave it out.")
    tell = _Progress(verbose)
    tolerance = verify.TOLERANCES[precision] if tolerance is None else tolerance
    model = conversion.as_float32(model)
    job = SearchJob(model, search, max_length) if search else ForwardJob(model)
    with staged(path, signature.MANIFEST_FILE) as folder:
        with tell("tracing"):
            traced = conversion.trace(job.function, model.variables, job.specs)
        with tell("converting to ONNX"):
            converted, variables = conversion.convert(traced, model.variables, OPSET)
            converted.ir_version = IR_VERSION
            conversion.fill_weights(converted, variables)
        with tell("simplifying"):
            job.name_axes(converted.graph)
            simplify(converted)
        if fuse:
            with tell("fusing blocks"):
                fuse_blocks(converted)
                simplify(converted)
        if precision != "float32":
            with tell(f"converting to {precision}"):
                quantize.reduce_precision(converted, precision, keep_float)
        with tell("writing"):
            write(converted, folder / signature.MODEL_FILE)
        with tell("running Keras for comparison"):
            cases = job.cases(samples)
            expected = [job.expected(case) for case in cases]
        with tell("proving the file in a process without TensorFlow"):
            found = verify.probe(folder / signature.MODEL_FILE, cases)
        with tell("comparing"):
            for case, one, other in zip(cases, expected, found, strict=True):
                job.compare(case, one, other, tolerance, exact=precision == "float32")
        if tokenizer is not None:
            tokenizer.save(folder / signature.TOKENIZER_FILE)
        text_values = None
        if text:
            from keras_transformer.export.text_model import add_text_model

            with tell("writing and proving the text model"):
                text_values = add_text_model(folder, tokenizer)
        manifest = {
            "task": job.task,
            "inputs": values(converted.graph.inputs),
            "outputs": values(converted.graph.outputs),
            "text": text_values,
            "special_ids": signature.SPECIAL_IDS,
            "vocab_size": job.vocab_size,
            "limits": job.limits(max_source_length),
            "search": job.search_config,
            "precision": precision,
            "opsets": {domain: int(v) for domain, v in converted.opset_imports.items()},
            "ir_version": converted.ir_version,
            "versions": versions(),
            "files": {file.name: digest(file) for file in sorted(folder.iterdir())},
        }
        sealed = signature.seal(manifest)
        (folder / signature.MANIFEST_FILE).write_bytes(sealed)
    return json.loads(sealed)


def check_arguments(model, tokenizer, search, max_length, max_source_length=MAX_SOURCE_LENGTH):
    """Raises `TypeError` or `ValueError` for what no exporter takes."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a Keras model, but {type(model).__name__} was passed.")
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            f"{model.name} is no functional model: its inputs are not known. Build it with "
            "keras.Input, as `Transformer` is."
        )
    if tokenizer is not None and not (hasattr(tokenizer, "save") and hasattr(tokenizer, "encode")):
        raise TypeError(f"tokenizer must be a Tokenizer, but {type(tokenizer).__name__} was passed.")
    if search is not None and not isinstance(search, (GreedySearch, BeamSearch, Sampling)):
        raise TypeError(
            "search must be a GreedySearch, BeamSearch or Sampling, but "
            f"{type(search).__name__} was passed."
        )
    if search is not None and not hasattr(model, "decode_step"):
        raise TypeError(
            f"{type(model).__name__} has no decode_step, so nothing can be searched with it. Pass "
            "a Transformer or a CausalTransformer, or leave `search` out to export its forward pass."
        )
    if search is not None and tokenizer is not None and tokenizer.vocab_size > vocab_sizes(model)["source"]:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} ids, but the model's vocabulary only "
            f"{vocab_sizes(model)['source']}. Pass the tokenizer that it was trained with."
        )
    for name, value in (("max_length", max_length), ("max_source_length", max_source_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, but {value!r} was passed.")


def vocab_sizes(model):
    """`{"source", "target"}` of a model that can be searched."""
    target = model.target_embedding.vocab_size
    source = getattr(model, "source_embedding", model.target_embedding).vocab_size
    return {"source": source, "target": target}


class SearchJob:
    """What an export with a search computes, and how it is proven."""

    def __init__(self, model, search, max_length):
        self.model, self.search, self.max_length = model, search, max_length
        self.random = isinstance(search, Sampling)
        self.task = "generate" if isinstance(model, CausalTransformer) else "translate"
        self.vocab_size = vocab_sizes(model)
        self.search_config = {"class_name": type(search).__name__, "config": search.get_config()}
        self.specs = {signature.SOURCE_IDS: tf.TensorSpec([None, None], "int32", signature.SOURCE_IDS)}
        if self.random:
            self.specs[signature.SEED] = tf.TensorSpec([], "int32", signature.SEED)

    def function(self, source_ids, **seed):
        result = self.search(self.model, source_ids, self.max_length, **seed)
        return {signature.TOKEN_IDS: result.ids, signature.SCORES: result.scores}

    def name_axes(self, graph):
        _rename(graph, signature.AXES)

    def limits(self, max_source_length):
        longest = self.model.max_length
        return {
            "source_length": min(max_source_length, longest or max_source_length),
            "target_length": self.max_length or longest,
            "extra_length": None if self.max_length else EXTRA_LENGTH,
        }

    def cases(self, samples):
        """Inputs to prove the file on: sentences of several lengths, padded, alone and together."""
        if samples is None:
            samples = _random_ids(self.vocab_size["source"], self.model.max_length)
        cases = [{signature.SOURCE_IDS: np.asarray(ids, np.int32)} for ids in samples]
        if self.random:
            for seed, case in enumerate(cases, 17):
                case[signature.SEED] = np.array(seed, np.int32)
        return cases

    def expected(self, case):
        seed = {"seed": int(case[signature.SEED])} if self.random else {}
        result = self.search(self.model, case[signature.SOURCE_IDS], self.max_length, **seed)
        return result.ids.numpy(), result.scores.numpy()

    def compare(self, case, expected, found, tolerance, exact):
        rescored = self.rescore(case[signature.SOURCE_IDS], found[signature.TOKEN_IDS])
        return verify.compare_search(expected, found, rescored, tolerance, exact)

    def rescore(self, source_ids, token_ids):
        """The scores, (B, W), that Keras gives to given hypotheses, by forcing its search there."""
        scores = []
        for tokens in np.moveaxis(token_ids, 1, 0):  # (B, T)
            count = np.maximum((tokens != signature.SPECIAL_IDS["pad"]).sum(axis=1), 1)
            forced = GreedySearch()(
                self.model, source_ids, count.astype(np.int32), target_prefix=tokens
            ).scores.numpy()[:, 0]
            alpha = getattr(self.search, "length_penalty", 0.0)
            scores.append(forced / ((5.0 + count) / 6.0) ** alpha)
        return np.stack(scores, axis=1).astype(np.float32)


class ForwardJob:
    """What an export of a forward pass computes, and how it is proven."""

    task, search_config = "forward", None

    def __init__(self, model):
        self.model = model
        self.inputs = {_plain(tensor.name): tensor for tensor in model.inputs}
        self.specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for name, tensor in self.inputs.items()
        }
        outputs = keras.tree.flatten(model.output)
        names = [signature.LOGITS] if hasattr(model, "decode_step") else model.output_names
        names = list(model.output) if isinstance(model.output, dict) else names
        self.outputs = [_plain(name) for name in names]
        if len(set(self.outputs) | set(self.inputs)) < len(outputs) + len(self.inputs):
            raise ValueError(
                f"Inputs {list(self.inputs)} and outputs {self.outputs} need names of their own. "
                "Name the layers that give the outputs, or let the model return a dict."
            )
        target = getattr(model, "target_embedding", None)
        self.vocab_size = vocab_sizes(model) if target else {"source": None, "target": None}

    def function(self, **inputs):
        arranged = keras.tree.pack_sequence_as(self.model.input, [inputs[name] for name in self.inputs])
        outputs = self.model(arranged, training=False)
        if isinstance(outputs, dict):
            return {_plain(name): tensor for name, tensor in outputs.items()}
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def name_axes(self, graph):
        names = {}
        for value in [*graph.inputs, *graph.outputs]:
            known = signature.AXES.get(value.name)
            rank = 0 if value.shape is None else len(value.shape)
            length = "source_length" if len(self.inputs) == 1 else f"{value.name}_length"
            other = ("batch", length, *(f"{value.name}_axis_{i}" for i in range(2, rank)))
            names[value.name] = known if known and len(known) == rank else other[:rank]
        _rename(graph, names)

    def limits(self, max_source_length):
        longest = getattr(self.model, "max_length", None)
        return {
            "source_length": min(max_source_length, longest or max_source_length),
            "target_length": longest,
            "extra_length": None,
        }

    def cases(self, samples):
        if samples is not None:
            return [{name: np.asarray(array) for name, array in case.items()} for case in samples]
        random, cases = np.random.default_rng(11), []
        highest = _smallest_vocabulary(self.model)
        for batch, length in ((1, 3), (5, 7), (2, 13)):
            case = {}
            for name, tensor in self.inputs.items():
                free = iter((batch, length, length, length))
                shape = [next(free) if size is None else size for size in tensor.shape]
                dtype = np.dtype(tensor.dtype)
                if dtype.kind in "iu":
                    case[name] = random.integers(1, highest, shape).astype(dtype)
                    case[name][-1, (length + 1) // 2 :] *= batch == 1  # padding in the last row
                else:
                    case[name] = random.standard_normal(shape).astype(dtype)
            cases.append(case)
        return cases

    def expected(self, case):
        tensors = {name: tf.constant(array) for name, array in case.items()}
        return {name: np.asarray(tensor) for name, tensor in self.function(**tensors).items()}

    def compare(self, case, expected, found, tolerance, exact):
        return verify.compare_forward(expected, found, tolerance)


def _random_ids(vocab_size, max_length):
    """Batches of source ids (B, S), some rows padded on the right."""
    random, batches = np.random.default_rng(7), []
    for batch, length in ((1, 3), (3, 7), (2, 11)):
        length = min(length, max_length or length)
        ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, length))
        for row in range(1, batch):
            ids[row, max(1, length - 2 * row) :] = signature.SPECIAL_IDS["pad"]
        batches.append(ids)
    return batches


def _smallest_vocabulary(model):
    sizes = [2]
    for layer in getattr(model, "layers", []):
        size = getattr(layer, "vocab_size", getattr(layer, "input_dim", None))
        sizes.extend([size] if isinstance(size, int) else [])
        if isinstance(layer, keras.Model):
            sizes.append(_smallest_vocabulary(layer))
    found = [size for size in sizes if size > 2]
    return min(found) if found else 2


def _plain(name):
    return name.replace("/", "_").replace(":", "_")


def _rename(graph, names):
    """Gives the axes of inputs and outputs the names that the artefact documents."""
    for value in [*graph.inputs, *graph.outputs]:
        if value.name in names:
            dims = value.shape if value.shape is not None else (None,) * len(names[value.name])
            value.shape = ir.Shape(
                size if isinstance(size, int) else name
                for size, name in zip(dims, names[value.name], strict=True)
            )


def values(found):
    """Inputs or outputs as the manifest lists them."""
    names = {ir.DataType.FLOAT: "float32", ir.DataType.INT32: "int32", ir.DataType.INT64: "int64",
             ir.DataType.BOOL: "bool", ir.DataType.FLOAT16: "float16"}  # fmt: skip
    return [
        {
            "name": value.name,
            "dtype": names[value.dtype],
            "axes": [size if isinstance(size, int) else str(size.value) for size in value.shape],
        }
        for value in found
    ]


def write(model, path):
    """Writes an `onnx_ir.Model`, its weights beside it where one file cannot hold them."""
    size = sum(tensor.const_value.nbytes for tensor in model.graph.initializers.values())
    external = signature.WEIGHTS_FILE if size > LARGEST_FILE else None
    ir.save(model, path, external_data=external)


def versions():
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


class _Progress:
    """Tells on stderr what is being done and how long it took."""

    def __init__(self, verbose):
        self.verbose = verbose

    @contextlib.contextmanager
    def __call__(self, what):
        start = time.perf_counter()
        self._print(f"{what} ... ")
        yield
        self._print(f"{time.perf_counter() - start:.1f} s\n")

    def _print(self, text):
        if self.verbose:
            sys.stderr.write(text)
            sys.stderr.flush()
