"""KerasHub's tasks as models for our searches and exports.

A model here wraps a task and adds no weights. It reads and writes our ids and passes KerasHub's ids
to the task. Each hypothesis of a search has its cache in the layout of KerasHub's `generate`. The
cache grows by one token per step, so an exported graph has no maximum length.

Shapes: B batch, W beam width, S source length, T target length, P start length, U KerasHub's number
of ids, V ours, t tokens so far, N layers, H heads of keys and values, K their size.
"""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import Cache
from keras_transformer.importers import mapping
from keras_transformer.layers.base import DigestRecord
from keras_transformer.layers.checks import check_id_inputs
from keras_transformer.special_ids import PAD_ID
from keras_transformer.training.distribution import Model
from keras_transformer.types import Array, Ids, Tensor


class HubModel(DigestRecord, Model):
    """Base class of both kinds of models, with the ids and the cache of hypotheses.

    Args:
        task: KerasHub's task. Its weights are shared.
        begin_id, end_id, pad_id, unknown_id: int, KerasHub's ids of the special tokens, or `None`
            for a token that it lacks.
        name: str or `None`.

    Attributes:
        task: as given.
        order: (V,) integers, KerasHub's id of each of our ids; -1 for a token that it lacks.
        vocab_size: int, V.
        max_length: int, number of positions of the task, or `None` for no limit.
    """

    source_inputs = None  # the source is token ids
    settings: ClassVar[tuple[str, ...]] = ("begin_id", "end_id", "pad_id", "unknown_id")

    def __init__(
        self,
        task: keras.Model,
        *,
        begin_id: int | None,
        end_id: int | None,
        pad_id: int | None = None,
        unknown_id: int | None = None,
        name: str | None = None,
    ) -> None:
        self.task = task
        self.begin_id: int | None = begin_id
        self.end_id: int | None = end_id
        self.pad_id: int | None = pad_id
        self.unknown_id: int | None = unknown_id
        size = task.backbone.vocabulary_size
        self.order: Ids = mapping.row_order(size, pad_id, unknown_id, begin_id, end_id)
        self.vocab_size: int = len(self.order)
        self.max_length: int | None = getattr(task.backbone, "max_sequence_length", None)
        inputs, outputs = self._connect()
        super().__init__(inputs=inputs, outputs=outputs, name=name)

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:
        check_id_inputs(self, inputs)
        return super().call(inputs, training=training, mask=mask)

    def hub_ids(self, ids: Any) -> Array:
        """Returns KerasHub's ids for ours, of the same shape; id 0 for tokens that it lacks."""
        return np.maximum(self.order, 0)[np.asarray(ids)]

    def our_ids(self, ids: Any) -> Array:
        """Returns our ids for KerasHub's, of the same shape."""
        table = np.zeros(self.task.backbone.vocabulary_size, "int32")
        for theirs, ours in mapping.our_ids(self.order).items():
            table[theirs] = ours
        return table[np.asarray(ids)]

    def initial_cache(self, batch_size: Any, beam_width: Any = 1) -> Cache:
        """Returns an empty `Cache`. Its values belong to hypotheses."""
        return Cache(by_hypothesis=self._empty_cache(batch_size, beam_width))

    def get_config(self) -> dict[str, Any]:
        task = keras.saving.serialize_keras_object(self.task)
        task.pop("compile_config", None)  # Keras cannot repeat the `compile` of a task
        return {
            "task": task,
            "name": self.name,
            **{name: getattr(self, name) for name in self.settings},
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "HubModel":
        task = keras.saving.deserialize_keras_object(config["task"], custom_objects)
        return cls(**{**config, "task": task})

    def _read(self, ids: Tensor) -> Tensor:
        """Returns KerasHub's ids for a tensor of ours."""
        table = np.maximum(self.order, 0).astype("int32")
        return ops.take(table, ids, axis=0)

    def _logits(self, logits: Tensor) -> Tensor:
        """Returns our logits (..., V) float32 for KerasHub's (..., U)."""
        logits = ops.take(ops.cast(logits, "float32"), np.maximum(self.order, 0), axis=-1)
        return logits + mapping.logit_bias(self.order, never=mapping.NEVER_LOW)

    def _empty_cache(self, *shape: Any, slots: Any = 0) -> Tensor:
        """Returns a cache without tokens, (*shape, N, 2, slots, H, K)."""
        layers, heads, size = cache_sizes(self.task.backbone)
        return ops.zeros((*shape, layers, 2, slots, heads, size), self.task.compute_dtype)

    def _with_slot(self, cache: Tensor) -> Tensor:
        """Adds a slot to a cache: (B, W, N, 2, t, H, K) -> (B W, N, 2, t + 1, H, K)."""
        batch_size, width = ops.shape(cache)[:2]
        slot = self._empty_cache(batch_size, width, slots=1)
        cache = ops.concatenate([cache, slot], axis=4)
        return ops.reshape(cache, (batch_size * width, *ops.shape(cache)[2:]))

    def _result(self, logits: Tensor, past: Tensor, sizes: tuple[Any, Any]) -> tuple[Tensor, Cache]:
        """Returns the result of a step of B sentences and W hypotheses, `sizes`."""
        past = ops.reshape(past, (*sizes, *ops.shape(past)[1:]))
        logits = ops.reshape(logits, (*sizes, logits.shape[-1]))
        return self._logits(logits), Cache(by_hypothesis=past)


def _for_each(width: Any, x: Tensor) -> Tensor:
    """Repeats the values of each sentence (B, ...) for its hypotheses: (B W, ...)."""
    if width == 1:
        return x
    batch_size, *rest = ops.shape(x)
    x = ops.broadcast_to(x[:, None], (batch_size, width, *rest))
    return ops.reshape(x, (batch_size * width, *rest))


def cache_sizes(backbone: keras.Model) -> tuple[int, int, int]:
    """Returns the numbers of layers N and of heads of keys and values H, and their size K."""
    heads = _first(backbone, "num_key_value_heads", "num_heads", "num_attention_heads")
    queries = _first(backbone, "num_query_heads", "num_heads", "num_attention_heads")
    size = _first(backbone, "head_dim", "key_value_dim") or backbone.hidden_dim // queries
    return backbone.num_layers, heads, size


def _first(backbone: keras.Model, *names: str) -> Any:
    """Returns the first of these attributes that is set, else `None`."""
    values = (getattr(backbone, name, None) for name in names)
    return next((value for value in values if value is not None), None)


@keras.saving.register_keras_serializable("keras_transformer")
class HubCausalModel(HubModel):
    """A `CausalLM` of KerasHub as a language model with the methods of `CausalTransformer`.

    Call arguments:
        inputs: (B, T) int32 `target_ids`, our ids; id 0 is padding on the right.

    Returns:
        (B, T, V) float32 logits of the tokens after each position.
    """

    def _connect(self) -> tuple[Tensor, Tensor]:
        target = keras.Input((None,), dtype="int32", name="target_ids")
        mask = ops.cast(ops.not_equal(target, PAD_ID), "int32")
        logits = self.task({"token_ids": self._read(target), "padding_mask": mask})
        return target, self._logits(logits)

    def start_ids(self, source_ids: Tensor) -> Tensor:
        """Returns the prompt, (B, P) int32."""
        return ops.cast(source_ids, "int32")

    def encode(self, source_ids: Tensor) -> tuple[()]:
        """Returns an empty memory: a language model has no encoder."""
        return ()

    def decode_step(
        self, ids: Tensor, position: Tensor, memory: Any, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Returns the next token's logits (B, W, V) for each hypothesis, and the new cache."""
        batch_size, width = ops.shape(ids)
        past = self._with_slot(cache.by_hypothesis)
        tokens = ops.reshape(self._read(ids), (batch_size * width, 1))
        logits, _, past = self.task.call_with_cache(tokens, past, position)
        return self._result(logits, past, (batch_size, width))


@keras.saving.register_keras_serializable("keras_transformer")
class HubSeq2SeqModel(HubModel):
    """A `Seq2SeqLM` of KerasHub as a model with the inputs and methods of `Transformer`.

    Args:
        task, begin_id, end_id, pad_id, unknown_id: as in `HubModel`.
        start: list of int, KerasHub's ids of the first tokens of every target.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}` int32, our ids; id 0 is padding.

    Returns:
        (B, T, V) float32 logits of the tokens after each position of the target.
    """

    settings = (*HubModel.settings, "start")

    def __init__(self, task: keras.Model, *, start: list[int], **ids: Any) -> None:
        self.start = [int(id) for id in start]
        super().__init__(task, **ids)

    def _connect(self) -> tuple[Tensor, Tensor]:
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        theirs = {}
        for side, ids in zip(("encoder", "decoder"), inputs.values(), strict=True):
            theirs[f"{side}_token_ids"] = self._read(ids)
            theirs[f"{side}_padding_mask"] = ops.cast(ops.not_equal(ids, PAD_ID), "int32")
        return inputs, self._logits(self.task(theirs))

    def start_ids(self, source_ids: Tensor) -> Tensor:
        """Returns the first tokens of every target, (B, P) int32."""
        start = self.our_ids(self.start)
        return ops.broadcast_to(start, (ops.shape(source_ids)[0], len(start)))

    def encode(self, source_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the encoder output (B, S, D), its mask (B, S), and each block's keys and values.

        One decoder step computes the keys and values (B, N, 2, S, H, K). Its other results are
        dropped.
        """
        mask = ops.cast(ops.not_equal(source_ids, PAD_ID), "int32")
        hidden = self.task.call_encoder(self._read(source_ids), mask)
        batch_size, length = ops.shape(source_ids)
        cross = self.task.call_decoder_with_cache(
            encoder_hidden_states=hidden,
            encoder_padding_mask=mask,
            decoder_token_ids=ops.zeros((batch_size, 1), "int32"),
            self_attention_cache=self._empty_cache(batch_size, slots=2),  # Keras warns about 1
            self_attention_cache_update_index=0,
            cross_attention_cache=self._empty_cache(batch_size, slots=length),
            cross_attention_cache_update_index=0,
        )[3]
        return hidden, mask, cross

    def decode_step(
        self, ids: Tensor, position: Tensor, memory: Any, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Returns the next token's logits (B, W, V) for each hypothesis, and the new cache."""
        batch_size, width = ops.shape(ids)
        hidden, mask, cross = (_for_each(width, x) for x in memory)  # (B W, ...)
        past = self._with_slot(cache.by_hypothesis)
        logits, _, past, _ = self.task.call_decoder_with_cache(
            encoder_hidden_states=hidden,
            encoder_padding_mask=mask,
            decoder_token_ids=ops.reshape(self._read(ids), (batch_size * width, 1)),
            self_attention_cache=past,
            self_attention_cache_update_index=position,
            cross_attention_cache=cross,
            cross_attention_cache_update_index=None,
        )
        return self._result(logits, past, (batch_size, width))
