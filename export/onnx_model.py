"""Export to ONNX: one file that holds model and search, proven before it is handed over."""

import contextlib
import datetime
import importlib.metadata
import json
import warnings

import onnx_ir as ir

from keras_transformer.export import verify
from keras_transformer.export.arguments import (
    MAX_SOURCE_LENGTH,
    check_arguments,
    check_constrained,
    check_dtypes,
    check_onnx_arguments,
    check_shortlist,
    check_weights,
)
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.graph import conversion, quantize
from keras_transformer.export.graph.empty_batches import serve_empty_batches
from keras_transformer.export.graph.fuse import fuse_blocks, optional
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.simplify import clean, simplify
from keras_transformer.export.heads import check_head, check_head_alone, manifest_fields
from keras_transformer.export.runtime import signature
from keras_transformer.export.runtime.manifest import digest, seal
from keras_transformer.export.staging import Progress, staged, why_not_onnx
from keras_transformer.export.tasks import ForwardTask, SearchTask
from keras_transformer.export.tasks.steps import StepsTask

# The oldest opset with LayerNormalization: the older, the more runtimes there are.
OPSET = 17
# IR version that goes with it.
IR_VERSION = 8
UNTRACEABLE = (
    "TensorFlow cannot trace the model, as `tf.function(model)` shows. In its layers,"
    " use keras.ops and no Python condition on the values of tensors."
)
# Protocol buffers end at 2 GiB; some room is left for the graph itself.
LARGEST_FILE = 2**31 - 2**24
PACKAGES = ("keras-transformer-onnx", "tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime")


def export_onnx(
    model,
    path,
    tokenizer=None,
    search=None,
    precision="float32",
    *,
    target_tokenizer=None,
    head=None,
    max_length=None,
    max_source_length=MAX_SOURCE_LENGTH,
    fuse=True,
    keep_float=(),
    layout="loop",
    text=False,
    shortlist=None,
    grammar=None,
    samples=None,
    tolerance=None,
    verbose=True,
):
    """Writes a folder that ONNX Runtime serves without TensorFlow: model, search, tokenizer, JSON.

    The encoder, the decoder with its caches and the search become one graph: ids in, ids and scores
    out. Before the folder appears, its file has passed `onnx.checker`, has run in a process without
    TensorFlow, and has been held to Keras' results on several batch sizes and lengths. The folder's
    parts are described in `keras_transformer.export.runtime.signature`.

    Args:
        model: `Transformer`, `CausalTransformer` or a model of `importers.keras_hub` with `search`;
            without, any functional Keras model. Its weights are exported in float32, whatever its
            dtype policy.
        path: folder to write. An earlier export at this place is replaced in one move, at the end.
        tokenizer: `Tokenizer` to put beside the model. Defaults to `None`: ids only.
        target_tokenizer: `Tokenizer` of what the model writes, for models whose vocabularies are
            apart. Defaults to `None`: `tokenizer`.
        search: `GreedySearch`, `BeamSearch` or `Sampling`. Defaults to `None`: the forward pass.
            The graph of a `Sampling` has a second input, the scalar `seed`.
        precision: "float32"; "float16" for GPUs; for CPUs "int8" (products of 8-bit integers, one
            scale a column of the weight, the fastest; inputs share a scale, so a sentence may come
            out a little different in another batch), "weight_int8" and "weight_int4" (a scale for
            every 32 rows of a column: closer to float32 and smaller, for large models). Weights
            of convolutions stay float32. Where nothing can be reduced, a warning says so, and the
            manifest says "float32".
        head: what the outputs of a model without search mean: `Classification`,
            `TokenClassification`, `QuestionAnswering` or `FeatureExtraction`. `Predictor` then
            gives labels, tags, answers or vectors. Defaults to `None`: plain outputs.
        max_length: most generated tokens, the end token included. Defaults to `None`: the source's
            length + 50, or what a model with learned positions can hold.
        max_source_length: longest source that the artefact says it serves. Defaults to 512, or to
            the model's own `max_length`.
        fuse: whether blocks become ONNX Runtime's fused operators (domain `com.microsoft`). `False`
            gives a graph of ONNX's own operators only. Defaults to `True`.
        keep_float: list of weights that reduced precisions leave in float32, as prefixes of their
            Keras paths. The projections to queries, keys and values of a self-attention are one
            product, so they stay together. Defaults to none.
        layout: "loop" for one file with the search's loop in it. "steps" for two files, what comes
            before the first step and one step, for GPUs: the runtime makes the loop, and caches
            have one size and are updated in place. Both give the same tokens, and `Translator`
            serves both. Defaults to "loop".
        text: whether to write a second file, strings in and out, for onnxruntime-extensions.
        shortlist: `Shortlist` of the words that may be written about each source: the logits of no
            others are computed. Defaults to `None`: all words.
        grammar: what the search may write, such as a `BracketGrammar`; see `Constrained`. Defaults
            to `None`: anything.
        samples: arrays of ids (B, S) to prove the search on, or dicts of inputs for a forward
            pass. Defaults to `None`: random ones.
        tolerance: largest difference from Keras' numbers, relative to their size for float32 and
            to their spread for the others. Defaults to `verify.TOLERANCES[precision]`.
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
    check_arguments(model, tokenizer, search, max_length, max_source_length, target_tokenizer)
    check_onnx_arguments(model, tokenizer, search, precision, keep_float, text, layout)
    check_shortlist(model, search, shortlist, layout)
    check_constrained(search, grammar, layout)
    check_head_alone(head, search)
    check_weights(model)
    tell = Progress(verbose)
    passed, model = model, as_float32(model)
    if search is None:
        task = ForwardTask(model, head, passed)
    else:
        task = SearchTask(model, search, max_length, shortlist, grammar, passed)
    check_head(task, tokenizer)
    check_dtypes([*model.inputs, *model.outputs])
    cases = task.cases(samples)
    with staged(path, why_not_onnx) as folder:
        graphs, found = [], set()
        for name, part in _parts(task, layout, precision):
            graph, reached = _make_graph(part, precision, fuse, keep_float, tell)
            graphs.append(graph)
            found.add(reached)
            with tell("writing"):
                write(graph, folder / name)
        precision = _reached(precision, found, graphs)
        files = [folder / name for name in signature.MODEL_FILES[layout]]
        proof = _prove(files, task, cases, precision, tolerance, tell)
        text_values = None
        if text:
            with tell("writing and proving the text model"):
                from keras_transformer.export.text_model import add_text_model

                text_values = add_text_model(folder, task, tokenizer, target_tokenizer)
        with tell("sealing the folder"):
            if tokenizer is not None:
                tokenizer.save(folder / signature.TOKENIZER_FILE)
            if target_tokenizer is not None:
                target_tokenizer.save(folder / signature.TARGET_TOKENIZER_FILE)
            manifest = {
                "task": task.name,
                "inputs": values(graphs[0].graph.inputs),
                "outputs": _outputs(graphs, layout),
                "text": text_values,
                "special_ids": signature.SPECIAL_IDS,
                "vocab_size": task.vocab_size,
                "limits": task.limits(max_source_length),
                "search": task.search_config,
                "precision": precision,
                "opsets": {domain: int(v) for domain, v in graphs[-1].opset_imports.items()},
                "ir_version": IR_VERSION,
                "versions": versions(),
                "proof": proof,
                **manifest_fields(task, cases),
                **({} if layout == "loop" else {"layout": layout}),
                "files": {file.name: digest(file) for file in sorted(folder.iterdir())},
            }
            sealed = seal(manifest)
            (folder / signature.MANIFEST_FILE).write_bytes(sealed)
    return json.loads(sealed)


def _parts(task, layout, precision):
    """Yields each file and what its graph is made of, traced before the next is asked for."""
    if layout == "loop":
        yield signature.MODEL_FILE, task
        return
    steps = StepsTask(task, "float16" if precision == "float16" else "float32")
    yield signature.FIRST_FILE, steps.first
    yield signature.STEP_FILE, steps.step


def _outputs(graphs, layout):
    """Outputs of the whole as the manifest lists them, also where the loop is outside."""
    if layout == "loop":
        return values(graphs[0].graph.outputs)
    return [
        {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}
        for name, dtype in ((signature.TOKEN_IDS, "int32"), (signature.SCORES, "float32"))
    ]


def _make_graph(task, precision, fuse, keep_float, tell):
    """The `onnx_ir.Model` of a task as it is to be written, and the precision that it has."""
    variables = task.model.variables
    conversion.check_layers(task.model)
    with tell("tracing", UNTRACEABLE):
        traced = conversion.trace(task.function, variables, task.specs)
    with tell("converting to ONNX"):
        recurrent = conversion.recurrent_variables(task.model)
        model, weights = conversion.convert(traced, variables, OPSET, recurrent)
        model.ir_version = IR_VERSION
        conversion.fill_weights(model, weights)
    with tell("simplifying"):
        arrange(model.graph, task)
        names = [value.name for value in model.graph.outputs]
        simplify(model, hoisting=not fuse)  # fusion hoists when it has seen the blocks
    if fuse:
        with tell("fusing blocks"), optional(model):
            fuse_blocks(model, precision)
    if precision != "float32":
        with tell(f"converting to {precision}"):
            reduced = quantize.reduce_precision(model, precision, keep_float)
        precision = precision if reduced else "float32"
    serve_empty_batches(model.graph)
    clean(model)
    restore_outputs(model.graph, names)
    return model, precision


def _reached(precision, found, graphs):
    """The precision of the whole, where each graph has one of `found`; warns if it is not reached.

    One of two graphs may have no weights, as what comes before the first step of a language model.
    """
    if precision in found:
        return precision
    size = sum(map(weight_bytes, graphs))
    warnings.warn(
        f"precision={precision!r} changed nothing: of the model's {size:,} bytes of weights none "
        "is of a product or a table of embeddings, or keep_float keeps them. Convolutions stay "
        "float32. The file and its manifest say float32.",
        stacklevel=3,
    )
    return "float32"


def _prove(files, task, cases, precision, tolerance, tell):
    """The field `proof` of the manifest; raises `ExportError` where the files are not the model."""
    tolerance = verify.TOLERANCES[precision] if tolerance is None else tolerance
    with tell("running Keras for comparison", "Pass samples=[...] that the model can read."):
        expected = [task.expected(case) for case in cases]
    with tell("proving the file in a process without TensorFlow"):
        found = verify.probe(files[0], cases, step=files[1] if len(files) > 1 else None)
    exact = precision == "float32"
    with tell("comparing"):
        largest = task.compare(cases, expected, found, tolerance, exact)
    proof = {
        "date": datetime.date.today().isoformat(),
        "cases": len(cases),
        "lines": sum(len(next(iter(case.values()))) for case in cases),
        "largest_difference": largest,
        "relative_to": "size" if exact else "spread",
        "same_tokens": task.same_tokens(expected, found),
    }
    tell.result("{lines} lines, largest difference from Keras {largest_difference:.2g} of the "
                "numbers' {relative_to}".format(**proof))  # fmt: skip
    if proof["same_tokens"]:
        tell.result("the same tokens in {} of {} lines".format(*proof["same_tokens"]))
    return proof


def arrange(graph, task):
    """Puts the inputs in their documented order, and names the axes of inputs and outputs.

    An axis of fixed size keeps it, except in outputs whose axes the artefact documents by name.
    """
    by_name = {value.name: value for value in graph.inputs}
    inputs = [by_name[name] for name in task.specs]
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    for value in [*graph.inputs, *graph.outputs]:
        sizes = list(value.shape or ())
        names = task.axes(value.name, len(sizes))
        documented = value.name in signature.AXES and value.name not in by_name
        value.shape = ir.Shape(
            size if isinstance(size, int) and not documented else name
            for size, name in zip(sizes or [None] * len(names), names, strict=True)
        )


def restore_outputs(graph, names):
    """Copies an output that was found to be another one too, so that each has its own name."""
    for index, (value, name) in enumerate(zip(graph.outputs, names, strict=True)):
        if value.name != name:
            copy = ir.Node("", "Identity", [value], num_outputs=1)
            output = copy.outputs[0]
            output.name, output.type, output.shape = name, value.type, value.shape
            graph.append(copy)
            graph.outputs[index] = output


def values(found):
    """Inputs or outputs as the manifest lists them."""
    return [
        {
            "name": value.name,
            "dtype": value.dtype.numpy().name,
            "axes": [size if isinstance(size, int) else str(size.value) for size in value.shape],
        }
        for value in found
    ]


def write(model, path):
    """Writes an `onnx_ir.Model`, its weights beside it where one file cannot hold them.

    In one file, weights that only a step of a search reads go into that step. Weights in a file of
    their own stay in the outer graph.
    """
    if weight_bytes(model) <= LARGEST_FILE:
        sink_weights(model.graph)
    large = weight_bytes(model) > LARGEST_FILE  # shared weights have copies in the step now
    ir.save(model, path, external_data=f"{path.name}.data" if large else None)


def weight_bytes(model):
    """How many bytes the constants of a model and of its loops take."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
    )


def versions():
    """Versions of the packages that had a part in an export, as far as they are installed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
