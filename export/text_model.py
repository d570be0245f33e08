"""Writes the ONNX file from strings to strings, with SentencePiece of onnxruntime-extensions.

`text_graph` has the nodes before and after the model. A second process runs the file, and the
results are compared with the tokenizer around the model.

Shapes: B texts, S tokens of the longest, W hypotheses.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from keras_transformer.export.artefact import signature
from keras_transformer.export.exporter import Case, Format, Part, part_of
from keras_transformer.export.proof import run_exported
from keras_transformer.export.proof.comparison import TOLERANCES
from keras_transformer.export.staging import ExportError, Progress
from keras_transformer.export.tasks.search import SearchTask
from keras_transformer.export.tasks.text import TextTask
from keras_transformer.export.text_graph import CONTRIB, Nodes, add_decoding, add_encoding
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, Ids

# The name of the model's scores inside of the text model.
MODEL_SCORES = "decoding/scores"


def text_values(task: SearchTask) -> dict[str, Any]:
    """Returns `{"inputs", "outputs"}` of the text model of a task, in the form of the manifest."""
    inputs = {signature.TEXT: "string", **({signature.SEED: "int32"} if task.random else {})}
    outputs = {signature.TEXTS: "string", signature.SCORES: "float32"}
    return {
        side: [
            {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}
            for name, dtype in dtypes.items()
        ]
        for side, dtypes in (("inputs", inputs), ("outputs", outputs))
    }


class TextModel(Format):
    """The text model beside `model.onnx`, around the same graph.

    Args:
        task: `SearchTask` of a model that reads ids.
        tokenizer: `Tokenizer` of the source.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer`.
    """

    tolerance: float | None = TOLERANCES["text"]

    def __init__(
        self, task: SearchTask, tokenizer: Tokenizer, target_tokenizer: Tokenizer | None = None
    ) -> None:
        self.task: SearchTask = task
        self.sides: tuple[Tokenizer, Tokenizer] = (tokenizer, target_tokenizer or tokenizer)

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        if (folder / signature.WEIGHTS_FILE).exists():
            raise ExportError(
                "The model is too large for one file, but the text model must be one. Leave out "
                "text=True and serve with keras_transformer.export.runtime."
            )
        path = folder / signature.MODEL_FILE
        with progress("writing the text model"):
            wrapped = _wrapped(ir.load(path), self.task, *self.sides)
            onnx.save(wrapped, folder / signature.TEXT_MODEL_FILE)

        def search(case: Case) -> tuple[Ids, Array]:
            (found,) = run_exported([path], [case]).outputs
            return found[signature.TOKEN_IDS], found[signature.SCORES]

        self.parts: Sequence[Part] = [part_of(TextTask(self.task, *self.sides, search))]

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        # Another process: onnxruntime-extensions crashes beside TensorFlow.
        cases = [case for _, case in calls]
        return run_exported([folder / signature.TEXT_MODEL_FILE], cases, extensions=True).outputs


def _wrapped(
    model: ir.Model, task: SearchTask, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> onnx.ModelProto:
    """Returns the ONNX model from `text` to `texts` and `scores`, around a model of ids.

    The nodes of the model stay unchanged. Its input becomes the ids of the texts, and its scores
    get another name, because they are no longer an output.
    """
    before, after = Nodes("encoding"), Nodes("decoding")
    ids, blank = add_encoding(before, tokenizer, task.name == "generate")
    vocab_size = task.vocab_size["target"]
    texts, scores = add_decoding(after, target_tokenizer, blank, MODEL_SCORES, vocab_size)
    after.nodes.append(helper.make_node("Identity", [texts], [signature.TEXTS]))
    after.nodes.append(helper.make_node("Identity", [scores], [signature.SCORES]))
    renamed = {signature.SOURCE_IDS: ids, signature.SCORES: MODEL_SCORES}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = renamed.get(value.name, value.name)
    text, *outputs = (
        helper.make_tensor_value_info(name, kind, signature.AXES[name])
        for name, kind in (
            (signature.TEXT, TensorProto.STRING),
            (signature.TEXTS, TensorProto.STRING),
            (signature.SCORES, TensorProto.FLOAT),
        )
    )
    inner = ir.to_proto(model)
    graph = inner.graph
    whole = helper.make_graph(
        [*before.nodes, *graph.node, *after.nodes],
        graph.name,
        [text, *(value for value in graph.input if value.name != ids)],
        outputs,
        [*graph.initializer, *before.constants, *after.constants],
    )
    opsets = [*inner.opset_import, helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=inner.ir_version)
