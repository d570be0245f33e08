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
from helpers import exports
from helpers.fake_model import END, ByPosition, FakeModel

import keras_transformer as kt
from keras_transformer.search import BeamSearch, Cache, GreedySearch, Sampling
from keras_transformer.search.ranking import top_tokens
from keras_transformer.search.sampling import uniform_noise

SEARCHES = [
    GreedySearch(),
    BeamSearch(3, 0.7),
    BeamSearch(2, 1.3, early_stop=False, min_length=4, allow_unknown=False),
    Sampling(0.9, seed=7, num_samples=2),
    Sampling(1.5, top_k=5, top_p=0.8, seed=7, min_length=3),
]
QUICK = (1, 4)  # in slow tests, the others run with `--full` only


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


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

    def everything(self, alpha):
        """Returns all hypotheses, best first."""
        found, running = [], [((), 0.0)]
        while running:
            tokens, total = running.pop()
            for token, log_prob in self.extensions(tokens):
                longer = (*tokens, token)
                (found if self.finished(longer) else running).append((longer, total + log_prob))
        return self.ranked(found, alpha)

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


@pytest.mark.parametrize(
    "width, alpha, early_stop",
    [
        (2, 0.6, True),
        (3, 1.0, False),
        (7, 1.7, True),
        full(1, 0.0, True),
        full(1, 0.0, False),
        full(2, 0.6, False),
        full(3, 1.0, True),
        full(5, 0.0, True),
        full(5, 0.0, False),
        full(7, 1.7, False),
    ],
)
def test_beam_equals_a_plain_search(width, alpha, early_stop):
    model = FakeModel(11, end_bias=1.0)
    source = sentences(13, 5, 11)
    limits = 3 + np.arange(13, dtype="int32") % 7
    search = BeamSearch(width, alpha, early_stop=early_stop)
    result = search(model, source, max_length=limits)
    for row in range(13):
        reference = Reference(model, source[row], limits[row])
        check(result, row, reference.beam(width, alpha, early_stop))
        assert len(np.unique(result.ids[row], axis=0)) == width


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_bad_hypotheses_that_finish_early_do_not_end_the_search(width, alpha):
    """The model is sure of nine tokens, and each step ends a hypothesis of probability e^-8."""
    logits = np.full([11, 17], -20.0, "float32")
    logits[:, END], logits[np.arange(9), 5 + np.arange(9)], logits[9, END] = 2.0, 10.0, 20.0
    found = BeamSearch(width, alpha)(ByPosition(logits), [[5]], max_length=11)
    assert found.ids.numpy()[0, 0].tolist() == [*range(5, 14), END]
    assert -0.1 < found.scores.numpy()[0, 0] < 0


def test_without_early_stop_hypotheses_that_win_late_are_found():
    model = FakeModel(11, end_bias=3.0, seed=2)
    model.table *= 3.0  # long hypotheses of likely tokens, which a high length penalty favours
    source = sentences(13, 5, 11)
    result = BeamSearch(3, 2.3, early_stop=False)(model, source, max_length=11)
    early = BeamSearch(3, 2.3)(model, source, max_length=11)
    for row in range(13):
        reference = Reference(model, source[row], 11)
        check(result, row, reference.beam(3, 2.3, False))
        check(early, row, reference.beam(3, 2.3, True))
    assert (result.scores >= early.scores).numpy().all()
    assert (result.scores > early.scores).numpy().any()


@pytest.mark.parametrize("alpha", [0.6, full(0.0), full(1.0), full(2.3)])
def test_wide_beam_finds_all_hypotheses_in_order(alpha):
    model = FakeModel(6)
    source = sentences(3, 2, 6)
    result = BeamSearch(47, alpha)(model, source, max_length=3)
    for row in range(3):
        # 1, 4 and 5 continue, 3 ends: 1 + 3 + 9 * 4 hypotheses
        everything = Reference(model, source[row], 3).everything(alpha)
        assert len(everything) == 40
        check(result, row, everything)


def test_greedy_equals_beam_one_and_the_plain_search():
    model = FakeModel(17, end_bias=0.5)
    source = sentences(7, 5, 17)
    source[6] = 0  # padding only
    greedy, beam = GreedySearch()(model, source), BeamSearch(1, 0.0)(model, source)
    np.testing.assert_array_equal(greedy.ids, beam.ids)
    np.testing.assert_array_equal(greedy.scores, beam.scores)
    for row in range(7):
        limit = np.count_nonzero(source[row]) + 50
        check(greedy, row, Reference(model, source[row], limit).beam(1, 0.0, True))


def test_equally_likely_tokens_are_taken_in_order_of_their_ids():
    model = FakeModel(11)
    model.table[:], model.mix[:] = 0.0, 0.0
    source = sentences(2, 3, 11)
    greedy = GreedySearch()(model, source, max_length=2)
    np.testing.assert_array_equal(greedy.ids, [[[1, 1]], [[1, 1]]])
    beam = BeamSearch(3, 0.0)(model, source, max_length=1)
    np.testing.assert_array_equal(beam.ids[0], [[1], [3], [4]])
    np.testing.assert_allclose(beam.scores, np.full((2, 3), -np.log(11)), rtol=1e-6)


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
    ids = result.ids.numpy()
    assert ids.dtype == np.int32
    assert ids.shape == (17, search.width, 12)
    assert ((result.scores.numpy() > -np.inf).any(axis=1) == (limits > 0)).all()
    ended = 0
    for limit, row in zip(limits.repeat(search.width), ids.reshape(-1, ids.shape[2]), strict=True):
        length = np.count_nonzero(row)
        assert min(limit, 1) <= length <= limit or search.width > 1
        assert not np.isin(row[:length], [0, 2]).any()
        assert (row[length:] == 0).all()
        assert END not in row[: max(length - 1, 0)]
        if 0 < length < limit:
            assert row[length - 1] == END and length >= search.min_length
            ended += 1
        assert search.allow_unknown or 1 not in row
    assert ended > 0


PREFIX = np.array(
    # none; one; with the forbidden unknown; ended by the prefix; cut by max_length
    [[0] * 7, [9] + [0] * 6, [5, 1, 8, 0, 0, 0, 0], [4, END] + [0] * 5, [4, 5, 6, 7, 8, 9, 10]],
    "int32",
)
# the second prompt holds an end token, the fourth nothing
PROMPTS = np.array(
    [[2, 5, 6, 7, 8], [4, END, 9, 0, 0], [2, 0, 0, 0, 0], [0] * 5, [6, 7, 0, 0, 0]], "int32"
)


@pytest.mark.parametrize(
    "causal, prefix, min_length, unknown",
    [
        (False, PREFIX, 3, False),
        (True, None, 0, True),
        (True, PREFIX, 0, True),
        full(False, None, 0, False),
        full(False, None, 4, True),
        full(False, None, 5, False),
    ],
    ids=["prefix", "prompt", "both", "known", "long", "long and known"],
)
def test_beam_and_greedy_equal_a_plain_search(causal, prefix, min_length, unknown):
    model = FakeModel(11, end_bias=3.0, causal=causal)
    model.table[:, 1] += 1.0
    source = PROMPTS if causal else sentences(5, 3, 11)
    options = {"min_length": min_length, "allow_unknown": unknown}
    beam = BeamSearch(3, 0.9, **options)(model, source, 6, target_prefix=prefix)
    greedy = GreedySearch(**options)(model, source, 6, target_prefix=prefix)
    for row, ids in enumerate(source):
        start = (ids[ids > 0] if ids.any() else [0]) if causal else [2]
        given = () if prefix is None else prefix[row][prefix[row] > 0]
        reference = Reference(
            model, ids, 6, start=start, prefix=given, min_length=min_length, unknown=unknown
        )
        check(beam, row, reference.beam(3, 0.9, True))
        check(greedy, row, reference.beam(1, 0.0, True))


def test_default_limit_is_the_source_length_plus_fifty():
    model = FakeModel(11, end_bias=-1e9)
    source = np.array([[5, 6, 7, 8, 9], [5, 6, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
    ids = GreedySearch()(model, source).ids.numpy()
    np.testing.assert_array_equal(np.count_nonzero(ids[:, 0], axis=1), [55, 52, 50])


def test_limits_keep_within_the_models_positions():
    source = np.array([[5, 6, 7], [5, 0, 0]], "int32")
    # The fake model raises an error for positions that it lacks.
    ids = BeamSearch(2)(FakeModel(11, end_bias=-1e9, max_length=5), source, 17).ids.numpy()
    np.testing.assert_array_equal(np.count_nonzero(ids, axis=2), [[5, 5], [5, 5]])
    model = FakeModel(11, end_bias=-1e9, max_length=5, causal=True)
    ids = BeamSearch(2)(model, source).ids.numpy()
    np.testing.assert_array_equal(np.count_nonzero(ids, axis=2), [[3, 3], [5, 5]])


def test_sources_longer_than_the_encoders_positions_are_refused():
    sizes = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7}
    positions = kt.LearnedPositionEncoding(max_length=5)
    models = [kt.Transformer(11, **sizes, positions=positions) for _ in range(2)]
    for model in (models[0], kt.Ensemble(models)):
        assert GreedySearch()(model, np.full((1, 5), 7), 2).ids.shape[0] == 1
        with pytest.raises(ValueError, match="6 tokens a row, but the encoder has positions for 5"):
            GreedySearch()(model, np.full((1, 6), 7), 2)


@some_searches
def test_prompts_without_room_have_no_hypothesis(search):
    prompts = np.array([[5, 6, 7, 8, 9], [5, 0, 0, 0, 0]], "int32")
    result = search(FakeModel(11, max_length=3, causal=True), prompts)
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
    return abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


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


def test_sample_of_one_candidate_is_greedy():
    model = FakeModel(13, end_bias=1.0)
    source = sentences(5, 3, 13)
    greedy = GreedySearch()(model, source)
    for search in (Sampling(top_k=1), Sampling(temperature=1e-2, top_p=1e-6)):
        sample = search(model, source)
        np.testing.assert_array_equal(sample.ids, greedy.ids)
        np.testing.assert_allclose(sample.scores, greedy.scores, rtol=1e-6)


def test_seeds_decide_samples():
    model, source = shared_model(), sentences(5, 3, 13)
    seeded, unseeded = Sampling(seed=3, num_samples=2), Sampling(num_samples=2)
    first = seeded(model, source).ids.numpy()
    np.testing.assert_array_equal(first, unseeded(model, source, seed=3).ids)
    others = [seeded(model, source, seed=4), unseeded(model, source), unseeded(model, source)]
    drawn = {first.tobytes(), *(other.ids.numpy().tobytes() for other in others)}
    assert len(drawn) == 4


def test_samples_take_prefixes_and_score_the_whole_sequence():
    model = FakeModel(11, end_bias=1.0)
    source = sentences(3, 3, 11)
    prefix = np.array([[5, 6], [7, 0], [0, 0]], "int32")
    result = Sampling(seed=2)(model, source, max_length=9, target_prefix=prefix)
    for row in range(3):
        tokens = [int(token) for token in result.ids[row, 0] if token]
        given = prefix[row][prefix[row] > 0]
        np.testing.assert_array_equal(tokens[: len(given)], given)
        score = sum(
            model.log_probs(source[row], (2, *tokens[:i]))[token] for i, token in enumerate(tokens)
        )
        np.testing.assert_allclose(result.scores[row, 0], score, rtol=1e-5)


# Methods of a model


def test_the_example_of_the_searches_page_runs():
    page = kt.search.__doc__
    names = {"np": np, "tf": tf, "Cache": Cache, "BeamSearch": BeamSearch}
    example = doctest.DocTestParser().get_doctest(page, names, "search", None, None)
    assert len(example.examples) == 4
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("method", ["encode", "initial_cache", "decode_step"])
def test_a_missing_method_is_named(method):
    members = {name: item for name, item in vars(FakeModel).items() if name != method}
    model = type("Unfinished", (), members)(5)
    with pytest.raises(TypeError, match=f"Unfinished has no {method}, so it cannot be searched"):
        GreedySearch()(model, sentences(2, 3, 5))


def test_another_kind_of_cache_is_refused():
    model = FakeModel(5)
    model.initial_cache = lambda batch_size, beam_width: {"own": ()}
    with pytest.raises(TypeError, match="initial_cache of FakeModel returned dict. Return .*Cache"):
        GreedySearch()(model, sentences(2, 3, 5))


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


def best(result):
    """Returns the outputs that every search has."""
    return {"ids": result.ids, "scores": result.scores}


def onnx_session(function, signature):
    """Returns a session; checks that the function has one `Loop` and no extra input."""
    tf2onnx = pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, _ = tf2onnx.convert.from_function(
        tf.function(function, autograph=False), input_signature=signature, opset=17
    )
    assert [item.name for item in model.graph.input] == [spec.name for spec in signature]
    assert sum(node.op_type == "Loop" for node in model.graph.node) == 1
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def ids_spec(name):
    return tf.TensorSpec([None, None], tf.int32, name)


@pytest.mark.full
@pytest.mark.parametrize("number", [4, *map(full, range(4))])
def test_onnx_equals_the_search(number):
    search, model = SEARCHES[number], shared_model(causal=number % 2 == 1)
    session = onnx_session(lambda ids: best(search(model, ids)), [ids_spec("source_ids")])
    for batch, length in [(1, 3), (5, 7), (11, 2), (0, 3)]:
        source = sentences(batch, length, 13, seed=batch)
        ids, scores = session.run(["ids", "scores"], {"source_ids": source})
        expected = search(model, source)
        np.testing.assert_array_equal(ids, expected.ids)
        np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)


@pytest.mark.full
def test_onnx_takes_limits_and_prefixes_as_inputs():
    model = FakeModel(13, end_bias=1.0)
    search = BeamSearch(5, 1.0, min_length=2)
    signature = [
        ids_spec("source_ids"),
        tf.TensorSpec([None], tf.int32, "max_length"),
        ids_spec("target_prefix"),
    ]
    session = onnx_session(
        lambda ids, limit, prefix: best(search(model, ids, limit, target_prefix=prefix)),
        signature,
    )
    source = sentences(3, 5, 13)
    limits = np.array([5, 0, 11], "int32")
    prefix = np.array([[5, 6, 7], [0, 0, 0], [8, 0, 0]], "int32")
    inputs = {"source_ids": source, "max_length": limits, "target_prefix": prefix}
    ids, scores = session.run(["ids", "scores"], inputs)
    expected = search(model, source, limits, target_prefix=prefix)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)


# Real models


@pytest.mark.parametrize(
    "cls, positions",
    [
        (kt.Transformer, "learned"),
        full(kt.CausalTransformer, "rotary"),
        full(kt.Transformer, "sinusoidal"),
    ],
)
def test_cached_search_of_a_real_model_equals_full_passes(cls, positions):
    model = cls(11, 2, 16, 2, 32, positions=positions)
    for weight in model.trainable_weights:  # far from uniform, so that hypotheses differ
        weight.assign(1.7 * weight)
    source = np.array([[5, 6, 7], [9, 4, 0], [8, 0, 0]], "int32")
    result = BeamSearch(3, 0.9)(model, source, max_length=5)
    for row, place in itertools.product(range(3), range(3)):
        start = source[row][source[row] > 0] if cls is kt.CausalTransformer else [2]
        ids = result.ids[row, place].numpy()
        fed = np.array([[*start, *ids[ids > 0]]], "int32")
        inputs = fed if len(model.inputs) == 1 else {"source_ids": source[[row]], "target_ids": fed}
        log_probs = tf.nn.log_softmax(model(inputs))[0].numpy()
        places = np.arange(len(start), fed.shape[1])
        score = log_probs[places - 1, fed[0, places]].sum() / ((5 + len(places)) / 6) ** 0.9
        np.testing.assert_allclose(result.scores[row, place], score, rtol=2e-5, atol=2e-5)


# Arguments

OPTIONS = {"min_length": 3, "allow_unknown": False, "token_scores": True, "alignments": [[0, 1]]}
OPTIONS["constraints"] = [kt.NoRepeatNgrams(2)]


@pytest.mark.parametrize(
    "search",
    [
        GreedySearch(**OPTIONS),
        BeamSearch(7, 1.1, early_stop=False, **OPTIONS),
        Sampling(0.7, 5, 0.9, 11, num_samples=3, **OPTIONS),
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
    "make, error, words",
    [
        (lambda: BeamSearch(0), ValueError, "beam_width"),
        (lambda: BeamSearch(2.0), TypeError, "beam_width"),
        (lambda: BeamSearch(True), TypeError, "beam_width"),
        (lambda: BeamSearch(2, -0.1), ValueError, "length_penalty"),
        (lambda: BeamSearch(2, float("inf")), ValueError, "length_penalty"),
        (lambda: BeamSearch(2, float("nan")), ValueError, "length_penalty"),
        (lambda: BeamSearch(2, "1"), TypeError, "length_penalty"),
        (lambda: BeamSearch(early_stop="never"), TypeError, "early_stop"),
        (lambda: GreedySearch(min_length=-1), ValueError, "min_length"),
        (lambda: GreedySearch(allow_unknown=1), TypeError, "allow_unknown"),
        (lambda: Sampling(temperature=0.0), ValueError, "temperature"),
        (lambda: Sampling(top_k=-1), ValueError, "top_k"),
        (lambda: Sampling(top_p=0.0), ValueError, "top_p"),
        (lambda: Sampling(top_p=1.1), ValueError, "top_p"),
        (lambda: Sampling(seed=-1), ValueError, "seed"),
        (lambda: Sampling(seed=2**31 - 1), ValueError, "seed"),
        (lambda: Sampling(num_samples=0), ValueError, "num_samples"),
    ],
)
def test_bad_constructor_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"source_ids": np.array([5, 6])}, ValueError, "source_ids must have rank 2.*batch axis"),
        ({"source_ids": np.array([[5.0]])}, TypeError, "source_ids.*float64.*int32"),
        ({"max_length": 0}, ValueError, "max_length"),
        ({"max_length": 2.0}, TypeError, "max_length"),
        ({"max_length": 2}, ValueError, "max_length 2 is below.*min_length 3"),
        ({"max_length": np.array([5, 6, 7])}, ValueError, "max_length must have the batch size"),
        ({"max_length": np.array([[5, 6]])}, ValueError, "max_length must have rank 1"),
        ({"target_prefix": np.array([5, 6])}, ValueError, "target_prefix must have rank 2"),
        (
            {"target_prefix": np.array([[5, 6]] * 3)},
            ValueError,
            "target_prefix must have the batch size",
        ),
        ({"target_prefix": np.array([[0.5]] * 2)}, TypeError, "target_prefix.*integer"),
        (
            {"target_prefix": np.array([[5, 6], [0, 6]])},
            ValueError,
            "target_prefix.*row 1 has",
        ),
        ({"seed": 0.5}, TypeError, "seed"),
        ({"model": "a model"}, TypeError, "str has no .*decode_step.*Transformer"),
    ],
)
def test_bad_call_arguments_are_named(arguments, error, words):
    defaults = {"model": FakeModel(11), "source_ids": sentences(2, 3, 11)}
    with pytest.raises(error, match=words):
        Sampling(min_length=3)(**defaults | arguments)


@pytest.mark.parametrize("row", [[0, 0, 5, 7], [5, 0, 7, 0]])
def test_a_prompt_that_is_not_padded_on_the_right_is_refused(row):
    ids = np.array([[5, 7, 0, 0], [0, 0, 0, 0], row], "int32")
    with pytest.raises(ValueError, match=r"source_ids must be padded on the right, but row 2"):
        GreedySearch()(FakeModel(11, causal=True), ids, 3)
    result = GreedySearch()(FakeModel(11, causal=True), ids[:2], 3)  # an empty prompt is valid
    assert np.isfinite(result.scores).all()
    sources = GreedySearch()(FakeModel(11), ids, 3)  # an encoder may read padding on either side
    assert np.isfinite(sources.scores).all()


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="TensorFlow backend, but the backend is 'jax'"):
        GreedySearch()(FakeModel(11), sentences(2, 3, 11))


@pytest.mark.parametrize("ids", [[[5, 6], [7, -3]], [[5, 6], [97, 0]]])
def test_given_ids_outside_the_vocabulary_are_refused(ids):
    model = exports.shared_model()
    size = model.vocab_size
    ids = np.where(np.array(ids) == 97, size, ids)
    with pytest.raises(ValueError, match=f"target_prefix has ids from .* ids are 0 to {size - 1}"):
        GreedySearch()(model, exports.source()[:2], 5, target_prefix=ids)
    with pytest.raises(ValueError, match="terms has ids from"):
        BeamSearch(2, constraints=[kt.Terms()])(model, exports.source()[:2], 5, terms=ids[:, None])


@pytest.mark.parametrize(
    "width, alpha, early_stop", [(2, 0.6, True), full(3, 0.6, False), full(1, 0.0, True)]
)
def test_the_beam_width_of_a_call_equals_a_search_of_this_width(width, alpha, early_stop):
    model = FakeModel(11, end_bias=1.0)
    source = sentences(101, 5, 11)
    options = {"length_penalty": alpha, "early_stop": early_stop}
    expected = BeamSearch(width, **options)(model, source, max_length=7)
    found = BeamSearch(6, **options)(model, source, max_length=7, beam_width=width)
    np.testing.assert_array_equal(trimmed(found.ids[:, :width].numpy()), expected.ids)
    np.testing.assert_allclose(found.scores[:, :width], expected.scores, rtol=1e-6)
    assert not found.ids[:, width:].numpy().any() and np.isneginf(found.scores[:, width:]).all()


def test_one_hypothesis_takes_the_beam_width_of_a_call():
    model = exports.shared_model()
    expected = BeamSearch(1)(model, exports.source(), max_length=5)
    found = BeamSearch(1)(model, exports.source(), max_length=5, beam_width=1)
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize(
    "search",
    [
        kt.GreedySearch(),
        kt.GreedySearch(min_length=4),
        kt.BeamSearch(2),
        kt.Sampling(),
        kt.BeamSearch(2, min_length=4),
    ],
    ids=repr,
)
@pytest.mark.parametrize("form", [int, np.int64, np.array, tf.constant, "rows", "one row"])
def test_a_call_with_a_limit_below_its_least_length_is_refused(search, form):
    rows = {"rows": lambda x: np.array([9, 9, x] + [9] * 9), "one row": lambda x: [x]}
    make = rows.get(form, form)
    source = np.repeat(exports.source()[:1], 12, 0)
    options = {} if search.min_length else {"min_length": 4}
    with pytest.raises(ValueError, match="max_length 3 is below min_length 4"):
        search(exports.shared_model(), source, make(3), **options)
    found = search(exports.shared_model(), source[:1], 4, **options)
    assert np.count_nonzero(found.ids[0, 0]) == 4


def test_a_call_with_a_bias_without_a_prefix_is_refused():
    search = kt.GreedySearch(constraints=[kt.BiasedPrefix()])
    with pytest.raises(ValueError, match="prefix_bias has no effect without biased_prefix"):
        search(exports.shared_model(), exports.source(), 4, prefix_bias=0.3)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": np.int64(4)},
        {"beam_width": np.array(4)},
        {"beam_width": tf.constant(4)},
        {"min_length": np.int64(4), "max_length": np.int64(2)},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1.0},
    ],
)
def test_numbers_out_of_range_are_refused_whatever_their_type(options):
    search = BeamSearch(2, constraints=[kt.RepetitionPenalty(1.5)])
    with pytest.raises(ValueError, match="must be (above|at least|from 1)|is below min_length"):
        search(exports.shared_model(), exports.source(), **{"max_length": 4, **options})
