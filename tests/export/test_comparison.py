"""Comparison with Keras: accepted outputs, refused outputs, and error messages."""

import keras
import numpy as np
import pytest
from helpers import exports

import keras_transformer as kt
from keras_transformer.export import ExportError
from keras_transformer.export.proof.comparison import (
    compare_forward,
    compare_scores,
    compare_search,
    compare_texts,
)
from keras_transformer.export.tasks import SearchTask

BOTH = pytest.mark.parametrize("exact", [True, False])


def outputs(*rows, dtype="float32"):
    """Returns outputs of a model for one case."""
    return [{"y": np.array(rows, dtype)}]


@pytest.mark.parametrize("hidden", [-1e4, -3e4, -1e9, -3.4e38])
@BOTH
def test_large_constants_do_not_set_the_scale(hidden, exact):
    random = np.random.default_rng(0)
    numbers = random.normal(0, 3, 20)
    for count in (1, 20, 400):  # most of a row may be hidden
        expected = outputs(*[hidden] * count, *numbers)
        compare_forward(expected, expected, 1e-4, exact)
        wrong = outputs(*[hidden] * count, *random.permutation(numbers))
        with pytest.raises(ExportError, match="they differ from Keras' by"):
            compare_forward(expected, wrong, 0.4, exact)
    with pytest.raises(ExportError, match="they differ from Keras' by"):
        compare_forward(outputs(hidden, 3.0), outputs(hidden, 50000.0), 0.4, exact)


@BOTH
def test_large_constants_are_compared_with_their_own_size(exact):
    expected = outputs(-1e9, 1.0, 2.0, 3.0)
    compare_forward(expected, outputs(-1e9 + 64, 1.0, 2.0, 3.0), 1e-4, exact)
    with pytest.raises(ExportError, match="they differ from Keras' by 0.5 of"):
        compare_forward(expected, outputs(-5e8, 1.0, 2.0, 3.0), 0.4, exact)


def test_numbers_that_are_all_large_are_compared_by_their_spread():
    numbers = np.random.default_rng(0).normal(0, 1e5, 50)
    compare_forward(outputs(*numbers), outputs(*(numbers + 1)), 1e-4)
    with pytest.raises(ExportError, match="of their spread"):
        compare_forward(outputs(*numbers), outputs(*numbers[::-1]), 0.4, exact=False)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
@BOTH
def test_integers_and_booleans_are_compared_exactly(dtype, exact):
    expected = outputs(1_700_000_003, 0, 1, dtype=dtype)
    assert compare_forward(expected, expected, 1e-4, exact) == 0
    with pytest.raises(ExportError, match="'y'.*of 3") as caught:
        found = outputs(1_699_999_999, 1, 1, dtype=dtype)
        compare_forward(expected, found, 1e9 if exact else 0.3, exact)
    assert "tolerance" not in str(caught.value)


ONES = outputs([1, 1, 1], [1, 1, 1])


@pytest.mark.parametrize(
    "expected, found, message",
    [
        (ONES, outputs([1, 1, 1], [1, 1, 1.5]), "by 0.5 of their size, 0.0001 is allowed"),
        (ONES, outputs([1, 1, 1], [1, 1, 1.001]), "Pass a larger `tolerance`"),
        (ONES, outputs([1, 1, 1], [1, 1, 2]), "wrong, not rounded. Pass samples"),
        (ONES, outputs([1, 1, 1], [1, 1, np.nan]), "not finite at other places"),
        (ONES, outputs([1, 1]), r"shape \(1, 2\)"),
        (outputs(1, dtype="i4"), outputs(1, dtype="i8"), "has dtype int64, Keras gives int32"),
        (outputs(1, -np.inf, np.inf), outputs(1, np.inf, -np.inf), "not finite at other places"),
        (outputs(1, np.nan), outputs(1, np.nan), "Keras model itself gives NaN"),
        (outputs(np.inf), outputs(np.inf), "no finite number in any sample"),
    ],
)
def test_wrong_outputs_are_refused(expected, found, message):
    with pytest.raises(ExportError, match=message) as caught:
        compare_forward(expected, found, 1e-4)
    assert not ("wrong" in message and "Pass a larger" in str(caught.value))


@pytest.mark.parametrize("right", [ONES, outputs(1, -np.inf, np.inf), outputs([], [])])
def test_equal_outputs_have_error_zero(right):
    assert compare_forward(right, right, 1e-4) == 0


def test_rounding_is_relative_to_the_spread_over_all_cases():
    expected, found = outputs([99], [101]) + outputs([100]), outputs([99.5], [101]) + outputs([100])
    error = 0.5 / 3**0.5 / (2 / 3) ** 0.5
    assert compare_forward(expected, found, 0.5, exact=False) == pytest.approx(error)
    with pytest.raises(ExportError, match="by 0.35 of their spread, 0.3 is allowed.*keep_float"):
        compare_forward(expected, found, 0.3, exact=False)
    constant = outputs([0, 0])
    assert compare_forward(constant, constant, 0.3, exact=False) == 0


# Searches


IDS = np.array([[[5, 3], [7, 3]]])
SCORES = np.array([[-1.0, -2.0]], "float32")
TIED = [[-1.0, -1.00001]]


def compare(scores, ids, claimed, again, expected_ids=IDS, **options):
    """Runs `compare_search` on one sentence. `again` holds Keras' scores of the file's `ids`."""
    scores, claimed, again = (np.array(x, "float32") for x in (scores, claimed, again))
    found = [{"token_ids": ids, "scores": claimed}]
    rescored = [(again, np.full(again.shape, 2.0, "float32"))]
    return compare_search([(expected_ids, scores)], found, rescored, 1e-4, **options)


OTHER = np.array([[[5, 3], [11, 3]]])
THREE_IDS = np.array([[[5, 3], [7, 3], [0, 0]]])  # the last is missing
TIED_OF_THREE, ONE_OF_THREE = [[*TIED[0], -np.inf]], [[-1.0, -np.inf, -np.inf]]


@pytest.mark.parametrize(
    "scores, ids, expected_ids, claimed",
    [
        (SCORES, IDS, IDS, SCORES),
        (TIED, IDS[:, ::-1], IDS, TIED),
        (TIED_OF_THREE, THREE_IDS[:, [1, 0, 2]], THREE_IDS, TIED_OF_THREE),
        # a tie is relative to sizes above 1
        ([[-0.1, -0.2]], OTHER, IDS, [[-0.1, -0.20009]]),
        ([[-10.0, -20.0]], OTHER, IDS, [[-10.0, -20.0015]]),
    ],
)
def test_tied_hypotheses_may_change_places(scores, ids, expected_ids, claimed):
    assert compare(scores, ids, claimed, claimed, expected_ids) == 0


# Keras gives the file's hypotheses the scores that the file claims, but finds better ones.
NO_TIE = "hypothesis 1, token 0 is 11, Keras has 7"


@pytest.mark.parametrize(
    "arguments, exact, message",
    [
        (([[-1.0, -2.0]], OTHER, *[[[-1.0, -3.0]]] * 2), True, NO_TIE),  # only the first is tied
        (([[-1.0, -2.0]], OTHER, *[[[-1.0, -2.0005]]] * 2), True, NO_TIE),
        (([[-3.0, -4.0]], OTHER, *[[[-3.0, -4.001]]] * 2), True, NO_TIE),
        (
            (TIED_OF_THREE, THREE_IDS, ONE_OF_THREE, TIED_OF_THREE, THREE_IDS),
            True,
            "not finite at other places",
        ),
        ((SCORES, IDS + 4, SCORES + 1, SCORES + 1), True, "token 0 is 9, Keras has 5"),
        ((SCORES, IDS, SCORES, SCORES * 2), True, "scores differ from Keras' by 0.5 of their size"),
        ((SCORES, IDS[:, :1], SCORES[:, :1], SCORES[:, :1]), True, "Shapes of the search"),
        # scores of rounded weights are relative to their spread
        ((SCORES, IDS, SCORES, SCORES + [[0, 1]]), False, "by 0.35 of their spread.*keep_float"),
        ((SCORES, IDS, [[np.nan, -2.0]], SCORES), False, "not finite at other places"),
        ((SCORES, IDS, [[-np.inf, -2.0]], SCORES), False, "not finite at other places"),
        ((SCORES, IDS, [[-1.0, np.nan]], SCORES), False, "not finite at other places"),
        (
            ([[np.nan, -2.0]], IDS, [[np.nan, -2.0]], SCORES),
            False,
            "Keras model itself gives NaN",
        ),
    ],
)
def test_wrong_searches_are_refused(arguments, exact, message):
    with pytest.raises(ExportError, match=message):
        compare(*arguments, exact=exact)


@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, for -inf minus -inf
@BOTH
def test_scores_whose_difference_is_no_number_are_refused(exact):
    impossible = np.array([-np.inf, -1.0], "float32")  # a token that both forbid
    with pytest.raises(ExportError, match="scores differ from Keras' by nan"):
        compare_scores("scores", [(impossible, np.ones(2))], [impossible], 1e-4, exact)


def test_scores_of_rounded_weights_are_relative_to_their_spread():
    error = compare(SCORES, IDS + 4, SCORES, SCORES + [[2e-4, 0]], exact=False)
    assert error == pytest.approx(1e-4 / 2**0.5, rel=1e-2)


@pytest.mark.parametrize("exact", [True, False])
def test_every_case_of_a_search_is_compared(exact):
    found = [{"token_ids": IDS, "scores": SCORES}] * 2
    rescored = [(SCORES, SCORES * 0 + 2), (SCORES - [[1, -1]], SCORES * 0 + 2)]
    with pytest.raises(ExportError, match="Parity of the scores"):
        compare_search([(IDS, SCORES)] * 2, found, rescored, 1e-4, exact)


def biased(token, bias):
    """Returns a translator whose logits have a bias for one token."""
    model = exports.tiny(output_bias=True)
    biases = np.where(np.arange(exports.VOCAB) == token, bias, 0.0)
    model.get_layer("token_embedding").bias.assign(biases)
    return model


def test_a_bias_that_forbids_a_token_does_not_set_the_scale_of_scores():
    """Importers set such biases. They must not raise the tolerance for rounding."""
    case, token_ids = {"source_ids": exports.source()}, np.array([[[7, 11, 3]]] * 5, "int32")
    tasks = [SearchTask(biased(1, bias), kt.GreedySearch(), 3) for bias in (0.0, -1e4)]
    plain, forbidden = (task.forced(case, token_ids).spread for task in tasks)
    np.testing.assert_allclose(plain, forbidden, rtol=0.1)


@pytest.mark.full("True-5e-06-0.0005")
@pytest.mark.parametrize("exact, allowed, wrong", [(True, 5e-6, 5e-4), (False, 5e-3, 5.0)])
def test_scores_of_sure_tokens_are_compared_like_their_sums(exact, allowed, wrong):
    """Such log-probabilities are near 0 and nearly equal. They are rounded as the logits are."""
    model = biased(7, 15.0)
    search, case = kt.GreedySearch(token_scores=True), {"source_ids": exports.source()}
    task = SearchTask(model, search, 3)
    ids, scores, details = (np.asarray(part) for part in search(model, **case, max_length=3)[:3])
    assert -0.01 < details.min() < details.max() < 0

    def compared(gap):
        found = {"token_ids": ids, "scores": scores, "token_scores": details + np.float32(gap)}
        return task.compare([case], [(ids, scores)], [found], 1e-4 if exact else 0.15, exact)

    compared(allowed)
    with pytest.raises(ExportError, match="token_scores differ from Keras'"):
        compared(wrong)


def test_scores_of_the_first_token_of_speech_are_relative_to_all_sounds():
    """A token that varies with the sound moves them together, more than the logits of a step."""
    keras.utils.set_random_seed(5)
    features = keras.Input((None, 7), name="features")
    encoder = keras.Model(features, keras.layers.Dense(16)(features))
    model = kt.Transformer(97, 1, 16, 2, 32, encoder=encoder, reads_start=True)
    table = model.get_layer("token_embedding").embeddings
    table.assign(np.where(np.arange(97)[:, None] == 11, 40.0, 1.0) * table.numpy())
    search = kt.SpeechSearch(1, no_speech=53, languages=[43, 47])
    sounds = 30 * np.random.default_rng(0).normal(size=(5, 3, 7)).astype("float32")
    case = {"features": sounds, "start_ids": np.full((5, 1), 2, "int32")}
    result = search(model, case, max_length=3)
    ids, scores, starts = (np.asarray(part) for part in (*result[:2], result.start_scores))
    task = SearchTask(model, search, 3)
    (values, spread), varied = task.forced(case, ids).start_scores, starts.std()
    np.testing.assert_allclose(values, starts, atol=1e-4)
    assert 1.5 * spread.max() < varied

    def compared(gap):
        found = {"token_ids": ids, "scores": scores, "start_scores": starts + np.float32(gap)}
        return task.compare([case], [(ids, scores)], [found], 0.15, exact=False)

    assert compared(0.1 * varied) == pytest.approx(0.1, rel=1e-2)
    with pytest.raises(ExportError, match="start_scores differ from Keras' by 0.2 of their spread"):
        compared(0.2 * varied)


# Texts


def texts(words, scores):
    """Returns results of a search for one sentence."""
    return {"texts": np.array([[*words]]), "scores": np.array([scores], "float32")}


THREE = [-1.0, -1.00001, -2.0]


@pytest.mark.parametrize(
    "expected, found, message",
    [
        (texts("a", [-1.0]), texts("a", [-1.0]), None),
        (texts("a", [-1.0]), texts("b", [-1.0]), "hypothesis 0 is 'b' and not 'a'"),
        (texts("a", [-1.0]), texts("a", [-1.5]), "scores differ by 0.5"),
        (texts("abc", THREE), texts("bac", THREE), None),
        (texts("abc", THREE), texts("abd", THREE), "hypothesis 2 is 'd' and not 'c'"),
    ],
)
def test_texts_must_agree_except_for_ties(expected, found, message):
    if message is None:
        assert compare_texts(expected, found, 1e-4) == 0
    else:
        with pytest.raises(ExportError, match=message):
            compare_texts(expected, found, 1e-4)
