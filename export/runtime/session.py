"""Opens ONNX Runtime sessions on the requested provider, without a silent fallback."""

import contextlib
import functools
import os
import pathlib
from typing import Any

import numpy as np
import onnxruntime

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.reader import Artefact, ArtefactError
from keras_transformer.export.runtime.engine import (
    CPU,
    ProviderError,
    check_same,
    check_threads,
    is_small_search,
)
from keras_transformer.export.runtime.mapped_model import MappedModel, return_freed_memory
from keras_transformer.export.runtime.steps_session import StepsSession
from keras_transformer.startup import install

CUDA = "CUDAExecutionProvider"
CUDA_GRAPH = "enable_cuda_graph"  # its option
# CUDA has kernels for products with weights in blocks, and none that rounds inputs to 8 bits.
PRECISIONS_FOR_CUDA = ("float32", "float16", "weight_int8", "weight_int4")
# Providers that compute in float16. Others emulate it, or leave it to the CPU, which emulates it.
_PROVIDERS_FOR_FLOAT16 = (
    CUDA,
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "MIGraphXExecutionProvider",
    "DmlExecutionProvider",
    "CoreMLExecutionProvider",
    "WebGpuExecutionProvider",
)
# ONNX Runtime's names of the dtypes in a manifest.
_DTYPES = {f"tensor({name})": name for name in signature.DTYPES} | {"tensor(float)": "float32"}
# Microseconds for which an idle thread waits actively. ONNX Runtime's default, a million rounds of
# waiting, takes a third to a half of the speed beside a busy program (docs/benchmarks/serving.md).
SPIN_MICROSECONDS = 10
# An ONNX model of one node, MatMulInteger of `a` (uint8, 1 x 2) and `b` (int8, 2 x 1).
_PRODUCT = bytes.fromhex(
    "08043a5c0a180a01610a0162120179220d4d61744d756c496e74656765721201675a130a0161120e"
    "0a0c080212080a0208010a0208025a130a0162120e0a0c080312080a0208020a02080162130a0179"
    "120e0a0c080612080a0208010a02080142040a00100a"
)


def open_session(
    artefact: Artefact,
    providers: list[Any] | None = None,
    *,
    threads: int | None = None,
    arena: bool = True,
    spinning: bool = True,
) -> Any:
    """Opens a session of an `Artefact` on the requested provider.

    It is an `onnxruntime.InferenceSession`, or a `StepsSession` if the artefact has two files.

    Args:
        artefact: Artefact, from `read_artefact`.
        providers, threads, arena, spinning: as in `Translator`.

    Raises:
        ArtefactError: onnxruntime refuses the model, or the manifest names other inputs and
            outputs.
        ProviderError: a provider is missing, did not come up, or does not suit the precision.
        ValueError: `threads` is less than 1, or more than `MOST_THREADS`.
    """
    providers = choose_providers(providers, artefact.manifest["precision"])
    name = _name(providers[0])
    if name == CUDA and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds CUDA and cuDNN where pip installed them
    if threads is None and name == CPU and is_small_search(artefact.manifest):
        threads = 1
    sessions, opened = [], {}
    for path in artefact.model_paths:
        # Threads that spin after the first of two files would slow down the steps. Its outputs
        # change shape in almost every call, so a CUDA graph of it would not be reused.
        last = path == artefact.model_paths[-1]
        options = session_options(threads, arena, spinning and last)
        chosen = providers if last else [without_graphs(provider) for provider in providers]
        session, state = open_file(artefact, path, options, chosen)
        sessions.append(session)
        opened |= state
    session, device = sessions[0], "cuda" if name == CUDA else "cpu"
    if len(sessions) > 1:
        session = StepsSession(*sessions, device, graphs=any(map(records_graphs, providers)))
    manifest = artefact.manifest
    # ONNX Runtime leaves inputs with a default value, the options, out of `get_inputs`.
    for what, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        names = [value.name for value in values]
        check_same(artefact, what, names, [value["name"] for value in manifest[what]])
    for value, entry in zip(session.get_inputs(), manifest["inputs"], strict=True):
        found = _DTYPES.get(value.type, value.type), _sizes(value.shape)
        expected = entry["dtype"], _sizes(entry["axes"])
        check_same(artefact, f"input {value.name!r}", found, expected)
    artefact.check_unchanged(opened)
    return session


def open_file(
    artefact: Artefact,
    path: pathlib.Path,
    options: onnxruntime.SessionOptions,
    providers: list[Any],
) -> tuple[onnxruntime.InferenceSession, dict[str, os.stat_result]]:
    """Opens one file; returns its session, and its `os.fstat` by name if this package read it."""
    file, name = path.resolve(), _name(providers[0])
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.parent)
    )
    try:
        # ONNX Runtime refuses external data behind a symbolic link or a second hard link.
        packing = _packing(artefact.manifest) if name == CPU else {}
        model = MappedModel(file, **packing) if file.stat().st_nlink <= 1 else None
        weights = model.add_arrays(options) if model and name == CPU else {}
        opens = onnxruntime.InferenceSession
        if weights and (model.read_once or model.tables):
            opens = functools.partial(ReleasingSession, model)
        with model.releasing() if model else contextlib.nullcontext():
            session = opens(
                model.graph if model else file, options, providers=providers, enable_fallback=0
            )
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        raise ArtefactError(
            f"onnxruntime {onnxruntime.__version__} cannot run {path} on {name}: {error} It was "
            f"exported with {shorten(artefact.manifest['versions'])}; a release of onnxruntime at "
            "least as new should run it."
        ) from error
    return_freed_memory()
    session.arrays = weights  # the session reads them, but does not keep them alive
    running = sorted({part.ep_name for part in session.get_provider_graph_assignment_info()})
    if name not in running:
        raise ProviderError(
            f"{name} was asked for, but onnxruntime {onnxruntime.__version__} fell back to "
            f"{', '.join(running)} for the whole model. For {CUDA} repair the CUDA libraries (the "
            "extra 'serve-gpu' brings them; the driver must be as new as they are); else pass "
            f"providers=[{CPU!r}]."
        )
    return session, {path.name: model.opened} if model else {}


class ReleasingSession(onnxruntime.InferenceSession):
    """A session that releases pages of a model's weights: see `mapped_model`."""

    def __init__(self, model: MappedModel, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._model = model

    def run(self, *args: Any, **options: Any) -> list[Any]:
        with self._model.releasing(self._model.read_once):
            try:
                return super().run(*args, **options)
            finally:
                self._model.release(self._model.tables)


def _packing(manifest: dict[str, Any]) -> dict[str, bool]:
    """Returns the options of `MappedModel` that suit an artefact.

    `Transcriber` decodes one window at a time. In float32 the start of its search runs once for a
    window and reads all weights of a step, so packing them twice does not pay; their pages are
    released during the search. The product of one row and a matrix reads each weight once, so
    greedy search does not pack them at all.
    """
    if manifest.get("task") != "transcribe" or manifest["precision"] != "float32":
        return {}
    config = (manifest.get("search") or {}).get("config", {})
    return {"pack_loop": config.get("beam_width") != 1, "pack_start": False}


def records_graphs(provider: Any) -> bool:
    """Returns whether the options of a provider enable CUDA graphs."""
    options = {} if isinstance(provider, str) else provider[1]
    return str(options.get(CUDA_GRAPH, 0)).lower() not in ("0", "false")


def without_graphs(provider: Any) -> Any:
    """Returns the provider without the option for CUDA graphs."""
    return (provider[0], {**provider[1], CUDA_GRAPH: "0"}) if records_graphs(provider) else provider


def session_options(threads: int | None, arena: bool, spinning: bool) -> onnxruntime.SessionOptions:
    """Returns options of a session; raises `ValueError` for `threads`, as `open_session`."""
    check_threads("threads", threads)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures also raise; warnings are for exporters
    options.intra_op_num_threads = threads or 0
    options.enable_cpu_mem_arena = arena
    # ONNX Runtime keeps a pattern for each shape. Here almost every batch has a new shape.
    options.enable_mem_pattern = False
    entries = {
        "session.intra_op.allow_spinning": int(spinning),
        "session.intra_op.spin_duration_us": SPIN_MICROSECONDS,
        "session.x64quantprecision": int(products_saturate()),
        # Records the provider of each node: a provider can be available and still run no node.
        "session.record_ep_graph_assignment_info": 1,
    }
    for name, value in entries.items():
        options.add_session_config_entry(name, str(value))
    return options


@functools.cache
def products_saturate() -> bool:
    """Returns whether 8-bit products of this processor saturate, found out by one product.

    Instructions of processors with AVX2 and without VNNI add two products in 16 bits. The option
    `session.x64quantprecision` avoids these instructions. On other processors it changes no result,
    but can make int8 models 1.7 times slower.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_PRODUCT, options, providers=[CPU])
    a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
    return bool(session.run(None, {"a": a, "b": b})[0] != 2 * 255 * 127)


def _sizes(axes: list[Any]) -> list[int | None]:
    """Returns the sizes of axes, `None` for free ones."""
    return [axis if isinstance(axis, int) else None for axis in axes]


def _name(provider: Any) -> str:
    return provider if isinstance(provider, str) else provider[0]


def best_providers(precision: str) -> list[str]:
    """Returns the provider on which a precision is meant to run, available or not."""
    available = CUDA in onnxruntime.get_available_providers()
    cuda = precision == "float16" or (available and precision in PRECISIONS_FOR_CUDA)
    return [CUDA] if cuda else [CPU]


def choose_providers(providers: list[Any] | None, precision: str) -> list[Any]:
    """Returns `providers`, or the default for None.

    Raises:
        ProviderError: a provider is missing, or does not suit `precision`.
    """
    available = onnxruntime.get_available_providers()
    if providers is None:
        cuda = CUDA in available and precision in PRECISIONS_FOR_CUDA
        providers = [CUDA] if cuda else [CPU]
    if isinstance(providers, str) or not providers:
        raise ProviderError(f"`providers` must be a list such as [{CPU!r}], got {providers!r}.")
    for name in map(_name, providers):
        if name not in available:
            raise ProviderError(
                f"{name} is not in this onnxruntime {onnxruntime.__version__}, which has "
                f"{available}. For CUDA use a separate environment, without the package "
                f"onnxruntime: {install('serve-gpu')}"
            )
    first = _name(providers[0])
    if precision == "float16" and first not in _PROVIDERS_FOR_FLOAT16:
        raise ProviderError(
            f"this artefact has precision 'float16', which {first} does not compute. The CPU only "
            "emulates it, slower than float32. Serve it on CUDA, or export it with "
            "precision='float32' or 'int8'."
        )
    if precision not in PRECISIONS_FOR_CUDA and first == CUDA:
        raise ProviderError(
            f"this artefact has precision {precision!r}, whose integer products {CUDA} leaves to "
            f"the CPU. Pass providers=[{CPU!r}], or export it with precision='float16' or "
            "precision='weight_int8'."
        )
    return list(providers)
