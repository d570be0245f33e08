"""ONNX export: what is written gives Keras' tokens, and nothing unproven is written."""

import functools
import json
import pathlib
import tempfile

import keras
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import exports
from support.exports import BEAM, MAX_LENGTH, VOCAB, body, counts, session, source, tiny, tokenizer
from support.linear_bias import LinearBias

import keras_transformer as kt
from keras_transformer.export import (
    ExportError,
    export_onnx,
    onnx_model,
    text_bytes,
    text_graph,
    text_model,
    verify,
)
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.runtime import Translator
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.search import BeamSearch, GreedySearch, Sampling
from keras_transformer.special_ids import END_ID, PAD_ID


@pytest.fixture
def model():
    return exports.shared_model()


@pytest.fixture
def artefact():
    return exports.shared_artefact()


def assert_same_search(model, search, path, source_ids, max_length=MAX_LENGTH, **inputs):
    expected = search(model, source_ids, max_length, **inputs)
    feed = {"source_ids": source_ids, **{k: np.array(v, "int32") for k, v in inputs.items()}}
    ids, scores = session(path).run(None, feed)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4, atol=1e-5)


def test_folder_is_an_artefact_that_says_what_it_holds(artefact):
    read = read_artefact(artefact)
    manifest = read.manifest
    assert sorted(path.name for path in artefact.iterdir()) == [
        "artefact.json",
        "model.onnx",
        "tokenizer.model",
    ]
    assert manifest["task"] == "translate" and manifest["precision"] == "float32"
    assert manifest["inputs"] == [
        {"name": "source_ids", "dtype": "int32", "axes": ["batch", "source_length"]}
    ]
    assert manifest["outputs"] == [
        {"name": "token_ids", "dtype": "int32", "axes": ["batch", "beam", "target_length"]},
        {"name": "scores", "dtype": "float32", "axes": ["batch", "beam"]},
    ]
    assert manifest["search"] == {"class_name": "BeamSearch", "config": BEAM.get_config()}
    assert manifest["limits"] == {
        "source_length": 512,
        "target_length": MAX_LENGTH,
        "extra_length": None,
    }
    assert read.tokenizer == tokenizer()


def test_graph_names_its_axes_and_keeps_to_opset_17(artefact):
    written = onnx.load(artefact / "model.onnx")
    axes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*written.graph.input, *written.graph.output]
    }
    assert axes == {name: list(signature.AXES[name]) for name in axes}
    assert {item.domain: item.version for item in written.opset_import}[""] == 17
    assert written.ir_version == 8


def test_weights_are_constants_where_products_can_pack_them_and_no_state_of_the_loop(artefact):
    written = onnx.load(artefact / "model.onnx")
    inside, loop = body(written)
    # Step, condition; position, ids, two sums, history; caches of two blocks, two attention biases.
    assert len(loop.input) == 2 + 5 + 2 * 2 + 2
    outer = {item.name for item in written.graph.initializer}
    own = {item.name for item in inside.initializer}
    assert "decoder_block_1/feed_forward/hidden/kernel" in own - outer
    assert "encoder_block_1/feed_forward/hidden/kernel" in outer - own
    products = [node for node in inside.node if node.op_type in ("MatMul", "FusedMatMul")]
    assert products and all(node.input[1] in own for node in products)
    # The embedding is read by both stacks; the projection to logits has a copy of its own.
    assert "token_embedding/embeddings" in outer - own


@pytest.mark.parametrize("rows, length", [(1, 1), (3, 5), (7, 13)])
def test_search_gives_keras_tokens(artefact, model, rows, length):
    assert_same_search(model, BEAM, artefact, source(rows, length))


def test_sentence_of_padding_alone_is_what_keras_makes_of_it(artefact, model):
    ids = source(3, 5)
    ids[1] = 0
    assert_same_search(model, BEAM, artefact, ids)


@st.composite
def batches(draw):
    """Source ids (B, S): sentences of any length, with padding after, before and between tokens."""
    rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 13))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    ids = random.integers(1, VOCAB, (rows, length)).astype("int32")
    ends = random.integers(0, length + 1, (rows, 1))
    ids[np.arange(length) >= ends] = PAD_ID
    ids[random.random(ids.shape) < draw(st.sampled_from([0, 0, 0.1, 0.5]))] = PAD_ID
    return ids


@pytest.mark.full
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    beam_width=st.integers(1, 7),
    length_penalty=st.floats(0, 3),
    early_stop=st.booleans(),
    sources=st.lists(batches(), min_size=5, max_size=5),
)  # fmt: skip
@pytest.mark.slow
def test_keras_and_onnx_runtime_hold_together(beam_width, length_penalty, early_stop, sources):
    """Each search is an export of its own: there are few of them, and several batches for each."""
    model, search = shallow_model(), BeamSearch(beam_width, length_penalty, early_stop=early_stop)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out"
        export_onnx(model, path, search=search, max_length=MAX_LENGTH, verbose=False)
        for ids in sources:
            assert_same_search(model, search, path, ids)


@functools.cache
def shallow_model():
    return tiny(num_layers=1)


VARIANTS = {
    "pre-norm, learned positions, exact gelu, biases": (
        {"norm_first": True, "activation": "gelu", "positions": kt.LearnedPositionEncoding(13),
         "use_bias": True},
        GreedySearch(),
    ),
    "rotary, two vocabularies, other head sizes": (
        {"positions": "rotary", "target_vocab_size": 53, "key_dim": 4, "value_dim": 5},
        BeamSearch(2, 0.0),
    ),
    "mixed bfloat16": ({"dtype": "mixed_bfloat16", "num_layers": 1}, GreedySearch()),
    "positions of one's own": ({"positions": LinearBias(), "num_layers": 1}, BeamSearch(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_translator_exports(name, tmp_path):
    arguments, search = VARIANTS[name]
    model = tiny(**arguments)
    export_onnx(model, tmp_path / "out", search=search, max_length=7, verbose=False)
    exported = as_float32(model)  # whatever the model's own precision
    for rows, length in ((1, 1), (2, 5), (5, 7)):
        assert_same_search(exported, search, tmp_path / "out", source(rows, length), max_length=7)


def test_language_model_samples_the_same_with_the_same_seed(tmp_path):
    model, search = tiny("generate"), Sampling(0.9, 20, 0.95, num_samples=2)
    manifest = export_onnx(model, tmp_path / "out", search=search, max_length=7, verbose=False)
    assert manifest["task"] == "generate"
    assert [value["name"] for value in manifest["inputs"]] == ["source_ids", "seed"]
    feed = {"source_ids": source(2, 5)}
    run = session(tmp_path / "out").run
    for seed in (5, 6):
        expected = search(model, feed["source_ids"], 7, seed=seed)
        ids, _ = run(None, {**feed, "seed": np.array(seed, "int32")})
        np.testing.assert_array_equal(ids, expected.ids)


def test_forward_pass_of_a_translator(tmp_path):
    model = tiny()
    manifest = export_onnx(model, tmp_path / "out", verbose=False)
    assert [value["name"] for value in manifest["inputs"]] == ["source_ids", "target_ids"]
    feed = {"source_ids": source(3, 5), "target_ids": source(3, 7, seed=1)}
    (logits,) = session(tmp_path / "out").run(None, feed)
    np.testing.assert_allclose(logits, model(feed), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "precision, activation, pooled",
    [("float32", "softmax", True), ("int8", None, False), ("weight_int8", None, False),
     ("weight_int4", "softmax", True), ("float16", None, False)],
)  # fmt: skip
def test_encoder_under_a_head(tmp_path, precision, activation, pooled):
    encoder = tiny("encode")
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = encoder(ids)
    x = keras.layers.GlobalAveragePooling1D()(x) if pooled else x
    head = keras.layers.Dense(
        3, activation=activation, bias_initializer="random_normal", name="tags"
    )
    model = keras.Model(ids, head(x))
    manifest = export_onnx(model, tmp_path / "out", precision=precision, verbose=False)
    assert [value["name"] for value in manifest["outputs"]] == ["tags"]
    (found,) = session(tmp_path / "out").run(None, {"source_ids": source()})
    exact = precision == "float32"
    tolerance = 1e-5 if exact else verify.TOLERANCES[precision] * np.std(model(source()))
    assert np.abs(found - model(source())).mean() <= tolerance


def test_outputs_that_are_one_value_keep_their_names(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = tiny("encode", num_layers=1)(ids)
    model = keras.Model(ids, {"p": x, "q": x})
    manifest = export_onnx(model, tmp_path / "out", verbose=False)
    assert [value["name"] for value in manifest["outputs"]] == ["p", "q"]
    p, q = session(tmp_path / "out").run(None, {"source_ids": source()})
    np.testing.assert_array_equal(p, q)


def test_sequential_of_our_layers(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32", name="ids"),
            TokenEmbedding(31, 12),
            EncoderBlock(2, 17),
        ]
    )
    manifest = export_onnx(model, tmp_path / "out", verbose=False)
    (name,) = (value["name"] for value in manifest["outputs"])
    (found,) = session(tmp_path / "out").run([name], {"ids": source(vocab_size=31)})
    np.testing.assert_allclose(found, model(source(vocab_size=31)), rtol=1e-4, atol=1e-4)


def test_models_with_few_positions_are_proven_within_them(tmp_path):
    arguments = {"num_layers": 1, "positions": kt.LearnedPositionEncoding(5)}
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    under = keras.Model(ids, keras.layers.Dense(3)(tiny("encode", **arguments)(ids)))
    manifest = export_onnx(under, tmp_path / "head", verbose=False)
    assert manifest["limits"]["source_length"] == 5
    translator = tiny(**arguments)
    export_onnx(translator, tmp_path / "text", tokenizer(), BEAM, text=True, verbose=False)
    read_artefact(tmp_path / "text")
    with pytest.raises(ValueError, match="has 7 ids a sentence.*positions for 5 only"):
        export_onnx(translator, tmp_path / "text", search=BEAM, samples=[source(2, 7)])


def test_operators_without_counterpart_are_named(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="source_ids")

    @keras.saving.register_keras_serializable("tests")
    class Strange(keras.layers.Layer):
        def call(self, x):
            import tensorflow as tf

            one = tf.math.bessel_i0(tf.cast(x, "float32"))
            return tf.math.lgamma(one) + tf.math.zeta(one, one)

    model = keras.Model(ids, Strange()(ids))
    with pytest.raises(ExportError, match=r"BesselI0.*Lgamma.*Zeta"):
        export_onnx(model, tmp_path / "out", verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_failed_check_leaves_the_folder_as_it_was(artefact, model, tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.mkdir()
    earlier = f'{{"format": "{signature.FORMAT}"}}'
    (path / signature.MANIFEST_FILE).write_text(earlier)

    def broken(*arguments):
        raise ExportError("Parity of the tokens: broken on purpose")

    monkeypatch.setattr(verify, "compare_forward", broken)
    with pytest.raises(ExportError, match="broken on purpose"):
        export_onnx(tiny("encode", num_layers=1), path, verbose=False)
    assert [item.name for item in tmp_path.iterdir()] == ["out"]
    assert (path / signature.MANIFEST_FILE).read_text() == earlier


def test_folder_of_something_else_is_left_alone(model, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ExportError, match="no earlier export"):
        export_onnx(tiny("encode", num_layers=1), tmp_path, verbose=False)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def outputs(*rows):
    """What a model gives for one case."""
    return [{"logits": np.array(rows, "float32")}]


def test_wrong_numbers_are_told_by_how_much():
    expected = outputs([1, 1, 1], [1, 1, 1])
    assert verify.compare_forward(expected, expected, 1e-4) == 0
    with pytest.raises(ExportError, match="by 0.5 of their size, 0.0001 is allowed"):
        verify.compare_forward(expected, outputs([1, 1, 1], [1, 1, 1.5]), 1e-4)
    with pytest.raises(ExportError, match="not finite at other places"):
        verify.compare_forward(expected, outputs([1, 1, 1], [1, 1, np.nan]), 1e-4)
    with pytest.raises(ExportError, match=r"shape \(1, 2\)"):
        verify.compare_forward(expected, outputs([1, 1]), 1e-4)


def test_rounding_is_held_against_the_spread_over_all_cases():
    expected, found = outputs([99], [101]) + outputs([100]), outputs([99.5], [101]) + outputs([100])
    error = 0.5 / 3**0.5 / (2 / 3) ** 0.5
    assert verify.compare_forward(expected, found, 0.5, exact=False) == pytest.approx(error)
    with pytest.raises(ExportError, match="by 0.35 of their spread, 0.3 is allowed.*keep_float"):
        verify.compare_forward(expected, found, 0.3, exact=False)
    constant = outputs([0, 0])
    assert verify.compare_forward(constant, constant, 0.3, exact=False) == 0


def test_infinite_numbers_are_compared_and_nan_proves_nothing():
    expected = outputs([1, -np.inf, np.inf])
    assert verify.compare_forward(expected, expected, 1e-4) == 0
    with pytest.raises(ExportError, match="not finite at other places"):
        verify.compare_forward(expected, outputs([1, np.inf, -np.inf]), 1e-4)
    unknown = outputs([1, np.nan, 2])
    with pytest.raises(ExportError, match="Keras model itself gives NaN"):
        verify.compare_forward(unknown, unknown, 1e-4)
    endless = outputs([np.inf, np.inf])
    with pytest.raises(ExportError, match="no finite number in any sample"):
        verify.compare_forward(endless, endless, 1e-4)


IDS = np.array([[[5, 3], [7, 3]]])
SCORES = np.array([[-1.0, -2.0]], "float32")


def compare_search(expected, found, again, **arguments):
    """`verify.compare_search` on one sentence, whose expected ids are `IDS`."""
    ids, scores = found
    found = {"token_ids": ids, "scores": np.array(scores, "float32")}
    again = np.array(again, "float32"), np.full(np.shape(again), 2.0, "float32")
    expected = IDS, np.array(expected, "float32")
    return verify.compare_search([expected], [found], [again], 1e-4, **arguments)


def test_wrong_tokens_are_told_and_ties_are_not():
    assert compare_search(SCORES, (IDS, SCORES), SCORES) == 0.0
    tied = [[-1.0, -1.00001]]
    assert compare_search(tied, (IDS[:, ::-1], tied), tied) == 0.0
    with pytest.raises(ExportError, match="token 0 is 9, Keras has 5"):
        compare_search(SCORES, (IDS + 4, SCORES + 1), SCORES + 1)
    with pytest.raises(ExportError, match="hypotheses differ from Keras' by 0.5 of their size"):
        compare_search(SCORES, (IDS, SCORES), SCORES * 2)
    with pytest.raises(ExportError, match="Shapes of the search"):
        compare_search(SCORES, (IDS[:, :1], SCORES[:, :1]), SCORES[:, :1])


def test_tie_beside_an_empty_place_is_a_tie():
    three = np.array([[[5, 3], [7, 3], [0, 0]]])
    scores = np.array([[-1.0, -1.00001, -np.inf]], "float32")
    found = {"token_ids": three[:, [1, 0, 2]], "scores": scores}
    again = scores, np.ones_like(scores)
    assert verify.compare_search([(three, scores)], [found], [again], 1e-4) == 0.0
    empty = {"token_ids": three, "scores": np.array([[-1.0, -np.inf, -np.inf]], "float32")}
    with pytest.raises(ExportError, match="not finite at other places"):
        verify.compare_search([(three, scores)], [empty], [again], 1e-4)


def test_scores_of_rounded_weights_are_held_against_their_spread():
    error = compare_search(SCORES, (IDS + 4, SCORES), SCORES + [[2e-4, 0]], exact=False)
    assert error == pytest.approx(1e-4 / 2**0.5, rel=1e-2)
    with pytest.raises(ExportError, match="by 0.35 of their spread.*keep_float"):
        compare_search(SCORES, (IDS, SCORES), SCORES + [[0, 1]], exact=False)
    for broken in (np.nan, -np.inf):
        with pytest.raises(ExportError, match="not finite at other places"):
            compare_search(SCORES, (IDS, [[broken, -2.0]]), SCORES, exact=False)
    with pytest.raises(ExportError, match="by nan of their spread"):
        compare_search(SCORES, (IDS, [[-1.0, np.nan]]), SCORES, exact=False)
    with pytest.raises(ExportError, match="Keras model itself gives NaN"):
        compare_search([[np.nan, -2.0]], (IDS, [[np.nan, -2.0]]), SCORES, exact=False)


def test_broken_file_names_the_check_it_failed(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ExportError, match="failed at onnx.checker"):
        verify.probe(path, [])


def test_arguments_are_checked_before_anything_is_done(model, tmp_path):
    path = tmp_path / "out"
    with pytest.raises(ValueError, match="precision must be one of"):
        export_onnx(model, path, precision="float8")
    with pytest.raises(TypeError, match="model must be a Keras model"):
        export_onnx("model.keras", path)
    with pytest.raises(TypeError, match="search must be"):
        export_onnx(model, path, search="beam")
    with pytest.raises(TypeError, match="has no decode_step"):
        export_onnx(tiny("encode", num_layers=1), path, search=BEAM)
    with pytest.raises(TypeError, match="tokenizer must be"):
        export_onnx(model, path, tokenizer="tokenizer.model")
    with pytest.raises(ValueError, match="286 ids, but the model reads 17"):
        export_onnx(tiny(vocab_size=17, num_layers=1), path, tokenizer(), BEAM)
    with pytest.raises(ValueError, match="max_length must be a positive integer"):
        export_onnx(model, path, search=BEAM, max_length=0)
    with pytest.raises(ValueError, match="text=True needs a tokenizer"):
        export_onnx(model, path, search=BEAM, text=True)
    with pytest.raises(ValueError, match="no functional model"):
        export_onnx(keras.Sequential(), path)
    assert not path.exists()


@pytest.mark.parametrize(
    "samples, told",
    [
        ([], r"at least one sample.* but \[\] was passed"),
        ({"source_ids": source()}, "must be a list of at least one sample"),
        ([source()[0]], r"array \(B, S\) of ids from 0 to 285.*shape \(7,\)"),
        ([source().astype("float32")], "shape .5, 7. of float32"),
        ([source() + VOCAB], "with ids from 286 to"),
        ([source() - 1], "with ids from -1 to"),
    ],
)
def test_samples_of_a_search_are_ids(model, tmp_path, samples, told):
    with pytest.raises(ValueError, match=told):
        export_onnx(model, tmp_path / "out", search=BEAM, samples=samples)


@pytest.mark.parametrize(
    "samples, told",
    [
        ([], "at least one sample"),
        ([source()], r"dict with an array for each of \['source_ids'\], but ndarray"),
        ([{"ids": source()}], r"\['source_ids'\], but \['ids'\]"),
        ([{"source_ids": source()[0]}], r"'source_ids' has shape \(7,\).*takes \(None, None\)"),
        ([{"source_ids": source() * 1.5}], "dtype float64, but the model takes .* int32"),
    ],
)
def test_samples_of_a_forward_pass_are_its_inputs(tmp_path, samples, told):
    with pytest.raises(ValueError, match=told):
        export_onnx(tiny("encode", num_layers=1), tmp_path / "out", samples=samples)


def test_dtypes_that_an_artefact_cannot_name_are_refused(tmp_path):
    ids = keras.Input((None,), dtype="uint8", name="bytes")
    x = tiny("encode", num_layers=1)(keras.ops.cast(ids, "int32"))
    with pytest.raises(ValueError, match="bytes is an input or output of dtype uint8"):
        export_onnx(keras.Model(ids, x), tmp_path / "out")


def test_other_backends_are_told_what_to_do(model, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="Keras runs on jax here.*KERAS_BACKEND=tensorflow"):
        export_onnx(model, tmp_path / "out", search=BEAM)


def test_weights_that_are_not_numbers_are_named(tmp_path):
    model = tiny(num_layers=1)
    weight = model.get_layer("decoder_block_0").self_attention.weights[0]
    weight.assign(weight * np.nan)
    with pytest.raises(ExportError, match=f"The weight {weight.path} holds NaN"):
        export_onnx(model, tmp_path / "out", search=BEAM)


def test_unexpected_error_names_the_stage(tmp_path, monkeypatch, capsys):
    def broken(*arguments, **named):
        raise KeyError("surprise")

    monkeypatch.setattr(onnx_model, "simplify", broken)
    with pytest.raises(ExportError, match="Failed at simplifying: KeyError: 'surprise'.*as before"):
        export_onnx(tiny("encode", num_layers=1), tmp_path / "out")
    assert "simplifying ... failed\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_large_models_keep_their_weights_beside_the_file(artefact, model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_model, "LARGEST_FILE", 1000)
    path = tmp_path / "out"
    manifest = export_onnx(model, path, tokenizer(), BEAM, max_length=MAX_LENGTH, verbose=False)
    assert set(manifest["files"]) == {"model.onnx", "model.onnx.data", "tokenizer.model"}
    assert manifest["files"]["model.onnx.data"]["bytes"] > 4 * VOCAB * 12
    assert_same_search(model, BEAM, path, source())
    texts = [translation.texts for translation in Translator(path, threads=1).n_best(exports.LINES)]
    one_file = Translator(artefact, threads=1).n_best(exports.LINES)
    assert texts == [translation.texts for translation in one_file]


def test_manifest_is_what_was_returned(tmp_path):
    manifest = export_onnx(tiny("encode", num_layers=1), tmp_path / "out", verbose=False)
    assert json.loads((tmp_path / "out" / "artefact.json").read_text()) == manifest


def test_plain_graph_has_operators_of_onnx_alone(tmp_path):
    model = tiny("encode", num_layers=1)
    export_onnx(model, tmp_path / "out", fuse=False, verbose=False)
    written = onnx.load(tmp_path / "out" / "model.onnx")
    assert [item.domain for item in written.opset_import] == [""]
    assert "LayerNormalization" not in counts(written.graph)


def test_text_model_translates_strings_like_the_tokenizer_around_it(tmp_path):
    model, search, pieces = tiny(num_layers=1), BeamSearch(2), tokenizer()
    manifest = export_onnx(
        model, tmp_path / "out", pieces, search, max_length=7, text=True, verbose=False
    )
    assert [value["name"] for value in manifest["text"]["outputs"]] == ["texts", "scores"]
    lines = ["two words", " \t", "ein mann fährt 😀"]
    (found,) = verify.probe(
        tmp_path / "out" / "text_model.onnx", [{"text": np.array(lines)}], extensions=True
    )
    ids = [[*row, END_ID] for row in pieces.encode(lines)]
    padded = np.zeros((3, max(map(len, ids))), "int32")
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = tokens
    expected = search(model, padded, 7)
    texts = [pieces.decode(row) for row in expected.ids.numpy()]
    texts[1] = ["", ""]  # blank text: nothing
    assert found["texts"].tolist() == texts
    np.testing.assert_allclose(found["scores"][[0, 2]], expected.scores.numpy()[[0, 2]], rtol=1e-4)
    assert found["scores"][1].tolist() == [0.0, -np.inf]


def test_text_model_of_a_model_in_two_files_is_refused(tmp_path):
    (tmp_path / signature.WEIGHTS_FILE).touch()
    with pytest.raises(ExportError, match="too large for one file"):
        text_model.add_text_model(tmp_path, None, tokenizer())


def test_bytes_that_spell_no_character_are_told_apart():
    pieces = tokenizer()
    found = {byte: row for byte, *row in text_bytes.byte_table(pieces, VOCAB)}
    assert found[0x41] == [0, 0x80, 0xBF] and found[0xC3] == [1, 0x80, 0xBF]
    assert found[0xE0] == [2, 0xA0, 0xBF] and found[0xF4] == [3, 0x80, 0x8F]
    assert found[0xC0] == [0, 0x80, 0xBF]  # would be overlong: never a beginning
    assert text_graph.pieces(pieces, VOCAB)[: END_ID + 1] == [b"", " \u2047 ".encode(), b"", b""]
