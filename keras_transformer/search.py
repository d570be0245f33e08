"""Greedy search, beam search and sampling: from source ids to generated ids, in one graph.

A search knows a model by five members: `start_ids`, `encode`, `initial_cache`, `decode_step` and
`max_length`. Everything runs in one `tf.while_loop` over TensorFlow operations that ONNX has too,
so that Keras, SavedModel and ONNX hold the very same code.

Shapes: B sentences, W hypotheses of each, S source length, P start (or prompt) length, T generated
length, V vocabulary, N candidates.
"""

import math
import numbers
import weakref
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.text import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

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


class _State(NamedTuple):
    """What a step changes, caches apart."""

    ids: tf.Tensor  # (B, W) int32, the token that each hypothesis ends with
    running: tf.Tensor  # (B, W), sum of log-probabilities; -inf: finished or never existed
    scores: tf.Tensor  # (B, W), scores of finished hypotheses; -inf: none
    history: tf.Tensor  # (B, W or 2W, t) int32, tokens so far


class _Plan(NamedTuple):
    """What stays fixed during the loop."""

    limit: tf.Tensor  # (B, 1) int32, most tokens that may be generated
    start_length: Any  # (B, 1) int32, or the int 1 where every sentence starts with one token
    forced: Any  # (B, P + 1) int32, tokens that are given, then 0; None where there are none
    noise: Any  # (T, B, W) float32 in [0, 1), or None


def _top_candidates(logits, count, forbidden):
    """The `count` likeliest allowed tokens of each hypothesis, without a full log-softmax.

    Probabilities are the model's own: a forbidden token keeps its share of the probability mass.

    Args:
        logits: float32 (B, W, V).
        count: int, how many allowed candidates are needed.
        forbidden: list of pairs (id, when), `when` a boolean tensor that broadcasts to (B, W, N),
            or True.

    Returns:
        Log-probabilities, float32 (B, W, N), -inf where forbidden, and ids, int32 (B, W, N), in
        order of falling logits, lower id first where equal; N = min(V, count + len(forbidden)).
        And the logarithm of the normaliser, (B, W, 1).
    """
    # As many as `count` and all forbidden ones: so `count` allowed ones are left.
    count = min(logits.shape[-1], count + len(forbidden))
    values, ids = tf.math.top_k(logits, count)  # (B, W, N)
    peak = values[..., :1]
    normaliser = peak + tf.math.log(
        tf.reduce_sum(tf.exp(logits - peak), axis=-1, keepdims=True)
    )  # (B, W, 1)
    return _forbid(values - normaliser, ids, forbidden), ids, normaliser


def _forbid(values, ids, forbidden):
    """`values` with -inf at the forbidden ids."""
    banned = False
    for token, when in forbidden:
        banned = tf.logical_or(banned, tf.logical_and(tf.equal(ids, token), when))
    return tf.where(banned, -np.inf, values)


def _length_penalty(count, alpha):
    """((5 + n) / 6)^alpha of Wu et al. 2016, equation 14. Counts below 1 are taken for 1."""
    count = tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.pow((5.0 + count) / 6.0, alpha)


def _given_tokens(start, prefix):
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


def _close_up(history, plan):
    """Drop each sentence's own start tokens from the front of its history, pad at the end."""
    if plan.forced is None:
        return history
    rows, width, length = tf.unstack(tf.shape(history))
    padded = tf.pad(history, [[0, 0], [0, 0], [0, 1]])  # (B, W, t + 1)
    # Position 0 is never in the history, hence the 1.
    column = tf.minimum(tf.range(length) + plan.start_length - 1, length)  # (B, t)
    row = tf.reshape(tf.range(rows * width) * (length + 1), [rows, width, 1])
    return tf.gather(tf.reshape(padded, [-1]), row + column[:, tf.newaxis])  # (B, W, t)


def _integer_ids(ids, name, rank=2):
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


def _check_number(value, name, kind, lowest, highest=math.inf):
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r} ({type(value).__name__}).")
    if not lowest <= value <= highest or math.isinf(value):
        raise ValueError(f"{name} must lie in [{lowest}, {highest}] and be finite, got {value}.")


@dataclass(frozen=True)
class _Search:
    """What the searches share: arguments, compilation, the loop. Subclasses say how to advance."""

    min_length: int = field(default=0, kw_only=True)
    allow_unknown: bool = field(default=True, kw_only=True)
    # model -> names of the given options -> tf.function; an entry goes with its model.
    _compiled: Any = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self):
        _check_number(self.min_length, "min_length", numbers.Integral, 0)
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
        options["source_ids"] = source_ids = _integer_ids(source_ids, "source_ids")
        if max_length is not None:
            options["max_length"] = self._check_max_length(max_length, source_ids)
        if target_prefix is not None:
            options["target_prefix"] = _integer_ids(target_prefix, "target_prefix")
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
            _check_number(max_length, "max_length", numbers.Integral, 1)
            if max_length < self.min_length:
                raise ValueError(
                    f"max_length {max_length} is below the search's min_length {self.min_length}."
                )
        max_length = tf.convert_to_tensor(max_length)
        max_length = _integer_ids(max_length, "max_length", 1 if max_length.shape.rank else 0)
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
        cache = model.initial_cache(rows * width)
        first = np.where(np.arange(width) < self._distinct, 0.0, -np.inf).astype("float32")
        state = _State(
            ids=tf.tile(start[:, :1], [1, width]),
            running=tf.where(plan.limit > 0, first, -np.inf),
            scores=tf.fill([rows, width], -np.inf),
            history=tf.zeros([rows, self._history_rows, 0], tf.int32),
        )

        def unfinished(position, state, cache):
            return tf.reduce_any(state.running > -np.inf)

        def step(position, state, cache):
            logits, cache = model.decode_step(state.ids, position, memory, cache)
            state, cache = self._advance(position, tf.cast(logits, tf.float32), state, cache, plan)
            return position + 1, state, cache

        _, state, _ = tf.while_loop(
            unfinished,
            step,
            [tf.zeros([], tf.int32), state, cache],
            shape_invariants=[
                tf.TensorShape([]),
                _State(*([tf.TensorShape([None, width])] * 3), tf.TensorShape([None, None, None])),
                tf.nest.map_structure(
                    lambda x: tf.TensorShape([None, x.shape[1], None, x.shape[3]]), cache
                ),
            ],
        )
        return self._result(state, plan)

    def _plan(self, model, start, options):
        source_ids = options["source_ids"]
        start_length, forced = _given_tokens(start, options.get("target_prefix"))
        if "max_length" in options:
            limit = options["max_length"][:, tf.newaxis]  # (B, 1)
        else:
            limit = EXTRA_LENGTH + tf.reduce_sum(
                tf.cast(source_ids != PAD_ID, tf.int32), axis=1, keepdims=True
            )  # (B, 1)
        if model.max_length is not None:
            # The last token is never fed: one more than there are positions.
            limit = tf.minimum(limit, model.max_length + 1 - start_length)
        return _Plan(limit, start_length, forced, self._noise(source_ids, limit, start, options))

    def _noise(self, source_ids, limit, start, options):
        return None

    def _forbidden(self, count):
        """Pairs (id, when) for `_top_candidates`. `count`: tokens with the one to be chosen."""
        pairs = [(PAD_ID, True), (BEGIN_ID, True)]
        if not self.allow_unknown:
            pairs.append((UNKNOWN_ID, True))
        if self.min_length > 1:
            pairs.append((END_ID, tf.reshape(count, [-1, 1, 1]) < self.min_length))
        return pairs

    def _ends(self, ids, count, plan):
        """Which of the new tokens (B, any) finish their hypothesis."""
        ends = tf.equal(ids, END_ID)
        if plan.forced is not None:
            ends = tf.logical_and(ends, count > 0)  # a prompt may hold end marks
        return tf.logical_or(ends, count >= plan.limit)

    def _given(self, position, logits, normaliser, count, plan):
        """The tokens that are forced at this step, (B, 1), 0: none, and their log-probabilities."""
        column = tf.minimum(position + 1, tf.shape(plan.forced)[1] - 1)
        tokens = tf.gather(plan.forced, column, axis=1)[:, tf.newaxis]  # (B, 1)
        rows, width, vocabulary = tf.unstack(tf.shape(logits))
        offset = tf.reshape(tf.range(rows * width) * vocabulary, [rows, width])
        log_probs = tf.gather(tf.reshape(logits, [-1]), offset + tokens) - normaliser[..., 0]
        return tokens, tf.where(count > 0, log_probs, 0.0)  # (B, 1), (B, W)

    def _result(self, state, plan):
        ids = _close_up(state.history[:, : self._width], plan)  # (B, W, t)
        ids = tf.where(state.scores[..., tf.newaxis] > -np.inf, ids, PAD_ID)
        used = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=[0, 1]) > 0  # (t,)
        return SearchResult(ids[:, :, : tf.reduce_sum(tf.cast(used, tf.int32))], state.scores)


class _Independent(_Search):
    """Hypotheses that do not compete: each goes its own way until it ends."""

    def _advance(self, position, logits, state, cache, plan):
        count = position + 2 - plan.start_length
        token, log_prob, normaliser = self._choose(position, logits, count, plan)  # (B, W)
        if plan.forced is not None:
            given, given_log_prob = self._given(position, logits, normaliser, count, plan)
            token = tf.where(given > 0, given, token)
            log_prob = tf.where(given > 0, given_log_prob, log_prob)
        total = state.running + log_prob
        ends = self._ends(token, count, plan)
        written = tf.where(state.running > -np.inf, token, PAD_ID)[..., tf.newaxis]
        return _State(
            ids=token,
            running=tf.where(ends, -np.inf, total),
            scores=tf.maximum(state.scores, tf.where(ends, total, -np.inf)),
            history=tf.concat([state.history, written], axis=2),
        ), cache


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class GreedySearch(_Independent):
    """The likeliest token at every step. One hypothesis a sentence."""

    _width = _distinct = _history_rows = 1

    def _choose(self, position, logits, count, plan):
        log_probs, ids, normaliser = _top_candidates(logits, 1, self._forbidden(count))
        best = tf.reduce_max(log_probs, axis=-1, keepdims=True)  # (B, 1, 1)
        # The lowest id where several are equally likely, as everywhere here.
        token = tf.reduce_min(tf.where(log_probs >= best, ids, logits.shape[-1]), axis=-1)
        return token, best[..., 0], normaliser


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class BeamSearch(_Search):
    """Beam search (section 6.1; Wu et al. 2016, section 7)."""

    beam_width: int = 4
    length_penalty: float = 0.6
    early_stop: bool = field(default=True, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        _check_number(self.beam_width, "beam_width", numbers.Integral, 1)
        _check_number(self.length_penalty, "length_penalty", numbers.Real, 0)
        if not isinstance(self.early_stop, bool):
            raise TypeError(f"early_stop must be True or False, got {self.early_stop!r}.")

    _distinct = 1  # hypotheses that differ before the first step
    _width = property(lambda self: self.beam_width)
    _history_rows = property(lambda self: 2 * self.beam_width)  # finished, then running ones

    def _advance(self, position, logits, state, cache, plan):
        width = self.beam_width
        count = position + 2 - plan.start_length
        parent, token, total = self._extend(position, logits, count, state, plan)  # (B, 2W)
        ends = self._ends(token, count, plan)
        # Finished: those that end among the best W, and those kept so far.
        penalty = _length_penalty(count, self.length_penalty)
        ended = tf.where(ends[:, :width], total[:, :width] / penalty, -np.inf)
        scores, kept = tf.math.top_k(tf.concat([state.scores, ended], axis=1), width)  # (B, W)
        # Running: the best W of the others. At most W of 2W end, so there are enough.
        running, going = tf.math.top_k(tf.where(ends, -np.inf, total), width)  # (B, W)
        running = tf.where(self._done(scores, running, plan), -np.inf, running)

        # Where each row of the new history (finished, then running) comes from, and its token.
        own = tf.broadcast_to(tf.range(width), tf.shape(scores))
        source = tf.concat([own, width + parent], axis=1)  # (B, 3W)
        tokens = tf.concat([tf.zeros_like(own), token], axis=1)  # (B, 3W)
        chosen = tf.concat([kept, width + going], axis=1)  # (B, 2W)
        source = tf.gather(source, chosen, batch_dims=1)  # (B, 2W)
        tokens = tf.gather(tokens, chosen, batch_dims=1)  # (B, 2W)
        history = tf.gather(state.history, source, batch_dims=1)
        state = _State(
            ids=tokens[:, width:],
            running=running,
            scores=scores,
            history=tf.concat([history, tokens[..., tf.newaxis]], axis=2),  # (B, 2W, t + 1)
        )
        first = tf.range(tf.shape(scores)[0])[:, tf.newaxis] * width
        rows = tf.reshape(first + source[:, width:] - width, [-1])  # (B * W,)
        return state, tf.nest.map_structure(lambda x: tf.gather(x, rows), cache)

    def _extend(self, position, logits, count, state, plan):
        """The best 2W one-token extensions of all running hypotheses of a sentence.

        2W, for at most W of them end: each hypothesis has one end mark.

        Returns:
            Parent, token and sum of log-probabilities, each (B, 2W), best first.
        """
        width = self.beam_width
        log_probs, ids, normaliser = _top_candidates(logits, width + 1, self._forbidden(count))
        size = ids.shape[-1]  # N
        if plan.forced is not None:
            given, given_log_probs = self._given(position, logits, normaliser, count, plan)
            given = given[..., tf.newaxis]  # (B, 1, 1)
            only = tf.where(np.arange(size) < 1, given_log_probs[..., tf.newaxis], -np.inf)
            log_probs = tf.where(given > 0, only, log_probs)
            ids = tf.where(given > 0, given, ids)
        total = tf.reshape(state.running[..., tf.newaxis] + log_probs, [-1, width * size])
        total, index = tf.math.top_k(total, min(2 * width, width * size))  # (B, 2W)
        token = tf.gather(tf.reshape(ids, [-1, width * size]), index, batch_dims=1)
        return index // size, token, total

    def _done(self, scores, running, plan):
        """Sentences whose search is over, (B, 1)."""
        worst = scores[:, -1:]
        if self.early_stop:
            return worst > -np.inf
        # Log-probabilities are <= 0 and the penalty grows with length: no descendant of a running
        # hypothesis can score better than its sum now over the penalty of the longest one.
        best = running[:, :1] / _length_penalty(plan.limit, self.length_penalty)
        return worst >= best
