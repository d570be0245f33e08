"""KerasHub's tasks as models that searches and exports take: what `keras_hub` makes of them.

A model here wraps a task and has no weights of its own. It reads and writes our ids, and hands
KerasHub's to the task. Each hypothesis of a search has its own cache, as `generate` of KerasHub
keeps it. It grows by one token a step, so that a graph holds no greatest length.

Shapes: B batch, W beam width, S source length, T target length, P start length, U KerasHub's number
of ids, V ours, t tokens so far, N layers, H heads of keys and values, K their size.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import Cache
from keras_transformer.importers import vocabulary
from keras_transformer.layers.checks import check_id_inputs
from keras_transformer.special_ids import PAD_ID
from keras_transformer.training.distribution import DistributedModel

# The bias of rows that the task does not have, as far below any logit as `gpt2` needs it.
NEVER = -1e4


class HubModel(DistributedModel):
    """What both kinds share: ids, and the cache of hypotheses.

    Args:
        task: task of KerasHub's, whose weights are shared.
        begin_id, end_id, pad_id, unknown_id: its ids of the special tokens, `None` for one that it
            does not have.

    Attributes:
        task: as given.
        order: its id of each of our ids, (V,) integers; -1 for one that it does not have.
        vocab_size: V.
        max_length: how many positions the task has; `None` where it has no limit.
    """

    source_inputs = None  # token ids are read
    own = ("begin_id", "end_id", "pad_id", "unknown_id")

    def __init__(self, task, *, begin_id, end_id, pad_id=None, unknown_id=None, name=None):
        self.task = task
        self.begin_id, self.end_id = begin_id, end_id
        self.pad_id, self.unknown_id = pad_id, unknown_id
        size = task.backbone.vocabulary_size
        self.order = vocabulary.row_order(size, pad_id, unknown_id, begin_id, end_id)
        self.vocab_size = len(self.order)
        self.max_length = getattr(task.backbone, "max_sequence_length", None)
        inputs, outputs = self._connect()
        super().__init__(inputs=inputs, outputs=outputs, name=name)

    def call(self, inputs, training=None, mask=None):
        check_id_inputs(self, inputs)
        return super().call(inputs, training=training, mask=mask)

    def hub_ids(self, ids):
        """KerasHub's ids for ours, a NumPy array of the same shape. What it lacks is its id 0."""
        return np.maximum(self.order, 0)[np.asarray(ids)]

    def our_ids(self, ids):
        """Our ids for KerasHub's, a NumPy array of the same shape."""
        table = np.zeros(self.task.backbone.vocabulary_size, "int32")
        for theirs, ours in vocabulary.our_ids(self.order).items():
            table[theirs] = ours
        return table[np.asarray(ids)]

    def get_config(self):
        task = keras.saving.serialize_keras_object(self.task)
        task.pop("compile_config", None)  # of a `compile` that Keras cannot call again
        return {
            "task": task,
            "name": self.name,
            **{name: getattr(self, name) for name in self.own},
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        task = keras.saving.deserialize_keras_object(config["task"], custom_objects)
        return cls(**{**config, "task": task})

    def _read(self, ids):
        """KerasHub's ids for a tensor of ours."""
        table = np.maximum(self.order, 0).astype("int32")
        return ops.take(table, ids, axis=0)

    def _logits(self, logits):
        """Our logits (..., V) float32 for KerasHub's (..., U)."""
        logits = ops.take(ops.cast(logits, "float32"), np.maximum(self.order, 0), axis=-1)
        return logits + vocabulary.logit_bias(self.order, never=NEVER)

    def _empty_cache(self, *shape, slots=0):
        """A cache that holds no token, (*shape, N, 2, slots, H, K)."""
        layers, heads, size = cache_sizes(self.task.backbone)
        return ops.zeros((*shape, layers, 2, slots, heads, size), self.task.compute_dtype)

    def _with_slot(self, cache):
        """A cache (B, W, N, 2, t, H, K) with one more slot: (B W, N, 2, t + 1, H, K)."""
        batch_size, width = ops.shape(cache)[:2]
        slot = self._empty_cache(batch_size, width, slots=1)
        cache = ops.concatenate([cache, slot], axis=4)
        return ops.reshape(cache, (batch_size * width, *ops.shape(cache)[2:]))


def _for_each(width, x):
    """What belongs to a sentence, (B, ...), for each of its hypotheses, (B W, ...)."""
    if width == 1:
        return x
    batch_size, *rest = ops.shape(x)
    x = ops.broadcast_to(x[:, None], (batch_size, width, *rest))
    return ops.reshape(x, (batch_size * width, *rest))


def cache_sizes(backbone):
    """Numbers of layers N, of heads of keys and values H, and their size K."""
    heads = _first(backbone, "num_key_value_heads", "num_heads", "num_attention_heads")
    queries = _first(backbone, "num_query_heads", "num_heads", "num_attention_heads")
    size = _first(backbone, "head_dim", "key_value_dim") or backbone.hidden_dim // queries
    return backbone.num_layers, heads, size


def _first(backbone, *names):
    """The first of these attributes that is there and set, else `None`."""
    found = (getattr(backbone, name, None) for name in names)
    return next((value for value in found if value is not None), None)


@keras.saving.register_keras_serializable("keras_transformer")
class HubCausalModel(HubModel):
    """A `CausalLM` of KerasHub's as a language model, as `CausalTransformer` is one.

    Call arguments:
        inputs: (B, T) int32 `target_ids`, our ids; id 0 is padding, on the right.

    Returns:
        (B, T, V) float32 logits of the tokens after each position.
    """

    def _connect(self):
        target = keras.Input((None,), dtype="int32", name="target_ids")
        there = ops.cast(ops.not_equal(target, PAD_ID), "int32")
        logits = self.task({"token_ids": self._read(target), "padding_mask": there})
        return target, self._logits(logits)

    def start_ids(self, source_ids):
        """The prompt itself, (B, P) int32."""
        return ops.cast(source_ids, "int32")

    def encode(self, source_ids):
        """Nothing: all is in the cache."""
        return ()

    def initial_cache(self, batch_size, beam_width=1):
        """The empty `Cache`; what it holds belongs to hypotheses."""
        return Cache(by_hypothesis=self._empty_cache(batch_size, beam_width))

    def decode_step(self, ids, position, memory, cache):
        """Logits (B, W, V) of the next token of each hypothesis, and the cache after it."""
        batch_size, width = ops.shape(ids)
        past = self._with_slot(cache.by_hypothesis)
        tokens = ops.reshape(self._read(ids), (batch_size * width, 1))
        logits, _, past = self.task.call_with_cache(tokens, past, position)
        past = ops.reshape(past, (batch_size, width, *ops.shape(past)[1:]))
        logits = ops.reshape(logits, (batch_size, width, logits.shape[-1]))
        return self._logits(logits), Cache(by_hypothesis=past)


@keras.saving.register_keras_serializable("keras_transformer")
class HubSeq2SeqModel(HubModel):
    """A `Seq2SeqLM` of KerasHub's as a model of source and target, as `Transformer` is one.

    Args:
        task, begin_id, end_id, pad_id, unknown_id: as in `HubModel`.
        start: KerasHub's ids of the tokens that every target starts with, a list.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}` int32, our ids; id 0 is padding.

    Returns:
        (B, T, V) float32 logits of the tokens after each position of the target.
    """

    own = (*HubModel.own, "start")

    def __init__(self, task, *, start, **ids):
        self.start = [int(id) for id in start]
        super().__init__(task, **ids)

    def _connect(self):
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        theirs = {}
        for side, ids in zip(("encoder", "decoder"), inputs.values(), strict=True):
            theirs[f"{side}_token_ids"] = self._read(ids)
            theirs[f"{side}_padding_mask"] = ops.cast(ops.not_equal(ids, PAD_ID), "int32")
        return inputs, self._logits(self.task(theirs))

    def start_ids(self, source_ids):
        """What every target starts with, (B, P) int32."""
        start = self.our_ids(self.start)
        return ops.broadcast_to(start, (ops.shape(source_ids)[0], len(start)))

    def encode(self, source_ids):
        """The encoder's output (B, S, D), its mask (B, S), and its keys and values in each block.

        Keys and values (B, N, 2, S, H, K) are a by-product of a step of the decoder; nothing else
        of that step is used.
        """
        there = ops.cast(ops.not_equal(source_ids, PAD_ID), "int32")
        hidden = self.task.call_encoder(self._read(source_ids), there)
        batch_size, length = ops.shape(source_ids)
        cross = self.task.call_decoder_with_cache(
            encoder_hidden_states=hidden,
            encoder_padding_mask=there,
            decoder_token_ids=ops.zeros((batch_size, 1), "int32"),
            self_attention_cache=self._empty_cache(batch_size, slots=2),  # Keras warns of one
            self_attention_cache_update_index=0,
            cross_attention_cache=self._empty_cache(batch_size, slots=length),
            cross_attention_cache_update_index=0,
        )[3]
        return hidden, there, cross

    def initial_cache(self, batch_size, beam_width=1):
        """The empty `Cache`; what it holds belongs to hypotheses."""
        return Cache(by_hypothesis=self._empty_cache(batch_size, beam_width))

    def decode_step(self, ids, position, memory, cache):
        """Logits (B, W, V) of the next token of each hypothesis, and the cache after it."""
        batch_size, width = ops.shape(ids)
        hidden, there, cross = (_for_each(width, x) for x in memory)  # (B W, ...)
        past = self._with_slot(cache.by_hypothesis)
        logits, _, past, _ = self.task.call_decoder_with_cache(
            encoder_hidden_states=hidden,
            encoder_padding_mask=there,
            decoder_token_ids=ops.reshape(self._read(ids), (batch_size * width, 1)),
            self_attention_cache=past,
            self_attention_cache_update_index=position,
            cross_attention_cache=cross,
            cross_attention_cache_update_index=None,
        )
        past = ops.reshape(past, (batch_size, width, *ops.shape(past)[1:]))
        logits = ops.reshape(logits, (batch_size, width, logits.shape[-1]))
        return self._logits(logits), Cache(by_hypothesis=past)
