"""`--check`: checks whether this machine can serve an artefact.

Shapes: made-up inputs have `B` = 2 rows, and 13 wherever the manifest names a length.
"""

import contextlib
import io
from typing import Any

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import Artefact, ArtefactError, read_artefact
from keras_transformer.export.artefact.signature import ONNX_RUNTIME
from keras_transformer.export.runtime.engine import LITERT_NAME, ProviderError
from keras_transformer.export.runtime.sessions import open_session
from keras_transformer.special_ids import END_ID
from keras_transformer.types import Array, StrPath

ROWS, LENGTH = 2, 13


def check(
    folder: StrPath, providers: list[str] | None = None, *, threads: int | None = None
) -> int:
    """Tries providers until one serves, prints the verdict and returns the exit status.

    It prints why a provider cannot serve before the next trial, because a broken library can end
    the process.

    Args:
        folder: str or path, the folder that `export_onnx` wrote.
        providers: list of str, providers to serve on. Defaults to `None`: CUDA if onnxruntime has
            it and it computes the precision of the artefact, else the CPU.
        threads: int, threads of a batch. Defaults to `None`: every core.

    Returns:
        0 if the artefact serves as requested, 1 if only on the CPU instead, 2 if it cannot be
        served.

    Raises:
        ArtefactError: the folder is no artefact, or damaged.
        ValueError: `threads` is out of its range.
    """
    artefact = read_artefact(folder)
    precision, tried = artefact.manifest["precision"], {LITERT_NAME: providers}
    if engine_of(artefact.manifest) == ONNX_RUNTIME:
        from keras_transformer.export.runtime.session import CPU, best_providers

        providers = best_providers(precision) if providers is None else providers
        tried = {providers[0]: providers}
        if precision != "float16":
            tried.setdefault(CPU, [CPU])
    best, *_ = tried
    for status, (name, chosen) in enumerate(tried.items()):
        if (error := _failure(artefact, chosen, threads)) is None:
            only = f" only (--provider {name}): the best, {best}, does not come up"
            print(f"verdict: serves on {name}{only if status else ''}")
            return status
        print(f"{name} cannot serve: {error}", flush=True)
    print("verdict: cannot serve here")
    return 2


def _failure(artefact: Artefact, providers: list[str] | None, threads: int | None) -> str | None:
    """Returns why a list of providers cannot run an artefact; `None` if it can."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # onnxruntime prints what it cannot load
            session = open_session(artefact, providers, threads=threads)
    except (ArtefactError, ImportError, ProviderError) as error:
        return str(error)
    try:
        session.run(None, made_up_inputs(artefact.manifest))
    except Exception as error:  # engines' errors have no common base below Exception
        return f"it came up, and failed to run made-up inputs: {error}"
    return None


def made_up_inputs(manifest: dict[str, Any]) -> dict[str, Array]:
    """Returns inputs that fit the manifest, a dict of arrays: ids, True, or normal numbers."""
    random = np.random.default_rng(7)
    length = min(LENGTH, manifest["limits"]["source_length"])
    sizes = manifest["vocab_size"]
    inputs = {}
    for value in manifest["inputs"]:
        name, dtype = value["name"], value["dtype"]
        free = {axis: length for axis in value["axes"]} | {"batch": ROWS}
        shape = [axis if isinstance(axis, int) else free[axis] for axis in value["axes"]]
        known = sizes["target" if name == signature.TARGET_IDS else "source"]
        if dtype in ("int32", "int64"):
            ids = name not in (signature.SEED, signature.SEGMENT_IDS) and known is not None
            low, high = (min(END_ID + 1, known - 1), known) if ids else (1, 2)
            inputs[name] = random.integers(low, high, shape).astype(dtype)
        elif dtype == "bool":
            inputs[name] = np.ones(shape, bool)
        else:
            inputs[name] = random.standard_normal(shape).astype(dtype)
    return inputs
