"""Sentences that join and leave a batch between steps get the tokens that they get alone."""

import numpy as np
import pytest
from support import exports
from support.linear_bias import LinearBias

from keras_transformer.export import export_onnx
from keras_transformer.export.runtime.artefact import read_artefact
from keras_transformer.export.runtime.continuous_batch import ContinuousBatch
from keras_transformer.export.runtime.session import open_session
from keras_transformer.export.runtime.steps import StepsSession
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

V = 37
BEAM = BeamSearch(3, 0.6)
MODELS = {
    "beam": ({}, BEAM),
    "greedy": ({}, GreedySearch(min_length=3)),
    "late stop": ({}, BeamSearch(2, early_stop=False)),
    "rotary": ({"positions": "rotary"}, BEAM),
    "learned": ({"positions": "learned"}, GreedySearch()),
    "positions of one's own": ({"positions": LinearBias()}, BEAM),
    "recurrent": ({"recurrent_decoder": True}, BEAM),
    "prompts": ({"kind": "generate"}, BEAM),
    "rotary prompts": ({"kind": "generate", "positions": "rotary"}, GreedySearch()),
    "samples": ({"kind": "generate"}, Sampling(num_samples=2, top_k=9)),
}


@pytest.fixture(scope="module", params=MODELS)
def session(request, tmp_path_factory):
    arguments, search = MODELS[request.param]
    path = tmp_path_factory.mktemp("steps") / "onnx"
    model = exports.tiny(vocab_size=V, **arguments)
    export_onnx(model, path, search=search, layout="steps", verbose=False)
    return open_session(read_artefact(path), threads=1)


def sources(count, seed=0, most=17):
    """Inputs of single sentences: some short, some long, which generate up to 50 tokens more."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, most, count)
    return [draw.integers(4, V, (1, length)).astype("int32") for length in lengths]


def inputs_of(session, ids, seed=3):
    given = {"source_ids": ids, "seed": np.array(seed, np.int32)}
    return {value.name: given[value.name] for value in session.get_inputs()}


def alone(session, ids, seed=3):
    """Ids (W, T) and scores (W,) of a sentence."""
    found, scores = session.run(None, inputs_of(session, ids, seed))
    return found[0], scores[0]


def assert_same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


def drained(batch):
    found = {}
    while len(batch):
        found.update(batch.step())
    return found


def test_each_gets_what_it_gets_alone_whenever_it_comes(session):
    items, batch, found = sources(23), ContinuousBatch(session), {}
    draw, sizes = np.random.default_rng(1), set()
    waiting = list(enumerate(items))
    while waiting or len(batch):
        for _ in range(min(len(waiting), draw.choice([0, 0, 0, 0, 1, 1, 3]))):
            key, ids = waiting.pop()
            batch.add([key], inputs_of(session, ids))
        sizes.add(len(batch))
        found.update(batch.step())
    assert max(sizes) > 8  # the buffers have grown beside sentences that went on
    expected = [alone(session, ids) for ids in items]
    assert len({ids.tobytes() for ids, _ in expected}) > 5
    for key, one in enumerate(expected):
        assert_same(found[key], one)


def test_some_may_come_together_and_padding_is_nothing(session):
    if any(value.name == "seed" for value in session.get_inputs()):
        seeds = 3, 5  # beside each other
    else:
        seeds = 3, 3
    ids, batch = exports.source(5, 9, V), ContinuousBatch(session)
    batch.add("abcde", inputs_of(session, ids, seeds[0]))
    early = batch.step() + batch.step()
    batch.add("fg", inputs_of(session, ids[1:3], seeds[1]))
    found = {**dict(early), **drained(batch)}
    for keys, rows, seed in [("abcde", ids, seeds[0]), ("fg", ids[1:3], seeds[1])]:
        for key, row in zip(keys, rows, strict=True):
            assert_same(found[key], alone(session, row[np.newaxis, row > 0], seed))


def test_buffers_grow_with_what_comes_and_shrink_with_what_stays(session):
    batch, (short,), (long,) = (
        ContinuousBatch(session),
        sources(1, most=3),
        [np.full((1, 90), 5, "i4")],
    )
    sizes = []
    for key, ids in enumerate([short, long, short]):
        batch.add([key], inputs_of(session, ids))
        sizes.append(sum(array[0].size for array in batch._now.values()))
        if key == 1:
            found = drained(batch)
    found.update(drained(batch))
    assert sizes[0] == sizes[2] < sizes[1]
    for key, ids in enumerate([short, long, short]):
        assert_same(found[key], alone(session, ids))


def test_who_leaves_without_a_result_is_gone(session):
    batch = ContinuousBatch(session)
    assert batch.step() == [] and len(batch) == 0
    first, second = sources(2)
    batch.add("a", inputs_of(session, first))
    batch.step()
    batch.clear()
    assert len(batch) == 0 and batch.step() == []
    batch.add("b", inputs_of(session, second))
    found = drained(batch)
    assert list(found) == ["b"]
    assert_same(found["b"], alone(session, second))


def test_numbers_of_one_that_fails_do_not_reach_who_takes_its_place(session):
    batch, items = ContinuousBatch(session), sources(9)
    for key, ids in enumerate(items):
        batch.add([key], inputs_of(session, ids))
    batch.step()
    for name, array in batch._now.items():  # what overflows leaves NaN
        if name.startswith(("blocks", "states", "memory")) and array.dtype == np.float32:
            array[:] = np.nan
    batch.clear()
    for key, ids in enumerate(items):
        batch.add([key], inputs_of(session, ids))
    found = drained(batch)
    for key, ids in enumerate(items):
        assert_same(found[key], alone(session, ids))


def test_what_cannot_hold_sentences_of_different_steps_is_refused(session):
    with pytest.raises(ValueError, match="'cuda'"):
        ContinuousBatch(StepsSession(session.first, session.step, "cuda"))
