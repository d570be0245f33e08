"""Exporters to SavedModel and ONNX, and the runtime that serves what they write.

What lives here: the exporters (`onnx_model`, `saved_model`, `attention`, and `text_model` with its
nodes in `text_graph` and `text_bytes`; to other engines `ctranslate2_model` and `marian_folder`,
with what these share in `encoder_decoder`), their arguments (`arguments`), a model in float32
(`float32`), what a task has to export (`tasks`), whether its outputs are what they are said to be
(`heads`), the proof that an export gives what Keras gives (`verify`, `probe`), the same on texts of
a user's own (`compare`, `apart`), folders that appear whole (`staging`), the command line
(`__main__`), the passes over a graph (`graph`), what another server wants (`triton`,
`triton_config`), names, manifest and reader of what is written (`artefact`), our server's side
(`runtime`), a service of it (`serving`), archives of text
(`archive`) and the browser's side (`web`, in JavaScript).

What may be imported: everything of this package; nothing of it imports this folder. `runtime`
needs no framework, so the exporters, which need TensorFlow, are imported when first asked for. A
new exporter is one file and one line in `_EXPORTERS`; a new task is one class in `tasks`.
"""

from importlib import import_module

# Public name -> module of this package that defines it.
_EXPORTERS = {
    "Classification": "artefact.heads",
    "Comparison": "compare",
    "ExportError": "staging",
    "FeatureExtraction": "artefact.heads",
    "QuestionAnswering": "artefact.heads",
    "TokenClassification": "artefact.heads",
    "compare_with_keras": "compare",
    "export_attention": "attention",
    "export_ctranslate2": "ctranslate2_model",
    "export_marian": "marian_folder",
    "export_onnx": "onnx_model",
    "export_saved_model": "saved_model",
    "export_triton": "triton",
}

__all__ = sorted(_EXPORTERS)


def __getattr__(name: str) -> object:
    if name not in _EXPORTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_EXPORTERS[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "keras_transformer":
            raise  # a broken installation, which no extra mends
        raise ImportError(
            f"keras_transformer.export.{name} needs {package}, which is not installed here. "
            "Install it with: pip install 'keras-transformer-onnx[tensorflow,export]'",
            name=package,
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
