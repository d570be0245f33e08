"""Greedy search: the likeliest token at every step.

Shapes: B batch, W beam width (here 1), S source length, Q prefix length, T generated length.
"""

from dataclasses import dataclass

import keras
import tensorflow as tf

from keras_transformer.search.candidates import top_candidates
from keras_transformer.search.independent import IndependentSearch
from keras_transformer.special_ids import NUM_SPECIAL


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class GreedySearch(IndependentSearch):
    """The likeliest token at every step: one hypothesis a sentence.

    The fastest search, and the same as a beam of width 1.

    The padding token (0) and the begin token (2) are never generated. They keep their share of the
    probability: scores are sums of the model's own log-probabilities, the same as those of the full
    forward pass.

    Args:
        min_length: int, least number of generated tokens, end token included. Before it the end
            token is forbidden. Defaults to 0.
        allow_unknown: bool, whether the unknown token (1) may be generated. Defaults to `True`.

    Call arguments:
        model: a `Transformer`, a `CausalTransformer`, or any object with the methods that
            `keras_transformer.search` asks for.
        source_ids: integers (B, S), padded with 0: sources, or prompts for a `CausalTransformer`.
            Prompts are padded on the right, so that a prompt's tokens come first.
        max_length: int, or integers (B,): most tokens generated a sentence, end token included.
            A hypothesis of this length is finished, with or without end token. Defaults to the
            sentence's own number of source tokens + 50 (section 6.1). It is never more than the
            model has positions. A sentence with a limit below 1 has no hypothesis: ids 0, score
            -inf.
        target_prefix: integers (B, Q), right-padded with 0: tokens that every hypothesis starts
            with. They count for ids, length and score. Defaults to none.

    Returns:
        `SearchResult`: ids, int32 (B, 1, T), and scores, float32 (B, 1), here sums of
        log-probabilities. Each row of ids holds what comes after its own prompt. The tokens of
        the prompt count neither for length nor for score.

    Masking: 0 in `source_ids` is padding. A result depends neither on it nor on the other sentences
    of the batch. A source of padding alone is searched as any other; the model then attends to
    nothing. An empty prompt starts from token 0. An empty batch gives ids (0, 1, 0).

    In eager code the search is compiled once for each model and set of arguments, for all shapes.
    Inside a `tf.function` it becomes part of that function's graph.

    Raises:
        TypeError: if ids are no integers, if `model` lacks a method, or if an argument has the
            wrong type.
        ValueError: if an argument is out of range, shapes do not fit, a prompt or a prefix has
            padding before a token, or Keras' backend is not TensorFlow. Inside a `tf.function`
            padding cannot be checked: other tokens are generated then.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = GreedySearch()(model, source_ids, max_length=10)
    >>> result.ids.shape[:2]
    TensorShape([2, 1])
    """

    _width = _distinct = _history_rows = 1
    _ranked = NUM_SPECIAL + 1  # one at least that is not forbidden

    def _choose(self, position, logits, count, plan):
        best, ids, log_probs = top_candidates(logits, 1, self._forbidden(count))  # (B, 1, 1)
        return tf.cast(ids[..., 0], tf.int32), best[..., 0], log_probs
