"""`Transformer(encoder=...)`: any functional model replaces the encoder."""

import json

import keras
import numpy as np
import pytest
from helpers import encoders
from helpers.checks import normal

import keras_transformer as kt
from keras_transformer.export.tasks import SearchTask

SEARCHES = [kt.GreedySearch(), kt.BeamSearch(3), kt.Sampling(seed=3, num_samples=2)]
TARGETS = np.array([[2, 5, 7], [2, 9, 0], [2, 11, 13]], "int32")


@pytest.fixture(scope="module")
def listener():
    return encoders.writer(encoders.frames_encoder)


@pytest.fixture(scope="module")
def viewer():
    return encoders.writer(encoders.patches_encoder)


@pytest.mark.full("Sampling", "GreedySearch")
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_a_search_depends_neither_on_padding_nor_on_the_batch(listener, search):
    frames = encoders.frames()
    expected = search(listener, frames, max_length=7)
    padded = search(listener, {"frames": np.pad(frames, [(0, 0), (0, 4), (0, 0)])}, max_length=7)
    np.testing.assert_array_equal(padded.ids, expected.ids)
    np.testing.assert_allclose(padded.scores, expected.scores, atol=1e-5)
    for row in range(3):
        alone = search(listener, frames[row : row + 1], max_length=7).ids.numpy()[0]
        np.testing.assert_array_equal(alone, expected.ids[row, :, : alone.shape[1]])
        assert not expected.ids[row, :, alone.shape[1] :].numpy().any()


@pytest.mark.full
def test_the_default_maximum_length_is_50_more_than_the_encoder_length(listener, viewer):
    never_ends = kt.GreedySearch(min_length=53)
    lengths = [(ids > 0).sum() for ids in never_ends(listener, encoders.frames()).ids.numpy()]
    assert lengths == [57, 55, 53]  # 7, 5 and 3 frames
    assert (never_ends(viewer, encoders.pictures()).ids.numpy() > 0).sum() == 3 * 54
    both = kt.Ensemble([listener, listener])
    longer = kt.GreedySearch(min_length=61)
    assert (longer(listener, encoders.frames()).ids.numpy() > 0).sum() == 3 * 61
    ids = never_ends(both, encoders.frames(), max_length=[-1, 61, -1]).ids.numpy()
    assert (ids > 0).sum(axis=2).tolist() == [[57], [61], [53]]


def test_the_encoder_is_saved_with_the_model(viewer, tmp_path):
    viewer.save(tmp_path / "viewer.keras")
    loaded = keras.models.load_model(tmp_path / "viewer.keras")
    inputs = {**encoders.pictures(), "target_ids": TARGETS}
    np.testing.assert_array_equal(loaded(inputs), viewer(inputs))
    assert sorted(loaded.source_inputs) == ["image", "place"]
    again = kt.Transformer.from_config(json.loads(json.dumps(viewer.get_config())))
    assert again.encoder is not viewer.encoder
    weights = [[(w.path, w.shape) for w in model.weights] for model in (again, viewer)]
    assert weights[0] == weights[1]


def test_an_encoder_can_be_a_sequential_model():
    parts = [keras.Input((None, 5), name="frames"), keras.layers.Dense(12)]
    model = kt.Transformer(encoders.VOCAB, 1, **encoders.SIZES, encoder=keras.Sequential(parts))
    inputs = {"frames": np.ones((2, 7, 5), "float32"), "target_ids": np.array([[2, 5]] * 2)}
    assert model(inputs).shape == (2, 2, encoders.VOCAB)


def test_an_encoder_of_ids_reads_the_ids_of_a_search():
    encoder = kt.TransformerEncoder(29, 1, **encoders.SIZES)
    model = kt.Transformer(encoders.VOCAB, 1, **encoders.SIZES, encoder=encoder)
    ids = np.array([[5, 28, 3], [7, 3, 0]], "int32")
    expected = kt.BeamSearch(3)(model, ids, max_length=5)
    found = kt.BeamSearch(3)(model, {"source_ids": np.pad(ids, [(0, 0), (0, 2)])}, max_length=5)
    np.testing.assert_array_equal(found.ids, expected.ids)
    with pytest.raises(TypeError, match="must be integers"):
        model({"source_ids": ids * 1.0, "target_ids": ids})


def dense(units, name="vectors"):
    inputs = keras.Input((None, 3), name=name)
    return keras.Model(inputs, keras.layers.Dense(units)(inputs))


def flat():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(4)(inputs))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"encoder": keras.layers.Dense(4)}, TypeError, "functional Keras model"),
        ({"encoder": keras.Sequential([keras.layers.Dense(4)])}, TypeError, "functional Keras"),
        ({"encoder": flat()}, ValueError, r"one output of shape \(batch, length"),
        ({"encoder": dense(4, "target_ids")}, ValueError, "called 'target_ids'"),
        ({"encoder": dense(4), "target_vocab_size": 7}, ValueError, "leave target_vocab_size out"),
        ({"num_layers": 1.5}, TypeError, "num_layers must be one integer"),
        ({"num_layers": True}, TypeError, "num_layers must be one integer"),
    ],
)
def test_invalid_encoders_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        kt.Transformer(encoders.VOCAB, **{"num_layers": 1, **encoders.SIZES, **arguments})


def columns(width, *layers):
    x = inputs = keras.Input((16, width, 1), name="picture")
    for layer in (keras.layers.Conv2D(3, 3, 2, "same"), keras.layers.Permute((2, 1, 3)), *layers):
        x = layer(x)
    return keras.Model(inputs, keras.layers.Dense(12)(x))


def steps(layer):
    return keras.layers.TimeDistributed(layer, name="steps")


def nested():
    inner = keras.Input((None, 8, 3))
    return keras.Model(inner, steps(keras.layers.Flatten())(inner))


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [steps(keras.layers.Flatten())],
        lambda: [steps(keras.layers.Flatten()), keras.layers.Masking()],
        lambda: [steps(keras.layers.Reshape((24,)))],
        lambda: [steps(keras.Sequential([keras.layers.Flatten()]))],
        lambda: [steps(keras.layers.GlobalAveragePooling1D())],
        lambda: [nested()],
    ],
)
def test_time_distributed_over_a_free_axis_is_refused(layers):
    """In TensorFlow's graphs Keras takes the batch size as the number of steps."""
    with pytest.raises(ValueError, match="'steps' is a TimeDistributed.*any size.*fixed size"):
        kt.Transformer(encoders.VOCAB, 1, **encoders.SIZES, encoder=columns(None, *layers()))


def test_time_distributed_over_a_fixed_axis_is_searched_as_in_the_forward_pass():
    encoder = columns(10, steps(keras.layers.Flatten()))
    model = kt.Transformer(encoders.VOCAB, 1, **encoders.SIZES, encoder=encoder)
    pictures, search = {"picture": normal(2, 16, 10, 1)}, kt.BeamSearch(2)
    found = search(model, pictures, 5)
    expected = SearchTask(model, search, 5).forced(pictures, found.ids.numpy()).scores
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        (np.zeros((3, 8, 8, 3)), TypeError, "pass a dict with an array for each"),
        ({"image": np.zeros((3, 8, 8, 3))}, ValueError, r"must be a dict of \['image', 'place'\]"),
        ({"image": np.zeros((8, 8, 3)), "place": np.zeros((1, 1))}, ValueError, "image has shape"),
        (
            {"image": np.zeros((3, 8, 8, 3)), "place": np.zeros((2, 1))},
            ValueError,
            "batch size of image",
        ),
        ({"image": np.full((3, 8, 8, 3), "a"), "place": np.zeros((3, 1))}, TypeError, "string"),
    ],
)
def test_invalid_sources_are_refused(viewer, source, error, match):
    with pytest.raises(error, match=match):
        kt.GreedySearch()(viewer, source)
