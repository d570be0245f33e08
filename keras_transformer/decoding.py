"""Step-by-step decoding: one new token at a time, with keys and values of the past in a cache.

`SearchModel` is the protocol that a search requires. `CachedDecoding` implements it for the models
of this package.

A step gives the result of a whole forward pass at its last position (section 3.1: "the model is
auto-regressive"), at the cost of one position.

All hypotheses of a sentence share one cache. In step t every hypothesis appends one key and one
value to each block: hypothesis w fills slot t W + w, which never moves. An attention bias (W, t W)
hides the slots of other hypotheses. When the search reorders hypotheses, it reorders only the rows
of this bias. A block with a recurrent unit keeps one state for each hypothesis instead. The search
reorders these states, which are small.

The cache has an open part, which a step copies and extends, and a closed part, which no step
changes. After some steps, `close` moves the slots that a running hypothesis still attends to from
the open part to the closed one. All other slots leave the cache.

`()` stands for missing tensors, because nests of tensors skip it.

Shapes: B batch, W beam width, S source length, P prompt length, H heads, K key size, U value size,
D d_model, V vocabulary, t steps so far, C closed slots, O open slots, N all slots.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import keras
from keras import ops

from keras_transformer.layers.attention import FORBIDDEN, append
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.types import Tensor

SOURCE_IDS = "source_ids"
START_IDS = "start_ids"  # source input: the tokens before the first generated one, (B, P) int32
# The attention heads whose mean weights align target to source: `True` for all heads of the last
# layer, pairs of layer and head, or `False` for no alignments.
Alignments: TypeAlias = bool | tuple[tuple[int, int], ...]
# A step adds W H K numbers to the keys of a block. If they are fewer, the cache stays open: copies
# then cost less than the operations that join both parts.
LEAST_CLOSED = 1024


class Cache(NamedTuple):
    """State of a model between search steps: three nests of tensors, `()` if empty.

    A search removes finished sentences and reorders hypotheses. After a reordering, row w of
    `by_hypothesis` holds the tensors of the hypothesis that hypothesis w continues.

    Attributes:
        by_sentence: tensors (B, ...), which the hypotheses of a sentence share.
        by_hypothesis: tensors (B, W, ...), which the search reorders with the hypotheses.
        closed: tensors (B, ...), which no step changes. If there are any, the search calls `close`
            of the model after some steps.
    """

    by_sentence: Any = ()
    by_hypothesis: Any = ()
    closed: Any = ()


@dataclasses.dataclass(frozen=True)
class Shared:
    """A tensor of the memory that all sentences share. It stays whole when sentences finish."""

    tensor: Tensor


class SearchModel(Protocol):
    """A model that can be searched: three methods, and optional members.

    Optional members:
        start_ids: a method that takes `source_ids` and returns the tokens before the first
            generated one, int32 (B, P), padded with 0 on the right. Without it every sentence
            starts with the begin token.
        max_length: int, the number of positions of the model. Without it, or if it is `None`, there
            is no limit.
        max_source_length: int, the number of positions of the encoder. Without it, or if it is
            `None`, there is no limit.
        source_inputs: dict from name to the `keras.KerasTensor` that the encoder reads. Without it,
            or if it is `None`, the model reads token ids.
        close: a method that takes the `Cache` and the log-probabilities of the running hypotheses,
            float32 (B, W), -inf for the others. It returns the `Cache` without the slots that no
            running hypothesis attends to. A cache with a closed part requires it.
    """

    def encode(self, source_ids: Any) -> Any:
        """Encodes the source once for all steps.

        Args:
            source_ids: int32 (B, S), or a dict of arrays if the model has `source_inputs`.

        Returns:
            The memory: a nest of tensors (B, ...), `()` for none. Tensors of other shapes must be
            wrapped in `Shared`.
        """

    def initial_cache(self, batch_size: Any, beam_width: int) -> Cache:
        """Returns the cache before the first token.

        Args:
            batch_size: B, int32 scalar.
            beam_width: int, W.
        """

    def decode_step(
        self, ids: Tensor, position: Tensor, memory: Any, cache: Cache
    ) -> tuple[Any, Cache]:
        """Computes the logits of the next tokens.

        Args:
            ids: int32 (B, W), the last token of each hypothesis.
            position: int32 scalar, t, the number of tokens before `ids`.
            memory: the result of `encode`, reduced to the unfinished sentences.
            cache: `Cache` of the t tokens before `ids`.

        Returns:
            Logits, float (B, W, V), and the next `Cache`. An axis of the cache that is empty
            (size 0) at first may grow. All other axes must keep their size. A search with
            `alignments` passes them as an argument of this name, and reads the attention weights
            (B, W, S) as a third result. Its model's memory must hold a `ProjectedMemory`.
        """


class DecoderSlots(NamedTuple):
    """Cached keys and values that all hypotheses of a sentence share: the open part.

    Attributes:
        blocks: for each block keys (B, H, O, K) and values (B, H, O, U).
        step_bias: (B, W, W), attention bias between the tokens of one step: each attends only to
            itself. `()` if W is 1.
    """

    blocks: Any
    step_bias: Any

    # Exported models preallocate the slots and write in place instead.
    add = staticmethod(append)


class States(NamedTuple):
    """Recurrent state of each hypothesis.

    Attributes:
        blocks: for each block its state (B, W, D).
    """

    blocks: Any


class ProjectedMemory(NamedTuple):
    """The encoded source, projected to keys and values for each decoder block.

    Attributes:
        blocks: for each block keys (B, H, S, K) and values (B, H, S, U).
        mask: boolean (B, S), False for padding; `()` if there is none.
    """

    blocks: Any
    mask: Any

    @property
    def length(self) -> Any:
        """S, padding included."""
        keys, _ = self.blocks[0]  # (B, H, S, K)
        return ops.shape(keys)[2]


def call_encoder(encoder: keras.Model, source: Any) -> Any:
    """Returns the output (B, S, D) of an encoder.

    `source` is the only input, or a dict of all inputs by name.
    """
    if isinstance(source, dict):
        source = [source[tensor.name] for tensor in encoder.inputs]
        source = keras.tree.pack_sequence_as(encoder.input, source)
    return encoder(source)


def check_start(ids: Sequence[int], reads_start: bool) -> tuple[int, ...]:
    """Returns the argument `target_start` of a model as a tuple.

    Raises:
        ValueError: the begin id is not first, or a search reads these tokens from an input.
    """
    if list(ids[:1]) != [BEGIN_ID] or reads_start and len(ids) > 1:
        raise ValueError(
            f"target_start must start with the begin id {BEGIN_ID}, and has no effect with "
            f"reads_start=True, but {tuple(ids)} was passed."
        )
    return tuple(ids)


def is_causal(model: Any) -> bool:
    """Returns whether a model continues its source, as a language model does."""
    return [tensor.name for tensor in getattr(model, "inputs", None) or ()] == ["target_ids"]


def reads_ids(model: Any) -> bool:
    """Returns whether the source of a searchable model is `source_ids` (B, S) alone."""
    inputs = getattr(model, "source_inputs", None)
    if inputs is None:
        return True
    return list(inputs) == [SOURCE_IDS] and "int" in str(inputs[SOURCE_IDS].dtype)


class CachedDecoding:
    """Implements `SearchModel` for models whose decoder is a stack of blocks.

    Attributes:
        encoder: functional model that computes the memory, or `None`.
        encoder_stack: `Stack` of the encoder; `None` if the caller passed the encoder.
        decoder_stack: `Stack` of the decoder.
        reads_start: whether the source input `start_ids` (B, P) replaces the begin token.
        target_start: ids with which every target starts, the begin id first.
    """

    reads_start: bool = False
    target_start: tuple[int, ...] = (BEGIN_ID,)

    @property
    def recurrent(self) -> bool:
        """Whether the decoder's blocks keep a state instead of keys and values."""
        return self.decoder_stack.blocks[0].recurrent

    @property
    def max_source_length(self) -> int | None:
        """Number of positions of the encoder; `None` if it has no limit or is the caller's."""
        return None if self.encoder_stack is None else self.max_length

    @property
    def source_inputs(self) -> dict[str, keras.KerasTensor] | None:
        """The inputs of the caller's encoder by name; `None` if the model reads token ids.

        With `reads_start`, a search also reads `start_ids`.
        """
        if self.encoder is None or self.encoder_stack is not None:
            return None
        inputs = {tensor.name: tensor for tensor in self.encoder.inputs}
        if self.reads_start:
            inputs[START_IDS] = keras.KerasTensor((None, None), "int32", name=START_IDS)
        return inputs

    def start_ids(self, source_ids: Any) -> Tensor:
        """Returns the tokens before the first generated one, int32 (B, P).

        They are `target_start`. Without an encoder they are the prompt, and with `reads_start` the
        input `start_ids`.
        """
        if self.encoder is None or self.reads_start:
            start = source_ids[START_IDS] if self.reads_start else source_ids
            return ops.cast(start, "int32")
        batch_size = ops.shape(keras.tree.flatten(source_ids)[0])[0]
        start = [ops.full((batch_size, 1), id, dtype="int32") for id in self.target_start]
        return start[0] if len(start) == 1 else ops.concatenate(start, axis=1)

    def encode(self, source_ids: Any) -> ProjectedMemory | tuple[()]:
        """Encodes the source (B, S), or a dict of the encoder's inputs, for all steps.

        Returns `ProjectedMemory`; or `()` without an encoder, because the cache then holds
        everything.
        """
        if self.encoder is None:
            return ()
        memory = call_encoder(self.encoder, source_ids)
        mask = getattr(memory, "_keras_mask", None)
        blocks = [
            block.cross_attention.project_key_value(memory) for block in self.decoder_stack.blocks
        ]
        return ProjectedMemory(blocks, () if mask is None else mask)

    def initial_cache(self, batch_size: Any, beam_width: int = 1) -> Cache:
        """Returns the empty `Cache`: `DecoderSlots` by sentence, the bias (B, W, 0) by hypothesis.

        The closed part has keys (B, H, 0, K) and values (B, H, 0, U) of each block. It is `()` for
        one hypothesis, for small models, and if the scores have a bias of the distance. Recurrent
        blocks have `States` by hypothesis and nothing else.
        """
        blocks = self.decoder_stack.blocks
        if self.recurrent:
            states = [
                block.self_attention.initial_state(batch_size, beam_width) for block in blocks
            ]
            return Cache(by_hypothesis=States(states))
        empty = [block.self_attention.initial_cache(batch_size) for block in blocks]
        if beam_width == 1:
            return Cache(DecoderSlots(empty, step_bias=()))
        others = FORBIDDEN * (1.0 - ops.eye(beam_width, dtype="float32"))  # (W, W)
        step_bias = ops.broadcast_to(others, (batch_size, beam_width, beam_width))
        past_bias = ops.zeros((batch_size, beam_width, 0), "float32")
        attention = blocks[0].self_attention
        is_small = beam_width * attention.num_heads * attention.key_dim < LEAST_CLOSED
        closed = () if is_small or self.decoder_stack.has_bias else empty
        return Cache(DecoderSlots(empty, step_bias), past_bias, closed)

    def close(self, cache: Cache, running: Tensor) -> Cache:
        """Moves the open slots to the closed part, and drops those without attention.

        Sentences may attend to different numbers of slots. Those with fewer keep some slots that
        their bias hides.

        Args:
            cache: `Cache` with a closed part.
            running: float32 (B, W), -inf for hypotheses that do not run.

        Returns:
            `Cache` with C closed slots and no open slot. C is the largest number of slots that the
            running hypotheses of a sentence attend to.
        """
        slots, past_bias, closed = cache
        runs = ops.expand_dims(running > float("-inf"), 2)  # (B, W, 1)
        attended = ops.any(ops.logical_and(past_bias > FORBIDDEN / 2, runs), axis=1)  # (B, N)
        attended = ops.cast(attended, "float32")
        count = ops.cast(ops.max(ops.sum(attended, axis=1)), "int32")
        _, kept = ops.top_k(attended, count)  # (B, C), equal ones in their order
        rows = _rows(slots.blocks[0][0].shape[1], kept, attended)
        closed = [
            tuple(_taken(append(*parts), rows) for parts in zip(ready, past, strict=True))
            for ready, past in zip(closed, slots.blocks, strict=True)
        ]
        past_bias = _taken(past_bias, _rows(past_bias.shape[1], kept, attended))
        empty = [tuple(x[:, :, :0] for x in past) for past in slots.blocks]
        return Cache(slots._replace(blocks=empty), past_bias, closed)

    def decode_step(
        self,
        ids: Tensor,
        position: Tensor,
        memory: ProjectedMemory | tuple[()],
        cache: Cache,
        alignments: Alignments = False,
    ) -> tuple[Any, ...]:
        """Computes the logits of the next tokens, float32 (B, W, V). See `SearchModel`."""
        vectors, *rest = self.decode_vectors(ids, position, memory, cache, alignments)
        return self.decoder_stack.embedding.logits(vectors), *rest

    def decode_vectors(
        self,
        ids: Tensor,
        position: Tensor | None,
        memory: ProjectedMemory | tuple[()],
        cache: Cache,
        alignments: Alignments = False,
        each_head: bool = False,
    ) -> tuple[Any, ...]:
        """Computes the vectors (B, W, D) that `decode_step` projects to logits.

        If `position` is `None`, the W tokens stand at 0 to W - 1. With `each_head`, the third
        result has the weights of each aligned head, (B, A, W, S), instead of their mean.
        """
        heads = self.aligned_heads(alignments) if alignments else {}
        attention_bias = None
        states = isinstance(cache.by_hypothesis, States)
        if states:
            pasts, add = cache.by_hypothesis.blocks, append
        else:
            slots, past_bias, closed = cache
            pasts, add = slots.blocks, slots.add
            if closed:
                pasts = [(*past, *ready) for past, ready in zip(pasts, closed, strict=True)]
            if not isinstance(slots.step_bias, tuple):  # W > 1
                past_bias = add(past_bias, slots.step_bias)  # (B, W, (t + 1) W)
                attention_bias = past_bias[:, None]  # (B, 1, W, (t + 1) W)
        decoder, after, weights = self.decoder_stack, [], []
        x = decoder.embed(ids, position)  # (B, W, D)
        for i, (block, past) in enumerate(zip(decoder.blocks, pasts, strict=True)):
            source = ()
            if memory:
                source = memory.blocks[i], None if isinstance(memory.mask, tuple) else memory.mask
            options = {"return_attention_scores": True} if i in heads else {}
            x, past, *scores = block.step(
                x, *source, past, position, attention_bias, add, **options
            )
            after.append(past)
            weights += scores  # (B, H, W, S) of each layer in `heads`
        vectors = decoder.norm(x)
        if states:
            cache = Cache(by_hypothesis=States(after))
        else:
            cache = Cache(slots._replace(blocks=after), past_bias, closed)
        chosen = joined_heads if each_head else mean_of_heads
        return vectors, cache, *([chosen(weights, heads)] if weights else [])

    def prefill(
        self,
        ids: Tensor,
        memory: ProjectedMemory | tuple[()],
        beam_width: int = 1,
        alignments: Alignments = False,
    ) -> tuple[Any, ...]:
        """Processes the tokens before the first generated one in a single pass.

        Args:
            ids: int32 (B, P), padded on the right.
            memory: the result of `encode`.
            beam_width: int, W.
            alignments: as in a search. Defaults to `False`.

        Returns:
            The vectors (B, P, D) before the logits, and the `Cache` of the P tokens, padding
            included; with `alignments` also the weights of A heads (B, A, P, S).

        Raises:
            ValueError: the blocks of the decoder keep a state.
        """
        if self.recurrent:
            raise ValueError("A recurrent decoder has no prefill: pass each token to decode_step.")
        batch_size, length = ops.shape(ids)
        slots, past_bias, closed = self.initial_cache(batch_size, beam_width)
        # The tokens take the place of the hypotheses. Each attends to itself and all before it.
        later = FORBIDDEN * (1.0 - ops.tril(ops.ones((length, length), "float32")))
        later = ops.broadcast_to(later, (batch_size, length, length))
        start = Cache(
            slots._replace(step_bias=later), ops.zeros((batch_size, length, 0), "float32")
        )
        vectors, filled, *weights = self.decode_vectors(
            ids, None, memory, start, alignments, each_head=True
        )
        if beam_width > 1:
            past_bias = ops.zeros((batch_size, beam_width, length), "float32")
        cache = Cache(slots._replace(blocks=filled.by_sentence.blocks), past_bias, closed)
        return vectors, cache, *weights

    def aligned_heads(self, alignments: Alignments) -> dict[int, list[int]]:
        """Returns the heads that align target to source, by the index of their layer.

        Args:
            alignments: as in a search.

        Raises:
            ValueError: the decoder has no such layer or head.
        """
        blocks = self.decoder_stack.blocks if alignments else []
        last = len(blocks) - 1
        pairs = alignments
        if isinstance(alignments, bool):
            pairs = [(last, head) for block in blocks[-1:] for head in range(block.num_heads)]
        heads: dict[int, list[int]] = {}
        for layer, head in pairs:
            size = blocks[layer].num_heads if -last - 1 <= layer <= last else 0
            if not -size <= head < size:
                raise ValueError(
                    f"alignments name head {head} of layer {layer}, but the decoder has {last + 1} "
                    f"layers of {blocks[0].num_heads} heads. Count both from 0, or from the end "
                    "with negative numbers."
                )
            heads.setdefault(layer % (last + 1), []).append(head % size)
        return dict(sorted(heads.items()))


def mean_of_heads(weights: Sequence[Tensor], heads: dict[int, list[int]]) -> Tensor:
    """Returns the mean weights of the chosen heads, float32 (B, T, S). See `joined_heads`."""
    return ops.mean(joined_heads(weights, heads), axis=1)


def joined_heads(weights: Sequence[Tensor], heads: dict[int, list[int]]) -> Tensor:
    """Returns the attention weights of the A chosen heads, float32 (B, A, T, S).

    Args:
        weights: the weights (B, H, T, S) of each layer in `heads`, in ascending order.
        heads: the chosen heads by the index of their layer, from `aligned_heads`.
    """
    chosen = [
        each if numbers == list(range(each.shape[1])) else ops.take(each, numbers, axis=1)
        for each, numbers in zip(weights, heads.values(), strict=True)
    ]
    joined = chosen[0] if len(chosen) == 1 else ops.concatenate(chosen, axis=1)
    return ops.cast(joined, "float32")


def _rows(groups: int, kept: Tensor, slots: Tensor) -> Tensor:
    """Returns the rows of kept slots (B, C) in tables of all slots: (B, G, C) for G groups.

    The tables hold the N slots of each group of each sentence. `slots` is any tensor (B, N).
    """
    batch_size, count = ops.shape(slots)
    first = ops.reshape(ops.arange(batch_size * groups) * count, (-1, groups, 1))
    return first + ops.expand_dims(kept, 1)


def _taken(x: Tensor, rows: Tensor) -> Tensor:
    """Takes rows (B, G, C) of keys, values or a bias (B, G, N, ...)."""
    return ops.take(ops.reshape(x, (-1, *x.shape[3:])), rows, axis=0)
