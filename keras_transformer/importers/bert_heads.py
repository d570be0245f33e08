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


def linear(x: Tensor, config: Config, name: str, size: int) -> Tensor:
    """Returns float32 logits of a linear layer after dropout."""
    rate = config.get("classifier_dropout")
    x = layers.Dropout(config["hidden_dropout_prob"] if rate is None else rate)(x)
    return layers.Dense(size, dtype="float32", name=name)(x)


def classes(pool: Callable[..., Tensor], vectors: Tensor, config: Config) -> Any:
    """Logits (B, C) of the pooled vector; for several labels at once a dict of logits (B, 1)."""
    names = labels(config)
    logits = linear(pool(vectors, config), config, "classifier", len(names))
    if config.get("problem_type") == MULTI_LABEL:
        return {name: logits[:, i : i + 1] for i, name in enumerate(names)}
    return logits


def tags(vectors: Tensor, config: Config) -> Tensor:
    """Logits (B, S, C)."""
    return linear(vectors, config, "classifier", len(labels(config)))


def answer(vectors: Tensor, config: Config) -> dict[str, Tensor]:
    """Logits (B, S) of the first and of the last token of an answer."""
    logits = linear(vectors, {**config, "hidden_dropout_prob": 0.0}, "qa_outputs", 2)
    return {"start": logits[..., 0], "end": logits[..., 1]}


def _words(vectors: Tensor, config: Config) -> Tensor:
    """Logits (B, S, V) of the masked words. Their matrix is a copy of the embedding."""
    activation = checkpoint.activation(config, "hidden_act")
    width = config.get("embedding_size", config["hidden_size"])
    x = layers.Dense(width, activation, name="transform")(vectors)
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
        texts: changes of the texts, see `read_texts`.
    """

    tensors: Mapping[str, str]
    build: Callable[[Tensor, Config], Any]
    head: Callable[[Config], Head | None]
    classes: Callable[[Config], int] = lambda config: len(labels(config))
    segments: bool = False
    arrays: Mapping[str, Array] = {}
    texts: Mapping[str, Any] = {}


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
        answer,
        lambda config: QuestionAnswering(),
        lambda config: 2,
        segments=True,
    ),
    "SequenceClassification": Class(
        {"pooler.dense.*": "pooler", "classifier.*": "classifier"},
        functools.partial(classes, _pooled),
        _head_of_classes,
        segments=True,
    ),
    "TokenClassification": Class(
        {"classifier.*": "classifier"}, tags, lambda config: TokenClassification(labels(config))
    ),
}


def described(folder: pathlib.Path, config: Config, prompt: str | None = None) -> Class | None:
    """Returns the head that `modules.json` or `architectures` describes, or `None`."""
    if (folder / "modules.json").exists():
        return sentences(folder, prompt)
    if prompt is not None:
        raise ValueError(f"{folder} has no modules.json, so prompt={prompt!r} has no effect.")
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ValueError(
            f"architectures in config.json must be a list of names, but is {names!r:.100}. Copy "
            "the file again."
        )
    kinds = [str(name).rpartition("For")[2] for name in names]
    known = config.get("heads", CLASSES)
    return next((known[kind] for kind in kinds if kind in known), None)


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


def sentences(folder: pathlib.Path, prompt: str | None = None) -> Class:
    """Returns the head of a sentence encoder, with the prompt of this name or the default one."""
    parts: list[Callable[[Tensor], Tensor]] = []
    arrays: Arrays = {}
    modules = read_modules(folder)[1:]
    for number, (name, place) in enumerate(modules):
        path = folder / pathlib.PurePath(place).name
        if name == "Pooling":
            parts.append(functools.partial(_pool, _poolings(path / "config.json")))
            texts = read_texts(folder, path / "config.json", prompt)
        elif name == "Dense":
            layer, more = _dense(path, f"dense_{number}")
            parts.append(layer)
            arrays |= more
        else:
            last = {"name": "vector"} if number == len(modules) - 1 else {}
            parts.append(layers.UnitNormalization(dtype="float32", **last))

    def build(vectors: Tensor, config: Config) -> Tensor:
        for part in parts:
            vectors = part(vectors)
        return vectors

    return Class(
        {}, build, lambda config: FeatureExtraction(), lambda config: 0, arrays=arrays, texts=texts
    )


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


def read_texts(
    folder: pathlib.Path, pooling: pathlib.Path, prompt: str | None = None
) -> dict[str, Any]:
    """Returns what Sentence-Transformers does to a text before the tokenizer.

    Args:
        folder: path of the folder.
        pooling: path of the configuration of its pooling.
        prompt: name of a prompt, or `None` for the default one, if there is one.

    Returns:
        A dict with "prompt", the text before each text, or "prompts" to choose from;
        "do_lower_case"; and "max_seq_length", the greatest number of tokens. It lacks entries that
        change nothing.

    Raises:
        ValueError: no such prompt, or its vectors are not pooled.
    """
    path = folder / "config_sentence_transformers.json"
    read = checkpoint.read_json(path, optional=True)
    prompts = {name: text for name, text in (read.get("prompts") or {}).items() if text}
    name = prompt or read.get("default_prompt_name")
    if prompt is not None and prompt not in prompts:
        raise ValueError(f"{path} has no prompt {prompt!r}, but {sorted(prompts)}.")
    if (
        name in prompts
        and checkpoint.read_json(pooling, optional=True).get("include_prompt") is False
    ):
        raise ValueError(f"{pooling} leaves out the prompt, which is not supported.")
    settings = checkpoint.read_json(path.with_name("sentence_bert_config.json"), optional=True)
    found = {key: settings.get(key) for key in ("do_lower_case", "max_seq_length")}
    found["prompt"] = prompts.get(name)
    found["prompts"] = None if name in prompts else prompts
    return {key: value for key, value in found.items() if value}


def changed(read: dict[str, Any], texts: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Returns a `tokenizer.json` that changes texts, see `read_texts`. Warns of unused prompts.

    Args:
        read: dict, its content.
        texts: result of `read_texts`.
        most: number of the model's positions.
    """
    normalizers = [read["normalizer"]] if read.get("normalizer") else []
    if texts.get("do_lower_case"):
        normalizers.insert(0, {"type": "Lowercase"})
    if "prompts" in texts:
        warnings.warn(
            f"The folder has prompts: {texts['prompts']}. The tokenizer puts none of them before a "
            "text. Pass prompt= and a name, or put the prompt before each text yourself.",
            stacklevel=2,
        )
    if "prompt" in texts:
        normalizers.insert(0, {"type": "Prepend", "prepend": texts["prompt"]})
    longest = min(texts.get("max_seq_length", most), most)
    return {
        **read,
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "longest": longest - 1,  # before the end token
    }
