"""Scores, token scores and alignments of searches equal a forward pass, which has no cache.

Shapes: B batch, W beam width, S source length, T generated length, V vocabulary.
"""

import dataclasses
import functools

import numpy as np
import pytest
from helpers import encoders, exports
from helpers.linear_bias import LinearBias
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export.tasks import SearchTask
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

V = 97


def tiny(kind="translate", **options):
    return exports.tiny(kind, **{"vocab_size": V, **options})


def with_parts(kind="translate", positions=None):
    """Returns a model with other networks and norms, and biases that each stack shares."""
    biases = kt.RelativePositionBias(8, 6), kt.RelativePositionBias(8, 6, bidirectional=False)
    both = (positions, positions) if positions else biases
    parts = {"feed_forward": kt.GatedFeedForward(19, use_bias=False), "norm": "rms"}
    parts |= {"d_ff": None, "norm_first": True, "num_layers": 2}
    return tiny(kind, positions=both if kind == "translate" else both[1], **parts)


WINDOWS = [kt.RotaryPositionEncoding(window=2), kt.RotaryPositionEncoding(size=4)]
MODELS = {
    "translator": tiny,
    "learned": lambda: tiny(positions="learned"),
    "rotary": lambda: tiny(positions="rotary", norm_first=True),
    "linear bias": lambda: tiny(positions=LinearBias()),
    "own output": lambda: tiny(tie_output=False, output_bias=True, embedding_norm=True),
    "recurrent": lambda: tiny(recurrent_decoder=True),
    "language model": lambda: tiny("generate", positions="rotary"),
    "parts": with_parts,
    "parts of a language model": lambda: with_parts("generate"),
    "windows": lambda: with_parts(positions=WINDOWS),
    "windows of a language model": lambda: with_parts("generate", WINDOWS),
    "ensemble": lambda: kt.Ensemble([tiny(), tiny(d_model=16, num_layers=1)]),
    "two language models": lambda: kt.Ensemble([tiny("generate"), tiny("generate", d_model=16)]),
    "frames": lambda: encoders.writer(encoders.frames_encoder),
    "pictures": lambda: encoders.writer(encoders.patches_encoder),
    # only the end token and id 4 may be written, so some hypotheses do not exist
    "few words": lambda: tiny(vocab_size=5),
}
model_of = functools.cache(lambda name: MODELS[name]())
SOURCE = exports.source(rows=5, length=7, vocab_size=V)
SOURCES = {
    "frames": {"frames": encoders.frames()},
    "pictures": encoders.pictures(),
    "few words": {"source_ids": np.array([[4, 4, 3]], "int32")},
}
BOTH = {"token_scores": True, "alignments": True}
HEADS = {"token_scores": True, "alignments": [(0, 1), (-1, 0)]}
PLAIN = BeamSearch(3, 0.9, token_scores=True)
SEARCHES = GreedySearch(**BOTH), BeamSearch(3, **BOTH), Sampling(seed=7, num_samples=2, **HEADS)
LIMITS = {"max_length": np.array([9, 13, 0, 1, 7])}  # sentences leave the batch at different steps
PREFIX = {"target_prefix": np.array([[8, 9], [5, 0], [0, 0], [7, 11], [6, 0]])}
CASES = [
    *(("translator", search, LIMITS) for search in SEARCHES),
    *(("translator", search, LIMITS | PREFIX) for search in SEARCHES),
    *(
        ("translator", BeamSearch(3, constraints=rules, **BOTH), {})
        for rules in (
            [kt.NoRepeatNgrams(1)],
            [kt.RepetitionPenalty(1.4), kt.ForbiddenWords([[15], [11, 11]])],
        )
    ),
    ("recurrent", BeamSearch(5, 1.0, early_stop=False, **HEADS), {}),
    ("few words", BeamSearch(7, allow_unknown=False, **BOTH), {"max_length": 2}),
    *(("pictures", search, {}) for search in SEARCHES),
    *((name, PLAIN, {}) for name in MODELS if name not in ("translator", "recurrent", "few words")),
]
QUICK = [case for case in CASES if case[1] is PLAIN] + [CASES[i] for i in (1, 9, 11)]


@pytest.mark.quick("language model-BeamSearch-dict")
@pytest.mark.parametrize(
    "name, search, options",
    quick(CASES, *QUICK),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_search_scores_as_a_forward_pass(name, search, options):
    model, source = model_of(name), SOURCES.get(name, {"source_ids": SOURCE})
    given, options = source.get("source_ids", source), {"max_length": 11, **options}
    result = search(model, given, **options)
    ids, scores = np.asarray(result.ids), np.asarray(result.scores)
    expected = SearchTask(model, search, 13).forced(source, ids)
    exists = scores > -np.inf
    assert exists.any() and not (name == "few words" and exists.all())
    np.testing.assert_allclose(scores[exists], expected.scores[exists], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(result.token_scores, expected.token_scores[0], atol=2e-5)
    if search.alignments:
        np.testing.assert_allclose(result.alignments, expected.alignments, atol=1e-5)
    plain = dataclasses.replace(search, token_scores=False, alignments=False)
    found = plain(model, given, **options)
    np.testing.assert_array_equal(found.ids, ids)
    assert found[2:] == ((), ())
    prefix = options.get("target_prefix", np.zeros((len(ids), 0)))
    first = ids[:, 0, : prefix.shape[1]]
    assert ((first == prefix) | (prefix == 0) | (first == 0)).all()
