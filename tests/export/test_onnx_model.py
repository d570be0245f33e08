"""ONNX export: the file gives Keras' tokens, and unproven files are not written."""

import json

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tensorflow as tf
from helpers import exports
from helpers.exports import BEAM, MAX_LENGTH, VOCAB, body, counts, session, source, tiny, tokenizer
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import ExportError, export_onnx, export_saved_model, onnx_model
from keras_transformer.export.arguments import check_dtypes
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.proof import comparison
from keras_transformer.export.runtime import Translator
from keras_transformer.export.staging import Progress
from keras_transformer.export.tasks import SearchTask
from keras_transformer.export.text_model import TextModel
from keras_transformer.search import BeamSearch


def test_the_manifest_describes_the_folder():
    folder = exports.artefact()
    read = read_artefact(folder)
    manifest, axes = read.manifest, signature.AXES
    files = {"model.onnx", "text_model.onnx", "tokenizer.model"}
    assert {path.name for path in folder.iterdir()} == {"artefact.json", *files}
    assert set(manifest["files"]) == files and "layout" not in manifest
    described = {
        "task": "translate",
        "precision": "float32",
        "inputs": [{"name": "source_ids", "dtype": "int32", "axes": list(axes["source_ids"])}],
        "outputs": [
            {"name": "token_ids", "dtype": "int32", "axes": list(axes["token_ids"])},
            {"name": "scores", "dtype": "float32", "axes": list(axes["scores"])},
        ],
        "search": {"class_name": "BeamSearch", "config": BEAM.get_config()},
        "limits": {"source_length": 512, "target_length": MAX_LENGTH, "extra_length": None},
    }
    assert {name: manifest[name] for name in described} == described
    assert read.tokenizer == tokenizer()


def test_the_graph_names_its_axes_and_keeps_to_opset_17():
    written = onnx.load(exports.artefact() / "model.onnx")
    axes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*written.graph.input, *written.graph.output]
    }
    options = {"max_length": ["max_length_rows"], "length_penalty": []}
    assert axes == {name: options.get(name) or list(signature.AXES.get(name, ())) for name in axes}
    assert set(options) < set(axes)
    assert {item.domain: item.version for item in written.opset_import}[""] == 17
    assert written.ir_version == 8


def test_weights_of_the_loop_are_constants_of_its_body_and_not_its_state():
    written = onnx.load(exports.artefact() / "model.onnx")
    inside, loop = body(written)
    # Step, condition; position, ids, two sums, history; caches of two blocks, two attention biases.
    assert len(loop.input) == 2 + 5 + 2 * 2 + 2
    outer = {item.name for item in written.graph.initializer}
    own = {item.name for item in inside.initializer}
    assert "decoder_block_1/feed_forward/hidden/kernel" in own - outer
    assert "encoder_block_1/feed_forward/hidden/kernel" in outer - own
    products = [node for node in inside.node if node.op_type in ("MatMul", "FusedMatMul")]
    # Both stacks and the logits read the embedding, which the file holds once.
    table = "token_embedding/embeddings"
    assert products and {node.input[1] for node in products} - own == {f"{table}/step"}
    assert table in outer - own


@pytest.mark.parametrize("precision", quick(["float32", "float16"], "float32"))
def test_the_file_holds_a_tied_table_once(tmp_path, precision):
    """Tests our model and a plain Keras model. Integer precisions write the table twice."""
    ours = exports.artefact(**({} if precision == "float32" else {"precision": precision}))
    embedding = keras.layers.ReversibleEmbedding(VOCAB, 12)
    ids = keras.Input((None,), dtype="int32", name="ids")
    logits = embedding(keras.layers.Dense(12, "relu")(embedding(ids)), reverse=True)
    export_onnx(keras.Model(ids, logits), tmp_path / "others", precision=precision)
    for folder in (ours, tmp_path / "others"):
        written = ir.load(folder / "model.onnx")
        shapes = [
            tuple(value.shape)
            for graph in written.graphs()
            for value in graph.initializers.values()
        ]
        assert shapes.count((VOCAB, 12)) + shapes.count((12, VOCAB)) == 1


def test_onnxruntime_makes_a_constant_of_the_table_in_a_step(tmp_path):
    """Products can pack only constants."""
    options, path = onnxruntime.SessionOptions(), tmp_path / "optimized.onnx"
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    onnxruntime.InferenceSession(exports.artefact() / "model.onnx", options)
    inside, _ = body(onnx.load(path))
    assert "token_embedding/embeddings/step" in {item.name for item in inside.initializer}


def headed(activation=None, pooled=False):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = tiny("encode")(ids)
    x = keras.layers.GlobalAveragePooling1D()(x) if pooled else x
    head = keras.layers.Dense(3, activation, bias_initializer="random_normal", name="tags")
    return keras.Model(ids, head(x))


def two_outputs():
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = tiny("encode", num_layers=1)(ids)
    return keras.Model(ids, {"p": x, "q": x})  # of one value


# Model, precision and names of the outputs.
FORWARD = {
    "a translator": (tiny, "float32", ["logits"]),
    "a recurrent decoder": (
        lambda: tiny(num_layers=(1, 2), recurrent_decoder=True),
        "float32",
        ["logits"],
    ),
    "two outputs": (two_outputs, "float32", ["p", "q"]),
    "a head": (lambda: headed("softmax", pooled=True), "float32", ["tags"]),
    "int8": (headed, "int8", ["tags"]),
    "weight_int8": (headed, "weight_int8", ["tags"]),
    "weight_int4": (lambda: headed("softmax", pooled=True), "weight_int4", ["tags"]),
    "float16": (headed, "float16", ["tags"]),
}


@pytest.mark.full("a head", "a translator")
@pytest.mark.parametrize("name", quick(FORWARD, "a translator", "two outputs", "a head"))
def test_a_forward_pass_gives_the_outputs_of_keras(name, tmp_path):
    make, precision, outputs = FORWARD[name]
    model = make()
    manifest = export_onnx(model, tmp_path / "out", precision=precision, verbose=False)
    assert json.loads((tmp_path / "out" / "artefact.json").read_text()) == manifest
    assert [value["name"] for value in manifest["outputs"]] == outputs
    feed = {"source_ids": source(), "target_ids": source(5, 9, seed=1)}
    feed = {value["name"]: feed[value["name"]] for value in manifest["inputs"]}
    arranged = keras.tree.pack_sequence_as(model.input, list(feed.values()))
    expected = keras.tree.flatten(model(arranged))
    for found, reference in zip(session(tmp_path / "out").run(None, feed), expected, strict=True):
        limit = comparison.TOLERANCES[precision] * np.std(reference)
        assert found.shape == reference.shape and np.abs(found - reference).mean() <= limit


def test_without_fusion_a_model_uses_only_operators_of_onnx(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Sequential([ids, kt.TokenEmbedding(31, 12), kt.EncoderBlock(2, 17)])
    export_onnx(model, tmp_path / "out", fuse=False, verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"ids": source(vocab_size=31)})
    np.testing.assert_allclose(found, model(source(vocab_size=31)), rtol=1e-4, atol=1e-4)
    written = onnx.load(tmp_path / "out" / "model.onnx")
    assert [item.domain for item in written.opset_import] == [""]
    assert "LayerNormalization" not in counts(written.graph)


@pytest.mark.full
def test_models_with_few_positions_are_proven_within_them(tmp_path):
    model = tiny("encode", num_layers=1, positions=kt.LearnedPositionEncoding(5))
    manifest = export_onnx(model, tmp_path / "encoder", verbose=False)
    assert manifest["limits"]["source_length"] == 5
    translator = tiny(num_layers=1, positions=kt.LearnedPositionEncoding(5))
    export_onnx(translator, tmp_path / "text", tokenizer(), BEAM, text=True, verbose=False)
    assert (tmp_path / "text" / "text_model.onnx").exists()


@pytest.mark.full
def test_large_models_store_their_weights_in_a_second_file(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_model, "LARGEST_FILE", 1000)
    path, model = tmp_path / "out", exports.shared_model()
    options = {"max_length": MAX_LENGTH, "verbose": False}
    manifest = export_onnx(model, path, tokenizer(), BEAM, **options)
    assert set(manifest["files"]) == {"model.onnx", "model.onnx.data", "tokenizer.model"}
    assert manifest["files"]["model.onnx.data"]["bytes"] > 4 * VOCAB * 12
    large, one_file = (
        Translator(folder, threads=1).n_best(exports.LINES) for folder in (path, exports.artefact())
    )
    assert large == one_file
    with pytest.raises(ExportError, match="too large for one file"):
        TextModel(SearchTask(model, BEAM, MAX_LENGTH), tokenizer()).write(path, Progress(False))


# Refusals


def test_errors_name_operators_without_counterpart(tmp_path):
    def strange(x):
        one = tf.math.bessel_i0(tf.cast(x, "float32"))
        return tf.math.lgamma(one) + tf.math.zeta(one, one)

    ids = keras.Input((None,), dtype="int32", name="source_ids")
    model = keras.Model(ids, keras.layers.Lambda(strange)(ids))
    with pytest.raises(ExportError, match=r"BesselI0.*Lgamma.*Zeta"):
        export_onnx(model, tmp_path / "out", verbose=False)
    assert list(tmp_path.iterdir()) == []


REFUSED = [
    (ValueError, "precision must be one of", {"precision": "float8"}),
    (TypeError, "model must be a Keras model", {"model": "model.keras"}),
    (TypeError, "search must be", {"search": "beam"}),
    (TypeError, "has no decode_step", {"model": lambda: tiny("encode"), "search": BEAM}),
    (TypeError, "tokenizer must be", {"tokenizer": "tokenizer.model"}),
    (
        ValueError,
        "286 ids, but the model reads 17",
        {"model": lambda: tiny(vocab_size=17), "search": BEAM, "tokenizer": tokenizer()},
    ),
    (ValueError, "max_length must be a positive integer", {"search": BEAM, "max_length": 0}),
    (ValueError, "pass a search", {"max_length": 5}),
    (ValueError, "pass tokenizer and search too", {"target_tokenizer": tokenizer()}),
    (
        ValueError,
        "min_length=5.*at most 3",
        {"search": BeamSearch(2, min_length=5), "max_length": 3},
    ),
    (ValueError, "text=True needs a tokenizer", {"search": BEAM, "text": True}),
    (ValueError, "not a functional model", {"model": keras.Sequential}),
    (ValueError, "layout must be one of", {"layout": "both"}),
    (ValueError, "pass a search", {"layout": "steps"}),
    (ValueError, "pass layout='loop'", {"layout": "steps", "search": BEAM, "text": True}),
    (TypeError, "shortlist must be a Shortlist", {"shortlist": [1, 2]}),
]


@pytest.mark.parametrize("error, message, options", REFUSED)
def test_arguments_are_checked_before_any_work(error, message, options, tmp_path):
    model = options.get("model", exports.shared_model)
    given = {**options, "model": model() if callable(model) else model}
    with pytest.raises(error, match=message):
        export_onnx(path=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "dtype, instead",
    [
        *((name, "int32") for name in ("int8", "uint8", "int16", "uint16")),
        *((name, "int64") for name in ("uint32", "uint64")),
        *((name, "float32") for name in ("float64", "bfloat16")),
    ],
)
def test_inputs_and_outputs_of_other_dtypes_are_refused_with_advice(dtype, instead, tmp_path):
    def model(given, cast):
        x = keras.Input((3,), dtype=given, name="x")
        return keras.Model(x, {"y": keras.ops.cast(x, cast)})

    message = rf"x is an input.*dtype {dtype}.*keras.Input\(\(3,\), dtype='{instead}', name='x'\)"
    with pytest.raises(ValueError, match=message):
        export_onnx(model(dtype, "float32"), tmp_path / "out")
    with pytest.raises(ValueError, match=f"output of dtype {dtype}.*Cast the output.*ops.cast"):
        export_onnx(model("float32", dtype), tmp_path / "out")
    check_dtypes(model(instead, "float32"))  # the advice works


def test_nan_weights_and_other_backends_are_refused(tmp_path, monkeypatch):
    encoder = tiny("encode", num_layers=1)
    weight = encoder.get_layer("encoder_block_0").self_attention.weights[0]
    weight.assign(weight * np.nan)
    with pytest.raises(ExportError, match=f"The weight {weight.path} holds NaN"):
        export_onnx(encoder, tmp_path / "out")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="Keras runs on jax here.*KERAS_BACKEND=tensorflow"):
        export_onnx(encoder, tmp_path / "out")


@pytest.mark.full("translate-export_saved_model", "translate-export_onnx")
@pytest.mark.parametrize("write", [export_onnx, export_saved_model])
@pytest.mark.parametrize("kind", ["translate", "generate"])
def test_a_forward_pass_beside_a_tokenizer_is_said(write, kind, tmp_path):
    (tmp_path / "mine").write_text("")  # the warning comes before any work
    with (
        pytest.warns(UserWarning, match="Without a search, .* nothing generates text from it"),
        pytest.raises(ExportError, match="exists and is not an earlier export"),
    ):
        write(tiny(kind), tmp_path, tokenizer(), verbose=False)
