"""Exporters to SavedModel and ONNX, and the runtime that serves what they write.

The exporters are imported when first asked for: they need TensorFlow, while
`keras_transformer.export.runtime` must be importable without it.
"""

from importlib import import_module

# Public name -> module of this package that defines it.
_EXPORTERS = {
    "ExportError": "staging",
    "export_onnx": "onnx_model",
    "export_saved_model": "saved_model",
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
