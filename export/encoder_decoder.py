"""Shared by exporters to other engines, which support only the paper's architecture.

Engines for published translation models support embeddings with added positions, blocks of
attention and feed-forward networks, and logits. This module reads these parts of a `Transformer`,
and lists the arguments that such engines do not support.

The tasks of these exporters run on any backend of Keras, so nothing here imports TensorFlow.

Shapes: B sentences, S source length, T target length, V vocabulary, P positions, D d_model.
"""

import math
import numbers
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_transformer.call_options import check_number
from keras_transformer.export.arguments import Arguments, check
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import log_softmax
from keras_transformer.export.exporter import Case, Rule
from keras_transformer.export.proof import comparison
from keras_transformer.export.staging import WhyNot, why_not_files
from keras_transformer.importers.mapping import NEVER
from keras_transformer.models import Transformer
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, Ids

# Whether a model has something that an engine does not support, and its text for the error.
Difference: TypeAlias = tuple[Callable[[Transformer], Any], Callable[[Transformer], str]]
Forward: TypeAlias = Callable[..., Any]  # a model, or the same function traced

CONFIG_FILE = "config.json"
# This entry of the configuration marks an export. Engines ignore it.
PRODUCER = {"producer": "keras-transformer-onnx"}


RULES = (
    *(
        Rule(
            TypeError,
            lambda a, name=name: not isinstance(getattr(a, name), Tokenizer | None),
            lambda a, name=name: (
                f"{name} must be a Tokenizer, a SentencePiece model, but "
                f"{type(getattr(a, name)).__name__} was passed."
            ),
        )
        for name in ("tokenizer", "target_tokenizer")
    ),
    Rule(
        TypeError,
        lambda a: not isinstance(a.model, Transformer),
        lambda a: (
            f"model must be a Transformer, but {a.kind} was passed. Export others with export_onnx."
        ),
    ),
)


def check_translator(
    model: Any,
    tokenizer: Tokenizer | None,
    target_tokenizer: Tokenizer | None,
    engine: str,
    differences: Sequence[Difference],
) -> None:
    """Raises unless an engine can hold a model with its tokenizers.

    Args:
        model: the model.
        tokenizer, target_tokenizer: tokenizers of source and target, or `None`.
        engine: name of the engine, for the error.
        differences: arguments of a `Transformer` that the engine does not support.

    Raises:
        TypeError: another kind of model or tokenizer.
        ValueError: a tokenizer that does not belong to the model, or an argument that the engine
            does not support.
        ExportError: a weight holds NaN.
    """
    # The search is the engine's own.
    check(Arguments(model, tokenizer, engine, target_tokenizer), RULES)
    if model.encoder_stack is None:
        refuse(engine, [f"encoder={model.encoder.name!r}, your own model"])
    refuse(engine, [told(model) for differs, told in differences if differs(model)])


def differences(activations: Collection[Callable[..., Any]]) -> tuple[Difference, ...]:
    """Returns the arguments of a `Transformer` that engines for published models do not support.

    Args:
        activations: the activations that the engine supports.
    """
    known = sorted(function.__name__ for function in activations)
    return (
        (
            lambda m: any(layer.quantization_mode is not None for layer in m._flatten_layers()),
            lambda m: "weights that model.quantize rounded; export the model before quantize",
        ),
        (lambda m: not m.reads_end, lambda m: "reads_end=False"),
        (lambda m: len(m.target_start) > 1, lambda m: f"target_start={m.target_start}"),
        (lambda m: m.recurrent_decoder, lambda m: "recurrent_decoder=True"),
        (
            lambda m: any(stack.positions.in_attention for stack in _stacks(m)),
            lambda m: f"{' and '.join(_names_inside(m))} inside of attention",
        ),
        (lambda m: m.norm != "layer", lambda m: f"norm={_named(m.norm)}"),
        (lambda m: m.feed_forward, lambda m: f"feed_forward={_named(m.feed_forward)}"),
        (
            lambda m: not m.feed_forward and keras.activations.get(m.activation) not in activations,
            lambda m: f"activation={m.get_config()['activation']!r}, known are {known}",
        ),
        (
            lambda m: {m.key_dim, m.value_dim} - {None, m.d_model // m.num_heads},
            lambda m: (
                f"key_dim={m.key_dim}, value_dim={m.value_dim}, where heads have d_model / "
                f"num_heads = {m.d_model // m.num_heads} channels"
            ),
        ),
    )


def _named(config: Any) -> str:
    """Returns the name of a layer that is stored as its configuration."""
    return config["class_name"] if isinstance(config, dict) else repr(config)


def refuse(engine: str, found: Sequence[str]) -> None:
    """Raises `ValueError` that names all differences, if there are any."""
    if found:
        raise ValueError(
            f"{engine} cannot hold this model: it has {'; '.join(found)}. Export it with "
            "export_onnx, which holds every model."
        )


def depths(model: Transformer) -> tuple[int, int]:
    """Returns the numbers of encoder and decoder blocks."""
    return len(model.encoder_stack.blocks), len(model.decoder_stack.blocks)


def weights_of(model: Transformer) -> dict[str, Array]:
    """Returns all weights by path. Kernels include their LoRA updates."""
    weights = {weight.path: weight for weight in model.weights}
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            weights[layer._kernel.path] = layer.kernel
    return {path: keras.ops.convert_to_numpy(weight) for path, weight in weights.items()}


def positions_to_write(model: Transformer, max_length: int | None, default: int) -> int:
    """Returns the number of positions P: `max_length`, else the model's limit, else `default`.

    Raises:
        TypeError, ValueError: `max_length` is no integer, holds no token beside the end token, or
            is larger than the model's limit.
    """
    if max_length is None:
        return model.max_length or default
    check_number(max_length, "max_length", numbers.Integral, 2, model.max_length or math.inf)
    return int(max_length)


def position_tables(model: Transformer, length: int) -> list[Array]:
    """Returns the first position vectors of encoder and decoder, two arrays (P, D)."""
    nothing = np.zeros((1, length, model.d_model), "float32")
    return [keras.ops.convert_to_numpy(stack.positions(nothing))[0] for stack in _stacks(model)]


def _names_inside(model: Transformer) -> list[str]:
    """Returns the names of the position encodings that act inside attention."""
    encodings = [stack.positions for stack in _stacks(model)]
    return sorted({type(each).__name__ for each in encodings if each.in_attention})


def _stacks(model: Transformer) -> tuple[Any, Any]:
    return model.encoder_stack, model.decoder_stack


def why_not_engine(*names: str) -> WhyNot:
    """Returns the `WhyNot` of an engine's exports, which consist of these files."""
    return why_not_files(names, CONFIG_FILE, PRODUCER)


class LogitsTask:
    """The logits of a model, as `exporter.Task`.

    Args:
        model: functional model with the outputs `{"logits": (B, T, V)}`.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model: keras.Model = model

    def cases(self, samples: Sequence[Case] | None = None) -> Sequence[Case]:
        """Returns the samples, dicts of the model's inputs."""
        return samples or []

    def expected(self, case: Case) -> dict[str, Array]:
        """Returns Keras' outputs for a case, by name."""
        outputs = self.model(case, training=False)
        return {name: keras.ops.convert_to_numpy(each) for name, each in outputs.items()}

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[Case],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless the logits agree; returns the largest error."""
        return comparison.compare_forward(expected, found, tolerance, exact)

    def same_tokens(self, expected: Sequence[Case], found: Sequence[Case]) -> None:
        """Returns `None`, because there is no search."""


class GreedyTask:
    """The greedy search of an engine, as `exporter.Task`.

    Keras computes it with a whole forward pass for each token, traced once where that is possible.
    Padding and the begin token have the bias `NEVER`.

    Args:
        model: `Transformer` in float32.
        max_length: greatest number of generated tokens, T.
        passed: the user's model, if `model` is its float32 copy. The files are compared with both.
    """

    def __init__(self, model: Transformer, max_length: int, passed: Transformer) -> None:
        self.model: Transformer = model
        self.max_length: int = max_length
        self.passed: Transformer = passed
        self._forward: Forward = _traced(model)

    def cases(self, samples: Sequence[Case] | None = None) -> Sequence[Case]:
        """Returns the samples, dicts with `source_ids` (B, S)."""
        return samples or []

    def expected(self, case: Case) -> tuple[Ids, Array]:
        """Returns Keras' ids (B, 1, T) and scores (B, 1) for a case."""
        tokens = np.full((len(case[signature.SOURCE_IDS]), self.max_length), PAD_ID, np.int32)
        running = np.ones(len(tokens), bool)
        for place in range(self.max_length):
            log_probs, _ = _log_probs(self._forward, case, tokens)
            tokens[running, place] = log_probs[running, place].argmax(axis=-1)
            running &= tokens[:, place] != END_ID
        scores, _ = _scores(self._forward, case, tokens)
        return tokens[:, np.newaxis], scores.astype(np.float32)

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[tuple[Ids, Array]],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless tokens and scores agree; returns the largest error."""

        def compare(model: Transformer, tolerance: float, exact: bool) -> float:
            rescored = [
                _scores(model, case, outputs[signature.TOKEN_IDS][:, 0])
                for case, outputs in zip(cases, found, strict=True)
            ]
            return comparison.compare_search(expected, found, rescored, tolerance, exact)

        worst = compare(self.model, tolerance, exact)
        if self.passed is not self.model:
            allowed = max(tolerance, comparison.TOLERANCES["copy"])
            comparison.check_copy(lambda: compare(self.passed, allowed, exact=False))
        return worst

    def same_tokens(
        self, expected: Sequence[tuple[Ids, Array]], found: Sequence[Case]
    ) -> list[int]:
        """Returns the number of lines with Keras' tokens, and of all lines."""
        return comparison.same_tokens(expected, found)


def _traced(model: Transformer) -> Forward:
    """Returns the model, traced on TensorFlow: a call of many small operations takes long there."""
    if keras.backend.backend() != "tensorflow":
        return model
    import tensorflow as tf

    return tf.function(model, autograph=False)


def _log_probs(forward: Forward, case: Case, tokens: Ids) -> tuple[Array, Array]:
    """Returns log-probabilities (B, T, V) for generated tokens (B, T), and their spread (B, T)."""
    given = np.pad(tokens[:, :-1], [(0, 0), (1, 0)], constant_values=BEGIN_ID)
    inputs = {**case, signature.TARGET_IDS: given}
    tensors = {name: keras.ops.convert_to_tensor(ids) for name, ids in inputs.items()}
    logits = forward(tensors, training=False)
    logits = keras.ops.convert_to_numpy(logits).astype(np.float64)
    comparison.check_no_nan("Logits of the forward pass", logits)
    spread = logits.std(axis=-1)
    logits[..., [PAD_ID, BEGIN_ID]] += NEVER
    return log_softmax(logits), spread


def _scores(forward: Forward, case: Case, tokens: Ids) -> tuple[Array, Array]:
    """Returns the scores (B, 1) of generated tokens (B, T), and their spread (B, 1)."""
    log_probs, spread = _log_probs(forward, case, tokens)
    chosen = np.take_along_axis(log_probs, tokens[..., np.newaxis], axis=2)[..., 0]
    sums = [np.where(tokens != PAD_ID, part, 0.0).sum(axis=1) for part in (chosen, spread)]
    return sums[0][:, np.newaxis], sums[1][:, np.newaxis]
