"""Ids and labels that a model does not have, text and ragged rows give one clear error."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import tiers

import keras_transformer as kt

V = 29
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
GOOD = np.full((4, 3), 5, "int32")


def translator(size=V):
    model = kt.Transformer(size, **SIZES)
    model.compile("sgd", kt.SequenceCrossentropy())
    return model


@pytest.fixture(scope="module")
def model():
    return translator()


def inputs(**wrong):
    return {"source_ids": GOOD, "target_ids": GOOD, **wrong}


def dataset(x, y=GOOD):
    return tf.data.Dataset.from_tensors((x, y))


CALLS = {
    "fit, source": lambda m, bad: m.fit(inputs(source_ids=bad), GOOD, verbose=0),
    "fit, target": lambda m, bad: m.fit(inputs(target_ids=bad), GOOD, verbose=0),
    "fit, labels": lambda m, bad: m.fit(inputs(), bad, verbose=0),
    "fit, a list": lambda m, bad: m.fit([GOOD, bad], GOOD, verbose=0),
    "fit, validation": lambda m, bad: m.fit(
        inputs(), GOOD, validation_data=(inputs(source_ids=bad), GOOD), verbose=0
    ),
    "evaluate": lambda m, bad: m.evaluate(inputs(source_ids=bad), GOOD, verbose=0),
    "predict": lambda m, bad: m.predict(inputs(source_ids=bad), verbose=0),
    "train on a batch": lambda m, bad: m.train_on_batch(inputs(source_ids=bad), GOOD),
    "train on a batch, labels": lambda m, bad: m.train_on_batch(inputs(), bad),
    "test on a batch": lambda m, bad: m.test_on_batch(inputs(target_ids=bad), GOOD),
    "predict on a batch": lambda m, bad: m.predict_on_batch(inputs(source_ids=bad)),
    "call": lambda m, bad: m(inputs(target_ids=bad)),
    "call of an embedding": lambda m, bad: kt.TokenEmbedding(V, 8)(bad),
    "call of segments": lambda m, bad: kt.SegmentEmbedding(V - 1)(np.ones((4, 3, 8)), bad),
    "loss": lambda m, bad: kt.SequenceCrossentropy()(bad, np.zeros((4, 3, V))),
    "metric": lambda m, bad: kt.TokenAccuracy()(bad, np.zeros((4, 3, V))),
    "search": lambda m, bad: kt.GreedySearch()(m, bad),
    "search, prefix": lambda m, bad: kt.GreedySearch()(m, GOOD, target_prefix=bad),
    "search, forbidden words": lambda m, bad: kt.GreedySearch(constraints=[kt.ForbiddenWords()])(
        m, GOOD, forbidden_words=bad[:, None]
    ),
}


@pytest.mark.parametrize("wrong", [V, -1])
@pytest.mark.parametrize("name", CALLS)
def test_an_id_outside_the_vocabulary_is_an_error_with_both_numbers(name, wrong, model):
    with pytest.raises(ValueError, match=rf"(?s) {wrong}\b.*\b0 to\s+{V - 1}\b"):
        CALLS[name](model, np.full((4, 3), wrong, "int32"))


@pytest.mark.full("x3-y3--2", "x1-y1-34", "x0-y0-34")
@pytest.mark.parametrize(
    ("x", "y", "wrong"),
    [
        (inputs(source_ids=GOOD + V), GOOD, V + 5),
        (inputs(target_ids=GOOD + V), GOOD, V + 5),
        (inputs(), GOOD + V, V + 5),
        (inputs(), GOOD - 7, -2),
    ],
)
def test_an_error_of_tensorflow_in_a_dataset_becomes_one_sentence(x, y, wrong):
    with pytest.raises(ValueError, match=f"data is {wrong}, but the model's are 0 to {V - 1}"):
        translator().fit(dataset(x, y), verbose=0, shuffle=False)


def tokenizer_of(size):
    tokenizer = kt.Tokenizer.train(["a b c", "d e f"] * 9, size, hard_vocab_limit=False)
    assert tokenizer.vocab_size > 100
    return tokenizer


TOO_LARGE = {
    "fit": lambda m, t: m.fit(kt.translation_batches(["a"], ["b"], t), verbose=0),
    "evaluate": lambda m, t: m.evaluate(kt.translation_batches(["a"], ["b"], t), verbose=0),
    "translate": lambda m, t: kt.translate(kt.GreedySearch(), m, t, ["a b"]),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_tokenizer_of_more_ids_than_the_model_is_refused(name):
    tokenizer = tokenizer_of(300)
    message = f"source has {tokenizer.vocab_size} ids, but the model reads 100"
    with pytest.raises(ValueError, match=message):
        TOO_LARGE[name](translator(100), tokenizer)


@pytest.mark.full
def test_a_tokenizer_of_fewer_ids_than_the_model_is_fine():
    tokenizer = tokenizer_of(300)
    model = translator(tokenizer.vocab_size + 3)
    model.fit(kt.translation_batches(["a"], ["b"], tokenizer), verbose=0, shuffle=False)
    assert len(kt.translate(kt.GreedySearch(), model, tokenizer, ["a b"], max_length=2)) == 1


RAGGED = tf.ragged.constant([[5, 6, 7], [8, 9]], dtype=tf.int32)
LANGUAGE_MODEL = {"vocab_size": V, **SIZES}


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m(RAGGED),
        lambda m: m.fit(dataset(RAGGED, RAGGED.to_tensor()), verbose=0, shuffle=False),
        lambda m: kt.TokenEmbedding(V, 8)(RAGGED),
    ],
)
def test_ragged_ids_are_refused_with_the_way_to_pad_them(call):
    model = kt.CausalTransformer(**LANGUAGE_MODEL)
    model.compile("sgd", kt.SequenceCrossentropy())
    with pytest.raises(TypeError, match=r"Call \.to_tensor\(\)"):
        call(model)


@pytest.mark.parametrize("text", [np.array(["a", "b"]), ["a b"], "a b", tf.constant(["a b"])])
@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m(x),
        lambda m, x: m.predict(x, verbose=0),
        lambda m, x: kt.GreedySearch()(m, x),
    ],
)
def test_text_in_the_place_of_ids_is_refused(call, text):
    with pytest.raises(TypeError, match="reads token ids, but text was passed. Encode it with the"):
        call(kt.CausalTransformer(**LANGUAGE_MODEL), text)


PROBABILITIES = [
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
    "binary_crossentropy",
    "categorical_focal_crossentropy",
    "binary_focal_crossentropy",
    "kl_divergence",
    keras.losses.SparseCategoricalCrossentropy(),
    keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    keras.losses.KLDivergence(),
    keras.losses.sparse_categorical_crossentropy,
]


ENSEMBLE = "ensemble", PROBABILITIES[0]
CAUSAL = "language model", PROBABILITIES[0]
CASES = [*(("translator", loss) for loss in PROBABILITIES), ENSEMBLE, CAUSAL]


@pytest.mark.full("0", "6", "3", "10")
@pytest.mark.parametrize(
    "kind, loss", tiers.quick(CASES, *CASES[0:10:3], ENSEMBLE, CAUSAL), ids=range(len(CASES))
)
def test_a_loss_of_probabilities_is_refused_for_logits(kind, loss, model):
    makers = {
        "translator": lambda: (kt.Transformer.from_config(model.get_config()), inputs()),
        "ensemble": lambda: (kt.Ensemble([model, model]), inputs()),
        "language model": lambda: (kt.CausalTransformer(**LANGUAGE_MODEL), GOOD),
    }
    other, given = makers[kind]()
    other.compile("sgd", loss)
    with pytest.raises(ValueError, match="expects probabilities, but the model gives logits"):
        other.fit(given, GOOD, verbose=0)


@pytest.mark.full
def test_a_keras_loss_of_logits_trains_after_saving_and_loading(tmp_path):
    model = kt.Transformer(V, **SIZES)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert np.isfinite(loaded.fit(inputs(), GOOD, verbose=0).history["loss"][0])


@pytest.mark.parametrize("name", ["a.h5", "a.hdf5"])
@pytest.mark.parametrize("kind", [kt.Transformer, kt.CausalTransformer, kt.TransformerEncoder])
def test_the_old_file_format_is_refused_before_a_file_exists(kind, name, tmp_path):
    model = kind(V, **SIZES)
    with pytest.raises(ValueError, match=r"End the name in \.keras"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
