"""What a BERT folder describes beside its encoder: a head, or the modules of a sentence encoder.

`architectures` in `config.json` names a class of `transformers`, which `CLASSES` lists.
`modules.json` of Sentence-Transformers lists modules that run one after the other. A new head is
one line in `CLASSES` and one function that returns its outputs and weights.

Shapes: B batch, S tokens, C classes, D d_model, V vocabulary.
"""

import json
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from keras import layers

from keras_transformer.export.artefact.task_heads import (
    Classification,
    Head,
    Heads,
    QuestionAnswering,
    TokenClassification,
)
from keras_transformer.importers import checkpoint, mapping
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.types import Ids, StrPath, Tensor

Config: TypeAlias = Mapping[str, Any]
# Outputs of the model, and arrays of the head's weights by our paths.
Built: TypeAlias = tuple[Any, mapping.Arrays]
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


def _pooled(vectors: Tensor, config: Config) -> tuple[Tensor, mapping.Targets]:
    """Returns BERT's pooled vector (B, D) of the first token, and its targets."""
    d_model = config["hidden_size"]
    pooled = layers.Dense(d_model, "tanh", name="pooler")(vectors[:, 0])
    return pooled, mapping.linear("pooler.dense", d_model, d_model, "pooler")


def _linear(x: Tensor, config: Config, name: str, size: int) -> tuple[Tensor, mapping.Targets]:
    """Returns float32 logits of a linear layer after dropout, and its targets."""
    rate = config.get("classifier_dropout")
    x = layers.Dropout(config["hidden_dropout_prob"] if rate is None else rate)(x)
    logits = layers.Dense(size, dtype="float32", name=name)(x)
    return logits, mapping.linear(name, config["hidden_size"], size, name)


def _classes(vectors: Tensor, config: Config, tensors: mapping.Arrays, order: Ids) -> Built:
    """Logits (B, C) of the pooled vector; for several labels at once a dict of logits (B, 1)."""
    names = labels(config)
    pooled, targets = _pooled(vectors, config)
    logits, more = _linear(pooled, config, "classifier", len(names))
    targets |= more
    outputs: Any = logits
    if config.get("problem_type") == MULTI_LABEL:
        outputs = {name: logits[:, i : i + 1] for i, name in enumerate(names)}
    return outputs, mapping.mapped(mapping.checked(tensors, targets), targets)


def _tags(vectors: Tensor, config: Config, tensors: mapping.Arrays, order: Ids) -> Built:
    """Logits (B, S, C)."""
    logits, targets = _linear(vectors, config, "classifier", len(labels(config)))
    return logits, mapping.mapped(mapping.checked(tensors, targets), targets)


def _answer(vectors: Tensor, config: Config, tensors: mapping.Arrays, order: Ids) -> Built:
    """Logits (B, S) of the first and of the last token of an answer."""
    logits, targets = _linear(vectors, {**config, "hidden_dropout_prob": 0.0}, "qa_outputs", 2)
    outputs = {"start": logits[..., 0], "end": logits[..., 1]}
    return outputs, mapping.mapped(mapping.checked(tensors, targets), targets)


def _words(vectors: Tensor, config: Config, tensors: mapping.Arrays, order: Ids) -> Built:
    """Logits (B, S, V) of the masked words. Their matrix is a copy of the embedding."""
    d_model, size = config["hidden_size"], config["vocab_size"]
    start = "cls.predictions."
    activation = checkpoint.activation(config, "hidden_act")
    x = layers.Dense(d_model, activation, name="transform")(vectors)
    epsilon = config["layer_norm_eps"]
    x = layers.LayerNormalization(epsilon=epsilon, name="transform_norm")(x)
    logits = layers.Dense(size, dtype="float32", name="words")(x)
    targets = mapping.linear(f"{start}transform.dense", d_model, d_model, "transform")
    targets |= mapping.norm(f"{start}transform.LayerNorm", d_model, "transform_norm")
    targets[f"{start}decoder.weight"] = mapping.Target((size, d_model), ("words/kernel",), True)
    targets[f"{start}bias"] = mapping.Target((size,), ("words/bias",))
    tensors = dict(tensors)
    if f"{start}decoder.bias" in tensors:  # the layer adds this one
        tensors[f"{start}bias"] = tensors.pop(f"{start}decoder.bias")
    checked = mapping.checked(tensors, targets)
    for name in (f"{start}decoder.weight", f"{start}bias"):
        checked[name] = mapping.rows(checked[name], order)
    return logits, mapping.mapped(checked, targets)


def _head_of_classes(config: Config) -> Head | None:
    """Returns the head of logits (B, C); `None` for numbers without classes (regression)."""
    names, problem = labels(config), config.get("problem_type")
    if problem == MULTI_LABEL:
        return Heads(**{name: Classification([f"not {name}", name]) for name in names})
    return None if problem == "regression" or len(names) == 1 else Classification(names)


class Class(NamedTuple):
    """A class of `transformers` with a head.

    Attributes:
        tensors: the starts of the names of the head's tensors.
        build: function of the encoder's output, the configuration, these tensors and the order of
            the rows, which returns `Built`.
        head: function of the configuration, which returns the `Head` of an export or `None`.
        segments: whether the class may read two texts in a row.
    """

    tensors: tuple[str, ...]
    build: Callable[[Tensor, Config, mapping.Arrays, Ids], Built]
    head: Callable[[Config], Head | None]
    segments: bool = False


_MASKED = Class(("cls.predictions.",), _words, lambda config: None)
CLASSES = {
    "BertForMaskedLM": _MASKED,
    "BertForPreTraining": _MASKED,
    "BertForQuestionAnswering": Class(
        ("qa_outputs.",), _answer, lambda config: QuestionAnswering(), segments=True
    ),
    "BertForSequenceClassification": Class(
        ("pooler.", "classifier."), _classes, _head_of_classes, segments=True
    ),
    "BertForTokenClassification": Class(
        ("classifier.",), _tags, lambda config: TokenClassification(labels(config))
    ),
}


def described(config: Config) -> Class | None:
    """Returns the class that `architectures` names, or `None`."""
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ValueError(
            f"architectures in config.json must be a list of names, but is {names!r:.100}. Copy "
            "the file again."
        )
    return next((CLASSES[str(name)] for name in names if str(name) in CLASSES), None)


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


def sentence_outputs(folder: StrPath, vectors: Tensor) -> Built:
    """Runs the modules of a sentence encoder on the encoder's output (B, S, D)."""
    x, arrays = vectors, {}
    modules = read_modules(folder)[1:]
    for number, (name, place) in enumerate(modules):
        last = {"name": "vector"} if number == len(modules) - 1 else {}
        path = pathlib.Path(folder) / pathlib.PurePath(place).name
        if name == "Pooling":
            x = _pool(path / "config.json", x)
        elif name == "Dense":
            x, more = _dense(path, x, f"dense_{number}")
            arrays |= more
        else:
            x = layers.UnitNormalization(dtype="float32", **last)(x)
    return x, arrays


def _pool(path: pathlib.Path, vectors: Tensor) -> Tensor:
    """Returns the pooled vectors (B, D) of a module's configuration; the mean without a file."""
    read = checkpoint.read_json(path) if path.exists() else {"pooling_mode": "mean"}
    start = "pooling_mode_"
    ends = {f"{start}{name}_token{'' if name == 'cls' else 's'}": name for name in POOLINGS}
    asked = [ends.get(key, key) for key, on in read.items() if key.startswith(start) and on is True]
    given = read.get("pooling_mode") or []
    asked += [given] if isinstance(given, str) else given
    if not asked or not {*asked} <= {*POOLINGS}:
        raise ValueError(f"{path} asks for {asked}, but only {', '.join(POOLINGS)} are supported.")
    parts = [
        vectors[:, 0] if name == "cls" else SequencePooling(name, name=name)(vectors)
        for name in POOLINGS
        if name in asked
    ]
    return parts[0] if len(parts) == 1 else layers.Concatenate(name="poolings")(parts)


def _dense(folder: pathlib.Path, x: Tensor, ours: str) -> Built:
    """Returns the output and weights of a Dense module."""
    read = checkpoint.read_json(folder / "config.json")
    name = str(read.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in DENSE_ACTIVATIONS:
        raise ValueError(
            f"{folder / 'config.json'} has the activation {name!r:.100}, but must have one of "
            f"{sorted(DENSE_ACTIVATIONS)}."
        )
    tensors = checkpoint.read_tensors(folder)
    rows = len(tensors.get("linear.weight", []))
    targets = mapping.linear("linear", x.shape[-1], rows, ours)
    if not (use_bias := read.get("bias", True)):
        del targets["linear.bias"]
    arrays = mapping.mapped(mapping.checked(tensors, targets), targets)
    dense = layers.Dense(rows, DENSE_ACTIVATIONS[name], use_bias=use_bias, name=ours)
    return dense(x), arrays


def warn_of_texts(folder: StrPath) -> None:
    """Warns of what Sentence-Transformers does to a text before the tokenizer, and we do not."""
    path = pathlib.Path(folder) / "config_sentence_transformers.json"
    prompts = checkpoint.read_json(path).get("prompts") if path.exists() else None
    found = {name: text for name, text in (prompts or {}).items() if text}
    if found:
        warnings.warn(
            f"{path} has prompts, which are no part of the model: {found}. Put the prompt before "
            "each text yourself.",
            stacklevel=4,
        )
    path = path.with_name("sentence_bert_config.json")
    if path.exists() and checkpoint.read_json(path).get("do_lower_case"):
        warnings.warn(
            f"{path} says do_lower_case, which is no part of the model. Pass texts in lower case.",
            stacklevel=4,
        )
