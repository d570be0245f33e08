"""Every route from a model and a search gives Keras' tokens: one file, two, LiteRT, a SavedModel.

A row of `ROWS` is a model with a search. A new one costs three lines.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import encoders, exports, shared
from helpers.exports import tiny
from helpers.linear_bias import LinearBias
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import export_litert, export_onnx, export_saved_model
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.runtime.sessions import open_session

pytestmark = [
    pytest.mark.usefixtures("forked_proofs"),
    pytest.mark.filterwarnings("ignore:The model has 2 layers of the kind MultiHead"),  # head sizes
]
V = 23
SIZES = ((1, 1), (3, 5), (7, 13))
LEARNED = {"positions": kt.LearnedPositionEncoding(13), "use_bias": True, "num_layers": 1}
ROTARY = {"positions": "rotary", "target_vocab_size": 53, "key_dim": 4, "value_dim": 5}


def ids(rows, length, vocab_size=exports.VOCAB):
    """Returns sources; one of three is padding only."""
    found = exports.source(rows, length, vocab_size)
    found[1:2] *= rows != 3
    return {"source_ids": found}


def listener():
    keras.utils.set_random_seed(5)
    encoder = encoders.frames_encoder()
    return kt.Transformer(exports.VOCAB, 1, **encoders.SIZES, encoder=encoder)


class Row(NamedTuple):
    """A model with a search.

    Attributes:
        model: function that makes it, or a kind of `exports.shared_model`.
        search: the search.
        routes: "loop", "steps", "litert" and "saved_model", or some of them.
        inputs: function of rows and length that returns the arrays of a source.
        options: options of the call in Keras, which are inputs of the files.
    """

    model: Callable[[], Any] | str
    search: Any
    routes: tuple[str, ...] = ("loop", "litert")
    inputs: Callable[[int, int], dict] = ids
    options: dict = {}


ALL = ("loop", "steps", "litert", "saved_model")
EXPORTERS = {"saved_model": export_saved_model, "litert": export_litert}
HEAD = kt.GreedySearch(alignments=[(0, 1)])
BOTH = {"token_scores": True, "alignments": True}
PENALIZED = kt.BeamSearch(3, constraints=[kt.RepetitionPenalty(1.3)], **BOTH)
ROWS = {
    "token scores and alignments": Row("translate", exports.DETAILED, ("loop", "steps", "litert")),
    "alignments of a head": Row("translate", HEAD, ("saved_model",)),
    "beam": Row("translate", exports.BEAM, ALL),
    "greedy": Row("translate", exports.GREEDY, ("loop", "steps", "litert")),
    "samples": Row("generate", exports.SAMPLING, ("loop", "steps", "litert"), options={"seed": 5}),
    "penalties and token scores": Row("translate", PENALIZED, ("steps",)),
    "prompts and token scores": Row("generate", kt.BeamSearch(3, token_scores=True), ("loop",)),
    "other samples": Row("generate", exports.SAMPLING, options={"seed": 6}),
    "pre-norm, learned positions, exact gelu, biases": Row(
        lambda: tiny(norm_first=True, activation="gelu", **LEARNED), kt.GreedySearch()
    ),
    "rotary, two vocabularies, other head sizes": Row(
        lambda: tiny(**ROTARY), kt.BeamSearch(2, 0.0)
    ),
    "mixed bfloat16": Row(
        lambda: tiny(dtype="mixed_bfloat16", num_layers=1),
        kt.GreedySearch(),
        ("loop", "saved_model"),
    ),
    "a shared bias of positions, gated networks, norms without mean": Row(
        lambda: tiny(
            d_ff=None,
            feed_forward=kt.GatedFeedForward(17, use_bias=False),
            norm="rms",
            norm_first=True,
            positions=(
                kt.RelativePositionBias(8, 9),
                kt.RelativePositionBias(8, 9, bidirectional=False),
            ),
        ),
        kt.BeamSearch(3),
        ALL,
    ),
    "windows, rotary of a part, norms without shift": Row(
        lambda: tiny(
            norm=keras.layers.LayerNormalization(center=False, epsilon=1e-5),
            norm_first=True,
            embedding_norm="first",
            key_dim=8,
            positions=(
                [kt.RotaryPositionEncoding(100.0), kt.RotaryPositionEncoding(window=2)],
                [kt.RotaryPositionEncoding(window=2), kt.RotaryPositionEncoding(size=6)],
            ),
        ),
        kt.BeamSearch(3),
        ("loop", "steps", "litert"),
    ),
    "your own positions": Row(lambda: tiny(positions=LinearBias(), num_layers=1), kt.BeamSearch(3)),
    "frames": Row(
        listener,
        kt.BeamSearch(3, **BOTH),
        ("loop", "litert", "saved_model"),
        lambda *shape: {"frames": encoders.frames(*shape)},
    ),
    "several inputs": Row(
        lambda: encoders.writer(encoders.patches_encoder),
        kt.Sampling(num_samples=2),
        inputs=lambda rows, length: encoders.pictures(rows),
        options={"seed": 3},
    ),
    "recurrent": Row(
        lambda: tiny(vocab_size=V, num_layers=(1, 2), recurrent_decoder=True),
        exports.DETAILED,
        ALL,
        lambda rows, length: ids(rows, length, V),
    ),
}
CASES = [(name, route) for name, row in ROWS.items() for route in row.routes]
QUICK = [("beam", "loop"), ("beam", "litert"), ("beam", "steps")]
QUICK += [("greedy", "steps"), ("samples", "loop"), ("token scores and alignments", "loop")]
QUICK += [("a shared bias of positions, gated networks, norms without mean", "loop")]
QUICK += [("windows, rotary of a part, norms without shift", "loop")]


@functools.cache
def made(name):
    model = ROWS[name].model
    return exports.shared_model(model) if isinstance(model, str) else model()


def exported(name, route):
    """Returns the folder of a row, which all workers share."""
    row, layout = ROWS[name], {"layout": "steps"} if route == "steps" else {}
    if isinstance(row.model, str) and route in ("loop", "steps"):
        return exports.artefact(row.search, row.model, **layout)

    def write(path):
        exporter = EXPORTERS.get(route, export_onnx)
        options = {"max_length": exports.MAX_LENGTH, "verbose": False}
        exporter(made(name), path, None, row.search, **options, **layout)

    return shared.once(f"route-{list(ROWS).index(name)}-{route}", write)


def opened(folder, route):
    """Returns a function of arrays that runs a folder."""
    if route != "saved_model":
        artefact = read_artefact(folder)
        names = [value["name"] for value in artefact.manifest["outputs"]]
        session = open_session(artefact)
        return lambda **inputs: dict(zip(names, session.run(names, inputs), strict=True))
    loaded = tf.saved_model.load(str(folder))
    return lambda **inputs: {
        name: tensor.numpy()
        for name, tensor in loaded.signatures["search"](
            **{key: tf.constant(array) for key, array in inputs.items()}
        ).items()
    }


# In the nightly suite: routes of rows that differ by a model which another route has.
NIGHTLY = [
    *((name, "saved_model") for name in ("mixed bfloat16", "frames", "recurrent")),
    *(case for case in CASES[CASES.index(("samples", "litert")) :] if case[1] == "litert"),
]


@pytest.mark.quick("samples-loop")
@pytest.mark.nightly("greedy-litert", "token scores and alignments-litert")
@pytest.mark.parametrize("name, route", quick(CASES, *QUICK, nightly=NIGHTLY))
def test_every_route_gives_the_tokens_of_keras(name, route):
    if route == "litert" and importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("LiteRT needs ai-edge-litert")
    row, model = ROWS[name], as_float32(made(name))
    folder = exported(name, route)
    run = opened(folder, route)
    arrays = {option: np.array(value, "int32") for option, value in row.options.items()}
    for rows, length in SIZES:
        source = row.inputs(rows, length)
        expected = row.search(model, source, exports.MAX_LENGTH, **row.options)
        found = run(**source, **arrays)
        assert found["token_ids"].dtype == np.int32
        np.testing.assert_array_equal(found.pop("token_ids"), expected.ids)
        assert list(found) == row.search.result_names[1:] or route == "saved_model"
        for output, array in found.items():
            reference = getattr(expected, output)
            np.testing.assert_allclose(array, reference, rtol=1e-4, atol=1e-5, err_msg=output)
    assert len({tuple(row) for row in expected.ids.numpy()[:, 0].tolist()}) > 1
    if route != "saved_model":
        values = read_artefact(folder).manifest["inputs"]
        assert [value["name"] for value in values] == [*source, *arrays]
