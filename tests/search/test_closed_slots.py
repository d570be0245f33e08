"""Closing a cache changes no result, and keeps exactly the slots that are attended to.

Shapes: B batch, W beam width, H heads, K key size, N slots, C kept slots.
"""

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from helpers import exports, tiers
from helpers.linear_bias import LinearBias

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.decoding import FORBIDDEN, Cache
from keras_transformer.export import export_onnx
from keras_transformer.search import loop
from keras_transformer.search.inputs import START_IDS

OPEN_STEPS = 3
SOUNDS = {
    "features": np.random.default_rng(7).normal(size=(2, 11, 7)).astype("float32"),
    START_IDS: np.array([[2, 1, 27], [2, 23, 0]], "int32"),
}


def listener():
    features = keras.Input((None, 7), name="features")
    return keras.Model(features, keras.layers.Dense(12)(features))


MODELS = {
    "sinusoidal": lambda: exports.tiny(vocab_size=31),
    "learned": lambda: exports.tiny(vocab_size=31, positions="learned", norm_first=True),
    "rotary": lambda: exports.tiny(vocab_size=31, positions="rotary"),
    "distance": lambda: exports.tiny(vocab_size=31, positions=LinearBias()),
    "prompt": lambda: exports.tiny("generate", vocab_size=31, positions="rotary"),
    "recurrent": lambda: exports.tiny(vocab_size=31, recurrent_decoder=True),
    "speech": lambda: exports.tiny(
        vocab_size=31, encoder=listener(), reads_start=True, positions="learned"
    ),
    "ensemble": lambda: kt.Ensemble(
        [exports.tiny(vocab_size=31), exports.tiny(vocab_size=31, positions=LinearBias())]
    ),
}
DETAILS = {"token_scores": True, "alignments": True}
CASES = [
    ("sinusoidal", kt.BeamSearch(4, 0.6, **DETAILS), {}),
    ("sinusoidal", kt.BeamSearch(5, 1.0, early_stop=False, min_length=9), {}),
    ("sinusoidal", kt.BeamSearch(3, 0.6, constraints=[kt.NoRepeatNgrams(2)]), {"prefix": True}),
    ("sinusoidal", kt.Sampling(1.0, num_samples=3), {"seed": 5}),
    ("sinusoidal", kt.GreedySearch(**DETAILS), {}),
    ("learned", kt.BeamSearch(4, 0.6), {"prefix": True}),
    ("rotary", kt.BeamSearch(4, 0.6, **DETAILS), {}),
    ("distance", kt.BeamSearch(4, 0.6), {}),
    ("prompt", kt.BeamSearch(4, 0.6, token_scores=True), {}),
    ("prompt", kt.Sampling(1.0, num_samples=3), {"seed": 5}),
    ("recurrent", kt.BeamSearch(4, 0.6), {}),
    ("speech", kt.SpeechSearch(3, no_speech=29, languages=[23, 25], token_scores=True), {}),
    ("ensemble", kt.BeamSearch(3, 0.6), {}),
]
CLOSING = ("sinusoidal", "learned", "rotary", "prompt", "speech", "ensemble")


@pytest.fixture
def closes(monkeypatch, eager):
    """Makes caches of all sizes close after few steps; returns the slots before and after each."""
    original, counts = decoding.CachedDecoding.close, []

    def counted(self, cache, running):
        after = original(self, cache, running)
        counts.append((cache.by_hypothesis.shape[2], after.by_hypothesis.shape[2]))
        return after

    monkeypatch.setattr(decoding.CachedDecoding, "close", counted)
    monkeypatch.setattr(decoding, "LEAST_CLOSED", 0)
    monkeypatch.setattr(loop, "OPEN_STEPS", OPEN_STEPS)
    return counts


def check_same(found, expected):
    for name, ours, theirs in zip(found._fields, found, expected, strict=True):
        if name == "ids":
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4, err_msg=name)


@pytest.mark.full(
    "sinusoidal-BeamSearch(min_length=0, allow_unknown=T-{}",
    "sinusoidal-Sampling(min_length=0, allow_unknown=Tru-{'seed': 5}",
    "speech-SpeechSearch(min_length=0, allow_unknown-{}",
    "prompt-BeamSearch(min_length=0, allow_unknown=T-{}",
)
@pytest.mark.parametrize(
    "name, search, options",
    tiers.quick(CASES, *(CASES[place] for place in (0, 3, 8, 10, 11))),
    ids=lambda x: str(x)[:40],
)
def test_closing_changes_no_result(closes, monkeypatch, name, search, options):
    model, source = MODELS[name](), SOUNDS if name == "speech" else exports.source(vocab_size=31)
    options = dict(options, max_length=14)
    if options.pop("prefix", False):
        options["target_prefix"] = exports.source(length=3, vocab_size=31, seed=1)
    found = search(model, source, **options)
    assert bool(closes) == (name in CLOSING and search.width > 1)
    monkeypatch.setattr(decoding, "LEAST_CLOSED", 10**6)
    check_same(found, search(model, source, **options))


def test_the_kept_slots_are_those_that_running_hypotheses_attend_to(closes):
    model, random = exports.tiny(vocab_size=31), np.random.default_rng(2)
    batch, width, closed, opened = 3, 2, 5, 6
    cache = model.initial_cache(batch, width)

    def filled(slots):
        shapes = [(batch, x.shape[1], slots, x.shape[3]) for x in cache.closed[0]]
        return [tuple(random.normal(size=s).astype("float32") for s in shapes) for _ in range(2)]

    old, new = filled(closed), filled(opened)
    attends = np.indices((batch, width, closed + opened))
    attends = (attends[2] + attends[0]) % (2 + attends[1]) == 0
    runs = np.array([[True, True], [True, False], [False, False]])
    bias = np.where(attends, 0.0, FORBIDDEN).astype("float32")
    running = np.where(runs, -1.0, -np.inf).astype("float32")
    before = Cache(cache.by_sentence._replace(blocks=new), tf.constant(bias), old)
    after = model.close(before, tf.constant(running))

    wanted = [np.flatnonzero(a[r].any(axis=0)) for a, r in zip(attends, runs, strict=True)]
    count = max(map(len, wanted))
    assert 0 < len(wanted[1]) < len(wanted[0]) == count
    assert after.by_hypothesis.shape == (batch, width, count)
    for row, slots in enumerate(wanted):
        found = after.by_hypothesis[row, :, : len(slots)]
        np.testing.assert_array_equal(found, bias[row][:, slots])
        assert np.all(np.asarray(after.by_hypothesis)[row, runs[row], len(slots) :] == FORBIDDEN)
        for parts in zip(after.closed, old, new, strict=True):
            for ours, first, second in zip(*parts, strict=True):
                both = np.concatenate([first, second], axis=2)
                np.testing.assert_array_equal(ours[row, :, : len(slots)], both[row][:, slots])
    assert {x.shape[2] for x in tf.nest.flatten(after.by_sentence.blocks)} == {0}


@pytest.mark.full
def test_memory_grows_with_the_slots_that_are_attended_to(closes):
    """Without closing, a cache has W slots for every step."""
    width, steps = 10, 60
    model = exports.tiny(vocab_size=31)
    kt.BeamSearch(width, 0.6, min_length=steps)(model, exports.source(vocab_size=31), steps)
    before, after = zip(*closes, strict=True)
    assert len(closes) >= steps // OPEN_STEPS
    assert all(b - a == OPEN_STEPS * width for b, a in zip(before[1:], after[:-1], strict=True))
    assert max(before) < 0.5 * width * steps
    assert after[-1] == 0  # no hypothesis runs


@pytest.mark.full
def test_one_file_closes_its_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "LEAST_CLOSED", 0)
    monkeypatch.setattr(loop, "OPEN_STEPS", OPEN_STEPS)
    search = kt.BeamSearch(3, 0.6, token_scores=True, min_length=8)
    model = exports.tiny(vocab_size=31, positions="rotary")
    source = exports.source(vocab_size=31)
    export_onnx(model, tmp_path, search=search, max_length=13, verbose=False)
    assert exports.counts(onnx.load(tmp_path / "model.onnx").graph)["Loop"] == 3
    names = ["token_ids", "scores"]
    ids, scores = exports.session(tmp_path).run(names, {"source_ids": source})
    monkeypatch.setattr(decoding, "LEAST_CLOSED", 10**6)
    expected = search(model, source, max_length=13)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)


class Wrapped:
    """A model of another package, which wraps one of this package and has no `close`."""

    def __init__(self, model):
        self.encode, self.initial_cache = model.encode, model.initial_cache
        self.model = model

    def decode_step(self, ids, position, memory, cache):
        logits, after = self.model.decode_step(ids, position, memory, cache)
        return logits, Cache(after.by_sentence, after.by_hypothesis)  # as before closed slots


@pytest.mark.full("False")
@pytest.mark.parametrize("has_close", [False, True])
def test_a_wrapper_without_closed_slots_can_be_searched(closes, has_close):
    model, search = MODELS["sinusoidal"](), kt.BeamSearch(4, 0.6)
    source, wrapped = np.array([[5, 7, 3], [9, 3, 0]], "int32"), Wrapped(model)
    if has_close:
        wrapped.close = model.close
    expected, found = search(model, source, 9), search(wrapped, source, 9)
    np.testing.assert_array_equal(found.ids, expected.ids)
