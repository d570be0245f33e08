"""A forward pass of a model for given hypotheses: no cache, no loop, no beam.

Shapes: B batch, W hypotheses, S source length, T target length.
"""

import numpy as np
import tensorflow as tf

from keras_transformer import with_alignments
from keras_transformer.special_ids import BEGIN_ID


def forced(model, source, ids, alignments=True):
    """Returns token scores (B, W, T) and alignments (B, W, T, S) of hypotheses (B, W, T)."""
    count, width, length = ids.shape
    rows = ids.reshape(-1, length)
    target = np.insert(rows[:, :-1], 0, BEGIN_ID, axis=1)
    inputs = {"source_ids": np.repeat(source, width, axis=0), "target_ids": target}
    outputs = with_alignments(model, alignments)(inputs)
    log_probs = tf.nn.log_softmax(outputs["logits"]).numpy()
    scores = np.take_along_axis(log_probs, rows[..., None], axis=2)[..., 0].reshape(ids.shape)
    weights = outputs["alignments"].numpy().reshape(*ids.shape, -1)
    return scores * (ids != 0), weights * (ids != 0)[..., None]


def check(model, source, search, ids, scores, token_scores, alignments):
    """Compares a search's arrays with a forward pass, and their sums with the scores."""
    expected = forced(model, source, ids, search.alignments)
    np.testing.assert_allclose(token_scores, expected[0], atol=1e-5)
    np.testing.assert_allclose(alignments, expected[1], atol=1e-5)
    exists = scores > -np.inf
    sums = token_scores.sum(axis=2) / search.length_divisor(np.maximum((ids != 0).sum(axis=2), 1))
    np.testing.assert_allclose(sums[exists], scores[exists], rtol=2e-5, atol=1e-5)
    assert not token_scores[~exists].any() and not alignments[~exists].any()
