"""Exporters to ONNX, SavedModel and other engines, and the runtime that serves artefacts.

This folder is imported as `keras_transformer.export`.

Contents:

- `exporter`, shared by all exporters: a `Format` writes files and runs them, and `export` stages,
  proves and seals them;
- `onnx_model`, `litert_model`, `saved_model`, `ctranslate2_model`, `marian_folder` and `triton`,
  one exporter each; `artefact_files`, the manifest that the first two write; `litert_operators`,
  replacements for operators that LiteRT lacks; `attention`, which exports a translator's
  attention with `onnx_model`;
- `arguments`, the arguments of exporters and their common checks; `prepare`, the table of rules,
  and from arguments to a task; `float32`, copies of models; `model_inputs`, what a model reads;
  `encoder_decoder`, shared by the exporters to other engines; `staging`, atomic writes of folders;
- `tasks`, the functions to export; `graph`, passes over an ONNX graph; `text_model` and
  `text_graph`, the ONNX file from strings to strings;
- `proof`, the comparison with Keras in a second process; `compare`, the same on your own lines;
- `__main__`, the command line of all exporters; `command`, the options and messages that it shares
  with the command of the importers;
- `hub`, which shares an artefact by name with a model card; `verify`, the command that checks one;
- `artefact`, the manifest of an exported folder and its reader; `runtime`, inference without a
  framework; `documents`, translation of documents; `serving`, a service; `archive`, batch jobs;
  `ray_cluster`, Ray for both; `web`, JavaScript for browsers.

Imports: all of this package. `runtime` needs no framework, so exporters are imported on first use.
They need Keras; those that trace need TensorFlow, too. A new exporter is one file with a `Format`
and one line in `_EXPORTERS`: docs/architecture.md has an example. A new rule of arguments is one
row in `prepare`, or beside its feature. A new task is one class in `tasks`.
"""

from importlib import import_module

from keras_transformer.startup import install

# Public name -> module of this package that defines it.
_EXPORTERS = {
    "Classification": "artefact.task_heads",
    "Comparison": "compare",
    "ExportError": "staging",
    "FeatureExtraction": "artefact.task_heads",
    "Heads": "artefact.task_heads",
    "QuestionAnswering": "artefact.task_heads",
    "TokenClassification": "artefact.task_heads",
    "compare_with_keras": "compare",
    "describe": "hub",
    "export_attention": "attention",
    "export_ctranslate2": "ctranslate2_model",
    "export_litert": "litert_model",
    "export_marian": "marian_folder",
    "export_onnx": "onnx_model",
    "export_saved_model": "saved_model",
    "export_triton": "triton",
    "push_to_hub": "hub",
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
            raise  # a broken installation, which no extra fixes
        raise ImportError(
            f"keras_transformer.export.{name} needs {package}, which is not installed here. "
            f"Install it with: {install('train,export')}",
            name=package,
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
