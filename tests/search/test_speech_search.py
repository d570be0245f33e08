"""`SpeechSearch` equals the other searches, finds the language, and samples reproducibly."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.linear_bias import LinearBias

import keras_transformer as kt
from keras_transformer.search.constraints import forbid_tokens
from keras_transformer.search.inputs import START_IDS

V, FIRST, NO_TIMES, NO_SPEECH, LANGUAGES = 97, 61, 60, 59, (43, 47, 53)
RULES = kt.TimestampRules(FIRST, NO_TIMES, suppressed=(7,), suppressed_first=(13, 3))
# Starts of different lengths, with text before the begin token, and a plain one.
START = [[41, 17, FIRST, 23, 2, 43, 57], [2, 47, 57, 0, 0, 0, 0], [41, 31, 2, 53, 57, 0, 0]]


def model(**options):
    keras.utils.set_random_seed(5)
    features = keras.Input((None, 7), name="features")
    encoder = keras.Model(features, keras.layers.Dense(16)(features))
    settings = {"encoder": encoder, "reads_start": True, "positions": "learned", **options}
    made = kt.Transformer(V, 2, 16, 2, 32, **settings)
    random = np.random.default_rng(3)
    for weight in made.trainable_variables:
        weight.assign(weight + 0.3 * random.normal(size=weight.shape))
    return made


MODEL = model()


def search(width=3, **options):
    options = {"constraints": [RULES], "languages": LANGUAGES, **options}
    return kt.SpeechSearch(width, no_speech=NO_SPEECH, **options)


def source(start=START):
    random = np.random.default_rng(7)
    features = random.normal(size=(3, 11, 7)).astype("float32")
    return {"features": features[: len(start)], START_IDS: np.array(start, "int32")}


@pytest.mark.full
@pytest.mark.parametrize(
    "width, positions", [(3, "learned"), (1, "learned"), (3, "rotary"), (3, LinearBias())]
)
def test_start_tokens_at_once_and_one_by_one_give_the_same_tokens(width, positions):
    made = model(positions=positions)
    plain = kt.BeamSearch(width, 0.0, constraints=[RULES], token_scores=True)
    expected = plain(made, source(), max_length=11)
    found = search(width, token_scores=True)(made, source(), max_length=11, length_penalty=0.0)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    np.testing.assert_allclose(found.token_scores, expected.token_scores, atol=1e-4)


class Counting(kt.Constraint):
    """Allows token 10 + n after n tokens."""

    def start(self, known, batch_size, width):
        return tf.zeros([batch_size, width], tf.int32)

    def step(self, logits, past, state, known):
        allowed = tf.range(V) == 11 + state[..., tf.newaxis]
        return forbid_tokens(logits, tf.logical_not(allowed)), state + 1


def test_constraints_with_a_state_see_the_start_tokens():
    made = search(3, constraints=[Counting()])
    together = made(MODEL, source(), max_length=3)
    found = [row[row > 0] for row in together.ids.numpy()[:, 0]]
    assert [row.tolist() for row in found] == [[17, 18, 19], [13, 14, 15], [15, 16, 17]]
    alone = made(MODEL, source(START[:1]), max_length=3)
    np.testing.assert_array_equal(alone.ids[0], together.ids[0])


def test_an_empty_batch_gives_no_ids():
    inputs = {"features": np.zeros((0, 11, 7), "float32"), START_IDS: np.zeros((0, 3), "int32")}
    assert search()(MODEL, inputs, max_length=4).ids.shape == (0, 3, 0)


def test_scores_are_divided_by_the_number_of_tokens_without_the_end():
    assert search().length_divisor(8) == 7
    assert search(length_penalty=2.0).length_divisor(5) == 16
    assert search().length_divisor(1) == 1


@pytest.mark.full
@pytest.mark.parametrize("width", [1, 3])
def test_token_1_stands_for_the_most_likely_language(width):
    unknown = [[2, 1, 57, 0], [41, 17, 2, 1], [2, 47, 57, 0]]
    found = search(width)(MODEL, source(unknown), max_length=11)
    best = np.array(LANGUAGES)[found.start_scores.numpy()[:, 1:].argmax(axis=1)]
    known = np.where(np.array(unknown) == 1, best[:, None], unknown)
    expected = search(width)(MODEL, source(known), max_length=11)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.full
def test_samples_depend_on_the_seed_only_and_follow_the_rules():
    call = {"max_length": 11, "temperature": 1.3}
    first, again = (search(5)(MODEL, source(), seed=3, **call) for _ in range(2))
    other = search(5)(MODEL, source(), seed=4, **call).ids.numpy()
    np.testing.assert_array_equal(first.ids, again.ids)
    assert (first.ids.numpy()[:, :, :3] != other[:, :, :3]).any()
    starts = first.ids.numpy()[:, :, 0]
    assert ((starts >= FIRST) & (starts <= FIRST + 50)).all()
    assert len(np.unique(first.ids.numpy()[0], axis=0)) > 1
    assert (np.diff(first.scores.numpy(), axis=1) <= 0).all()
    cold = search(5)(MODEL, source(), seed=3, max_length=11, temperature=0.01).ids.numpy()
    greedy = search(1)(MODEL, source(), max_length=11).ids.numpy()[:, 0]
    np.testing.assert_array_equal(cold[:, 0, : greedy.shape[1]], greedy)


@pytest.mark.full
def test_at_most_half_of_the_positions_are_generated():
    made = model(positions=kt.LearnedPositionEncoding(22))
    found = kt.SpeechSearch(1, no_speech=NO_SPEECH)(made, source(), max_length=99)
    assert found.ids.shape[2] <= 11


def test_a_search_is_saved_with_its_tokens():
    config = search(3).get_config()
    assert kt.SpeechSearch.from_config(config) == search(3)


def test_tokens_that_the_model_lacks_are_refused():
    with pytest.raises(ValueError, match="the model has 97"):
        kt.SpeechSearch(1, no_speech=V)(MODEL, source(), max_length=3)
