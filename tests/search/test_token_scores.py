"""Token scores and alignments of searches, against a forward pass.

Shapes: B batch, W beam width, S source length, T generated length, V vocabulary.
"""

import itertools

import numpy as np
import pytest
from helpers import exports
from helpers.forced import check
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

V = 97
BOTH = {"token_scores": True, "alignments": True}
HEADS = {"token_scores": True, "alignments": [(0, 1), (-1, 0)]}
SEARCHES = [GreedySearch(**BOTH), BeamSearch(3, **BOTH), Sampling(seed=7, num_samples=2, **HEADS)]
SOURCE = exports.source(rows=5, length=7, vocab_size=V)


@pytest.fixture(scope="module")
def model():
    return exports.tiny(vocab_size=V)


def numpy(result):
    return [np.asarray(part) for part in result]


@pytest.mark.parametrize(
    "number, prefixed",
    quick(itertools.product(range(3), [True, False]), (1, False)),
)
def test_token_scores_and_alignments_equal_a_forward_pass(model, number, prefixed):
    search = SEARCHES[number]
    prefix = np.array([[8, 9], [5, 0], [0, 0], [7, 11], [6, 0]]) if prefixed else None
    limit = np.array([9, 13, 0, 1, 7])  # sentences leave the batch at different steps
    result = numpy(search(model, SOURCE, limit, target_prefix=prefix))
    check(model, SOURCE, search, *result)
    assert result[3].shape == (*result[0].shape, 7)
    np.testing.assert_allclose(result[3].sum(axis=3), result[0] != 0, atol=1e-5)
    assert not result[3][1][..., 5:].any()  # padding of the source
    config = {**search.get_config(), "token_scores": False, "alignments": False}
    plain = type(search)(**config)(model, SOURCE, limit, target_prefix=prefix)
    np.testing.assert_array_equal(plain.ids, result[0])
    assert plain.token_scores == plain.alignments == ()


@pytest.mark.parametrize(
    "options, search, source, limit",
    [
        pytest.param(
            {"vocab_size": V, "recurrent_decoder": True},
            BeamSearch(5, 1.0, early_stop=False, **HEADS),
            *(SOURCE, 11),
            marks=pytest.mark.full,
        ),
        # only the end token and id 4 may be written, so some hypotheses do not exist
        ({"vocab_size": 5}, BeamSearch(7, allow_unknown=False, **BOTH), [[4, 4, 3]], 2),
    ],
    ids=["recurrent", "missing hypotheses"],
)
def test_other_models_have_token_scores_and_alignments(options, search, source, limit):
    model, source = exports.tiny(**options), np.array(source, "int32")
    result = numpy(search(model, source, limit))
    assert np.isinf(result[1]).any() == (options["vocab_size"] == 5)
    check(model, source, search, *result)


@pytest.mark.full
def test_shortlists_keep_token_scores_and_alignments(model):
    search = BeamSearch(3, **BOTH)
    everything = kt.Shortlist(np.full((V, 1), 3), np.ones(V, bool))
    expected = numpy(search(model, SOURCE, 9))
    found = numpy(search(kt.Shortlisted(model, everything), SOURCE, 9))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)
    np.testing.assert_allclose(found[3], expected[3], atol=1e-5)


def test_constraints_do_not_change_token_scores_and_alignments(model):
    search = BeamSearch(3, constraints=[kt.NoRepeatNgrams(1)], **BOTH)
    result = numpy(search(model, SOURCE, 9))
    check(model, SOURCE, search, *result)
    for row in result[0].reshape(-1, result[0].shape[2]):
        assert len(set(row[row > 3])) == np.count_nonzero(row > 3)
