"""The parts of an engine that `Runner` needs: a session, its errors and its threads.

ONNX Runtime is one engine (`session`), LiteRT another (`litert_session`).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact, ArtefactError
from keras_transformer.types import Array

# The limit of threads of a batch, and of batches at a time. Each takes memory.
MOST_THREADS = 16 * (os.cpu_count() or 1)
# The largest file of a search whose steps gain nothing from a second thread, see
# docs/benchmarks/serving.md. Its products are so small that threads wait for each other.
SMALL_BYTES = 20 * 2**20
# ONNX Runtime's name of the processor among the providers of a session.
CPU = "CPUExecutionProvider"
# LiteRT's name among the providers of a session.
LITERT_NAME = "LiteRT"


class ProviderError(ValueError):
    """An execution provider is missing, or does not suit the artefact's precision."""


class Session(Protocol):
    """An open model. Threads can share it. `onnxruntime.InferenceSession` is one."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array]) -> list:
        """Returns the named outputs, or all for `None`; an option left out has its default."""

    def get_providers(self) -> list[str]:
        """Returns the names of the providers, the most preferred first."""


def check_threads(name: str, count: int | None) -> None:
    """Raises `ValueError` unless `count`, called `name`, is `None` or from 1 to `MOST_THREADS`."""
    if count is not None and not 1 <= count <= MOST_THREADS:
        raise ValueError(
            f"`{name}` must be at least 1, and at most {MOST_THREADS} (16 for each core of this "
            f"machine); got {count}."
        )


def check_same(artefact: Artefact, what: str, found: Any, expected: Any) -> None:
    """Raises `ArtefactError` unless the model agrees with the manifest."""
    if found != expected:
        raise ArtefactError(
            f"{artefact.model_path} has the {what} {found}, and {signature.MANIFEST_FILE} says "
            f"{expected}. The files belong to different artefacts: export the model again."
        )


def is_small_search(manifest: dict[str, Any]) -> bool:
    """Returns whether one thread computes a step of the search as fast as several."""
    if manifest.get("search") is None or manifest.get("task") == "transcribe":
        return False
    text = signature.TEXT_MODEL_FILE  # a second copy of the model
    sizes = {name: file["bytes"] for name, file in manifest["files"].items() if ".onnx" in name}
    return sum(size for name, size in sizes.items() if not name.startswith(text)) <= SMALL_BYTES
