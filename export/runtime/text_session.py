"""The model from strings to strings, opened where that is possible: beside no TensorFlow.

Its operators are those of onnxruntime-extensions, a package that serving needs for this file only.
"""

import sys

import onnxruntime

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import shown
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.runtime.session import chosen_providers, session_options

# Both are linked with libraries of the same names. Who comes second ends the process by a
# segmentation fault, at the first text, if TensorFlow was first; the other way round they work.
_RIVALS = ("tensorflow", "tensorflow_text")


def open_text_model(folder, providers=None, *, threads=None, arena=True, spinning=True):
    """Opens `text_model.onnx` of an artefact: texts in, texts and scores out.

    A process that has imported TensorFlow cannot run it: onnxruntime-extensions would end the
    process without a word. This function refuses instead. `Translator` and `Generator` need no
    such file and run beside TensorFlow.

    Args:
        folder: str or path, what `export_onnx(..., text=True)` wrote.
        providers, threads, arena, spinning: as in `Translator`.

    Returns:
        `onnxruntime.InferenceSession`. Its input `text` (B,) takes strings, its outputs are `texts`
        (B, W) and `scores` (B, W); what samples has a second input, the scalar `seed`.

    Raises:
        ArtefactError: the folder is missing or damaged, or holds no such file.
        RuntimeError: TensorFlow was imported in this process before.
        ImportError: onnxruntime-extensions is not installed.
        ProviderError, ValueError: as in `Translator`.

    Example:

    >>> session = open_text_model("out/onnx")  # doctest: +SKIP
    >>> texts, scores = session.run(None, {"text": ["A man rides a bicycle."]})  # doctest: +SKIP
    """
    artefact = read_artefact(folder)
    if artefact.manifest["text"] is None:
        raise ArtefactError(
            f"{artefact.folder} holds no {signature.TEXT_MODEL_FILE}. Export the model with "
            "text=True, or serve it with Translator or Generator."
        )
    options = session_options(threads, arena, spinning)
    providers = chosen_providers(providers, artefact.manifest["precision"])
    register_extensions(options)
    path = artefact.folder / signature.TEXT_MODEL_FILE
    try:
        session = onnxruntime.InferenceSession(
            path, options, providers=providers, enable_fallback=0
        )
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        raise ArtefactError(
            f"onnxruntime {onnxruntime.__version__} cannot run {path}: {error} It was exported "
            f"with {shown(artefact.manifest['versions'])}; releases at least as new should run it."
        ) from error
    artefact.check_unchanged()
    return session


def register_extensions(options):
    """Registers the operators of onnxruntime-extensions with `onnxruntime.SessionOptions`.

    Raises:
        RuntimeError, ImportError: as `open_text_model` does.
    """
    loaded = [name for name in _RIVALS if sys.modules.get(name) is not None]
    if loaded:
        raise RuntimeError(
            f"This process has imported {' and '.join(loaded)}, beside which onnxruntime-extensions"
            " ends the process by a segmentation fault. Open the text model in a process without "
            "TensorFlow, or serve the artefact with Translator or Generator."
        )
    try:
        from onnxruntime_extensions import get_library_path
    except ImportError as error:
        raise ImportError(
            "The text model needs onnxruntime-extensions: pip install onnxruntime-extensions.",
            name="onnxruntime_extensions",
        ) from error
    options.register_custom_ops_library(get_library_path())
