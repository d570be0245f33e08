"""Starts the serving commands without TensorFlow, even if it is installed; names missing extras.

`python -m` imports the package before the module that it runs, and the package imports TensorFlow.
That takes seconds; a serving command needs a fraction of one. A program that imports
`keras_transformer.export.runtime` itself gets the whole package, because
`keras.models.load_model` must find our classes.
"""

import os
import sys
from itertools import pairwise

SERVERS = tuple(
    f"keras_transformer.export.{name}"
    for name in ("runtime", "archive", "documents", "serving", "verify")
)
# Set to "1" in serving processes that `python -m` does not start, such as the workers of Ray.
SERVES = "KERAS_TRANSFORMER_SERVES"
SOURCE = "git+https://github.com/keras-transformer-onnx/keras-transformer-onnx"
FRAMEWORKS = ("tensorflow", "tensorflow_text", "keras", "jax", "torch")


def install(extra: str) -> str:
    """Returns the command that installs this package with an extra.

    >>> install("service").startswith("pip install 'keras-transformer-onnx[service] @ git+https://")
    True
    """
    return f"pip install 'keras-transformer-onnx[{extra}] @ {SOURCE}'"


def serve_without_frameworks() -> bool:
    """Marks the frameworks as missing if this process runs a serving command; returns whether."""
    modules = {module for flag, module in pairwise(sys.orig_argv) if flag == "-m"}
    serves = os.environ.get(SERVES) == "1" or sys.argv[:1] == ["-m"] and modules & set(SERVERS)
    if serves:
        sys.modules.update(dict.fromkeys(FRAMEWORKS))
    return bool(serves)
