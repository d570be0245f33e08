"""SavedModel export: the same translations as Keras, loaded without Keras."""

import numpy as np
import pytest
import tensorflow as tf
from support import exports, processes
from support.exports import BEAM, LINES, MAX_LENGTH, source, tiny

import keras_transformer as kt
from keras_transformer.export import ExportError, export_saved_model, saved_model
from keras_transformer.search import GreedySearch, Sampling
from keras_transformer.special_ids import END_ID

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


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(str(folder))


def test_search_gives_keras_tokens(loaded):
    expected = BEAM(exports.shared_model(), source(), MAX_LENGTH)
    found = loaded.signatures["search"](source_ids=tf.constant(source()))
    np.testing.assert_array_equal(found["token_ids"], expected.ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)


def test_logits_are_those_of_teacher_forcing(loaded):
    feed = {"source_ids": source(3, 7), "target_ids": source(3, 5, seed=1)}
    found = loaded.signatures["logits"](**{k: tf.constant(v) for k, v in feed.items()})
    np.testing.assert_allclose(found["logits"], exports.shared_model()(feed), rtol=1e-4, atol=1e-5)


def test_strings_become_the_strings_of_the_ids(loaded):
    tokenizer = exports.tokenizer()
    ids = [[*row, END_ID] for row in tokenizer.encode(LINES)]
    padded = np.zeros((len(ids), max(map(len, ids))), "int32")
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = tokens
    expected = BEAM(exports.shared_model(), padded, MAX_LENGTH)
    found = loaded.signatures["translate"](text=tf.constant(LINES))
    texts = [[text.decode() for text in row] for row in found["texts"].numpy()]
    assert texts == [tokenizer.decode(row) for row in expected.ids.numpy()]
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)


def test_blank_text_is_one_empty_hypothesis(loaded):
    found = loaded.signatures["translate"](text=tf.constant(["", " \t", "two words"]))
    assert found["texts"].numpy()[:2].tolist() == [[b""] * 3] * 2
    assert found["scores"].numpy()[:2].tolist() == [[0.0, -np.inf, -np.inf]] * 2
    assert found["texts"].numpy()[2, 0] != b"" and np.isfinite(found["scores"].numpy()[2, 0])


def test_tensorflow_and_its_text_package_are_enough(folder, tmp_path):
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


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """It has few positions, and samples."""
    path = tmp_path_factory.mktemp("saved") / "out"
    model = tiny("generate", num_layers=1, positions=kt.LearnedPositionEncoding(31))
    search = Sampling(0.9, 20, num_samples=2)
    export_saved_model(model, path, exports.tokenizer(), search, verbose=False)
    return path


def test_language_model_goes_on_from_text_with_a_seed(language_model):
    signatures = tf.saved_model.load(str(language_model)).signatures
    text, seeds = tf.constant(LINES[:2]), [tf.constant(seed) for seed in (3, 3, 4)]
    first, again, other = (
        signatures["generate"](text=text, seed=seed)["texts"].numpy().tolist() for seed in seeds
    )
    assert first == again != other


def test_failed_check_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.mkdir()
    (path / "saved_model.pb").write_text("earlier")

    def broken(*arguments, **named):
        raise ExportError("broken on purpose")

    monkeypatch.setattr(saved_model.verify, "probe", broken)
    with pytest.raises(ExportError, match="broken on purpose"):
        export_saved_model(tiny("encode", num_layers=1), path, verbose=False)
    assert [item.name for item in tmp_path.iterdir()] == ["out"]
    assert (path / "saved_model.pb").read_text() == "earlier"


def test_models_of_half_precision_are_saved_and_proven_in_float32(tmp_path):
    model = tiny(dtype="mixed_bfloat16", num_layers=1)
    export_saved_model(model, tmp_path / "out", search=GreedySearch(), max_length=5, verbose=False)
    feed = {"source_ids": source(3, 7), "target_ids": source(3, 5, seed=1)}
    forward = tf.saved_model.load(str(tmp_path / "out")).signatures["logits"]
    found = forward(**{name: tf.constant(array) for name, array in feed.items()})["logits"]
    plain = tiny(num_layers=1)
    plain.set_weights(model.get_weights())
    np.testing.assert_allclose(found, plain(feed), rtol=1e-4, atol=1e-5)


def test_models_with_few_positions_are_proven_within_them(language_model):
    assert (language_model / "saved_model.pb").exists()


def test_samples_prove_the_search_or_else_the_forward_pass(tmp_path):
    model = tiny("encode", num_layers=1)
    with pytest.raises(ValueError, match="dict with an array for each of"):
        export_saved_model(model, tmp_path / "out", samples=[source()])
    with pytest.raises(ValueError, match="at least one sample"):
        export_saved_model(exports.shared_model(), tmp_path / "out", search=BEAM, samples=[])
    with pytest.raises(ExportError, match="1e-20 is allowed. Pass a larger `tolerance`"):
        export_saved_model(
            model, tmp_path / "out", samples=[{"source_ids": source()}], tolerance=1e-20,
            verbose=False,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def texts(words, scores):
    """What a search of one sentence gives."""
    return {"texts": np.array([words]), "scores": np.array([scores], "float32")}


def test_texts_that_differ_are_told():
    expected = texts([b"a"], [-1.0])
    comparison.compare_texts(expected, texts(["a"], [-1.0]), 1e-4)
    with pytest.raises(ExportError, match="hypothesis 0 is 'b' and not 'a'"):
        comparison.compare_texts(expected, texts(["b"], [-1.0]), 1e-4)
    with pytest.raises(ExportError, match="scores differ by 0.5"):
        comparison.compare_texts(expected, texts(["a"], [-1.5]), 1e-4)


def test_texts_may_change_places_where_scores_tie_and_nowhere_else():
    expected = texts([b"a", b"b", b"c"], [-1.0, -1.00001, -2.0])
    swapped = texts(["b", "a", "c"], [-1.0, -1.00001, -2.0])
    comparison.compare_texts(expected, swapped, 1e-4)
    with pytest.raises(ExportError, match="hypothesis 2 is 'd' and not 'c'"):
        other = texts(["a", "b", "d"], [-1.0, -1.00001, -2.0])
        comparison.compare_texts(expected, other, 1e-4)
