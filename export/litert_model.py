"""Export to LiteRT (formerly TensorFlow Lite), the engine of phones: model and search in one file.

Shapes: of inputs and outputs as in `artefact.signature`.
"""

import contextlib
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export.arguments import Arguments, check_dtypes
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import Head
from keras_transformer.export.artefact_files import ArtefactFiles
from keras_transformer.export.exporter import Case, Rule, check_rules, export
from keras_transformer.export.litert_operators import portable_operators
from keras_transformer.export.prepare import prepare
from keras_transformer.export.proof import run_exported
from keras_transformer.export.staging import ExportError, Progress, quoted
from keras_transformer.export.tasks.search import ExportableSearch
from keras_transformer.search import Shortlist
from keras_transformer.startup import install
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath

PRECISIONS = ("float32", "float16", "int8")
OPENER = "keras_transformer.export.runtime.litert_session:open_for_proof"
RULES = (
    Rule(
        ValueError,
        lambda a: a.precision not in PRECISIONS,
        lambda a: f"precision must be one of {PRECISIONS} for LiteRT, got {a.precision!r}.",
    ),
    Rule(
        ImportError,
        lambda a: importlib.util.find_spec("ai_edge_litert") is None,
        lambda a: (
            "export_litert runs each file before it hands it over, and ai-edge-litert is not "
            f"installed here. Install it with: {install('train,litert')}"
        ),
    ),
)


def export_litert(
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
    shortlist: Shortlist | None = None,
    options: Sequence[str] = (),
    samples: Sequence[Any] | None = None,
    tolerance: float | None = None,
    verbose: bool = True,
) -> dict[str, Any]:
    """Writes a folder that LiteRT serves without TensorFlow: model, search and tokenizer.

    `model.tflite` holds the encoder, the decoder with its caches and the whole search, from ids to
    ids and scores. It has only built-in operators of LiteRT, so that a program needs no Flex
    delegate, and takes batches and lengths of any size. The folder has the tokenizer and the
    manifest of `export_onnx`, and `Translator`, `Generator`, `Predictor` and `Transcriber` open it.
    Before the folder appears, its file runs in a process without TensorFlow, and its results are
    compared with Keras' results.

    All arguments but `precision` are those of `export_onnx`, with the same defaults.

    Args:
        precision: "float32"; "float16", which halves the file and computes in float32 on a CPU; or
            "int8": weights in 8 bits, and inputs of their products rounded to 8 bits at run time.
            LiteRT reduces weights of 1,024 numbers or more. If that gives no smaller file, the
            export warns, and file and manifest are "float32". Defaults to "float32".

    Returns:
        The manifest, a dict with the content of `artefact.json`.

    Raises:
        TypeError, ValueError: an invalid argument.
        ImportError: ai-edge-litert is not installed.
        ExportError: LiteRT lacks an operator, which the error names, or a check failed. `path` is
            unchanged.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> export_litert(model, "out/litert", search=BeamSearch(4))  # doctest: +SKIP
    """
    arguments = Arguments(
        model,
        tokenizer,
        search,
        target_tokenizer,
        head,
        max_length,
        max_source_length,
        options,
        precision,
        shortlist=shortlist,
    )
    check_rules(RULES, arguments)
    task = prepare(arguments)
    check_dtypes(task.model)
    made = LiteRTFile(task, samples, precision)
    made.tolerance, made.tokenizers = tolerance, (tokenizer, target_tokenizer)
    made.limits = task.limits(max_source_length)
    return export(path, made, verbose=verbose)


class LiteRTFile(ArtefactFiles):
    """An artefact with one LiteRT file."""

    packages = ("ai-edge-litert",)

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        task, remedy = (
            self.task,
            "Replace the operation in the model, or export it with export_onnx.",
        )
        reduced = self.precision != "float32"
        with progress("tracing"), portable_operators(reduced):
            function = tf.function(task.function, autograph=False)
            self.traced = function.get_concrete_function(**task.specs)
        with progress("converting to LiteRT", remedy):
            data = self._convert(self.precision)
            if self.precision != "float32" and len(data) >= len(self._convert("float32")):
                warnings.warn(
                    f"precision={self.precision!r} gave no smaller file: LiteRT reduces only "
                    "weights of 1,024 numbers or more. The file and the manifest are float32.",
                    stacklevel=4,
                )
                self.precision, data = "float32", self._convert("float32")
            (folder / signature.LITERT_FILE).write_bytes(data)

    def _convert(self, precision: str) -> bytes:
        weights = tf.Module()
        weights.all = [variable.value for variable in self.task.model.variables]
        converter = tf.lite.TFLiteConverter.from_concrete_functions([self.traced], weights)
        converter.canonicalizing_inf_as_min_max_float = False
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            with _quiet():
                return converter.convert()
        except Exception as error:  # the converter has no class of errors for all its parts
            raise ExportError(_explained(error)) from error

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        cases = [{**self.task.option_defaults, **case} for _, case in calls]
        return run_exported([folder / signature.LITERT_FILE], cases, opener=OPENER).outputs

    def described(self) -> dict[str, Any]:
        outputs = self.traced.structured_outputs
        return {
            "inputs": [self._value(name, spec) for name, spec in self.task.specs.items()],
            "outputs": [self._value(name, outputs[name]) for name in self.task.outputs],
            "opsets": None,
            "ir_version": None,
            "engine": signature.LITERT,
        }

    def _value(self, name: str, tensor: Any) -> dict[str, Any]:
        """Returns an input or output as an entry of the manifest."""
        documented = name in signature.AXES and name not in self.task.specs
        sizes = tensor.shape.as_list()
        axes = self.task.axes(name, len(sizes))
        return {
            "name": name,
            "dtype": tensor.dtype.name,
            "axes": [
                axis if documented or size is None else size
                for size, axis in zip(sizes, axes, strict=True)
            ],
        }


def _explained(error: Exception) -> str:
    """Returns the operators that LiteRT lacks, with their types, from the converter's error."""
    remedy = "Replace it in the model, or export with export_onnx. The target is unchanged."
    lacking = re.findall(r"^\s+tf\.(\w+\(.*?)(?: : \{.*)?$", str(error), re.MULTILINE)
    if lacking:
        names = ", ".join(sorted({call.partition("(")[0] for call in lacking}))
        return f"LiteRT has no built-in operator for {names}, such as {lacking[0]}. {remedy}"
    refused = re.search(r"error: 'tfl?\.(\w+)' op (.*)", str(error))
    if refused:
        return f"LiteRT's converter refuses {refused[1]}: it {refused[2]}. {remedy}"
    return f"LiteRT's converter failed: {quoted(error, 500)} {remedy}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards what the converter, which is compiled code, writes to stderr."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
