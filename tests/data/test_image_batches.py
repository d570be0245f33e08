"""Images of different widths: padding changes no result, in Keras and in the ONNX file."""

import keras
import numpy as np
import pytest
from helpers import exports

pytest.importorskip("tensorflow")

import keras_transformer as kt  # noqa: E402
from keras_transformer.export import Classification, export_onnx  # noqa: E402
from keras_transformer.export.runtime import Predictor  # noqa: E402

HEIGHT, CHANNELS, D = 6, 2, 8
WIDTHS = (11, 4, 17)  # 11 and 17 are no multiples of the patch's width, 3
RNG = np.random.default_rng(0)
IMAGES = [RNG.uniform(0, 1, (HEIGHT, width, CHANNELS)) for width in WIDTHS]
CLASSES = [1, 0, 1]


def encoder(pooled=False, **arguments):
    images = keras.Input((HEIGHT, None, CHANNELS), name="images")
    x = keras.layers.Masking(mask_value=-1.0)(images)
    x = kt.SinusoidalPositionEncoding()(kt.PatchEmbedding(D, (HEIGHT, 3))(x))
    x = kt.EncoderBlock(num_heads=2, d_ff=13, dropout=0.0)(x)
    if pooled:
        x = keras.layers.Dense(3)(kt.SequencePooling()(x))
    return keras.Model(images, x, **arguments)


def padded():
    ((images, labels),) = kt.image_batches(IMAGES, CLASSES, shuffle=False)
    assert images.shape == (3, HEIGHT, 17, CHANNELS)
    images = images.numpy()
    order = [WIDTHS.index(int((row[0, :, 0] != -1).sum())) for row in images]
    assert [CLASSES[i] for i in order] == labels.numpy().tolist()
    return images, order


def alone(i):
    return IMAGES[i][None].astype("float32")


def test_columns_of_the_fill_pad_images_on_the_right():
    images, order = padded()
    for row, i in zip(images, order, strict=True):
        np.testing.assert_array_equal(row[:, : WIDTHS[i]], alone(i)[0])
        assert (row[:, WIDTHS[i] :] == -1).all()


def test_an_image_has_the_same_class_alone_and_in_a_padded_batch():
    keras.utils.set_random_seed(1)
    model = encoder(pooled=True)
    images, order = padded()
    for row, i in zip(model(images), order, strict=True):
        np.testing.assert_allclose(row, model(alone(i))[0], atol=1e-5)
    images[images == -1] = 0.0  # without the mask the padding counts
    assert np.abs(model(images)[0] - model(alone(order[0]))[0]).max() > 1e-3


def test_the_mask_of_patches_has_the_patches_with_a_pixel():
    images, order = padded()
    mask = encoder()(images)._keras_mask.numpy()
    assert mask.sum(axis=1).tolist() == [-(-WIDTHS[i] // 3) for i in order]


@pytest.mark.full
def test_a_decoder_and_a_search_read_the_same_image_alone_and_in_a_padded_batch():
    keras.utils.set_random_seed(1)
    model = kt.Transformer(23, 1, d_model=D, num_heads=2, d_ff=13, encoder=encoder())
    images, order = padded()
    target = RNG.integers(4, 23, (3, 5)).astype("int32")
    logits = model({"images": images, "target_ids": target})
    found = kt.BeamSearch(3)(model, images, max_length=7)
    for row, i in enumerate(order):
        inputs = {"images": alone(i), "target_ids": target[row : row + 1]}
        np.testing.assert_allclose(logits[row], model(inputs)[0], atol=1e-5)
        single = kt.BeamSearch(3)(model, alone(i), max_length=7)
        np.testing.assert_array_equal(found.ids[row], single.ids[0])
        np.testing.assert_allclose(found.scores[row], single.scores[0], atol=1e-5)


@pytest.mark.full
def test_the_onnx_file_reads_images_of_any_width(tmp_path):
    keras.utils.set_random_seed(1)
    model = encoder(pooled=True)
    export_onnx(model, tmp_path / "onnx", head=Classification(["a", "b", "c"]), verbose=False)
    images, order = padded()
    (together, *_) = exports.session(tmp_path / "onnx").run(None, {"images": images})
    expected = np.concatenate([model(alone(i)) for i in order])
    np.testing.assert_allclose(together, expected, atol=1e-5)
    results = Predictor(tmp_path / "onnx").predict([alone(i)[0] for i in order])
    assert [result.label for result in results] == ["abc"[k] for k in expected.argmax(axis=1)]


@pytest.mark.full
def test_a_model_trains_on_padded_images():
    keras.utils.set_random_seed(3)
    model = encoder(pooled=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    losses = model.fit(kt.image_batches(IMAGES, CLASSES), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_grey_image_has_one_channel():
    ((images, _),) = kt.image_batches([np.ones((6, 4)), np.ones((6, 7, 1))], [0, 1])
    assert images.shape == (2, 6, 7, 1)
