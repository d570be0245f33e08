"""An ensemble: several models that generate as one.

Shapes: B batch, W hypotheses, T target length, V vocabulary.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
from keras import layers, ops

from keras_transformer.decoding import Cache, CachedDecoding
from keras_transformer.text.vocabularies import recorded_digests, refuse_other_tokenizers
from keras_transformer.training.distribution import Model
from keras_transformer.types import Tensor


class Members(NamedTuple):
    """The memories of the members of an ensemble.

    Attributes:
        memories: the result of `encode` of each member.
    """

    memories: tuple[Any, ...]


class _OfModels:
    """A layer or model whose configuration holds other models."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        models = [
            keras.saving.deserialize_keras_object(model, custom_objects)
            for model in config["models"]
        ]
        return cls(**{**config, "models": models})


@keras.saving.register_keras_serializable("keras_transformer")
class Ensemble(_OfModels, Model):
    """Models whose mean probabilities rank the next tokens, as in Sutskever et al. 2014.

        p(y_t | y_<t, x) = 1/N sum_i p_i(y_t | y_<t, x)

    The forward pass returns log p, and a search feeds the same tokens to all members. So the
    ensemble is trained, searched, saved and exported like one model; a file holds all members. It
    needs the time and memory of all members together.

    Train members from different seeds, with the same tokenizer. To get a single model of their
    quality, use the ensemble as the teacher of `distil` or `Distillation`.

    Args:
        models: sequence of two or more models, all `Transformer` or all `CausalTransformer`, with
            the same inputs and vocabularies. Sizes, positions and weights may differ. The ensemble
            shares their weights.
        **kwargs: `name` and `trainable`.

    Call arguments: the same as for each member.

    Returns:
        (B, T, V) float32, the log of the mean probabilities. Used as logits, they give the same
        probabilities.

    Masking: as in the members.

    Raises:
        ValueError: fewer than two models, or different inputs, vocabularies or tokenizers.
        TypeError: a model of another class.

    Example:

    >>> sizes = {"vocab_size": 97, "num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
    >>> model = Ensemble([Transformer(**sizes), Transformer(**sizes)])
    >>> source_ids = np.array([[5, 11, 23]])
    >>> BeamSearch(4)(model, source_ids, max_length=10).scores.shape
    TensorShape([1, 4])
    """

    def __init__(self, models: Sequence[CachedDecoding], **kwargs: Any) -> None:
        models = list(models)
        _check_members(models)
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), models[0].input
        )
        # One layer, because the layers of a functional model need different names.
        average = MeanProbabilities(models, name="members")
        super().__init__(inputs=inputs, outputs=average(inputs), **kwargs)
        if not self.trainable:  # Keras sets `trainable` before it knows the layers
            average.trainable = False
        self.models: list[CachedDecoding] = models
        self.max_length: int | None = _least(model.max_length for model in models)
        self.max_source_length: int | None = _least(model.max_source_length for model in models)

    @property
    def vocab_size(self) -> int:
        """The number of ids of the source, and of the target without `target_vocab_size`."""
        return self.models[0].vocab_size

    @property
    def target_vocab_size(self) -> int | None:
        """The number of ids of a separate target vocabulary, or `None`."""
        return getattr(self.models[0], "target_vocab_size", None)

    @property
    def encoder(self) -> keras.Model | None:
        """The encoder of the first member."""
        return self.models[0].encoder

    @property
    def source_inputs(self) -> dict[str, keras.KerasTensor] | None:
        """See `SearchModel`."""
        return self.models[0].source_inputs

    def start_ids(self, source_ids: Any) -> Tensor:
        """Returns the start tokens of the first member. See `SearchModel`."""
        return self.models[0].start_ids(source_ids)

    def encode(self, source_ids: Any) -> Members:
        """Encodes the source for each member. See `SearchModel`."""
        return Members(tuple(model.encode(source_ids) for model in self.models))

    def initial_cache(self, batch_size: Any, beam_width: int = 1) -> Cache:
        """Returns the empty caches of all members. See `SearchModel`."""
        return _joined([model.initial_cache(batch_size, beam_width) for model in self.models])

    def decode_step(
        self, ids: Tensor, position: Tensor, memory: Members, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Returns the log of the mean probabilities (B, W, V), and the caches."""
        found = [
            model.decode_step(ids, position, own, past)
            for model, own, past in zip(
                self.models, memory.memories, map(Cache, *cache), strict=True
            )
        ]
        logits, after = zip(*found, strict=True)
        return log_mean_probabilities(logits), _joined(after)

    def close(self, cache: Cache, running: Tensor) -> Cache:
        """Closes the slots of each member that has closed ones. See `SearchModel`."""
        return _joined(
            [
                model.close(past, running) if past.closed else past
                for model, past in zip(self.models, map(Cache, *cache), strict=True)
            ]
        )

    def get_config(self) -> dict[str, Any]:
        models = [keras.saving.serialize_keras_object(model) for model in self.models]
        return {"models": models, "name": self.name, "trainable": self.trainable}


@keras.saving.register_keras_serializable("keras_transformer")
class MeanProbabilities(_OfModels, layers.Layer):
    """The log of the mean probabilities of models that read the same inputs, (B, T, V)."""

    def __init__(self, models: Sequence[keras.Model], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.models: list[keras.Model] = list(models)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        return log_mean_probabilities([model(inputs, training=training) for model in self.models])

    def get_config(self) -> dict[str, Any]:
        models = [keras.saving.serialize_keras_object(model) for model in self.models]
        return {**super().get_config(), "models": models}


def log_mean_probabilities(logits: Sequence[Tensor]) -> Tensor:
    """Computes log 1/N sum_i softmax(logits_i), float32, of N tensors (..., V)."""
    log_probs = [ops.log_softmax(ops.cast(each, "float32"), axis=-1) for each in logits]
    return functools.reduce(ops.logaddexp, log_probs) - float(np.log(len(log_probs)))


def _joined(caches: Sequence[Cache]) -> Cache:
    return Cache(*(tuple(parts) for parts in zip(*caches, strict=True)))


def _least(limits: Iterable[int | None]) -> int | None:
    """Returns the smallest limit, or `None` if there is none."""
    return min((limit for limit in limits if limit is not None), default=None)


def _check_members(models: Sequence[Any]) -> None:
    if len(models) < 2:
        raise ValueError(f"An ensemble needs at least two models, but got {len(models)}.")
    for model in models:
        if not isinstance(model, CachedDecoding):
            raise TypeError(
                "The members of an ensemble must be Transformer or CausalTransformer models, but "
                f"{type(model).__name__} was passed."
            )
    read = [_described(model) for model in models]
    if any(each != read[0] for each in read):
        raise ValueError(
            "The members of an ensemble must read the same inputs and have the same vocabularies, "
            f"but they are {read}. Train them with the same tokenizer."
        )
    first, *others = map(recorded_digests, models)
    for other in others:
        refuse_other_tokenizers(first, other, "The first member")


def _described(model: Any) -> dict[str, Any]:
    """Returns the inputs and vocabularies of a model, which all members must share."""
    inputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in model.inputs}
    target = getattr(model, "target_vocab_size", None)
    return {"inputs": inputs, "vocab_size": model.vocab_size, "target_vocab_size": target}
