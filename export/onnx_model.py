"""Exports model and search to one ONNX file, which is compared with Keras before it appears."""

import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import onnx_ir as ir

from keras_transformer.export.arguments import Arguments, check_dtypes
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import Head
from keras_transformer.export.artefact_files import ArtefactFiles
from keras_transformer.export.exporter import Case, export
from keras_transformer.export.graph import conversion, quantize
from keras_transformer.export.graph.cuda import fit_cuda
from keras_transformer.export.graph.empty_batches import serve_empty_batches
from keras_transformer.export.graph.fuse import fuse_blocks, optional, warn_of_unfused
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.simplify import clean, simplify
from keras_transformer.export.prepare import prepare
from keras_transformer.export.proof import run_exported
from keras_transformer.export.staging import Progress
from keras_transformer.export.tasks import GraphSource, Task
from keras_transformer.export.tasks.search import ExportableSearch
from keras_transformer.export.tasks.stepwise import graph_sources
from keras_transformer.search import Shortlist
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath

# The oldest opset with LayerNormalization, so that many runtimes can read the files.
OPSET = 17
# The IR version of that opset.
IR_VERSION = 8
UNTRACEABLE = (
    "TensorFlow cannot trace the model. If a layer raised the error, `model.predict` fails, too:"
    " use keras.ops there and no Python condition on the values of tensors, and build the model"
    " outside of keras.RematScope."
)
# Protocol buffers are limited to 2 GiB, and the graph needs some of that.
LARGEST_FILE = 2**31 - 2**24


def export_onnx(
    model: keras.Model,
    path: StrPath,
    tokenizer: Tokenizer | None = None,
    search: ExportableSearch | None = None,
    precision: str = "float32",
    *,
    target_tokenizer: Tokenizer | None = None,
    head: Head | None = None,
    max_length: int | None = None,
    max_source_length: int | None = None,
    fuse: bool = True,
    keep_float: Sequence[str] = (),
    layout: str = "loop",
    text: bool = False,
    shortlist: Shortlist | None = None,
    options: Sequence[str] = (),
    samples: Sequence[Any] | None = None,
    tolerance: float | None = None,
    verbose: bool = True,
) -> dict[str, Any]:
    """Writes a folder that ONNX Runtime serves without TensorFlow: model, search and tokenizer.

    The encoder, the decoder with its caches and the search become one graph from ids to ids and
    scores. Before the folder appears, its file passes `onnx.checker` and runs in a process without
    TensorFlow. The results are compared with Keras' on several batch sizes and lengths.
    `keras_transformer.export.artefact.manifest` describes the parts of the folder.

    Args:
        model: `Transformer`, `CausalTransformer` or a model of `importers.keras_hub` with `search`;
            any functional Keras model without. Its weights are exported in float32, whatever its
            dtype policy.
        path: folder to write. An earlier export at this place is replaced in one step, at the end.
        tokenizer: `Tokenizer` to put beside the model. Defaults to `None`: ids only.
        target_tokenizer: `Tokenizer` of the target, for models with two vocabularies. Defaults to
            `None`: `tokenizer`.
        search: `GreedySearch`, `BeamSearch` or `Sampling`. Defaults to `None`: the forward pass.
            The graph of a `Sampling` has a second input, the scalar `seed`.
        precision: "float32"; "float16" for GPUs; "int8", "int16x8", "weight_int8" or "weight_int4"
            for CPUs. "int8" is the fastest: products of 8-bit integers, with one scale for each
            column of a weight. Its inputs share a scale, so a sentence may change a little in
            another batch, except in the encoder of a `SpeechSearch`. "int16x8" has the same
            weights, but rounds inputs to 16 bits. "weight_int8" and "weight_int4" have a scale for
            every 32 rows of a column. They are closer to float32 and smaller, for large models, and
            run on GPUs, too.
            Weights of convolutions stay float32. If nothing can be reduced, the export warns and
            the manifest says "float32". Defaults to "float32".
        head: meaning of the outputs of a model without search: `Classification`,
            `TokenClassification`, `QuestionAnswering` or `FeatureExtraction`. `Predictor` then
            returns labels, tags, answers or vectors. Defaults to `None`: plain outputs.
        max_length: maximum number of generated tokens, including the end token. Defaults to
            `None`: the source's length + 50, or the limit of a model with learned positions.
        max_source_length: longest source that the artefact serves; for a `SpeechSearch` the frames
            of a window. Defaults to 512, or to the model's `max_length` if it is smaller; for an
            encoder that reads no ids to its longest source, if it has one.
        fuse: whether blocks become ONNX Runtime's fused operators (domain `com.microsoft`). `False`
            gives a graph of standard ONNX operators only, if the weights stay float. Defaults to
            `True`.
        keep_float: prefixes of the Keras paths of weights that stay float32. The query, key and
            value projections of a self-attention are one product, so they stay together. Defaults
            to none.
        layout: "loop" for one file that contains the search loop. "steps" for two files, the start
            of a search and one step, for GPUs: the runtime runs the loop, and updates caches of a
            fixed size in place. Both give the same tokens, and `Translator` serves both. Defaults
            to "loop".
        text: whether to write a second file, from strings to strings, for onnxruntime-extensions.
            Defaults to `False`.
        shortlist: `Shortlist` of the tokens that each source allows. Only their logits are
            computed, so a large vocabulary costs little. Defaults to `None`: every token.
        options: names of call options that become inputs: "min_length", "target_prefix",
            "beam_width", "top_k", "top_p". They cost time in each step. `max_length`,
            `length_penalty`, `temperature`, the inputs of constraints and the options that the
            search uses are always inputs. Each input defaults to the search's value. Defaults to
            none.
        samples: inputs for the proof: arrays of ids (B, S) for a search, dicts of arrays for other
            inputs. Defaults to `None`: random ones.
        tolerance: largest difference from Keras: for "float32" the maximum, relative to the size of
            a number; else the root mean square, relative to the spread of the numbers. Defaults to
            `proof.comparison.TOLERANCES[precision]`.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Returns:
        The manifest, a dict with the content of `artefact.json`.

    Raises:
        TypeError, ValueError: an invalid argument.
        ExportError: conversion or a check failed. `path` is unchanged.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> export_onnx(model, "out/onnx", search=BeamSearch(4), precision="int8")  # doctest: +SKIP
    """
    in_graph = "Leave text out: the runtime does the tokenizing" if text else ""
    task = prepare(
        Arguments(
            model,
            tokenizer,
            search,
            target_tokenizer,
            head,
            max_length,
            max_source_length,
            options,
            precision,
            keep_float,
            layout,
            text,
            shortlist,
            in_graph,
        )
    )
    check_dtypes(task.model)
    made = OnnxFiles(task, samples, precision, fuse, keep_float, layout)
    made.tolerance, made.tokenizers = tolerance, (tokenizer, target_tokenizer)
    made.limits = task.limits(max_source_length)
    others = []
    if text:
        from keras_transformer.export.text_model import TextModel, text_values

        made.text = text_values(task)
        others.append(TextModel(task, tokenizer, target_tokenizer))
    return export(path, made, *others, verbose=verbose)


class OnnxFiles(ArtefactFiles):
    """An artefact: one ONNX file with the whole search, or two with its start and its steps.

    Args:
        task: `SearchTask` or `ForwardTask`.
        samples: inputs for the proof, or `None`.
        precision, fuse, keep_float, layout: as in `export_onnx`.

    Attributes:
        files: paths of the written files.
    """

    packages = ("tf2onnx", "onnx", "onnxruntime")

    def __init__(
        self,
        task: Task,
        samples: Sequence[Any] | None,
        precision: str,
        fuse: bool,
        keep_float: Sequence[str],
        layout: str,
    ) -> None:
        super().__init__(task, samples, precision)
        self.fuse: bool = fuse
        self.keep_float: Sequence[str] = keep_float
        self.layout: str = layout
        self.files: list[pathlib.Path] = []
        self.graphs: list[ir.Model] = []

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        reached = set()
        for name, source in graph_sources(self.task, self.layout, self.precision):
            graph, found = _make_graph(source, self.precision, self.fuse, self.keep_float, progress)
            if self.layout == "steps" or found == "float16":  # for GPUs
                fit_cuda(graph)
            with progress("writing"):
                _save(graph, folder / name, self.task.option_defaults)
            self.files.append(folder / name)
            self.graphs.append(graph)
            reached.add(found)
        if self.fuse:
            warn_of_unfused(self.task.model, [graph.graph for graph in self.graphs])
        if self.precision not in reached:
            _warn_of_float32(self.precision, self.graphs)
            self.precision = "float32"

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        return run_exported(self.files, [case for _, case in calls]).outputs

    def described(self) -> dict[str, Any]:
        first, last = self.graphs[0], self.graphs[-1]
        return {
            "inputs": _values(first.graph.inputs),
            "outputs": _outputs(first, self.task, self.layout),
            "opsets": {domain: int(v) for domain, v in last.opset_imports.items()},
            "ir_version": IR_VERSION,
            **({} if self.layout == "loop" else {"layout": self.layout}),
        }


def _make_graph(
    source: GraphSource,
    precision: str,
    fuse: bool,
    keep_float: Sequence[str],
    progress: Progress,
) -> tuple[ir.Model, str]:
    """Returns the final `onnx_ir.Model` of a source, and its precision."""
    model = convert(source, progress)
    names = [value.name for value in model.graph.outputs]
    with progress("simplifying"):
        simplify(model, hoisting=not fuse)  # fusion hoists after it has seen the blocks
    if fuse:
        with progress("fusing blocks"), optional(model):
            fuse_blocks(model, precision)
    if precision != "float32":
        with progress(f"converting to {precision}"):
            reduced = quantize.reduce_precision(model, precision, keep_float, source.row_scales)
        precision = precision if reduced else "float32"
    serve_empty_batches(model.graph)
    clean(model, constants=precision not in quantize.COLUMN_SCALES)
    quantize.separate_products(model.graph)
    restore_outputs(model.graph, names)
    return model, precision


def convert(source: GraphSource, progress: Progress) -> ir.Model:
    """Returns the `onnx_ir.Model` of a source with its weights, neither simplified nor fused."""
    variables = source.model.variables
    conversion.check_layers(source.model)
    with progress("tracing", UNTRACEABLE):
        traced = conversion.trace(source.function, variables, source.specs)
    with progress("converting to ONNX"):
        constants = conversion.constant_variables(source.model)
        model, weights = conversion.convert(traced, variables, OPSET, constants)
        model.ir_version = IR_VERSION
        conversion.fill_weights(model, weights)
        _arrange(model.graph, source)
    return model


def _arrange(graph: ir.Graph, source: GraphSource) -> None:
    """Puts the inputs in their documented order, and names the axes of inputs and outputs.

    An axis of fixed size keeps its size, except in outputs with documented names of axes.
    """
    by_name = {value.name: value for value in graph.inputs}
    inputs = [by_name[name] for name in source.specs]
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    for value in [*graph.inputs, *graph.outputs]:
        sizes = list(value.shape or ())
        names = source.axes(value.name, len(sizes))
        documented = value.name in signature.AXES and value.name not in by_name
        value.shape = ir.Shape(
            size if isinstance(size, int) and not documented else name
            for size, name in zip(sizes or [None] * len(names), names, strict=True)
        )


def restore_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Gives each output its name back, if simplification replaced it by an equal output."""
    for index, (value, name) in enumerate(zip(graph.outputs, names, strict=True)):
        if value.name != name:
            copy = ir.Node("", "Identity", [value], num_outputs=1)
            output = copy.outputs[0]
            output.name, output.type, output.shape = name, value.type, value.shape
            graph.append(copy)
            graph.outputs[index] = output


def set_defaults(graph: ir.Graph, defaults: Mapping[str, Array]) -> None:
    """Gives defaults to inputs, so that a caller may leave them out.

    In ONNX, an initializer with the name of an input is its default.
    """
    for value in graph.inputs:
        if value.name in defaults:
            value.const_value = ir.tensor(defaults[value.name], name=value.name)
            graph.register_initializer(value)


def _save(model: ir.Model, path: pathlib.Path, defaults: Mapping[str, Array]) -> None:
    """Writes an `onnx_ir.Model`; weights that do not fit into the file go into a second one.

    In a single file, weights that only a search step reads move into that step. Weights in a second
    file stay in the outer graph. Inputs get their defaults last, because inputs with defaults must
    not be folded or moved.
    """
    large = _weight_bytes(model) > LARGEST_FILE
    if not large:
        sink_weights(model.graph)
    set_defaults(model.graph, defaults)
    ir.save(model, path, external_data=f"{path.name}.data" if large else None)


def _weight_bytes(model: ir.Model) -> int:
    """Returns the bytes of all constants of a model and of its loops."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
    )


def _warn_of_float32(precision: str, models: Iterable[ir.Model]) -> None:
    """Warns that a precision changed no graph.

    One of two graphs may have no weights, such as the start of a language model.
    """
    size = sum(map(_weight_bytes, models))
    warnings.warn(
        f"precision={precision!r} changed nothing: the model's {size:,} bytes of weights hold no "
        "products or tables of embeddings, or keep_float keeps them. Convolutions stay float32. "
        "The file and its manifest say float32.",
        stacklevel=5,
    )


def _outputs(first: ir.Model, task: Task, layout: str) -> list[dict[str, Any]]:
    """Returns the manifest's outputs. In the layout "steps" the runtime computes them."""
    if layout == "loop":
        return _values(first.graph.outputs)
    return [
        {
            "name": name,
            "dtype": "int32" if name == signature.TOKEN_IDS else "float32",
            "axes": list(task.axes(name, len(signature.AXES[name]))),
        }
        for name in task.outputs
    ]


def _values(values: Iterable[ir.Value]) -> list[dict[str, Any]]:
    """Returns inputs or outputs as manifest entries."""
    return [
        {
            "name": value.name,
            "dtype": value.dtype.numpy().name,
            "axes": [size if isinstance(size, int) else str(size.value) for size in value.shape],
        }
        for value in values
    ]
