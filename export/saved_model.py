"""Export to SavedModel: strings in, translations out, for servers that use TensorFlow.

Shapes: B sentences, W hypotheses, S source length, T target length.
"""

import inspect
import itertools
import json
import keyword
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export.arguments import (
    check_arguments,
    check_graph_tokenizers,
    check_head,
    check_head_alone,
    check_options,
    check_weights,
)
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import Head, describe_head
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.proof import comparison, run_exported
from keras_transformer.export.staging import Progress, staged
from keras_transformer.export.tasks import ForwardTask, SearchTask, Task
from keras_transformer.export.tasks.samples import proof_texts
from keras_transformer.export.tasks.search import ExportableSearch
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath, Tensor

SAVED_MODEL_FILE = "saved_model.pb"
# TensorFlow runs the search both times, so only the order of summation differs.
TOLERANCE = 1e-4


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
    tolerance: float = TOLERANCE,
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
        tolerance: largest difference from Keras' numbers, relative to their size. Defaults to 1e-4.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Raises:
        TypeError, ValueError: an invalid argument.
        ExportError: a check failed. `path` is unchanged.

    Example:

    >>> export_saved_model(model, "out/saved_model", tokenizer, BeamSearch(4))  # doctest: +SKIP
    >>> translate = tf.saved_model.load("out/saved_model").signatures["translate"]  # doctest: +SKIP
    >>> translate(text=tf.constant(["A man rides a bicycle."]))  # doctest: +SKIP
    """
    check_arguments(model, tokenizer, search, max_length, target_tokenizer=target_tokenizer)
    check_head_alone(head, search)
    if search is not None:
        otherwise = "Leave it out: then the signature `search` takes and gives ids"
        check_graph_tokenizers(tokenizer, target_tokenizer, otherwise)
    check_options(options, search)
    check_weights(model)
    passed, model = model, as_float32(model)
    forward = ForwardTask(model, head, passed)
    _check_names(forward.specs)
    check_head(forward, tokenizer)
    gives_logits = forward.outputs == [signature.LOGITS]
    tasks: dict[str, Task] = {signature.LOGITS if gives_logits else signature.FORWARD: forward}
    if search is not None:
        task = SearchTask(model, search, max_length, options=options, passed=passed)
        tasks[signature.SEARCH] = task
    last = list(tasks)[-1]
    cases = {name: task.cases(samples if name == last else None) for name, task in tasks.items()}
    progress = Progress(verbose)
    with staged(path, why_not_saved_model) as folder:
        with progress("tracing"):
            functions = {}
            for name, task in tasks.items():
                functions |= _signatures(name, task.function, task.specs, task.option_defaults)
            if search is not None:
                name = signature.SEARCH + signature.WITH_OPTIONS
                tasks[name], first = task, cases[signature.SEARCH][0]
                cases[name] = [{**first, **task.option_defaults}]
            if search is not None and tokenizer is not None:
                function, specs = _text_function(task, tokenizer, target_tokenizer)
                functions |= _signatures(task.name, function, specs, task.option_defaults)
                cases[task.name] = _text_cases(task, tokenizer, cases[signature.SEARCH])
        with progress("writing"), warnings.catch_warnings():
            # TensorFlow's saving code uses deprecated NumPy calls.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = tf.Module()
            module.weights = [variable.value for variable in model.variables]
            module.tables = [
                item
                for layer in model._flatten_layers()
                for item in vars(layer).values()
                if isinstance(item, tf.lookup.StaticHashTable)
            ]
            module.functions = functions
            tf.saved_model.save(module, str(folder), signatures=functions)
        if head is not None:
            extra = folder / "assets.extra"  # TensorFlow's folder for other files
            extra.mkdir()
            (extra / "head.json").write_text(json.dumps(describe_head(head)), encoding="utf-8")
        with progress("proving it in a process without Keras"):
            _prove(folder, tasks, functions, cases, tolerance)


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


def _signatures(
    name: str,
    function: Callable[..., Any],
    specs: Mapping[str, tf.TensorSpec],
    defaults: Mapping[str, Array],
) -> dict[str, Any]:
    """Returns the signature `name` of a function; with defaults also a second one.

    The second one also takes the inputs with defaults. The first one calls it with these defaults,
    because Python requires all inputs of a signature.
    """
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


def _text_function(
    task: SearchTask, tokenizer: Tokenizer, target_tokenizer: Tokenizer | None
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    """Returns a function that tokenizes, searches and decodes, and its input specs.

    Input ends at a NUL character, as in onnxruntime-extensions, and NUL in the output becomes
    U+FFFD. So SavedModel and text model agree on every string.
    """
    target_tokenizer = target_tokenizer or tokenizer
    special = signature.SPECIAL_IDS

    def transcribe(**inputs: Tensor) -> dict[str, Tensor]:
        found = task.function(**inputs)
        tokens = found[signature.TOKEN_IDS]
        # The model may have more ids than the tokenizer.
        tokens = tf.where(tokens < target_tokenizer.vocab_size, tokens, special["unknown"])
        texts = target_tokenizer.tf_decode(tokens)
        texts = tf.strings.regex_replace(texts, r"\x00", signature.REPLACEMENT)
        return {signature.TEXTS: texts, signature.SCORES: found[signature.SCORES]}

    def translate(text: Tensor, **options: Tensor) -> dict[str, Tensor]:
        text = tf.strings.regex_replace(text, r"(?s)\x00.*", "")
        ids = tokenizer.tf_encode(text)  # ragged (B, S)
        blank = tf.strings.regex_full_match(text, signature.BLANK) | (ids.row_lengths() == 0)
        blank = blank[:, tf.newaxis]  # (B, 1)
        generate = task.name == "generate"
        mark = tf.fill([tf.shape(text)[0], 1], special["begin" if generate else "end"])
        ids = tf.concat([mark, ids] if generate else [ids, mark], axis=1)
        found = transcribe(**{signature.SOURCE_IDS: ids.to_tensor(special["pad"])}, **options)
        scores = found[signature.SCORES]
        nothing = np.where(np.arange(scores.shape[1]) < 1, 0.0, -np.inf).astype("float32")
        return {
            signature.TEXTS: tf.where(blank, "", found[signature.TEXTS]),
            signature.SCORES: tf.where(blank, nothing, scores),
        }

    if not task.reads_ids:
        return transcribe, task.specs
    specs = {signature.TEXT: tf.TensorSpec([None], tf.string, signature.TEXT), **task.specs}
    del specs[signature.SOURCE_IDS]
    return translate, specs


def _text_cases(
    task: SearchTask, tokenizer: Tokenizer, cases: Sequence[dict[str, Array]]
) -> Sequence[dict[str, Array]]:
    """Returns inputs that test the signature of strings."""
    if not task.reads_ids:
        return cases[:1]
    seed = {signature.SEED: np.array(17, np.int32)} if task.random else {}
    return [{signature.TEXT: np.array(proof_texts(tokenizer, task.longest)), **seed}]


def _prove(
    folder: pathlib.Path,
    tasks: Mapping[str, Task],
    functions: Mapping[str, Any],
    cases: Mapping[str, Sequence[Mapping[str, Array]]],
    tolerance: float,
) -> None:
    """Compares each signature of the folder with Keras, or with the function that was written."""
    pairs = [(name, case) for name, some in cases.items() for case in some]
    names, every = zip(*pairs, strict=True)
    found = iter(run_exported([folder], every, signatures=names).outputs)
    for name, some in cases.items():
        outputs = list(itertools.islice(found, len(some)))
        if name in tasks:
            expected = [tasks[name].expected(case) for case in some]
            tasks[name].compare(some, expected, outputs, tolerance)
            continue
        tensors = {key: tf.constant(array) for key, array in some[0].items()}
        expected = {key: tensor.numpy() for key, tensor in functions[name](**tensors).items()}
        texts = np.char.decode(expected[signature.TEXTS].astype(bytes), "utf-8")
        comparison.compare_texts({**expected, signature.TEXTS: texts}, outputs[0], tolerance)


def why_not_saved_model(folder: pathlib.Path) -> str | None:
    """Returns why a folder is not a result of `export_saved_model`, or `None`."""
    for item in sorted(folder.iterdir()):
        if not _is_part_of_saved_model(item):
            return f"{item.name} is not part of a SavedModel"
    if not (folder / SAVED_MODEL_FILE).exists():
        return f"it has no {SAVED_MODEL_FILE}"
    return None


def _is_part_of_saved_model(item: pathlib.Path) -> bool:
    if item.is_file():
        return item.name in (SAVED_MODEL_FILE, "fingerprint.pb")
    names = [file.name for file in item.iterdir()]
    if item.name == "variables":
        return all(name.startswith("variables.") for name in names)
    # The tokenizer is in the graph, so `assets` is empty.
    return names == {"assets": [], "assets.extra": ["head.json"]}.get(item.name)
