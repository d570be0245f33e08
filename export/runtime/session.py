"""An ONNX Runtime session on the provider that was asked for, or an error: no silent fallback."""

import os
from typing import Any

import onnxruntime

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import shown
from keras_transformer.export.artefact.reader import Artefact, ArtefactError
from keras_transformer.export.runtime.mapped_model import MappedModel
from keras_transformer.export.runtime.steps import StepsSession

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
CUDA_GRAPH = "enable_cuda_graph"  # its option
PRECISIONS_FOR_CUDA = ("float32", "float16")
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
# Threads of a batch, or batches at a time. Each takes memory, and thousands would take all of it.
MOST_THREADS = 16 * (os.cpu_count() or 1)


class ProviderError(ValueError):
    """An execution provider is not to be had, or is the wrong one for the artefact's precision."""


def open_session(artefact, providers=None, *, threads=None, arena=True, spinning=True):
    """A session of an `Artefact`, on the provider that was asked for.

    It is an `onnxruntime.InferenceSession`, or a `StepsSession` where the artefact has two files.

    Args:
        artefact: Artefact, from `read_artefact`.
        providers, threads, arena, spinning: as `Translator` says.

    Raises:
        ArtefactError: onnxruntime refuses the model, or it has other inputs and outputs than the
            artefact says.
        ProviderError: a provider is missing, did not come up, or does not suit the precision.
        ValueError: `threads` is less than 1, or more than `MOST_THREADS`.
    """
    providers = chosen_providers(providers, artefact.manifest["precision"])
    name = _name(providers[0])
    if name == CUDA and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds CUDA and cuDNN where pip put them
    opened, read = [], {}
    for path in artefact.models:
        # Threads that spin after the first of two files would be in the way of the steps, and
        # what it computes has another shape in almost every call.
        last = path == artefact.models[-1]
        options = session_options(threads, arena, spinning and last)
        chosen = providers if last else [without_graphs(provider) for provider in providers]
        session, found = _opened(artefact, path, options, chosen)
        opened.append(session)
        read |= {path.name: found} if found else {}
    if len(opened) > 1:
        device = "cuda" if name == CUDA else "cpu"
        session = StepsSession(*opened, device, graphs=any(map(records_graphs, providers)))
    else:
        (session,) = opened
    for what, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        found = [value.name for value in values]
        _check_same(artefact, what, found, [value["name"] for value in artefact.manifest[what]])
    for value, entry in zip(session.get_inputs(), artefact.manifest["inputs"], strict=True):
        dtype = _DTYPES.get(value.type, value.type)
        found, expected = (dtype, _sizes(value.shape)), (entry["dtype"], _sizes(entry["axes"]))
        _check_same(artefact, f"input {value.name!r}", found, expected)
    artefact.check_unchanged(read)
    return session


def _opened(artefact, path, options, providers):
    """The session of one file, and `os.fstat` of the file if this package read it, or None."""
    file, name = path.resolve(), _name(providers[0])
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.parent)
    )
    try:
        # External data may lie behind neither a symbolic nor a second hard link.
        model = MappedModel(file) if file.stat().st_nlink <= 1 else None
        body_weights = _add_body_weights(options, model) if model and name == CPU else {}
        session = onnxruntime.InferenceSession(
            model.graph if model else file, options, providers=providers, enable_fallback=0
        )
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        raise ArtefactError(
            f"onnxruntime {onnxruntime.__version__} cannot run {path} on {name}: {error} "
            f"It was exported with {shown(artefact.manifest['versions'])}; a release of "
            "onnxruntime at least as new should run it."
        ) from error
    if body_weights:
        session.body_weights = body_weights  # it reads them, but does not keep them alive
        model.release()  # ONNX Runtime has packed them
    running = sorted({part.ep_name for part in session.get_provider_graph_assignment_info()})
    if name not in running:
        raise ProviderError(
            f"{name} was asked for, but onnxruntime {onnxruntime.__version__} fell back to "
            f"{', '.join(running)} for the whole model. For {CUDA} mend the CUDA libraries (the "
            "extra 'serve-gpu' brings them; the driver must be as new as they are); else pass "
            f"providers=[{CPU!r}]."
        )
    return session, model.opened if model else None


def check_threads(name, count):
    """Raises `ValueError` unless `count`, called `name`, is from 1 to `MOST_THREADS`."""
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(
            f"`{name}` must be at least 1, and at most {MOST_THREADS} (16 for each core of this "
            f"machine); got {count}."
        )


def records_graphs(provider):
    """Whether a provider, with its options, is told to record CUDA graphs."""
    options = {} if isinstance(provider, str) else provider[1]
    return str(options.get(CUDA_GRAPH, 0)).lower() not in ("0", "false")


def without_graphs(provider):
    """The provider, told to record no CUDA graphs."""
    return (provider[0], {**provider[1], CUDA_GRAPH: "0"}) if records_graphs(provider) else provider


def session_options(threads, arena, spinning):
    """Options of a session; raises `ValueError` for `threads`, as `open_session` does."""
    if threads is not None:
        check_threads("threads", threads)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails also raises; warnings are for who exports
    options.intra_op_num_threads = threads or 0
    options.enable_cpu_mem_arena = arena
    # A pattern is kept for each shape ever seen, and here almost every batch has a new shape.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    # Records which provider runs which node: one that is there need not run any.
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _add_body_weights(options, model):
    """Gives ONNX Runtime the weights of loops' bodies; returns them, to be kept by the session."""
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: make(array) for name, array in model.body_weights.items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    return values


def _sizes(axes: list) -> list:
    """The sizes of axes, `None` where they are free."""
    return [axis if isinstance(axis, int) else None for axis in axes]


def _check_same(artefact: Artefact, what: str, found: Any, expected: Any) -> None:
    """Raises `ArtefactError` unless the model has what the manifest says."""
    if found != expected:
        raise ArtefactError(
            f"{artefact.model} has the {what} {found}, and {signature.MANIFEST_FILE} says "
            f"{expected}. The files belong to different artefacts: export the model again."
        )


def _name(provider):
    return provider if isinstance(provider, str) else provider[0]


def chosen_providers(providers, precision):
    """`providers`, or the default for None; raises if one is missing or unfit for `precision`."""
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
                f"{available}. For CUDA install 'keras-transformer-onnx[serve-gpu]' in an "
                "environment of its own, without the package onnxruntime."
            )
    first = _name(providers[0])
    if precision == "float16" and first not in _PROVIDERS_FOR_FLOAT16:
        raise ProviderError(
            f"this artefact has precision 'float16', which {first} does not compute, and the CPU "
            "only emulates, slower than float32. Serve it on CUDA, or export it with "
            "precision='float32' or 'int8'."
        )
    if precision not in PRECISIONS_FOR_CUDA and first == CUDA:
        raise ProviderError(
            f"this artefact has precision {precision!r}, whose integer products {CUDA} leaves to "
            f"the CPU. Pass providers=[{CPU!r}], or export it with precision='float16'."
        )
    return list(providers)
