"""What all searches are: arguments, compilation, and the frame around the loop.

Shapes: B batch, W beam width, S source length, P prompt length, Q prefix length, T generated
length, V vocabulary, C candidates, t steps so far.
"""

import numbers
import weakref
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import Cache
from keras_transformer.search import loop
from keras_transformer.search.checks import (
    check_flag,
    check_model,
    check_number,
    check_right_padded,
    max_lengths,
    prefix_ids,
)
from keras_transformer.search.given import given_tokens, without_prompt
from keras_transformer.search.sources import (
    as_read,
    batch_size_of,
    source_lengths,
    source_specs,
    source_tensors,
)
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

# How many more tokens than its source a sentence may have by default (section 6.1 of the paper).
EXTRA_LENGTH = 50


class SearchResult(NamedTuple):
    """What every search returns, best hypothesis first.

    Attributes:
        ids: int32 (B, W, T), the generated tokens: no begin token, the end token where there is
            one, then 0. T is the length of the longest hypothesis of the batch.
        scores: float32 (B, W), sum of log-probabilities / length penalty. Where fewer than W
            hypotheses exist (tiny vocabularies), the others have score -inf and ids all 0.
    """

    ids: tf.Tensor
    scores: tf.Tensor


@dataclass(frozen=True)
class Search:
    """The base of all searches. A subclass says how a step advances.

    It defines `_advance(position, logits, state, plan)`, see `loop.run`, and three numbers:
    `_width`, W; `_distinct`, how many hypotheses differ before the first step; `_history_rows`, how
    many rows of tokens a sentence keeps. And a fourth, `_ranked`, if a model may give it a smaller
    vocabulary, of which it then knows nothing but the special ids: the least size of that one.
    """

    _ranked = None

    _: KW_ONLY
    min_length: int = 0
    allow_unknown: bool = True
    # model -> (names of the given options, ids of weights) -> tf.function. An entry is dropped with
    # its model. Quantization and LoRA replace weights, so the search is compiled again after them.
    _compiled: Any = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self):
        check_number(self.min_length, "min_length", numbers.Integral, 0)
        check_flag(self.allow_unknown, "allow_unknown")

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
        """Checks the arguments. Eager code compiles the search once a model, other code traces."""
        check_model(model)
        specs = source_specs(model)
        options.update(self._options(specs, source_ids, max_length, target_prefix))
        if not tf.executing_eagerly():
            return self._search(model, options)
        check_right_padded(_start_ids(model, options["source"]), "The prompt in source_ids")
        if target_prefix is not None:
            check_right_padded(options["target_prefix"], "target_prefix")
        functions = self._compiled.setdefault(model, {})
        key = frozenset(options), tuple(map(id, getattr(model, "weights", ())))
        if key not in functions:
            functions[key] = self._compile(model, options, specs)
        return functions[key](options)

    def _options(self, specs, source_ids, max_length, target_prefix=None):
        """What `_begun` reads, checked: dict of tensors, without what was not given."""
        options = {"source": source_tensors(source_ids, specs)}
        if max_length is not None:
            source = options["source"]
            options["max_length"] = max_lengths(max_length, source, self.min_length)
        if target_prefix is not None:
            options["target_prefix"] = prefix_ids(target_prefix, options["source"])
        return options

    def _compile(self, model, options, specs):
        # The function must not keep alive the model that it is stored under.
        model = weakref.ref(model)
        signature = {
            name: tf.TensorSpec([None] * value.shape.rank, value.dtype, name)
            for name, value in options.items()
            if name != "source"
        }
        signature["source"] = specs
        return tf.function(
            lambda arguments: self._search(model(), arguments),
            input_signature=[signature],
            autograph=False,
        )

    def _search(self, model, options):
        """The whole search as one pure function of tensors."""
        narrow = self._narrowed(model, options)
        if narrow is None:
            return self._found(model, options)[1]
        memory, result = self._found(narrow, options)
        return result._replace(ids=narrow.restored(result.ids, memory))

    def _narrowed(self, model, options):
        """The model over fewer words, where it offers one and this search can do with them."""
        if self._ranked is None or "target_prefix" in options:
            return None
        # Of its own class: one that passes on what it lacks may change what another model gives.
        return model.narrowed(self._ranked) if hasattr(type(model), "narrowed") else None

    def _found(self, model, options):
        """What `encode` returned, and the `SearchResult`."""
        batch_size = batch_size_of(options["source"])
        memory, plan, state = self._begun(model, options)
        cache = model.initial_cache(batch_size, self._width)
        if not isinstance(cache, Cache):
            raise TypeError(
                f"initial_cache of {type(model).__name__} returned {type(cache).__name__}. Return "
                "keras_transformer.search.Cache(by_sentence=..., by_hypothesis=...)."
            )
        state = loop.run(self._advance, model, memory, plan, state, cache, batch_size)
        return memory, self._result(state, plan)

    def _begun(self, model, options):
        """What is there before the first step, but for the cache: memory, `Plan` and `State`."""
        start = _start_ids(model, options["source"])
        memory = model.encode(as_read(options["source"]))
        plan = self._plan(getattr(model, "max_length", None), start, memory, options)
        return memory, plan, self._first_state(start, plan)

    def _plan(self, positions, start, memory, options):
        start_length, given = given_tokens(start, options.get("target_prefix"))
        if "max_length" in options:
            limit = options["max_length"][:, tf.newaxis]  # (B, 1)
        else:
            limit = EXTRA_LENGTH + source_lengths(options["source"], memory)  # (B, 1)
        if positions is not None:
            # The last token is never fed: one more than there are positions.
            limit = tf.minimum(limit, positions + 1 - start_length)
        return loop.Plan(limit, start_length, given, self._noise(limit + start_length, options))

    def _noise(self, length, options):
        return None

    def _first_state(self, start, plan):
        batch_size, width = tf.shape(start)[0], self._width
        first = np.where(np.arange(width) < self._distinct, 0.0, -np.inf).astype("float32")
        return loop.State(
            ids=tf.tile(start[:, :1], [1, width]),
            running=tf.where(plan.limit > 0, first, -np.inf),
            scores=tf.fill([batch_size, width], -np.inf),
            history=tf.zeros([batch_size, self._history_rows, 0], tf.int32),
        )

    def _forbidden(self, count):
        """Pairs (id, when) for `top_candidates`. `count`: tokens with the one to be chosen."""
        pairs = [(PAD_ID, None), (BEGIN_ID, None)]
        if not self.allow_unknown:
            pairs.append((UNKNOWN_ID, None))
        if self.min_length > 1:
            pairs.append((END_ID, tf.reshape(count, [-1, 1, 1]) < self.min_length))
        return pairs

    def _ends(self, ids, count, plan):
        """Which of the new tokens, (B, W) or (B, 2W), finish their hypothesis."""
        ends = tf.equal(ids, END_ID)
        if plan.given is not None:
            ends = tf.logical_and(ends, count > 0)  # a prompt may hold end tokens
        return tf.logical_or(ends, count >= plan.limit)

    def _result(self, state, plan):
        ids = state.history[:, -self._width :]  # (B, W, t)
        if plan.given is not None:
            ids = without_prompt(ids, plan.start_length)
        ids *= tf.cast(tf.expand_dims(state.scores, 2) > -np.inf, tf.int32)
        used = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=[0, 1]) > 0  # (t,)
        return SearchResult(ids[:, :, : tf.reduce_sum(tf.cast(used, tf.int32))], state.scores)


def _start_ids(model, source):
    """The tokens before the first generated one, int32 (B, P)."""
    if hasattr(model, "start_ids"):
        return tf.cast(model.start_ids(as_read(source)), tf.int32)
    return tf.fill([batch_size_of(source), 1], BEGIN_ID)
