"""Opens the text model of an artefact: strings in, strings out, with onnxruntime-extensions."""

import sys
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.types import StrPath

# TensorFlow and onnxruntime-extensions link libraries of the same names. If TensorFlow is loaded
# first, onnxruntime-extensions crashes at the first text.
_RIVALS = ("tensorflow", "tensorflow_text")


def open_text_model(
    folder: StrPath,
    providers: list[Any] | None = None,
    *,
    threads: int | None = None,
    arena: bool = True,
    spinning: bool = True,
) -> Any:
    """Opens `text_model.onnx` of an artefact: texts in, texts and scores out.

    Its operators need onnxruntime-extensions, which crashes in a process that has imported
    TensorFlow. This function then raises an error. `Translator` and `Generator` do not need this
    file and run beside TensorFlow.

    Args:
        folder: str or path, the folder that `export_onnx(..., text=True)` wrote.
        providers, threads, arena, spinning: as in `Translator`.

    Returns:
        `onnxruntime.InferenceSession`. Its input `text` (B,) takes strings, its outputs are `texts`
        (B, W) and `scores` (B, W). A model that samples has a second input, the scalar `seed`.

    Raises:
        ArtefactError: the folder is missing or damaged, or holds no such file.
        RuntimeError: this process has imported TensorFlow.
        ImportError: onnxruntime-extensions is not installed.
        ProviderError, ValueError: as in `Translator`.

    Example:

    >>> session = open_text_model("out/onnx")  # doctest: +SKIP
    >>> texts, scores = session.run(None, {"text": ["A man rides a bicycle."]})  # doctest: +SKIP
    """
    from keras_transformer.export.runtime.session import (
        choose_providers,
        open_file,
        session_options,
    )

    artefact = read_artefact(folder)
    if artefact.manifest["text"] is None:
        raise ArtefactError(
            f"{artefact.folder} holds no {signature.TEXT_MODEL_FILE}. Export the model with "
            "text=True, or serve it with Translator or Generator."
        )
    options = session_options(threads, arena, spinning)
    providers = choose_providers(providers, artefact.manifest["precision"])
    register_extensions(options)
    path = artefact.folder / signature.TEXT_MODEL_FILE
    session, opened = open_file(artefact, path, options, providers)
    artefact.check_unchanged(opened)
    return session


def register_extensions(options: Any) -> None:
    """Registers the operators of onnxruntime-extensions.

    Raises:
        RuntimeError, ImportError: as `open_text_model` does.
    """
    loaded = [name for name in _RIVALS if sys.modules.get(name) is not None]
    if loaded:
        raise RuntimeError(
            f"This process has imported {' and '.join(loaded)}. onnxruntime-extensions would now "
            "end it by a segmentation fault. Open the text model in a process without "
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
