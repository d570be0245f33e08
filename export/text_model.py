"""The string-to-string ONNX file: SentencePiece around the model, by onnxruntime-extensions.

The nodes before and after the model are in `text_graph`. The file is proven like the model that it
is made of: in a process of its own, against the tokenizer around that model.

Shapes: B texts, S tokens of the longest, W hypotheses.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

from keras_transformer.export import verify
from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.samples import proof_texts
from keras_transformer.export.text_graph import CONTRIB, Nodes, add_decoding, add_encoding
from keras_transformer.padding import pad_rows

# Scores of the file and of the ids' own run: the same graph, so only their way differs.
TOLERANCE = 1e-6


def add_text_model(folder, task, tokenizer, target_tokenizer=None):
    """Writes the text model beside `model.onnx` in `folder` and proves it.

    Args:
        folder: `pathlib.Path` with the model, ids in and out.
        task: `SearchTask` of a model that reads ids.
        tokenizer: `Tokenizer` of the text that is read. Ids that the tokenizer of the text that is
            written lacks, as where a vocabulary was rounded up, are written like the unknown token.
        target_tokenizer: `Tokenizer` of the text that is written. Defaults to `None`: `tokenizer`.

    Returns:
        `{"inputs", "outputs"}` as the manifest lists them.

    Raises:
        ExportError: the model is too large for one file, or strings differ from the tokenizer's.
    """
    if (folder / signature.WEIGHTS_FILE).exists():
        raise ExportError(
            "The model is too large for one file, and the text model has to be one. Leave out "
            "text=True and serve with keras_transformer.export.runtime."
        )
    model = onnx.load(folder / signature.MODEL_FILE)
    seeded = any(value.name == signature.SEED for value in model.graph.input)
    tokenizers = tokenizer, target_tokenizer or tokenizer
    made = wrap(model, *tokenizers, task.name, task.vocab_size["target"])
    onnx.save(made, folder / signature.TEXT_MODEL_FILE)
    _prove(folder, *tokenizers, task.name, seeded, proof_texts(tokenizer, task.longest))
    seed = [{"name": signature.SEED, "dtype": "int32", "axes": []}] if seeded else []
    return {
        "inputs": [_entry(signature.TEXT, "string"), *seed],
        "outputs": [_entry(signature.TEXTS, "string"), _entry(signature.SCORES, "float32")],
    }


def _entry(name, dtype):
    """An input or output as the manifest lists it."""
    return {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}


def wrap(model, tokenizer, target_tokenizer, task, vocab_size):
    """The ONNX model from `text` to `texts` and `scores` around one from ids to ids.

    The model's own nodes stay as they are, between those that `text_graph` adds; only its input
    becomes the ids of the texts, and its scores get another name, being no output any more.
    """
    graph, made = model.graph, Nodes()
    ids, blank = add_encoding(made, tokenizer, task)
    before = len(made.nodes)
    texts, scores = add_decoding(made, target_tokenizer, blank, vocab_size)
    made.nodes.append(helper.make_node("Identity", [texts], [signature.TEXTS]))
    made.nodes.append(helper.make_node("Identity", [scores], [signature.SCORES]))
    for node in _all_nodes(graph):
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = {
                    signature.SOURCE_IDS: ids,
                    signature.SCORES: "text/scores",
                }.get(name, name)
    nodes = [*made.nodes[:before], *graph.node, *made.nodes[before:]]
    values = [
        helper.make_tensor_value_info(name, kind, signature.AXES[name])
        for name, kind in (
            (signature.TEXT, TensorProto.STRING),
            (signature.TEXTS, TensorProto.STRING),
            (signature.SCORES, TensorProto.FLOAT),
        )
    ]
    rest = [value for value in graph.input if value.name != signature.SOURCE_IDS]
    constants = [*graph.initializer, *made.constants]
    whole = helper.make_graph(nodes, graph.name, [values[0], *rest], values[1:], constants)
    opsets = [*model.opset_import, helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=model.ir_version)


def _all_nodes(graph):
    """Nodes of a graph and of the graphs inside."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)


def _prove(folder, tokenizer, target_tokenizer, task, seeded, proof):
    """Holds strings from the written file to the tokenizer around the model of ids.

    Both run in processes of their own: onnxruntime-extensions cannot be loaded beside TensorFlow.
    """
    marks = signature.SPECIAL_IDS
    ids = [
        [marks["begin"], *row] if task == "generate" else [*row, marks["end"]]
        for row in tokenizer.encode(proof)
    ]
    padded = pad_rows(ids)
    seed = {signature.SEED: np.array(17, np.int32)} if seeded else {}
    (expected,) = verify.probe(
        folder / signature.MODEL_FILE, [{signature.SOURCE_IDS: padded, **seed}]
    )
    (found,) = verify.probe(
        folder / signature.TEXT_MODEL_FILE,
        [{signature.TEXT: np.array(proof), **seed}],
        extensions=True,
    )
    texts, scores = [], expected[signature.SCORES].copy()
    for text, row, score in zip(proof, expected[signature.TOKEN_IDS], scores, strict=True):
        row = np.where(row < target_tokenizer.vocab_size, row, marks["unknown"])
        decoded = target_tokenizer.decode(row)
        decoded = [one.replace("\0", signature.REPLACEMENT) for one in decoded]
        texts.append(decoded if text.strip() else [""] * len(decoded))
        if not text.strip():
            score[:] = np.where(np.arange(len(score)) < 1, 0.0, -np.inf)
    encoded = np.array([[one.encode() for one in row] for row in texts], dtype=object)
    verify.compare_texts(
        {signature.TEXTS: encoded, signature.SCORES: scores}, found, tolerance=TOLERANCE
    )
