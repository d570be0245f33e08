"""SavedModel export: the same translations as Keras, loaded without Keras."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import exports, processes, tiers
from helpers.exports import BEAM, LINES, MAX_LENGTH, source, tiny

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.saved_model import why_not_saved_model
from keras_transformer.search import GreedySearch, Sampling
from keras_transformer.text.json_tokenizer import JsonTokenizer

pytest.importorskip("tensorflow_text", reason="strings inside graphs need tensorflow-text")
pytestmark = pytest.mark.usefixtures("forked_proofs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "beam"
    tokenizer = exports.tokenizer()
    export_saved_model(
        exports.shared_model(), path, tokenizer, BEAM, max_length=MAX_LENGTH, verbose=False
    )
    return path


@pytest.mark.full
def test_logits_equal_teacher_forcing(folder):
    loaded = tf.saved_model.load(str(folder))
    feed = {"source_ids": source(3, 7), "target_ids": source(3, 5, seed=1)}
    found = loaded.signatures["logits"](**{k: tf.constant(v) for k, v in feed.items()})
    np.testing.assert_allclose(found["logits"], exports.shared_model()(feed), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_serving_needs_only_tensorflow_and_its_text_package(folder, tmp_path):
    code = """
import sys
for name in ("keras_transformer", "sentencepiece"):
    sys.modules[name] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
print(loaded.signatures["translate"](text=tf.constant(["two words"]))["texts"].shape)
"""
    done = processes.run("-c", code, folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "(1, 3)"


@pytest.mark.full
def test_a_language_model_continues_text_with_a_seed(tmp_path):
    """The proof stays within the few positions of the model."""
    model = tiny("generate", num_layers=1, positions=kt.LearnedPositionEncoding(31))
    search = Sampling(0.9, 20, num_samples=2)
    export_saved_model(model, tmp_path / "out", exports.tokenizer(), search, verbose=False)
    signatures = tf.saved_model.load(str(tmp_path / "out")).signatures
    text, seeds = tf.constant(LINES[:2]), [tf.constant(seed) for seed in (3, 3, 4)]
    first, again, other = (
        signatures["generate"](text=text, seed=seed)["texts"].numpy().tolist() for seed in seeds
    )
    assert first == again != other


@pytest.mark.full
def test_files_that_are_not_part_of_a_saved_model_are_named(tmp_path):
    for name in ("variables", "assets", "assets.extra"):
        (tmp_path / name).mkdir()
    for name in ("variables/variables.index", "fingerprint.pb", "assets.extra/head.json"):
        (tmp_path / name).touch()
    assert why_not_saved_model(tmp_path) == "it has no saved_model.pb"
    (tmp_path / "saved_model.pb").touch()
    assert why_not_saved_model(tmp_path) is None
    for name in ("model.keras", "variables/mine.txt", "assets/mine.txt", "assets.extra/mine"):
        (tmp_path / name).touch()
        found = why_not_saved_model(tmp_path)
        assert found == f"{pathlib.Path(name).parts[0]} is not part of a SavedModel"
        (tmp_path / name).unlink()


@pytest.mark.full
@pytest.mark.parametrize(
    "lookup, kind, words",
    [
        (keras.layers.IntegerLookup, "int64", [[10, 20, 7]]),
        tiers.full(keras.layers.StringLookup, "string", [["a", "b", "c"]]),
    ],
)
def test_tables_of_lookup_layers_are_saved(lookup, kind, words, tmp_path):
    ids, words = keras.Input((3,), dtype=kind, name="words"), np.array(words)
    found = lookup(vocabulary=words[0, :2].tolist())(ids)
    model = keras.Model(ids, keras.layers.Embedding(5, 4)(found))
    options = {"samples": [{"words": words}], "verbose": False}
    export_saved_model(model, tmp_path / "out", **options)
    forward = tf.saved_model.load(str(tmp_path / "out")).signatures["forward"]
    (result,) = forward(**{"words": tf.constant(words)}).values()
    np.testing.assert_allclose(result, model(tf.constant(words)), rtol=1e-6)


@pytest.mark.parametrize(
    "write, options, advice",
    [
        (export_saved_model, {}, "Leave it out"),
        (export_onnx, {"text": True}, "Leave text out"),
    ],
)
def test_strings_inside_a_graph_need_a_sentencepiece_model(write, options, advice, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "a": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    arguments = exports.shared_model(), tmp_path / "out", JsonTokenizer(made.to_str())
    with pytest.raises(TypeError, match=f"need a Tokenizer.*{advice}"):
        write(*arguments, GreedySearch(), **options)
