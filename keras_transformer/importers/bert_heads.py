"""What a BERT folder describes beside its encoder: a head, or the modules of a sentence encoder.

`architectures` in `config.json` names a class of `transformers`, such as
`BertForSequenceClassification`; `CLASSES` lists the ends after "For".
`modules.json` of Sentence-Transformers lists modules that run one after the other. A new head is
one line in `CLASSES` and one function that returns its outputs.

Shapes: B batch, S tokens, C classes, D d_model, V vocabulary.
"""

import functools
import json
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras import layers

from keras_transformer.export.artefact.task_heads import (
    Classification,
    FeatureExtraction,
    Head,
    Heads,
    QuestionAnswering,
    TokenClassification,
)
from keras_transformer.importers import checkpoint
from keras_transformer.importers.tables import Arrays, Table, shape_of
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.types import Array, StrPath, Tensor

Config: TypeAlias = Mapping[str, Any]
MULTI_LABEL = "multi_label_classification"
POOLINGS = ("cls", "max", "mean")  # in the order in which Sentence-Transformers joins them
# Modules of folders without `modules.json`: types and folders.
DEFAULT_MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", ""))
DENSE_ACTIVATIONS = {"Identity": "linear", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


def labels(config: Config) -> list[str]:
    """Returns the names of the classes, in the order of the logits.

    Raises:
        ValueError: `id2label` is no object from "0", "1" and so on to names.
    """
    count = config.get("num_labels", 2)
    names = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    numbers = [str(i) for i in range(len(names))]
    if not isinstance(names, dict) or {*names} != {*numbers}:
        raise ValueError(
            f"id2label in config.json must be an object from the numbers {numbers[:3]} and so on "
            f"to names of classes, but is {names!r:.100}. Copy the file again."
        )
    return [str(names[number]) for number in numbers]


def _pooled(vectors: Tensor, config: Config) -> Tensor:
    """Returns BERT's pooled vector (B, D) of the first token."""
    activation = config.get("pooler_activation", "tanh")
    return layers.Dense(config["hidden_size"], activation, name="pooler")(vectors[:, 0])


def _linear(x: Tensor, config: Config, name: str, size: int) -> Tensor:
    """Returns float32 logits of a linear layer after dropout."""
    rate = config.get("classifier_dropout")
    x = layers.Dropout(config["hidden_dropout_prob"] if rate is None else rate)(x)
    return layers.Dense(size, dtype="float32", name=name)(x)


def _classes(vectors: Tensor, config: Config) -> Any:
    """Logits (B, C) of the pooled vector; for several labels at once a dict of logits (B, 1)."""
    names = labels(config)
    logits = _linear(_pooled(vectors, config), config, "classifier", len(names))
    if config.get("problem_type") == MULTI_LABEL:
        return {name: logits[:, i : i + 1] for i, name in enumerate(names)}
    return logits


def _tags(vectors: Tensor, config: Config) -> Tensor:
    """Logits (B, S, C)."""
    return _linear(vectors, config, "classifier", len(labels(config)))


def _answer(vectors: Tensor, config: Config) -> dict[str, Tensor]:
    """Logits (B, S) of the first and of the last token of an answer."""
    logits = _linear(vectors, {**config, "hidden_dropout_prob": 0.0}, "qa_outputs", 2)
    return {"start": logits[..., 0], "end": logits[..., 1]}


def _words(vectors: Tensor, config: Config) -> Tensor:
    """Logits (B, S, V) of the masked words. Their matrix is a copy of the embedding."""
    activation = checkpoint.activation(config, "hidden_act")
    x = layers.Dense(config["hidden_size"], activation, name="transform")(vectors)
    epsilon = config["layer_norm_eps"]
    x = layers.LayerNormalization(epsilon=epsilon, name="transform_norm")(x)
    return layers.Dense(config["vocab_size"], dtype="float32", name="words")(x)


def _head_of_classes(config: Config) -> Head | None:
    """Returns the head of logits (B, C); `None` for numbers without classes (regression)."""
    names, problem = labels(config), config.get("problem_type")
    if problem == MULTI_LABEL:
        return Heads(**{name: Classification([f"not {name}", name]) for name in names})
    return None if problem == "regression" or len(names) == 1 else Classification(names)


class Class(NamedTuple):
    """A head: a class of `transformers`, or the modules of a sentence encoder.

    Attributes:
        tensors: dict from the head's tensors and layers to our layers, as in `tables.Table`.
        build: function of the encoder's output (B, S, D) and the configuration, which returns the
            outputs of the model.
        head: function of the configuration, which returns the `Head` of an export or `None`.
        classes: function of the configuration, which returns the number of classes C.
        segments: whether the class may read two texts in a row.
        arrays: dict from our path to array, of weights in other files.
    """

    tensors: Mapping[str, str]
    build: Callable[[Tensor, Config], Any]
    head: Callable[[Config], Head | None]
    classes: Callable[[Config], int] = lambda config: len(labels(config))
    segments: bool = False
    arrays: Mapping[str, Array] = {}


WORDS = {
    "cls.predictions.transform.dense.*": "transform",
    "cls.predictions.transform.LayerNorm.*": "transform_norm",
    "cls.predictions.decoder.weight": "words/kernel",
    "cls.predictions.bias": "words/bias",
}
_MASKED = Class(WORDS, _words, lambda config: None)
CLASSES = {
    "MaskedLM": _MASKED,
    "PreTraining": _MASKED,
    "QuestionAnswering": Class(
        {"qa_outputs.*": "qa_outputs"},
        _answer,
        lambda config: QuestionAnswering(),
        lambda config: 2,
        segments=True,
    ),
    "SequenceClassification": Class(
        {"pooler.dense.*": "pooler", "classifier.*": "classifier"},
        _classes,
        _head_of_classes,
        segments=True,
    ),
    "TokenClassification": Class(
        {"classifier.*": "classifier"}, _tags, lambda config: TokenClassification(labels(config))
    ),
}


def described(folder: pathlib.Path, config: Config) -> Class | None:
    """Returns the head that `modules.json` or `architectures` describes, or `None`."""
    if (folder / "modules.json").exists():
        return sentences(folder)
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ValueError(
            f"architectures in config.json must be a list of names, but is {names!r:.100}. Copy "
            "the file again."
        )
    kinds = [str(name).rpartition("For")[2] for name in names]
    return next((CLASSES[kind] for kind in kinds if kind in CLASSES), None)


def read_modules(folder: StrPath) -> list[tuple[str, str]]:
    """Reads types and folders of the modules in `modules.json`; `DEFAULT_MODULES` without it.

    Raises:
        ValueError: the file has another content, or names a module that is not supported.
    """
    path = pathlib.Path(folder) / "modules.json"
    if not path.exists():
        return list(DEFAULT_MODULES)
    try:
        read = json.loads(path.read_text("utf-8"))
        found = [(str(m["type"]).rpartition(".")[2], str(m.get("path") or "")) for m in read]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must hold a list of objects, each with a type. Copy the file again."
        ) from error
    names = [name for name, _ in found]
    fits = names[:2] == ["Transformer", "Pooling"] and {*names[2:]} <= {"Dense", "Normalize"}
    if not fits or found[0][1]:
        raise ValueError(
            f"{path} has the modules {names}, but only a Transformer in the same folder, a "
            "Pooling, and then Dense and Normalize are supported. Load the encoder with "
            "`load_model`, and add the other layers to it."
        )
    return found


def sentences(folder: pathlib.Path) -> Class:
    """Returns the head of a sentence encoder."""
    steps: list[Callable[[Tensor], Tensor]] = []
    arrays: Arrays = {}
    modules = read_modules(folder)[1:]
    for number, (name, place) in enumerate(modules):
        path = folder / pathlib.PurePath(place).name
        if name == "Pooling":
            steps.append(functools.partial(_pool, _poolings(path / "config.json")))
        elif name == "Dense":
            layer, more = _dense(path, f"dense_{number}")
            steps.append(layer)
            arrays |= more
        else:
            last = {"name": "vector"} if number == len(modules) - 1 else {}
            steps.append(layers.UnitNormalization(dtype="float32", **last))

    def build(vectors: Tensor, config: Config) -> Tensor:
        warn_of_texts(folder)
        for step in steps:
            vectors = step(vectors)
        return vectors

    return Class({}, build, lambda config: FeatureExtraction(), lambda config: 0, arrays=arrays)


def _poolings(path: pathlib.Path) -> list[str]:
    """Returns the poolings of a module's configuration; the mean without a file."""
    read = checkpoint.read_json(path) if path.exists() else {"pooling_mode": "mean"}
    start = "pooling_mode_"
    ends = {f"{start}{name}_token{'' if name == 'cls' else 's'}": name for name in POOLINGS}
    asked = [ends.get(key, key) for key, on in read.items() if key.startswith(start) and on is True]
    given = read.get("pooling_mode") or []
    asked += [given] if isinstance(given, str) else given
    if not asked or not {*asked} <= {*POOLINGS}:
        raise ValueError(f"{path} asks for {asked}, but only {', '.join(POOLINGS)} are supported.")
    return [name for name in POOLINGS if name in asked]


def _pool(names: Sequence[str], vectors: Tensor) -> Tensor:
    """Returns the pooled vectors (B, D), joined."""
    parts = [
        vectors[:, 0] if name == "cls" else SequencePooling(name, name=name)(vectors)
        for name in names
    ]
    return parts[0] if len(parts) == 1 else layers.Concatenate(name="poolings")(parts)


def _dense(folder: pathlib.Path, ours: str) -> tuple[layers.Dense, Arrays]:
    """Returns the layer of a Dense module, and its weights by our paths."""
    read = checkpoint.read_json(folder / "config.json")
    name = str(read.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in DENSE_ACTIVATIONS:
        raise ValueError(
            f"{folder / 'config.json'} has the activation {name!r:.100}, but must have one of "
            f"{sorted(DENSE_ACTIVATIONS)}."
        )
    tensors, use_bias = checkpoint.read_tensors(folder), read.get("bias", True)
    outputs, inputs = shape_of(tensors, "linear.weight", 2, "Copy the folder again.")
    sizes, without = {"D": inputs, "C": outputs}, "" if use_bias else ".*/bias"
    arrays = Table({"linear.*": ours}, sizes, without=without).read(tensors)
    return layers.Dense(outputs, DENSE_ACTIVATIONS[name], use_bias=use_bias, name=ours), arrays


def warn_of_texts(folder: StrPath) -> None:
    """Warns of what Sentence-Transformers does to a text before the tokenizer, and we do not."""
    path = pathlib.Path(folder) / "config_sentence_transformers.json"
    prompts = checkpoint.read_json(path).get("prompts") if path.exists() else None
    found = {name: text for name, text in (prompts or {}).items() if text}
    if found:
        warnings.warn(
            f"{path} has prompts, which are no part of the model: {found}. Put the prompt before "
            "each text yourself.",
            stacklevel=2,
        )
    path = path.with_name("sentence_bert_config.json")
    if path.exists() and checkpoint.read_json(path).get("do_lower_case"):
        warnings.warn(
            f"{path} says do_lower_case, which is no part of the model. Pass texts in lower case.",
            stacklevel=2,
        )
