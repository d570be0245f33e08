"""The loop of all searches, in TensorFlow operations that ONNX has too.

Keras, SavedModel and ONNX therefore run the very same code. It is two loops: each step of the inner
one adds a token to every hypothesis, and each phase of the outer one drops the sentences that are
over. The cache of a dropped sentence is gone, so later steps cost less.

Shapes: B batch, W beam width, P prompt length, Q prefix length, T generated length, t steps so far.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# The next phase begins when a quarter of the sentences of this one are over.
GOING_ON = 0.75


class State(NamedTuple):
    """What a step changes, beside the cache."""

    ids: tf.Tensor  # (B, W) int32, the last token of each hypothesis
    running: tf.Tensor  # (B, W), sum of log-probabilities; -inf: finished, or never existed
    scores: tf.Tensor  # (B, W), scores of finished hypotheses; -inf: none
    history: tf.Tensor  # (B, W or 2W, t) int32, tokens so far

    def updated(self, sentences, part):
        """With the states `part` of these sentences; the history of the others ends with 0."""
        more = tf.shape(part.history)[2] - tf.shape(self.history)[2]
        longer = self._replace(history=tf.pad(self.history, [[0, 0], [0, 0], [0, more]]))
        put = functools.partial(tf.tensor_scatter_nd_update, indices=tf.expand_dims(sentences, 1))
        return State(*[put(old, updates=new) for old, new in zip(longer, part, strict=True)])


class Plan(NamedTuple):
    """What stays fixed during the loop."""

    limit: tf.Tensor  # (B, 1) int32, most tokens that may be generated
    start_length: Any  # (B, 1) int32, or the int 1 where every sentence starts with one token
    given: Any  # (B, P + Q + 1) int32, tokens that are given, then 0; None where there are none
    noise: Any  # (T, B, W) float32 in [0, 1), or None

    def of(self, sentences):
        """The plan of these sentences."""
        return Plan(
            tf.gather(self.limit, sentences),
            self.start_length if self.given is None else tf.gather(self.start_length, sentences),
            None if self.given is None else tf.gather(self.given, sentences),
            None if self.noise is None else tf.gather(self.noise, sentences, axis=1),
        )

    def count(self, position):
        """How many tokens are generated after the step at this position, (B, 1) or scalar."""
        return position + (2 - self.start_length)


def run(advance, model, memory, plan, state, cache, batch_size):
    """The state after the last step.

    Args:
        advance: function `(position, logits, state, plan)` that returns the next state, and for
            each hypothesis which one it continues, integers (B, W), or `None` for itself.
        model: see `keras_transformer.search`.
        memory: what the model's `encode` returned.
        plan: `Plan`.
        state, cache: before the first step.
        batch_size: B, int32 scalar.
    """
    invariants = _shape_invariants(state, cache)

    def unfinished(position, sentences, state, cache):
        return tf.reduce_any(state.running > -np.inf)

    def phase(position, sentences, state, cache):
        chosen = tf.where(_going_on(tf.gather(state.running, sentences)))[:, 0]
        sentences = tf.gather(sentences, chosen)
        memory_part, plan_part = memory_of(memory, sentences), plan.of(sentences)
        position, part, cache = _steps(
            tf.shape(plan_part.limit)[0],
            functools.partial(advance, plan=plan_part),
            lambda ids, position, cache: model.decode_step(ids, position, memory_part, cache),
            [position, _take(state, sentences), _take(cache, chosen)],
            [tf.TensorShape([]), *invariants],
        )
        return position, sentences, state.updated(sentences, part), cache

    return tf.while_loop(
        unfinished,
        phase,
        [tf.zeros([], tf.int32), tf.range(batch_size), state, cache],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), *invariants],
    )[2]


def _steps(batch_size, advance, decode_step, variables, shape_invariants):
    """Adds tokens until a quarter of the sentences is over: position, state and cache after it."""
    enough = tf.floor(GOING_ON * tf.cast(batch_size, tf.float32))

    def most_go_on(position, state, cache):
        return tf.reduce_sum(tf.cast(_going_on(state.running), tf.float32)) > enough

    step = functools.partial(add_token, advance, decode_step)
    return tf.while_loop(most_go_on, step, variables, shape_invariants=shape_invariants)


def add_token(advance, decode_step, position, state, cache):
    """One step: position, state and cache after it."""
    logits, cache = decode_step(state.ids, position, cache)
    state, parents = advance(position, tf.cast(logits, tf.float32), state)
    if parents is not None:
        reordered = tf.nest.map_structure(
            lambda x: tf.gather(x, parents, batch_dims=1), cache.by_hypothesis
        )
        cache = cache._replace(by_hypothesis=reordered)
    return position + 1, state, cache


def _going_on(running):
    """Sentences that are not over, (B,) boolean."""
    return tf.reduce_max(running, axis=1) > -np.inf


def memory_of(memory, sentences):
    """The memory of these sentences. One that has a method `of` knows what sentences share."""
    return memory.of(sentences) if hasattr(memory, "of") else _take(memory, sentences)


def _take(tensors, sentences):
    """These rows of every tensor of a nest."""
    return tf.nest.map_structure(lambda x: tf.gather(x, sentences), tensors)


def _shape_invariants(state, cache):
    """Shapes of state and cache: sentences leave, and axes that are empty at first grow."""
    rows = tf.TensorShape([None, state.running.shape[1]])
    state = State(ids=rows, running=rows, scores=rows, history=tf.TensorShape([None] * 3))
    return state, tf.nest.map_structure(
        lambda x: tf.TensorShape([None, *(size or None for size in x.shape[1:])]), cache
    )
