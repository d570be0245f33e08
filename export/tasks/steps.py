"""A search as two functions: what comes before the first step, and one step.

The one-file layout holds the loop in the graph, and its cache grows. Here the loop is outside, in
`runtime.steps`, and every tensor keeps its shape from the first step to the last: the cache has
slots for all tokens from the start, and a step writes its keys and values into its own slots. An
attention bias hides the slots that are not filled yet. So the caches can be updated in place. The
states of a recurrent decoder have one size from the start.

Sentences that are over stay in the batch until all are, for the shapes may not change.

Shapes: B sentences, W hypotheses of each, H heads, L most steps of the batch.
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Cache, States
from keras_transformer.export.artefact import signature
from keras_transformer.layers.dot_product import FORBIDDEN
from keras_transformer.search.loop import Plan, State, add_token

# What a step changes. The rest is read only.
CHANGING = ("position", *State._fields, "states")
CHANGING += ("blocks", "key_places", "bias_places", "past_bias")


class FixedSlots(NamedTuple):
    """The slots of `DecoderSlots`, all there from the start.

    Attributes:
        blocks: for each block keys (B, H, L W, K) and values (B, H, L W, U), in the dtype that they
            are stored in.
        step_bias: (B, W, W), as in `DecoderSlots`; zeros where W is 1.
        key_places: int64 (B, H, W, 3), where this step's keys and values go.
        bias_places: int64 (B, W, W, 3), where its attention bias goes.
    """

    blocks: Any
    step_bias: Any
    key_places: Any
    bias_places: Any

    def put(self, past, new):
        """`past` with `new` in the slots of this step."""
        places = self.bias_places if len(past.shape) == 3 else self.key_places
        written = tf.tensor_scatter_nd_update(past, places, tf.cast(new, past.dtype))
        return tf.cast(written, new.dtype)

    def moved(self):
        """The slots of the next step."""
        width = self.step_bias.shape[1]
        return self._replace(
            key_places=self.key_places + [0, 0, width],
            bias_places=self.bias_places + [0, 0, width],
        )


class Part(NamedTuple):
    """What a graph of its own is made of, as a task is: `function` of `specs`, and `axes`."""

    model: Any
    function: Any
    specs: dict
    axes: Any


class StepsTask:
    """The two functions that a `SearchTask` is exported as.

    Args:
        task: `SearchTask`.
        dtype: dtype that keys and values are stored in between the steps.
    """

    def __init__(self, task, dtype="float32"):
        self.task, self.model, self.search, self.dtype = task, task.model, task.search, dtype
        self._parts = None

    @property
    def first(self):
        """The `Part` before the first step; to be traced before `step` is asked for."""
        return Part(self.model, self._first, self.task.specs, self._axes)

    @property
    def step(self):
        """The `Part` that is a step."""
        specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for name, tensor in _tensors(self._parts).items()
        }
        return Part(self.model, self._step, specs, self._axes)

    def _first(self, **inputs):
        """The source to all tensors that a step reads, by name."""
        task, search = self.task, self.search
        seed = {signature.SEED: inputs.pop(signature.SEED)} if task.random else {}
        options = {**search._options(task.sources, inputs, task.max_length), **seed}
        memory, plan, state = search._begun(self.model, options)
        batch_size = tf.shape(plan.limit)[0]
        length = tf.maximum(tf.reduce_max(plan.limit + plan.start_length), 2) - 1  # L
        state = state._replace(
            history=tf.zeros([batch_size, search._history_rows, length], tf.int32)
        )
        cache = self._fixed_cache(batch_size, length)
        self._parts = self._divided(memory, plan, tf.zeros([], tf.int32), state, cache)
        return _tensors(self._parts)

    def _step(self, **tensors):
        """What `first` gave or the last step left, to what the next step reads in its place."""
        parts = _with_tensors(self._parts, tensors)
        memory, plan, *before = self._joined(parts)
        position, state, cache = add_token(
            functools.partial(self.search._advance, plan=plan),
            lambda ids, position, cache: self.model.decode_step(ids, position, memory, cache),
            *before,
        )
        # A window: the oldest column goes, so that the last one is always the newest token.
        state = state._replace(history=state.history[:, :, 1:])
        if not self.model.recurrent:
            cache = cache._replace(by_sentence=cache.by_sentence.moved())
        after = self._divided(memory, plan, position, state, cache)
        changed = _tensors({name: after[name] for name in CHANGING if name in after})
        unfinished = tf.reduce_any(state.running > float("-inf"))
        return {
            **{signature.NEXT + name: tensor for name, tensor in changed.items()},
            signature.UNFINISHED: unfinished,
        }

    def _axes(self, name, rank):
        """Names of the axes of an input or output."""
        if name in self.task.specs:
            return self.task.axes(name, rank)
        name = name.removeprefix(signature.NEXT)
        if name == "noise":
            return ("steps", "batch", "samples")
        rest = [f"{name}_axis_{i}" for i in range(1, rank)]
        return ("batch", *rest)[:rank]

    def _fixed_cache(self, batch_size, length):
        """The empty cache with slots for `length` steps."""
        width = self.search._width
        cache = self.model.initial_cache(batch_size, width)
        if self.model.recurrent:
            return cache
        slots = cache.by_sentence
        blocks = [
            tuple(
                tf.zeros([batch_size, past.shape[1], length * width, past.shape[3]], past.dtype)
                for past in block
            )
            for block in slots.blocks
        ]
        step_bias = tf.zeros([batch_size, 1, 1]) if width == 1 else slots.step_bias
        key_places = _places(batch_size, slots.blocks[0][0].shape[1], width)
        bias_places = _places(batch_size, width, width)
        past_bias = tf.fill([batch_size, width, length * width], FORBIDDEN)
        return Cache(FixedSlots(blocks, step_bias, key_places, bias_places), past_bias)

    def _divided(self, memory, plan, position, state, cache):
        """All that `first` and a step hand on, as a dict of nests."""
        slots, past_bias = cache
        parts = {
            "memory": _cast(memory, self.dtype),
            **plan._asdict(),
            "position": position,
            **state._asdict(),
        }
        if self.model.recurrent:
            return {**parts, "states": cache.by_hypothesis.blocks}
        return {
            **parts,
            **slots._replace(blocks=_cast(slots.blocks, self.dtype))._asdict(),
            "past_bias": past_bias,
        }

    def _joined(self, parts):
        """The inverse of `_divided`."""

        def joined(kind):
            return kind(*[parts[name] for name in kind._fields])

        if self.model.recurrent:
            cache = Cache(by_hypothesis=States(parts["states"]))
        else:
            cache = Cache(joined(FixedSlots), parts["past_bias"])
        memory = _cast(parts["memory"], self.model.compute_dtype)
        return memory, joined(Plan), parts["position"], joined(State), cache


def _places(batch_size, rows, width):
    """Indices (B, rows, W, 3) of the first `width` slots of every row."""
    counts = (
        tf.cast(batch_size, tf.int64),
        tf.constant(rows, tf.int64),
        tf.constant(width, tf.int64),
    )
    indices = tf.meshgrid(*map(tf.range, counts), indexing="ij")
    return tf.stack(indices, axis=3)


def _cast(nest, dtype):
    """A nest with its floating-point tensors in a dtype."""
    return tf.nest.map_structure(lambda x: tf.cast(x, dtype) if x.dtype.is_floating else x, nest)


def _leaves(parts):
    """Pairs of a name and a leaf, tensor or not."""
    for name, nest in sorted(parts.items()):  # the order of `tf.nest`
        for number, leaf in enumerate(tf.nest.flatten(nest)):
            yield f"{name}.{number}" if tf.nest.is_nested(nest) else name, leaf


def _tensors(parts):
    """The tensors among the leaves, by name."""
    return {name: leaf for name, leaf in _leaves(parts) if tf.is_tensor(leaf)}


def _with_tensors(parts, tensors):
    """`parts` with other tensors."""
    leaves = [tensors.get(name, leaf) for name, leaf in _leaves(parts)]
    return tf.nest.pack_sequence_as(parts, leaves)
