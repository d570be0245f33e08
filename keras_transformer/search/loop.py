"""The loop over steps that all searches share.

It uses only TensorFlow operations that ONNX has too, so Keras, SavedModel and ONNX run the same
search. The loops are nested, from the inside to the outside:

- A step adds one token to every hypothesis.
- A stretch of a few steps ends with `close`, if the cache has a closed part. Slots that no running
  hypothesis attends to leave the cache, and the next steps do not copy the other ones.
- A phase ends when a quarter of its sentences have finished. They leave the batch, with their
  caches, so that later steps cost less.

A prompt or a target prefix passes through the same steps as generated tokens: at a position with a
given token, that token is the only candidate. A prompt is not part of the result; a prefix is.

`()` stands for missing tensors in memory, inputs and cache, because TensorFlow's nests skip it.

Shapes: B batch, W beam width, P prompt length, Q prefix length, T generated length, V vocabulary,
t steps so far.
"""

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import Alignments, Cache, SearchModel, Shared
from keras_transformer.search.constraints import Constraint, Past, constrain
from keras_transformer.search.scores import Scores
from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Tensor

# The fields of `Hypotheses` that grow by one column in each step.
RECORDS = ("history", "token_scores", "alignments")
# Replaces -inf in the records of hypotheses that do not exist: 0 times this is 0, not NaN.
LEAST_LOG_PROB = np.float32(-1e30)
# The next phase begins when a quarter of the sentences of this phase have finished.
UNFINISHED_SHARE = 0.75
# Steps of a stretch. Each of them copies the open slots, and closing copies all that stay.
OPEN_STEPS = 8


class Hypotheses(NamedTuple):
    """The hypotheses of all sentences. Every step changes them.

    Attributes:
        ids: int32 (B, W), the last token of each running hypothesis.
        running: float32 (B, W), the sum of its log-probabilities; -inf if there is none.
        scores: float32 (B, W), scores of the finished hypotheses; -inf if there is none.
        history: int32 (B, R, t), all tokens so far. R is W. In a beam search it is 2W: the running
            hypotheses in rows 0 to W - 1, the finished ones in rows W to 2W - 1.
        token_scores: float32 (B, R, t), the log-probability of each token, or `()`.
        alignments: float32 (B, R, t, S), the attention of each token to the source, or `()`. The
            values after the end of a hypothesis have no meaning.
        constraint_states: for each constraint of the search a nest of tensors (B, W, ...), its
            state of each running hypothesis.
    """

    ids: Tensor
    running: Tensor
    scores: Tensor
    history: Tensor
    token_scores: Tensor | tuple[()] = ()
    alignments: Tensor | tuple[()] = ()
    constraint_states: tuple[Any, ...] = ()

    @property
    def records(self) -> dict[str, Tensor]:
        """The tensors that grow by one column in each step, by name."""
        fields = self._asdict()
        return {name: fields[name] for name in RECORDS if tf.is_tensor(fields[name])}

    def updated(self, sentences: Tensor, part: "Hypotheses") -> "Hypotheses":
        """Replaces the hypotheses of some sentences; pads the records of all others with 0."""
        more = tf.shape(part.history)[2] - tf.shape(self.history)[2]
        pads = [[0, 0], [0, 0], [0, more], [0, 0]]
        longer = {name: tf.pad(x, pads[: x.shape.rank]) for name, x in self.records.items()}
        places = tf.expand_dims(sentences, 1)
        return tf.nest.map_structure(
            lambda old, new: tf.tensor_scatter_nd_update(old, places, new),
            self._replace(**longer),
            part,
        )

    def attended(self, weights: Tensor) -> "Hypotheses":
        """Appends the attention (B, W, S) of the step that chooses the next tokens."""
        rest = tf.shape(self.alignments)[1] - tf.shape(weights)[1]  # finished hypotheses
        column = tf.pad(weights, [[0, 0], [0, rest], [0, 0]])
        column = tf.expand_dims(column, 2)  # (B, R, 1, S)
        return self._replace(alignments=tf.concat([self.alignments, column], axis=2))

    def extended(
        self, tokens: Tensor, log_probs: Tensor, rows: Tensor | None = None
    ) -> "Hypotheses":
        """Appends one token to each row of the records.

        Args:
            tokens: int32 (B, R), 0 for a hypothesis that has finished.
            log_probs: float32 (B, R), their log-probabilities.
            rows: int64 (B, R), the row that each row continues; `None` if each continues itself.
        """
        records = self.records
        if rows is not None:
            records = {name: tf.gather(x, rows, batch_dims=1) for name, x in records.items()}
        new = {"history": tokens}
        if "token_scores" in records:
            new["token_scores"] = tf.maximum(log_probs, LEAST_LOG_PROB)
        longer = {
            name: tf.concat([records[name], tf.expand_dims(column, 2)], axis=2)
            for name, column in new.items()
        }
        return self._replace(**{**records, **longer})


class GivenTokens(NamedTuple):
    """Prompts and target prefixes.

    Attributes:
        prompt_length: int32 (B, 1), the number of tokens of each prompt.
        tokens: int32 (B, P + Q + 1), prompt and prefix of each sentence, then at least one 0.
    """

    prompt_length: Tensor
    tokens: Tensor


class LoopInputs(NamedTuple):
    """The inputs of the loop that no step changes.

    Attributes:
        limit: int32 (B, 1), the greatest number of generated tokens.
        given: `GivenTokens`; `()` if every sentence starts with one token and has no prefix.
        noise: float32 (T, B, W) in [0, 1), the random numbers of a sampling search, or `()`.
        options: dict from names of `call_options` to scalars, or to tensors (B, 1): the options
            that the call has passed for the steps.
        known: the result of `read` of each constraint, a nest of tensors.
    """

    limit: Tensor
    given: GivenTokens | tuple[()]
    noise: Any = ()
    options: Mapping[str, Tensor] = {}
    known: tuple[Any, ...] = ()

    def count(self, position: Tensor) -> Tensor:
        """Counts the generated tokens after the step at `position`: int32, (B, 1) or a scalar."""
        if not self.given:
            return position + 1
        return position + (2 - self.given.prompt_length)


class StepSearch(Protocol):
    """The part of a search that the loop calls."""

    constraints: Sequence[Constraint]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """W, the number of hypotheses of a sentence."""

    @property
    @abc.abstractmethod
    def alignments(self) -> Alignments:
        """The attention heads whose mean weights are recorded; `False` for none."""

    @abc.abstractmethod
    def advance(
        self,
        position: Tensor,
        log_probs: Scores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> tuple[Hypotheses, Tensor | None]:
        """Adds one token to every hypothesis.

        Args:
            position: int32 scalar, the position of the last tokens.
            log_probs: `Scores`, log-probabilities of the next tokens.
            hypotheses: `Hypotheses` before the step. The states of the constraints include `ids`.
            loop_inputs: `LoopInputs`.

        Returns:
            The next `Hypotheses`, and the index of the hypothesis that each of them continues,
            int64 (B, W), or `None` if each continues itself. The loop reorders the states of the
            constraints.
        """


def run(
    search: StepSearch,
    model: SearchModel,
    memory: Any,
    loop_inputs: LoopInputs,
    hypotheses: Hypotheses,
    batch_size: Tensor,
    position: Tensor | None = None,
    cache: Cache | None = None,
) -> Hypotheses:
    """Adds tokens until every sentence has finished.

    Args:
        search: `StepSearch`.
        model: `SearchModel`.
        memory: the result of the model's `encode`.
        loop_inputs: `LoopInputs`.
        hypotheses: `Hypotheses` before the first step.
        batch_size: B, int32 scalar.
        position: int32 scalar, the position of the last tokens of `hypotheses`. Defaults to `None`:
            0.
        cache: the `Cache` of the tokens before them. Defaults to `None`: the initial one.

    Returns:
        The final `Hypotheses`.

    Raises:
        TypeError: if `initial_cache` of the model does not return a `Cache`.
    """
    position = tf.zeros([], tf.int32) if position is None else position
    cache = model.initial_cache(batch_size, search.width) if cache is None else cache
    if not isinstance(cache, Cache):
        raise TypeError(
            f"initial_cache of {type(model).__name__} returned {type(cache).__name__}. Return "
            "keras_transformer.search.Cache(by_sentence=..., by_hypothesis=...)."
        )
    if not hasattr(model, "close"):  # such as a model that wraps one of this package
        cache = cache._replace(closed=())
    rows = tf.TensorShape([None, search.width])
    states = tf.nest.map_structure(
        lambda x: tf.TensorShape([None, *x.shape[1:]]), hypotheses.constraint_states
    )
    shapes = [
        tf.TensorShape([]),
        Hypotheses(rows, rows, rows, history=(), constraint_states=states)._replace(
            **{
                name: tf.TensorShape([None] * x.shape.rank)
                for name, x in hypotheses.records.items()
            }
        ),
        # Sentences leave the batch, and axes that are empty at first may grow.
        tf.nest.map_structure(
            lambda x: tf.TensorShape([None, *(size or None for size in x.shape[1:])]), cache
        ),
    ]

    def unfinished(
        position: Tensor, sentences: Tensor, hypotheses: Hypotheses, cache: Cache
    ) -> Tensor:
        return tf.reduce_any(hypotheses.running > -np.inf)

    def phase(
        position: Tensor, sentences: Tensor, hypotheses: Hypotheses, cache: Cache
    ) -> tuple[Tensor, Tensor, Hypotheses, Cache]:
        chosen = tf.where(_going_on(tf.gather(hypotheses.running, sentences)))[:, 0]
        sentences = tf.gather(sentences, chosen)
        memory_part = take(memory, sentences)
        inputs_part = take(loop_inputs._replace(noise=()), sentences)
        noise = tf.nest.map_structure(lambda x: tf.gather(x, sentences, axis=1), loop_inputs.noise)
        inputs_part = inputs_part._replace(noise=noise)
        enough = tf.shape(inputs_part.limit)[0]
        enough = tf.floor(UNFINISHED_SHARE * tf.cast(enough, tf.float32))
        step = functools.partial(add_token, search, model, memory_part, inputs_part)

        def most_go_on(position: Tensor, hypotheses: Hypotheses, cache: Cache) -> Tensor:
            return tf.reduce_sum(tf.cast(_going_on(hypotheses.running), tf.float32)) > enough

        def stretch(
            position: Tensor, hypotheses: Hypotheses, cache: Cache
        ) -> tuple[Tensor, Hypotheses, Cache]:
            end = position + OPEN_STEPS

            def is_open(position: Tensor, hypotheses: Hypotheses, cache: Cache) -> Tensor:
                return tf.logical_and(position < end, most_go_on(position, hypotheses, cache))

            position, hypotheses, cache = tf.while_loop(
                is_open, step, [position, hypotheses, cache], shape_invariants=shapes
            )
            return position, hypotheses, model.close(cache, hypotheses.running)

        position, part, cache = tf.while_loop(
            most_go_on,
            stretch if tf.nest.flatten(cache.closed) else step,
            [position, take(hypotheses, sentences), take(cache, chosen)],
            shape_invariants=shapes,
        )
        return position, sentences, hypotheses.updated(sentences, part), cache

    _, _, hypotheses, _ = tf.while_loop(
        unfinished,
        phase,
        [position, tf.range(batch_size), hypotheses, cache],
        shape_invariants=[shapes[0], tf.TensorShape([None]), *shapes[1:]],
    )
    return hypotheses


def add_token(
    search: StepSearch,
    model: SearchModel,
    memory: Any,
    loop_inputs: LoopInputs,
    position: Tensor,
    hypotheses: Hypotheses,
    cache: Cache,
) -> tuple[Tensor, Hypotheses, Cache]:
    """Runs one step; returns position, hypotheses and cache after it."""
    options = {"alignments": search.alignments} if search.alignments else {}
    closed = cache.closed
    logits, cache, *weights = model.decode_step(hypotheses.ids, position, memory, cache, **options)
    cache = cache._replace(closed=closed)  # no step changes it
    scores, states = Scores.of(logits), ()
    if search.constraints:
        history = hypotheses.history[:, : search.width]
        count = loop_inputs.count(position)
        past = Past(hypotheses.ids, history, count, loop_inputs.limit - count + 1)
        scores, states = constrain(
            search.constraints, scores, past, hypotheses.constraint_states, loop_inputs.known
        )
        hypotheses = hypotheses._replace(constraint_states=states)
    if weights:
        hypotheses = hypotheses.attended(*weights)
    log_probs = scores.log_softmax()
    hypotheses, parents = search.advance(position, log_probs, hypotheses, loop_inputs)
    carried = cache.by_hypothesis, states
    if parents is not None:
        carried = tf.nest.map_structure(lambda x: tf.gather(x, parents, batch_dims=1), carried)
    cache = cache._replace(by_hypothesis=carried[0])
    return position + 1, hypotheses._replace(constraint_states=carried[1]), cache


def _going_on(running: Tensor) -> Tensor:
    """Returns whether each sentence has a running hypothesis, boolean (B, 1)."""
    if running.shape[1] > 1:
        running = tf.reduce_max(running, axis=1, keepdims=True)
    return running > -np.inf


def take(tensors: Any, rows: Tensor) -> Any:
    """Takes these rows of every tensor of a nest. `Shared` tensors and scalars stay whole."""
    return tf.nest.map_structure(
        lambda x: x if isinstance(x, Shared) or x.shape.rank == 0 else tf.gather(x, rows), tensors
    )


def given_tokens(start: Tensor, prefix: Tensor | None) -> GivenTokens | tuple[()]:
    """Joins prompt and prefix of each sentence, without padding between them.

    Args:
        start: int32 (B, P), padded with 0 on the right.
        prefix: int32 (B, Q), padded with 0 on the right, or `None`.
    """
    if prefix is None and start.shape[1] == 1:
        return ()
    batch_size, width = tf.unstack(tf.shape(start))
    length = tf.reduce_sum(tf.cast(start != PAD_ID, tf.int32), axis=1, keepdims=True)  # (B, 1)
    length = tf.maximum(length, 1)  # an empty prompt starts with its padding
    parts = [start] if prefix is None else [start, prefix]
    tokens = tf.concat([*parts, tf.zeros([batch_size, 1], tf.int32)], axis=1)  # (B, P + Q + 1)
    total = tf.shape(tokens)[1]
    column = tf.range(total)[tf.newaxis]
    after = tf.minimum(column - length + width, total - 1)
    column = tf.where(column < length, column, after)
    return GivenTokens(length, tf.gather(tokens, column, batch_dims=1))


def given_at(position: Tensor, log_probs: Scores, loop_inputs: LoopInputs) -> tuple[Tensor, Tensor]:
    """Returns the given tokens of the next position, and their log-probabilities.

    Args:
        position: int32 scalar, the position of the last tokens.
        log_probs: `Scores`, log-probabilities of the next tokens.
        loop_inputs: `LoopInputs` with given tokens.

    Returns:
        Tokens, int32 (B, 1), 0 if none is given, and log-probabilities, float32 (B, W), 0 for
        tokens of a prompt.
    """
    column = tf.minimum(position + 1, tf.shape(loop_inputs.given.tokens)[1] - 1)
    tokens = tf.expand_dims(tf.gather(loop_inputs.given.tokens, column, axis=1), 1)  # (B, 1)
    found = log_probs.at(tf.expand_dims(tokens, 2))[:, :, 0]  # (B, W)
    # Log-probabilities are at most 0, so the maximum gives 0 for tokens of a prompt.
    uncounted = tf.where(loop_inputs.count(position) > 0, -np.inf, np.float32(0))
    return tokens, tf.maximum(found, uncounted)


def without_prompt(record: Tensor, prompt_length: Tensor) -> Tensor:
    """Removes the prompt of each sentence, and appends 0 instead.

    `final_outputs` of `export/runtime/steps_session.py` does the same with NumPy.

    Args:
        record: (B, W, t), or (B, W, t, S).
        prompt_length: int32 (B, 1).
    """
    batch_size, width, length, *rest = tf.unstack(tf.shape(record))
    padded = tf.pad(record, [[0, 0], [0, 0], [0, 1], [0, 0]][: record.shape.rank])
    # The history starts at position 1, hence the - 1.
    column = tf.minimum(tf.range(length) + prompt_length - 1, length)  # (B, t)
    row = tf.reshape(tf.range(batch_size * width) * (length + 1), [batch_size, width, 1])
    return tf.gather(tf.reshape(padded, [-1, *rest]), row + column[:, tf.newaxis])  # (B, W, t)
