"""Searches on a small fake model, against a plain search in NumPy.

Shapes: B batch, W beam width, S source length, T generated length, V vocabulary.
"""

import copy
import doctest
import functools
import gc
import inspect
import itertools
import pickle
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.fake_model import END, ByPosition, FakeModel
from helpers.tiers import full

import keras_transformer as kt
from keras_transformer.search import BeamSearch, Cache, GreedySearch, Sampling
from keras_transformer.search.sampling import uniform_noise
from keras_transformer.search.scores import top_tokens

SEARCHES = [
    GreedySearch(),
    BeamSearch(3, 0.7),
    BeamSearch(2, 1.3, early_stop=False, min_length=4, allow_unknown=False),
    Sampling(0.9, seed=7, num_samples=2),
    Sampling(1.5, top_k=5, top_p=0.8, seed=7, min_length=3),
]
QUICK = (1, 4)  # in slow tests, the others run with `--full` only


every_search = pytest.mark.parametrize("search", SEARCHES, ids=repr)
some_searches = pytest.mark.parametrize(
    "search",
    [search if i in QUICK else full(search) for i, search in enumerate(SEARCHES)],
    ids=repr,
)


@functools.cache
def shared_model(causal=False):
    """Returns a shared model, so that each search is traced once. Forbidden ids are likely."""
    model = FakeModel(13, end_bias=2.0, causal=causal)
    model.table[:, [0, 2]] += 4.0
    return model


class Reference:
    """Plain beam search for one sentence, with lists and without a cache."""

    def __init__(self, model, source, limit, *, start=(2,), prefix=(), min_length=0, unknown=True):
        self.model, self.source, self.limit = model, source, limit
        self.start, self.prefix, self.min_length = tuple(start), tuple(prefix), min_length
        self.banned = {0, 2} if unknown else {0, 1, 2}

    def extensions(self, tokens):
        log_probs = self.model.log_probs(self.source, self.start + tokens)
        if len(tokens) < len(self.prefix):
            token = self.prefix[len(tokens)]
            return [(token, log_probs[token])]
        banned = self.banned | ({END} if len(tokens) + 1 < self.min_length else set())
        return [(i, log_probs[i]) for i in range(self.model.vocab_size) if i not in banned]

    def finished(self, tokens):
        return tokens[-1] == END or len(tokens) == self.limit

    def beam(self, width, alpha, early_stop):
        found, running = [], [((), 0.0)]
        while running and not (early_stop and self.is_done(found, running, width, alpha)):
            longer = sorted(
                ((*tokens, token), total + log_prob)
                for tokens, total in running
                for token, log_prob in self.extensions(tokens)
            )
            longer.sort(key=lambda item: -item[1])
            found += [item for item in longer[:width] if self.finished(item[0])]
            running = [item for item in longer if not self.finished(item[0])][:width]
        return self.ranked(found, alpha)[:width]

    def is_done(self, found, running, width, alpha):
        """Returns whether `width` have finished and none that runs has a better score."""
        if len(found) < width:
            return False
        return self.ranked(found, alpha)[0][1] >= self.ranked(running, alpha)[0][1]

    @staticmethod
    def ranked(found, alpha):
        scored = [(t, s / ((5 + len(t)) / 6) ** alpha) for t, s in found]
        return sorted(scored, key=lambda item: -item[1])


def check(result, row, expected):
    """Checks that a row of a result holds exactly the hypotheses `expected`."""
    ids, scores = result.ids.numpy()[row], result.scores.numpy()[row]
    for place, (tokens, score) in enumerate(expected):
        padded = np.pad(tokens, (0, ids.shape[1] - len(tokens)))
        np.testing.assert_array_equal(ids[place], padded)
        np.testing.assert_allclose(scores[place], score, rtol=2e-5, atol=2e-5)
    assert (ids[len(expected) :] == 0).all()
    assert (scores[len(expected) :] == -np.inf).all()


def sentences(batch, length, vocab_size, seed=0):
    """Returns random sources (B, S), right-padded to different lengths."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, vocab_size, size=(batch, length)).astype("int32")
    kept = np.maximum(length - np.arange(batch) % max(length, 1), 1)
    return np.where(np.arange(length) < kept[:, None], ids, 0).astype("int32")


def trimmed(ids):
    """Removes the columns that are all 0."""
    return ids[..., : int(np.sum(np.any(ids != 0, axis=(0, 1))))]


# none; one; with the forbidden unknown; ended by the prefix; cut by max_length
PREFIX = np.array(
    [[0] * 7, [9] + [0] * 6, [5, 1, 8, 0, 0, 0, 0], [4, END] + [0] * 5, [4, 5, 6, 7, 8, 9, 10]],
    "int32",
)
# the second prompt holds an end token, the fourth nothing
PROMPTS = np.array(
    [[2, 5, 6, 7, 8], [4, END, 9, 0, 0], [2, 0, 0, 0, 0], [0] * 5, [6, 7, 0, 0, 0]], "int32"
)


def scaled(model, factor, column=slice(None), shift=0.0):
    """Changes the table of a model."""
    model.table[:, column] = factor * model.table[:, column] + shift
    return model


PLAIN = FakeModel(11, end_bias=1.0)
LATE = scaled(
    FakeModel(11, end_bias=3.0, seed=2), 3.0
)  # long hypotheses, of likely tokens, can win
ENDING, CAUSAL = (
    scaled(FakeModel(11, end_bias=3.0, causal=causal), 1.0, 1, 1.0) for causal in (False, True)
)
EVEN = scaled(FakeModel(11), 0.0)  # all tokens are equally likely: the lowest ids come first
EVEN.mix[:] = 0.0
MANY, FEW = sentences(13, 5, 11), sentences(5, 3, 11)
LIMITS = 3 + np.arange(13, dtype="int32") % 7
ONE_EMPTY = np.concatenate([sentences(6, 5, 11), np.zeros([1, 5], "int32")])


def both(**options):
    return BeamSearch(3, 0.9, **options), GreedySearch(**options)


def rows(model, source, limits, prefix, *searches):
    return [(model, source, limits, prefix, search) for search in searches]


QUICK_ROWS = [
    *rows(PLAIN, MANY, LIMITS, None, BeamSearch(2, 0.6), BeamSearch(3, 1.0, early_stop=False)),
    *rows(PLAIN, MANY, LIMITS, None, BeamSearch(7, 1.7)),
    *rows(PLAIN, ONE_EMPTY, None, None, GreedySearch(), BeamSearch(1, 0.0)),
    *rows(EVEN, sentences(2, 3, 11), 2, None, GreedySearch(), BeamSearch(3, 0.0)),
    # 1, 4 and 5 continue, 3 ends: there are 1 + 3 + 9 * 4 = 40 hypotheses
    *rows(FakeModel(6), sentences(3, 2, 6), 3, None, BeamSearch(47, 0.6)),
    *rows(LATE, MANY, 11, None, BeamSearch(3, 2.3), BeamSearch(3, 2.3, early_stop=False)),
    *rows(ENDING, FEW, 6, PREFIX, *both(min_length=3, allow_unknown=False)),
    *rows(CAUSAL, PROMPTS, 6, None, *both()),
    *rows(CAUSAL, PROMPTS, 6, PREFIX, *both()),
]
MORE_ROWS = [
    *rows(
        *(PLAIN, MANY, LIMITS, None),
        *(BeamSearch(width, 0.0, early_stop=early) for width in (1, 5) for early in (True, False)),
        *(BeamSearch(2, 0.6, early_stop=False), BeamSearch(3, 1.0)),
        BeamSearch(7, 1.7, early_stop=False),
    ),
    *rows(FakeModel(6), sentences(3, 2, 6), 3, None, BeamSearch(47, 0.0), BeamSearch(47, 2.3)),
    *rows(ENDING, FEW, 6, None, *both(allow_unknown=False), *both(min_length=4)),
    *rows(ENDING, FEW, 6, None, *both(min_length=5, allow_unknown=False)),
]


@pytest.mark.parametrize(
    "model, source, limits, prefix, search", [*QUICK_ROWS, *(full(*row) for row in MORE_ROWS)]
)
def test_searches_equal_a_plain_search(model, source, limits, prefix, search):
    result = search(model, source, limits, target_prefix=prefix)
    most = np.count_nonzero(source, axis=1) + 50 if limits is None else limits
    most = np.broadcast_to(most, len(source))
    rules = {"min_length": search.min_length, "unknown": search.allow_unknown}
    stops = getattr(search, "early_stop", True)
    for row, ids in enumerate(source):
        start = (ids[ids > 0] if ids.any() else [0]) if model.causal else [2]
        given = () if prefix is None else prefix[row][prefix[row] > 0]
        reference = Reference(model, ids, most[row], start=start, prefix=given, **rules)
        alpha = getattr(search, "length_penalty", 0.0)
        check(result, row, reference.beam(search.width, alpha, stops))
        found = result.ids.numpy()[row, result.scores.numpy()[row] > -np.inf]
        assert len(np.unique(found, axis=0)) == len(found)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_bad_hypotheses_that_finish_early_do_not_end_the_search(width, alpha):
    """The model is sure of nine tokens, and each step ends a hypothesis of probability e^-8."""
    logits = np.full([11, 17], -20.0, "float32")
    logits[:, END], logits[np.arange(9), 5 + np.arange(9)], logits[9, END] = 2.0, 10.0, 20.0
    found = BeamSearch(width, alpha)(ByPosition(logits), [[5]], max_length=11)
    assert found.ids.numpy()[0, 0].tolist() == [*range(5, 14), END]
    assert -0.1 < found.scores.numpy()[0, 0] < 0


@pytest.mark.parametrize("count", [1, 5])
def test_ranking_parts_of_the_vocabulary_equals_ranking_all_of_it(count):
    random = np.random.default_rng(0)
    # few different numbers, so that many are equal
    for vocabulary, kinds in itertools.product((7, 97, 600, 1000), (3, 10**6)):
        logits = random.integers(0, kinds, (5, 2, vocabulary)).astype("float32")
        found, expected = top_tokens(tf.constant(logits), count), tf.math.top_k(logits, count)
        np.testing.assert_array_equal(found[0], expected.values)
        np.testing.assert_array_equal(found[1], expected.indices)


@every_search
@pytest.mark.parametrize("causal", [False, full(True)])
def test_a_sentence_does_not_depend_on_its_batch(search, causal):
    model = shared_model(causal)
    source = sentences(7, 5, 13)
    together = search(model, source)
    lengths = [np.count_nonzero(row) for row in np.asarray(together.ids[:, 0])]
    assert len(set(lengths)) > 1  # some finish long before others
    for row in range(7):
        alone = search(model, np.pad(source[row : row + 1], [(0, 0), (0, row)]))
        np.testing.assert_array_equal(alone.ids, trimmed(together.ids[row : row + 1]))
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-5)
    for length in (0, 3):
        padding = search(model, np.zeros([2, length], "int32"))
        assert np.isfinite(padding.scores).all()
        np.testing.assert_array_equal(padding.ids[0], padding.ids[1])
        empty = search(model, np.zeros([0, length], "int32"))
        assert empty.ids.shape == (0, search.width, 0)
        assert empty.scores.shape == (0, search.width)


@every_search
def test_ids_hold_words_then_one_end_token_then_padding(search):
    limits = np.arange(17) % 13
    limits = np.where(limits > 0, np.maximum(limits, search.min_length), 0)
    result = search(shared_model(), sentences(17, 5, 13), max_length=limits)
    ids, exists = result.ids.numpy(), result.scores.numpy() > -np.inf
    assert ids.dtype == np.int32 and ids.shape == (17, search.width, 12)
    assert (exists.any(axis=1) == (limits > 0)).all()
    lengths, places = np.count_nonzero(ids, axis=2), np.arange(1, 13)
    np.testing.assert_array_equal(ids > 0, places <= lengths[..., None])
    allowed = {1, END, *range(4, 13)} if search.allow_unknown else {END, *range(4, 13)}
    assert {*ids[ids > 0].tolist()} <= allowed
    ended = exists & (lengths < limits[:, None])
    assert ended.any() and (lengths <= limits[:, None]).all()
    assert (lengths[ended] >= max(search.min_length, 1)).all()
    ends = (ids == END) & (places < limits[:, None, None])
    np.testing.assert_array_equal(ends, ended[..., None] & (places == lengths[..., None]))


SHORT = {"end_bias": -1e9, "max_length": 5}  # a FakeModel raises an error for other positions


@pytest.mark.parametrize(
    "model, source, limit, lengths",
    [
        (FakeModel(11, end_bias=-1e9), [[5, 6, 7, 8, 9], [5, 6, 0, 0, 0], [0] * 5], None, None),
        (FakeModel(11, **SHORT), [[5, 6, 7], [5, 0, 0]], 17, [5, 5]),
        (FakeModel(11, causal=True, **SHORT), [[5, 6, 7], [5, 0, 0]], None, [3, 5]),
    ],
    ids=["50 more than the source by default", "the model's positions", "prompts need positions"],
)
def test_the_limit_is_the_default_or_within_the_models_positions(model, source, limit, lengths):
    source = np.array(source, "int32")
    found = np.count_nonzero(BeamSearch(2)(model, source, limit).ids, axis=2)
    expected = np.count_nonzero(source, axis=1) + 50 if lengths is None else lengths
    np.testing.assert_array_equal(found.T, [expected] * 2)


@some_searches
@pytest.mark.parametrize("least", [60, [60, 3]])
def test_the_default_limit_is_not_below_the_least_length(search, least):
    source = np.array([[5, 6, 7], [5, 0, 0]], "int32")
    found = search(FakeModel(11, end_bias=9.0), source, min_length=least)
    counts = np.count_nonzero(found.ids[:, 0], axis=1)
    assert (counts >= least).all() and counts[0] == 60


@some_searches
def test_prompts_without_room_have_no_hypothesis(search):
    prompts, model = (
        np.array([[5, 6, 7, 8, 9], [5, 0, 0, 0, 0]], "int32"),
        FakeModel(11, max_length=3, causal=True),
    )
    with pytest.raises(ValueError, match="positions for 3"):
        search(model, prompts)
    result = tf.function(lambda ids: search(model, ids, min_length=1))(prompts)  # no values
    assert (result.ids[0].numpy() == 0).all() and (result.scores[0].numpy() == -np.inf).all()
    assert (result.ids[1, 0, 0].numpy() > 0) and (result.scores[1, 0].numpy() > -np.inf)


@some_searches
def test_without_allowed_tokens_there_is_no_hypothesis_and_no_nan(search):
    model = FakeModel(4)  # pad, unknown, begin, end
    search = type(search)(**search.get_config() | {"min_length": 3, "allow_unknown": False})
    result = search(model, np.array([[1], [3]], "int32"))
    assert result.ids.shape == (2, search.width, 0)
    np.testing.assert_array_equal(result.scores, np.full((2, search.width), -np.inf))


# Sampling


def chi_square_fits(counts, expected):
    """Returns whether counts deviate from the expected ones as much as by chance."""
    statistic = np.sum((counts - expected) ** 2 / expected)
    freedom = counts.size - 1
    return abs(statistic - freedom) <= 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("axis", ["position", "sample", "sentence", "seed"])
def test_noise_is_uniform_and_neighbours_are_independent(axis):
    if axis == "seed":
        source = np.array([[5, 7]], "int32")
        noise = [uniform_noise(source, tf.constant(i), 11, 23).numpy() for i in range(101)]
        noise = np.array(noise).reshape(101, -1)
    else:
        source = np.stack([np.arange(4, 105), np.arange(101) // 9], axis=1).astype("int32")
        noise = uniform_noise(source, tf.constant(3), 101, 103).numpy()
        noise = np.moveaxis(noise, {"position": 0, "sentence": 1, "sample": 2}[axis], 0)
    assert noise.dtype == np.float32 and noise.min() >= 0 and noise.max() < 1
    bins = (noise * 32).astype(int)
    counts = np.bincount(bins.ravel(), minlength=32)
    assert chi_square_fits(counts, np.full(32, noise.size / 32))
    pairs = (bins[:-1] * 32 + bins[1:]).ravel()
    assert chi_square_fits(np.bincount(pairs, minlength=1024), np.full(1024, pairs.size / 1024))


def reshaped(probabilities, temperature, top_k, top_p):
    """Returns the distribution to sample from, step by step."""
    logits = np.log(probabilities) / temperature
    logits[[0, 2]] = -np.inf
    order = np.argsort(-logits, kind="stable")
    if top_k:
        logits[order[top_k:]] = -np.inf
    p = np.exp(logits) / np.sum(np.exp(logits))
    kept, mass = [], 0.0
    for token in order:
        if mass < top_p:
            kept.append(token)
        mass += p[token]
    p[np.setdiff1d(np.arange(len(p)), kept)] = 0
    return p / np.sum(p)


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [
        (0.7, 0, 1.0),
        (1.0, 0, 0.6),
        (1.3, 7, 0.9),
        (1.0, 1, 1.0),
        (1e-2, 0, 1e-6),
        full(1.0, 0, 1.0),
        full(1.9, 0, 1.0),
        full(1.0, 5, 1.0),
    ],
)
def test_samples_follow_the_distribution(temperature, top_k, top_p):
    model = FakeModel(11)
    source = sentences(1, 3, 11)
    search = Sampling(temperature, top_k, top_p, seed=5, num_samples=20011)
    result = search(model, source, max_length=1)
    log_probs = model.log_probs(source[0], (2,))
    expected = reshaped(np.exp(log_probs), temperature, top_k, top_p)
    counts = np.bincount(result.ids.numpy().ravel(), minlength=11)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chi_square_fits(counts[possible], expected[possible] * 20011)
    # Scores are sorted log-probabilities of the model.
    np.testing.assert_allclose(result.scores[0], log_probs[result.ids[0, :, 0]], rtol=1e-5)
    assert (np.diff(result.scores[0]) <= 0).all()


def test_the_smallest_random_number_draws_the_first_token_that_is_allowed():
    """For this source and seed the random number of the first token is exactly 0."""
    search = Sampling(seed=3404342, allow_unknown=False)
    result = search(FakeModel(211), np.array([[5, 7]], "int32"), max_length=1)
    assert result.ids.numpy().tolist() == [[[END]]]  # the ids below are forbidden


def test_seeds_decide_samples():
    model, source = shared_model(), sentences(5, 3, 13)
    seeded, unseeded = Sampling(seed=3, num_samples=2), Sampling(num_samples=2)
    first = seeded(model, source).ids.numpy()
    np.testing.assert_array_equal(first, unseeded(model, source, seed=3).ids)
    others = [seeded(model, source, seed=4), unseeded(model, source), unseeded(model, source)]
    drawn = {first.tobytes(), *(other.ids.numpy().tobytes() for other in others)}
    assert len(drawn) == 4


# Methods of a model


def test_the_example_of_the_searches_page_runs():
    page = kt.search.__doc__
    names = {"np": np, "tf": tf, "Cache": Cache, "BeamSearch": BeamSearch}
    example = doctest.DocTestParser().get_doctest(page, names, "search", None, None)
    assert len(example.examples) == 4
    assert doctest.DocTestRunner().run(example).failed == 0


# Compilation and ONNX


def test_search_is_compiled_once_for_all_shapes_and_freed_with_its_model():
    model = FakeModel(11, end_bias=1.0)
    search = BeamSearch(2)
    for batch, length in [(2, 3), (5, 7), (1, 11)]:
        search(model, sentences(batch, length, 11))
    assert model.traces == 1
    for limit in (3, 5, np.array([3, 4])):
        search(model, sentences(2, 3, 11), max_length=limit)
    assert model.traces == 2
    model = weakref.ref(model)
    gc.collect()
    assert model() is None


# Arguments

OPTIONS = {"min_length": 3, "allow_unknown": False, "token_scores": True, "alignments": [[0, 1]]}
OPTIONS["constraints"] = [kt.NoRepeatNgrams(2)]


@pytest.mark.parametrize(
    "search",
    [
        GreedySearch(**OPTIONS),
        BeamSearch(7, 1.1, early_stop=False, **OPTIONS),
        Sampling(0.7, 5, 0.9, 11, num_samples=3, **OPTIONS),
        BeamSearch(7, 1.1, early_stop=False, **OPTIONS | {"constraints": [kt.Terms()]}),
    ],
    ids=repr,
)
def test_configuration_is_complete(search):
    config = search.get_config()
    parameters = inspect.signature(type(search)).parameters
    assert list(config) and set(config) == set(parameters)
    assert all(config[name] != item.default for name, item in parameters.items())
    model = kt.Transformer(11, num_layers=1, d_model=8, num_heads=2, d_ff=13)
    search(model, sentences(2, 3, 11), max_length=3)  # compiled functions are not copied
    data = keras.saving.serialize_keras_object(search)
    assert data["registered_name"].startswith("keras_transformer>")
    copies = [keras.saving.deserialize_keras_object(data), copy.deepcopy(search)]
    for other in [*copies, type(search).from_config(config), pickle.loads(pickle.dumps(search))]:
        assert other == search and other is not search and hash(other) == hash(search)
    with pytest.raises(AttributeError):
        search.min_length = 5


@pytest.mark.parametrize(
    "made, width, alpha, early_stop",
    [(6, 2, 0.6, True), (1, 1, 0.6, True), full(6, 3, 0.6, False), full(6, 1, 0.0, True)],
)
def test_the_beam_width_of_a_call_equals_a_search_of_this_width(made, width, alpha, early_stop):
    model = FakeModel(11, end_bias=1.0)
    source = sentences(101, 5, 11)
    options = {"length_penalty": alpha, "early_stop": early_stop}
    expected = BeamSearch(width, **options)(model, source, max_length=7)
    found = BeamSearch(made, **options)(model, source, max_length=7, beam_width=width)
    np.testing.assert_array_equal(trimmed(found.ids[:, :width].numpy()), expected.ids)
    np.testing.assert_allclose(found.scores[:, :width], expected.scores, rtol=1e-6)
    assert not found.ids[:, width:].numpy().any() and np.isneginf(found.scores[:, width:]).all()
