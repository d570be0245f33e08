"""Runs `model.tflite` with LiteRT, which was called TensorFlow Lite.

An interpreter holds the tensors of one call, so each thread that calls at the same time gets its
own. All of them read the same bytes. Inputs are resized to the shapes of each call.
"""

import collections
import importlib.metadata
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.options import default_inputs
from keras_transformer.export.artefact.reader import Artefact, ArtefactError
from keras_transformer.export.runtime.engine import (
    LITERT_NAME,
    ProviderError,
    check_same,
    check_threads,
)
from keras_transformer.types import Array, StrPath


class _Runner:
    """One interpreter.

    LiteRT 2.3.0 with its default delegate, XNNPACK, sometimes computes wrong numbers in a call that
    needs more memory than all calls before it: up to 11 % of interpreters in a trial of growing
    batches, and none without the delegate, which takes three to nine times as long. The same call
    once more was right in all of 8,000 trials. So a call with new largest sizes runs twice.

    Args:
        signature: function of arrays by name, of an interpreter.
    """

    def __init__(self, signature: Any) -> None:
        self.signature: Any = signature
        # Sizes of earlier calls; none of them has each size of another one.
        self._largest: list[list[int]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the outputs by name."""
        outputs = self.signature(**inputs)
        arrays = [*inputs.values(), *(outputs[name] for name in sorted(outputs))]
        sizes = [size for array in arrays for size in np.shape(array)]
        if not any(_covers(earlier, sizes) for earlier in self._largest):
            outputs = self.signature(**inputs)
            others = [earlier for earlier in self._largest if not _covers(sizes, earlier)]
            self._largest = [*others, sizes]
        return outputs


def _covers(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Returns whether each of some sizes is at least the other one."""
    return all(size >= other for size, other in zip(sizes, others, strict=True))


class LiteRTSession:
    """A LiteRT file as a `Session`. Threads can share it.

    Args:
        path: the file.
        threads: threads of a call. Defaults to `None`: LiteRT chooses.
        defaults: arrays by name, for inputs that a call leaves out. Defaults to none.
    """

    def __init__(
        self,
        path: StrPath,
        threads: int | None = None,
        defaults: Mapping[str, Array] | None = None,
    ) -> None:
        # The bytes, not the path: another interpreter may open when the file was replaced.
        self._content: bytes = pathlib.Path(path).read_bytes()
        self.threads: int | None = threads
        self.defaults: Mapping[str, Array] = defaults or {}
        self._idle: collections.deque[_Runner] = collections.deque([self._open()])

    def _open(self) -> "_Runner":
        interpreter = Interpreter(model_content=self._content, num_threads=self.threads)
        return _Runner(interpreter.get_signature_runner())

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array]) -> list:
        """See `engine.Session.run`.

        Raises:
            ValueError: an input is missing, unknown, or of another dtype.
            RuntimeError: an operator fails, such as a lookup of an id outside of its table.
        """
        inputs = {name: np.asarray(array) for name, array in input_feed.items()}
        is_empty = any(array.shape[:1] == (0,) for array in inputs.values())
        if is_empty:  # LiteRT returns no tensors without rows: run one row of ones
            for name, array in inputs.items():
                if array.shape[:1] == (0,):
                    inputs[name] = np.ones([max(1, n) for n in array.shape], array.dtype)
        try:
            runner = self._idle.pop()
        except IndexError:
            runner = self._open()
        # After an error the interpreter is not used again.
        outputs = runner.run({**self.defaults, **inputs})
        self._idle.append(runner)
        found = [outputs[name] for name in output_names or outputs]
        return [array[:0] for array in found] if is_empty else found

    def get_providers(self) -> list[str]:
        """Returns the name of the engine."""
        return [LITERT_NAME]

    def values(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Returns name, dtype and rank of the inputs and of the outputs."""
        runner = self._idle[0].signature
        return tuple(
            [
                {
                    "name": name,
                    "dtype": np.dtype(value["dtype"]).name,
                    "axes": [None if n < 0 else int(n) for n in value["shape_signature"]],
                }
                for name, value in sorted(details.items())
            ]
            for details in (runner.get_input_details(), runner.get_output_details())
        )


def open_session(
    artefact: Artefact,
    providers: list[Any] | None = None,
    *,
    threads: int | None = None,
    arena: bool = True,
    spinning: bool = True,
) -> LiteRTSession:
    """Opens a session of an `Artefact` whose manifest names LiteRT.

    Args:
        artefact: Artefact, from `read_artefact`.
        threads: as in `Translator`.
        providers, arena, spinning: options of ONNX Runtime, which must keep their defaults.

    Raises:
        ArtefactError: LiteRT refuses the file, or the manifest names other inputs and outputs.
        ProviderError: an option of ONNX Runtime was passed.
        ValueError: `threads` is out of its range.
    """
    if providers is not None or not (arena and spinning):
        raise ProviderError(
            f"{artefact.folder} was exported for LiteRT, and `providers`, `arena` and `spinning` "
            "are options of ONNX Runtime. Leave them out, or export the model with export_onnx."
        )
    check_threads("threads", threads)
    manifest = artefact.manifest
    defaults = default_inputs(manifest)
    try:
        session = LiteRTSession(artefact.model_path, threads, defaults)
    except (RuntimeError, ValueError) as error:
        version = importlib.metadata.version("ai-edge-litert")
        raise ArtefactError(
            f"ai-edge-litert {version} cannot run {artefact.model_path}: {error} It was exported "
            f"with {shorten(manifest['versions'])}; a release of ai-edge-litert at least as new "
            "should run it."
        ) from error
    artefact.check_unchanged()
    expected = ([*manifest["inputs"], *manifest.get("options", [])], manifest["outputs"])
    for what, found, values in zip(("inputs", "outputs"), session.values(), expected, strict=True):
        parts = 3 if what == "inputs" else 2  # LiteRT knows no rank of loops' results
        found, described = (
            sorted((value["name"], value["dtype"], len(value["axes"]))[:parts] for value in each)
            for each in (found, values)
        )
        check_same(artefact, what, found, described)
    return session


def open_for_proof(
    job: dict[str, Any], report: dict[str, Any]
) -> list[Callable[[dict[str, Array]], dict[str, Array]]]:
    """Opens the file of a proof; returns a function for each case, see `proof.script`."""
    report["check"] = "opening the file"
    session = LiteRTSession(job["models"][0])
    names = [value["name"] for value in session.values()[1]]

    def call(inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return [call] * len(job["cases"])
