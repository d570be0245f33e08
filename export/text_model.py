"""Writes the ONNX file from strings to strings, with SentencePiece of onnxruntime-extensions.

`text_graph` has the nodes before and after the model. A second process runs the file, and the
results are compared with the tokenizer around the model.

Shapes: B texts, S tokens of the longest, W hypotheses.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from keras_transformer.export.artefact import signature
from keras_transformer.export.proof import comparison, run_exported
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.samples import proof_texts
from keras_transformer.export.tasks.search import SearchTask
from keras_transformer.export.text_graph import CONTRIB, Nodes, add_decoding, add_encoding
from keras_transformer.padding import pad_rows
from keras_transformer.text.tokenizer import Tokenizer

# Largest difference of scores between the two files, which hold the same graph.
TOLERANCE = 1e-6
# The name of the model's scores inside of the text model.
MODEL_SCORES = "decoding/scores"


def add_text_model(
    folder: pathlib.Path,
    task: SearchTask,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Writes the text model beside `model.onnx` in `folder` and proves it.

    Args:
        folder: `pathlib.Path` with the model, ids in and out.
        task: `SearchTask` of a model that reads ids.
        tokenizer: `Tokenizer` of the source.
        target_tokenizer: `Tokenizer` of the target. Ids that it lacks are written like the unknown
            token. Defaults to `None`: `tokenizer`.

    Returns:
        `{"inputs", "outputs"}` in the form of the manifest.

    Raises:
        ExportError: the model is too large for one file, or strings differ from the tokenizer's.
    """
    if (folder / signature.WEIGHTS_FILE).exists():
        raise ExportError(
            "The model is too large for one file, but the text model must be one. Leave out "
            "text=True and serve with keras_transformer.export.runtime."
        )
    target_tokenizer = target_tokenizer or tokenizer
    model = onnx.load(folder / signature.MODEL_FILE)
    wrapped = _wrapped(model, task, tokenizer, target_tokenizer)
    onnx.save(wrapped, folder / signature.TEXT_MODEL_FILE)
    _prove(folder, task, tokenizer, target_tokenizer)
    seed = {signature.SEED: "int32"} if task.random else {}
    return {
        "inputs": _entries({signature.TEXT: "string", **seed}),
        "outputs": _entries({signature.TEXTS: "string", signature.SCORES: "float32"}),
    }


def _entries(dtypes: dict[str, str]) -> list[dict[str, Any]]:
    """Returns inputs or outputs as manifest entries."""
    return [
        {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}
        for name, dtype in dtypes.items()
    ]


def _wrapped(
    model: onnx.ModelProto, task: SearchTask, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> onnx.ModelProto:
    """Returns the ONNX model from `text` to `texts` and `scores`, around a model of ids.

    The nodes of the model stay unchanged. Its input becomes the ids of the texts, and its scores
    get another name, because they are no longer an output.
    """
    graph, before, after = model.graph, Nodes("encoding"), Nodes("decoding")
    ids, blank = add_encoding(before, tokenizer, task.name == "generate")
    vocab_size = task.vocab_size["target"]
    texts, scores = add_decoding(after, target_tokenizer, blank, MODEL_SCORES, vocab_size)
    after.nodes.append(helper.make_node("Identity", [texts], [signature.TEXTS]))
    after.nodes.append(helper.make_node("Identity", [scores], [signature.SCORES]))
    renamed = {signature.SOURCE_IDS: ids, signature.SCORES: MODEL_SCORES}
    for node in _all_nodes(graph):
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    text, *outputs = (
        helper.make_tensor_value_info(name, kind, signature.AXES[name])
        for name, kind in (
            (signature.TEXT, TensorProto.STRING),
            (signature.TEXTS, TensorProto.STRING),
            (signature.SCORES, TensorProto.FLOAT),
        )
    )
    seed = [value for value in graph.input if value.name != signature.SOURCE_IDS]
    whole = helper.make_graph(
        [*before.nodes, *graph.node, *after.nodes],
        graph.name,
        [text, *seed],
        outputs,
        [*graph.initializer, *before.constants, *after.constants],
    )
    opsets = [*model.opset_import, helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=model.ir_version)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)


def _prove(
    folder: pathlib.Path, task: SearchTask, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> None:
    """Compares strings of the written file with the tokenizer around the model of ids.

    Other processes run both files: onnxruntime-extensions crashes beside TensorFlow.
    """
    special, texts = signature.SPECIAL_IDS, proof_texts(tokenizer, task.longest)
    ids = pad_rows(
        [
            [special["begin"], *row] if task.name == "generate" else [*row, special["end"]]
            for row in tokenizer.encode(texts)
        ]
    )
    seed = {signature.SEED: np.array(17, np.int32)} if task.random else {}
    cases = {
        signature.MODEL_FILE: {signature.SOURCE_IDS: ids, **seed},
        signature.TEXT_MODEL_FILE: {signature.TEXT: np.array(texts), **seed},
    }
    (expected,), (found,) = (
        run_exported([folder / name], [case], extensions=signature.TEXT in case).outputs
        for name, case in cases.items()
    )
    tokens, scores = expected[signature.TOKEN_IDS], expected[signature.SCORES].copy()
    tokens = np.where(tokens < target_tokenizer.vocab_size, tokens, special["unknown"])
    decoded = np.array(
        [
            [text.replace("\0", signature.REPLACEMENT) for text in target_tokenizer.decode(row)]
            for row in tokens
        ]
    )
    blank = [not text.strip() for text in texts]
    decoded[blank] = ""
    scores[blank] = np.where(np.arange(scores.shape[1]) < 1, 0.0, -np.inf)
    expected = {signature.TEXTS: decoded, signature.SCORES: scores}
    comparison.compare_texts(expected, found, tolerance=TOLERANCE)
