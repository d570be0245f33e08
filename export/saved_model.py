"""Export to SavedModel: strings in, translations out, for servers that use TensorFlow.

Shapes: B sentences, W hypotheses, S source length, T target length.
"""

import inspect
import json
import keyword
import pathlib
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export.arguments import Arguments
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import Head, describe_head
from keras_transformer.export.exporter import Case, Format, Part, export, part_of
from keras_transformer.export.prepare import prepare
from keras_transformer.export.proof import run_exported
from keras_transformer.export.staging import Progress, WhyNot
from keras_transformer.export.tasks import ForwardTask, SearchTask, Task
from keras_transformer.export.tasks.search import ExportableSearch
from keras_transformer.export.tasks.text import TextTask
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath, Tensor

SAVED_MODEL_FILE = "saved_model.pb"
# The files and folders. The tokenizer is in the graph, so `assets` is empty.
PARTS = re.compile(
    r"(saved_model|fingerprint)\.pb|variables/(variables\.[^/]+)?|assets/|assets\.extra/(head\.json)?"
)


def export_saved_model(
    model: keras.Model,
    path: StrPath,
    tokenizer: Tokenizer | None = None,
    search: ExportableSearch | None = None,
    *,
    target_tokenizer: Tokenizer | None = None,
    head: Head | None = None,
    max_length: int | None = None,
    options: Sequence[str] = (),
    samples: Sequence[Any] | None = None,
    tolerance: float | None = None,
    verbose: bool = True,
) -> None:
    """Writes a SavedModel that needs only TensorFlow, and for strings tensorflow-text.

    Its signatures have inputs and outputs by name (`export.artefact.signature`):

    | signature | with | inputs | outputs |
    | --- | --- | --- | --- |
    | `translate` | `search`, `tokenizer` | `text` (B,) | `texts` (B, W), `scores` (B, W) |
    | `search` | `search` | `source_ids` (B, S) | `token_ids` (B, W, T), `scores` (B, W) |
    | `logits` | a model of logits | the model's inputs | `logits` |
    | `forward` | another model | the model's inputs | the model's outputs |

    The first is called `generate` for a `CausalTransformer`. For an encoder that reads no ids it is
    called `transcribe`; this signature and `search` take the encoder's inputs.

    `translate_with_options` and `search_with_options` also take the options of a search call. The
    SavedModel holds their defaults, and TensorFlow Serving fills in options that a request leaves
    out. In Python, pass all of them.

    With `Sampling` the first two also take the scalar `seed`. A text becomes its pieces and the
    end token. For a `CausalTransformer` it becomes the begin token and its pieces, which the search
    continues. Blank text gives one empty hypothesis of score 0. Before the folder appears, a
    process without Keras loads it. Its results are compared with Keras' results.

    Args:
        model: `Transformer`, `CausalTransformer` or a model of `importers.keras_hub` with `search`;
            any functional Keras model without. It is exported in float32, whatever its dtype
            policy.
        path: folder to write. An earlier SavedModel at this place is replaced in one step, at the
            end.
        tokenizer: `Tokenizer`, whose model is written into the SavedModel. Defaults to `None`.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer`.
        search: `GreedySearch`, `BeamSearch` or `Sampling`. Defaults to `None`: the forward pass
            only.
        head: meaning of the outputs of a model without search, as in `export_onnx`. The export
            checks it and writes `assets.extra/head.json`; signatures give the model's outputs.
            Defaults to `None`.
        max_length: maximum number of generated tokens, including the end token. Defaults to
            `None`: the source's length + 50, or the limit of a model with learned positions.
        options: names of further options of a call, as in `export_onnx`. Defaults to none.
        samples: inputs for the proof: arrays of ids (B, S) for a search, or dicts of arrays.
            Defaults to `None`: random ones.
        tolerance: largest difference from Keras' numbers, relative to their size. Defaults to
            `None`: 1e-4.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Raises:
        TypeError, ValueError: an invalid argument.
        ExportError: a check failed. `path` is unchanged.

    Example:

    >>> export_saved_model(model, "out/saved_model", tokenizer, BeamSearch(4))  # doctest: +SKIP
    >>> translate = tf.saved_model.load("out/saved_model").signatures["translate"]  # doctest: +SKIP
    >>> translate(text=tf.constant(["A man rides a bicycle."]))  # doctest: +SKIP
    """
    in_graph = "Leave it out: then the signature `search` takes and gives ids"
    task = prepare(
        Arguments(
            model,
            tokenizer,
            search,
            target_tokenizer=target_tokenizer,
            head=head,
            max_length=max_length,
            options=options,
            in_graph=in_graph if search else "",
        )
    )
    made = SavedModel(task, samples, tokenizer, target_tokenizer)
    made.tolerance = tolerance
    export(path, made, verbose=verbose)


def why_not_saved_model(folder: pathlib.Path) -> str | None:
    """Returns why a folder is not a result of `export_saved_model`, or `None`."""
    for item in folder.rglob("*"):
        path = item.relative_to(folder)
        if not PARTS.fullmatch(path.as_posix() + "/" * item.is_dir()):
            return f"{path.parts[0]} is not part of a SavedModel"
    if not (folder / SAVED_MODEL_FILE).exists():
        return f"it has no {SAVED_MODEL_FILE}"
    return None


class SavedModel(Format):
    """A SavedModel with a signature for each of its parts.

    Args:
        task: `SearchTask` or `ForwardTask`.
        samples: inputs for the proof, or `None`.
        tokenizer, target_tokenizer: tokenizers to write into the SavedModel, or `None`.
    """

    why_not: WhyNot = staticmethod(why_not_saved_model)

    def __init__(
        self,
        task: Task,
        samples: Sequence[Any] | None,
        tokenizer: Tokenizer | None,
        target_tokenizer: Tokenizer | None,
    ) -> None:
        self.model: keras.Model = task.model
        is_search = isinstance(task, SearchTask)
        self.forward: ForwardTask = ForwardTask(task.model, passed=task.passed)
        if not is_search:
            self.forward = task
        _check_names(self.forward.specs)
        gives_logits = self.forward.outputs == [signature.LOGITS]
        name = signature.LOGITS if gives_logits else signature.FORWARD
        self.parts: Sequence[Part] = [part_of(self.forward, None if is_search else samples, name)]
        if is_search:
            searched = part_of(task, samples, signature.SEARCH)
            case = {**searched.cases[0], **task.option_defaults}
            self.parts.append(searched)
            self.parts.append(Part(task, [case], signature.SEARCH + signature.WITH_OPTIONS))
        if is_search and tokenizer is not None:
            text = TextTask(task, tokenizer, target_tokenizer)
            self.parts.append(part_of(text, samples, task.name))

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        functions: dict[str, Any] = {}
        with progress("tracing"):
            for part in self.parts:
                if part.name not in functions:  # one task may give two signatures
                    functions |= _signatures(part.name, part.task)
        with progress("writing"), warnings.catch_warnings():
            # TensorFlow's saving code uses deprecated NumPy calls.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = tf.Module()
            module.weights = [variable.value for variable in self.model.variables]
            module.tables = [
                item
                for layer in self.model._flatten_layers()
                for item in vars(layer).values()
                if isinstance(item, tf.lookup.StaticHashTable)
            ]
            module.functions = functions
            tf.saved_model.save(module, str(folder), signatures=functions)
        if self.forward.head is not None:
            extra = folder / "assets.extra"  # TensorFlow's folder for other files
            extra.mkdir()
            description = json.dumps(describe_head(self.forward.head))
            (extra / "head.json").write_text(description, encoding="utf-8")

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        names, cases = zip(*calls, strict=True)
        return run_exported([folder], cases, signatures=names).outputs


def _check_names(names: Iterable[str]) -> None:
    """Raises `ValueError` unless each name may be a keyword argument of a signature."""
    for name in names:
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        if not plain or name.startswith("_") or name == "self":
            raise ValueError(
                f"The input {name!r} cannot be an argument of a signature. Its name must have "
                "ASCII letters, digits and '_' only, begin with a letter, and be neither 'self' "
                "nor a keyword of Python. Build a model with another name: inputs = "
                "keras.Input(..., name='other'); keras.Model(inputs, model(inputs))."
            )


def _signatures(name: str, task: Task | TextTask) -> dict[str, Any]:
    """Returns the signature `name` of a task; with optional inputs also a second one.

    The second one also takes the optional inputs. The first one calls it with their defaults,
    because Python requires all inputs of a signature.
    """
    function, specs, defaults = task.function, task.specs, task.option_defaults
    if not defaults:
        return {name: tf.function(function, autograph=False).get_concrete_function(**specs)}
    constants = {key: tf.constant(array) for key, array in defaults.items()}
    none, kind = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD

    def whole(*inputs: Tensor) -> dict[str, Tensor]:
        return function(**dict(zip(specs, inputs, strict=True)))

    # The writer of SavedModels reads defaults from the signature of the Python function.
    whole.__signature__ = inspect.Signature(
        [inspect.Parameter(key, kind, default=constants.get(key, none)) for key in specs]
    )
    second = tf.function(whole, input_signature=list(specs.values()), autograph=False)
    required = {key: spec for key, spec in specs.items() if key not in defaults}
    first = tf.function(lambda **inputs: second(**inputs, **constants), autograph=False)
    return {
        name: first.get_concrete_function(**required),
        name + signature.WITH_OPTIONS: second,
    }
