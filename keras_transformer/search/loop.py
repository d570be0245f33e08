"""The loop that all searches share: from source ids to generated ids, in one graph.

A search knows a model by five members: `start_ids`, `encode`, `initial_cache`, `decode_step` and
`max_length`. Everything runs in TensorFlow operations that ONNX has too, so that Keras, SavedModel
and ONNX hold the very same code: a loop over phases, each of which takes out the sentences that are
over, and in it a loop over steps, each of which adds a token to the others.

Shapes: B sentences, W hypotheses of each, S source length, P start (or prompt) length, Q prefix
length, T generated length, V vocabulary.
"""

import functools
import math
import numbers
import weakref
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

# How many more tokens than its source a sentence may have by default (section 6.1 of the paper).
EXTRA_LENGTH = 50


class SearchResult(NamedTuple):
    """What every search returns, best hypothesis first.

    Attributes:
        ids: int32 (B, W, T), the generated tokens: no begin mark, the end mark where there is one,
            then 0. T is the length of the longest hypothesis of the batch.
        scores: float32 (B, W), sum of log-probabilities / length penalty. Places that no
            hypothesis fills (tiny vocabularies) have score -inf and ids all 0.
    """

    ids: tf.Tensor
    scores: tf.Tensor


class State(NamedTuple):
    """What a step changes, caches apart."""

    ids: tf.Tensor  # (B, W) int32, the token that each hypothesis ends with
    running: tf.Tensor  # (B, W), sum of log-probabilities; -inf: finished or never existed
    scores: tf.Tensor  # (B, W), scores of finished hypotheses; -inf: none
    history: tf.Tensor  # (B, W or 2W, t) int32, tokens so far

    def updated(self, rows, part):
        """With `part` in the place of these rows; the others' history ends with 0."""
        more = tf.shape(part.history)[2] - tf.shape(self.history)[2]
        longer = self._replace(history=tf.pad(self.history, [[0, 0], [0, 0], [0, more]]))
        put = functools.partial(tf.tensor_scatter_nd_update, indices=tf.expand_dims(rows, 1))
        return State(*[put(old, updates=new) for old, new in zip(longer, part, strict=True)])


class Plan(NamedTuple):
    """What stays fixed during the loop."""

    limit: tf.Tensor  # (B, 1) int32, most tokens that may be generated
    start_length: Any  # (B, 1) int32, or the int 1 where every sentence starts with one token
    forced: Any  # (B, P + 1) int32, tokens that are given, then 0; None where there are none
    noise: Any  # (T, B, W) float32 in [0, 1), or None

    def of(self, rows):
        """The plan of these sentences."""
        return Plan(
            tf.gather(self.limit, rows),
            self.start_length if self.forced is None else tf.gather(self.start_length, rows),
            None if self.forced is None else tf.gather(self.forced, rows),
            None if self.noise is None else tf.gather(self.noise, rows, axis=1),
        )


def _going_on(running):
    """Sentences that are not over, (B,) boolean."""
    return tf.reduce_max(running, axis=1) > -np.inf


def given_tokens(start, prefix):
    """Start and prefix of each sentence, closed up to one row of given tokens.

    Args:
        start: int32 (B, P), right-padded with 0.
        prefix: int32 (B, Q), right-padded with 0, or None.

    Returns:
        `start_length`, (B, 1), and the given tokens, (B, P + Q + 1), padded with at least one 0.
        Where there is only one start token each, the int 1 and None.
    """
    if prefix is None and start.shape[1] == 1:
        return 1, None
    rows, columns = tf.unstack(tf.shape(start))
    length = tf.reduce_sum(tf.cast(start != PAD_ID, tf.int32), axis=1, keepdims=True)  # (B, 1)
    length = tf.maximum(length, 1)  # an empty prompt starts from its pad
    parts = [start] if prefix is None else [start, prefix]
    tokens = tf.concat(parts + [tf.zeros([rows, 1], tf.int32)], axis=1)  # (B, P + Q + 1)
    total = tf.shape(tokens)[1]
    column = tf.range(total)[tf.newaxis]
    after = tf.minimum(column - length + columns, total - 1)
    return length, tf.gather(tokens, tf.where(column < length, column, after), batch_dims=1)


def close_up(history, plan):
    """Drop each sentence's own start tokens from the front of its history, pad at the end."""
    if plan.forced is None:
        return history
    rows, width, length = tf.unstack(tf.shape(history))
    padded = tf.pad(history, [[0, 0], [0, 0], [0, 1]])  # (B, W, t + 1)
    # Position 0 is never in the history, hence the 1.
    column = tf.minimum(tf.range(length) + plan.start_length - 1, length)  # (B, t)
    row = tf.reshape(tf.range(rows * width) * (length + 1), [rows, width, 1])
    return tf.gather(tf.reshape(padded, [-1]), row + column[:, tf.newaxis])  # (B, W, t)


def integer_ids(ids, name, rank=2):
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise TypeError(
            f"{name} must hold integer ids, got dtype {ids.dtype.name}. Cast it to int32."
        )
    if ids.shape.rank != rank:
        raise ValueError(
            f"{name} must have rank {rank}, got shape {ids.shape}. "
            "One sentence alone needs a batch axis: ids[None]."
        )
    return tf.cast(ids, tf.int32)


def check_number(value, name, kind, lowest, highest=math.inf):
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r} ({type(value).__name__}).")
    if not lowest <= value <= highest or math.isinf(value):
        raise ValueError(f"{name} must lie in [{lowest}, {highest}] and be finite, got {value}.")


@dataclass(frozen=True)
class Search:
    """What the searches share: arguments, compilation, the loop. Subclasses say how to advance."""

    _: KW_ONLY
    min_length: int = 0
    allow_unknown: bool = True
    # model -> names of the given options -> tf.function; an entry goes with its model.
    _compiled: Any = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self):
        check_number(self.min_length, "min_length", numbers.Integral, 0)
        if not isinstance(self.allow_unknown, bool):
            raise TypeError(f"allow_unknown must be True or False, got {self.allow_unknown!r}.")

    def __call__(self, model, source_ids, max_length=None, *, target_prefix=None):
        """Search; see the class for arguments and result."""
        return self._call(model, source_ids, max_length, target_prefix)

    def get_config(self):
        """The constructor's arguments."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __reduce__(self):
        # Copies and pickles leave the compiled functions behind.
        return type(self).from_config, (self.get_config(),)

    def _call(self, model, source_ids, max_length, target_prefix, **options):
        """Check the arguments; in eager code compile the search once a model, else trace it."""
        if keras.config.backend() != "tensorflow":
            raise ValueError(
                f"Searches run on Keras' TensorFlow backend, this is {keras.config.backend()!r}. "
                "Set KERAS_BACKEND=tensorflow and load the saved model there."
            )
        if not hasattr(model, "decode_step"):
            raise TypeError(
                f"{type(model).__name__} has no decode_step, so nothing can be generated with it. "
                "Pass a Transformer or a CausalTransformer."
            )
        options["source_ids"] = source_ids = integer_ids(source_ids, "source_ids")
        if max_length is not None:
            options["max_length"] = self._check_max_length(max_length, source_ids)
        if target_prefix is not None:
            options["target_prefix"] = integer_ids(target_prefix, "target_prefix")
            if not source_ids.shape[:1].is_compatible_with(options["target_prefix"].shape[:1]):
                raise ValueError(
                    "target_prefix must have one row a sentence: "
                    f"source_ids {source_ids.shape}, target_prefix {target_prefix.shape}."
                )
        if not tf.executing_eagerly():
            return self._search(model, options)
        functions = self._compiled.setdefault(model, {})
        names = frozenset(options)
        if names not in functions:
            functions[names] = self._compile(model, options)
        return functions[names](options)

    def _check_max_length(self, max_length, source_ids):
        if not tf.is_tensor(max_length) and np.ndim(max_length) == 0:
            check_number(max_length, "max_length", numbers.Integral, 1)
            if max_length < self.min_length:
                raise ValueError(
                    f"max_length {max_length} is below the search's min_length {self.min_length}."
                )
        max_length = tf.convert_to_tensor(max_length)
        max_length = integer_ids(max_length, "max_length", 1 if max_length.shape.rank else 0)
        if max_length.shape.rank and not max_length.shape.is_compatible_with(source_ids.shape[:1]):
            raise ValueError(
                "max_length must be one integer, or one a sentence: "
                f"source_ids {source_ids.shape}, max_length {max_length.shape}."
            )
        return tf.broadcast_to(max_length, tf.shape(source_ids)[:1])  # (B,)

    def _compile(self, model, options):
        # The function must not keep alive the model that it is stored under.
        model = weakref.ref(model)
        signature = {
            name: tf.TensorSpec([None] * value.shape.rank, value.dtype, name)
            for name, value in options.items()
        }
        return tf.function(
            lambda arguments: self._search(model(), arguments),
            input_signature=[signature],
            autograph=False,
        )

    def _search(self, model, options):
        """The whole search as one pure function of tensors."""
        source_ids, width = options["source_ids"], self._width
        rows = tf.shape(source_ids)[0]
        start = tf.cast(model.start_ids(source_ids), tf.int32)  # (B, P)
        plan = self._plan(model, start, options)
        memory = model.encode(source_ids)
        state, cache = self._first_state(start, plan), model.initial_cache(rows, width)

        def take(tensors, rows):
            return tf.nest.map_structure(lambda x: tf.gather(x, rows), tensors)

        def unfinished(position, sentences, state, cache):
            return tf.reduce_any(state.running > -np.inf)

        def phase(position, sentences, state, cache):
            """Goes on with those sentences only that are not over; the cache holds no others."""
            chosen = tf.where(_going_on(tf.gather(state.running, sentences)))[:, 0]
            sentences = tf.gather(sentences, chosen)
            part, memory_part = take(state, sentences), take(memory, sentences)
            position, part, cache = self._steps(
                model, position, part, take(cache, chosen), memory_part, plan.of(sentences)
            )
            return position, sentences, state.updated(sentences, part), cache

        _, _, state, _ = tf.while_loop(
            unfinished,
            phase,
            [tf.zeros([], tf.int32), tf.range(rows), state, cache],
            shape_invariants=[
                tf.TensorShape([]),
                tf.TensorShape([None]),
                *self._shape_invariants(cache),
            ],
        )
        return self._result(state, plan)

    def _first_state(self, start, plan):
        rows, width = tf.shape(start)[0], self._width
        first = np.where(np.arange(width) < self._distinct, 0.0, -np.inf).astype("float32")
        return State(
            ids=tf.tile(start[:, :1], [1, width]),
            running=tf.where(plan.limit > 0, first, -np.inf),
            scores=tf.fill([rows, width], -np.inf),
            history=tf.zeros([rows, self._history_rows, 0], tf.int32),
        )

    def _steps(self, model, position, state, cache, memory, plan):
        """Advances token by token until a quarter of the sentences is over."""
        enough = tf.floor(0.75 * tf.cast(tf.shape(plan.limit)[0], tf.float32))

        def most_go_on(position, state, cache):
            return tf.reduce_sum(tf.cast(_going_on(state.running), tf.float32)) > enough

        def step(position, state, cache):
            logits, cache = model.decode_step(state.ids, position, memory, cache)
            logits = tf.cast(logits, tf.float32)
            state, parents = self._advance(position, logits, state, plan)
            if parents is not None:  # (B, W), which hypothesis each one continues; None: itself
                own = tf.nest.map_structure(
                    lambda x: tf.gather(x, parents, batch_dims=1), cache["own"]
                )
                cache = {**cache, "own": own}
            return position + 1, state, cache

        return tf.while_loop(
            most_go_on,
            step,
            [position, state, cache],
            shape_invariants=[tf.TensorShape([]), *self._shape_invariants(cache)],
        )

    def _shape_invariants(self, cache):
        """Of state and cache: sentences leave, and axes that are empty at first grow."""
        state = State(*[tf.TensorShape([None, self._width])] * 3, tf.TensorShape([None] * 3))
        return state, tf.nest.map_structure(
            lambda x: tf.TensorShape([None, *(size or None for size in x.shape[1:])]), cache
        )

    def _plan(self, model, start, options):
        source_ids = options["source_ids"]
        start_length, forced = given_tokens(start, options.get("target_prefix"))
        if "max_length" in options:
            limit = options["max_length"][:, tf.newaxis]  # (B, 1)
        else:
            limit = EXTRA_LENGTH + tf.reduce_sum(
                tf.cast(source_ids != PAD_ID, tf.int32), axis=1, keepdims=True
            )  # (B, 1)
        if model.max_length is not None:
            # The last token is never fed: one more than there are positions.
            limit = tf.minimum(limit, model.max_length + 1 - start_length)
        return Plan(limit, start_length, forced, self._noise(limit + start_length, options))

    def _noise(self, length, options):
        return None

    def _forbidden(self, count):
        """Pairs (id, when) for `top_candidates`. `count`: tokens with the one to be chosen."""
        pairs = [(PAD_ID, None), (BEGIN_ID, None)]
        if not self.allow_unknown:
            pairs.append((UNKNOWN_ID, None))
        if self.min_length > 1:
            pairs.append((END_ID, tf.reshape(count, [-1, 1, 1]) < self.min_length))
        return pairs

    def _ends(self, ids, count, plan):
        """Which of the new tokens (B, any) finish their hypothesis."""
        ends = tf.equal(ids, END_ID)
        if plan.forced is not None:
            ends = tf.logical_and(ends, count > 0)  # a prompt may hold end marks
        return tf.logical_or(ends, count >= plan.limit)

    def _given(self, position, log_probs, count, plan):
        """The tokens that are forced at this step, (B, 1), 0: none, and their log-probabilities."""
        column = tf.minimum(position + 1, tf.shape(plan.forced)[1] - 1)
        tokens = tf.expand_dims(tf.gather(plan.forced, column, axis=1), 1)  # (B, 1)
        rows, width, vocabulary = tf.unstack(tf.shape(log_probs))
        offset = tf.reshape(tf.range(rows * width) * vocabulary, [rows, width])
        log_probs = tf.gather(tf.reshape(log_probs, [-1]), offset + tokens)
        # No log-probability is above 0: the maximum makes those of start tokens 0.
        uncounted = tf.where(count > 0, -np.inf, np.float32(0))
        return tokens, tf.maximum(log_probs, uncounted)  # (B, 1), (B, W)

    def _result(self, state, plan):
        ids = close_up(state.history[:, -self._width :], plan)  # (B, W, t)
        ids *= tf.cast(tf.expand_dims(state.scores, 2) > -np.inf, tf.int32)
        used = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=[0, 1]) > 0  # (t,)
        return SearchResult(ids[:, :, : tf.reduce_sum(tf.cast(used, tf.int32))], state.scores)
