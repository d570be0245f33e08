"""Convolutions over sound frames, whose padding changes nothing, and image patches."""

import itertools

import keras
import numpy as np
import pytest
from helpers import tiers
from helpers.checks import assert_close, compiled, normal, numpy64, randomise

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.signals import MaskedConv1D, PatchEmbedding

C, D = 4, 6
PADDINGS = ("valid", "same", "causal")
B, HEIGHT, WIDTH, COLOURS, SIZE = 2, 8, 12, 3, 4

# Convolution over frames


def convolved(**options):
    """Returns two convolutions as one function: (B, S, C), mask -> (B, S', D), mask."""
    first, second = MaskedConv1D(5, 3, activation="gelu", **options), MaskedConv1D(D, 3, **options)
    for layer, size in ((first, C), (second, 5)):
        layer.build((None, None, size))
        randomise(layer)

    def run(x, mask=None):
        y = first(x, mask=mask)
        mask = first.compute_mask(x, mask)
        return numpy64(second(y, mask=mask)), second.compute_mask(y, mask)

    return run


# The last number is the dilation.
CASES = [*itertools.product(PADDINGS, (1, 2, 3), (1,)), *itertools.product(PADDINGS, (1,), (2,))]
QUICK = [("valid", 3, 1), ("same", 2, 1), ("causal", 1, 1), ("same", 1, 2)]


@pytest.mark.parametrize("padding, strides, dilation", tiers.quick(CASES, *QUICK))
def test_padding_on_the_right_changes_nothing(padding, strides, dilation):
    run = convolved(padding=padding, strides=strides, dilation_rate=dilation)
    for length, more in [(17, 1), (17, 4), (18, 1), (20, 5)]:
        x = normal(2, length, C)
        alone, none = run(x)
        padded = np.concatenate([x, np.full((2, more, C), np.nan, "float32")], axis=1)
        mask = np.arange(length + more)[None].repeat(2, 0) < length
        found, kept = run(padded, mask)
        assert none is None
        np.testing.assert_array_equal(numpy64(kept).sum(axis=1), alone.shape[1])
        assert numpy64(kept)[:, : alone.shape[1]].all()
        assert found.shape[1] == kept.shape[1]
        assert_close(found[:, : alone.shape[1]], alone)


@pytest.mark.parametrize("padding", PADDINGS)
def test_padding_on_the_left_changes_nothing_without_strides(padding):
    run = convolved(padding=padding)
    x = normal(2, 17, C)
    padded = np.concatenate([np.full((2, 3, C), np.nan, "float32"), x], axis=1)
    found, kept = run(padded, np.arange(20)[None].repeat(2, 0) >= 3)
    assert_close(found[numpy64(kept) == 1], run(x)[0].reshape(-1, D))


@pytest.mark.parametrize("padding, strides", [*itertools.product(PADDINGS, [1]), ("valid", 2)])
def test_without_a_mask_it_equals_conv1d(padding, strides):
    ours = MaskedConv1D(D, 3, strides=strides, padding=padding, activation="relu")
    theirs = keras.layers.Conv1D(D, 3, strides=strides, padding=padding, activation="relu")
    x = normal(2, 11, C)
    ours.build(x.shape), theirs.build(x.shape)
    randomise(ours)
    theirs.set_weights(ours.get_weights())
    assert_close(ours(x), numpy64(theirs(x)))


@pytest.mark.numeric
@pytest.mark.parametrize(
    "padding, counts", [("valid", [1, 5]), ("same", [3, 6]), ("causal", [3, 6])]
)
def test_a_row_does_not_depend_on_its_batch(padding, counts):
    frames = keras.Input((None, C))
    x = keras.layers.Masking()(frames)
    for _ in range(2):
        x = MaskedConv1D(8, 3, strides=2, padding=padding, activation="gelu")(x)
    x = EncoderBlock(2, 16)(x)
    model = compiled(randomise(keras.Model(frames, [SequencePooling()(x), x._keras_mask])))
    given = normal(2, 23, C)
    given[0, 10:] = 0.0
    together, mask = model(given)
    np.testing.assert_array_equal(numpy64(mask).sum(axis=1), counts)
    assert_close(together[:1], numpy64(model(given[:1, :10])[0]))
    assert_close(together[1:], numpy64(model(given[1:])[0]))


# Image patches


@pytest.mark.numeric
def test_patches_equal_a_convolution_with_strides_of_the_kernel_size():
    layer, x = PatchEmbedding(D, SIZE), normal(B, HEIGHT, WIDTH, COLOURS)
    layer.build(x.shape)
    randomise(layer)
    convolution = keras.layers.Conv2D(D, SIZE, strides=SIZE)
    convolution.build(x.shape)
    kernel = numpy64(layer.kernel).reshape(SIZE, SIZE, COLOURS, D)
    convolution.set_weights([kernel, numpy64(layer.bias)])
    expected = numpy64(convolution(x)).reshape(B, -1, D)
    assert_close(layer(x), expected)
    ends = keras.Input((None, None, COLOURS))  # dynamic sizes
    model = keras.Model(ends, layer(ends))
    assert model.output_shape == (None, None, D)
    assert_close(model(x), expected)
    with pytest.raises(Exception, match="height of 10"):
        model.predict(np.zeros((B, 10, 8, COLOURS), "float32"), verbose=0)


@pytest.mark.numeric
def test_patches_of_free_sizes_are_filled_with_zeros_and_masked_pixels_count_as_zeros():
    tall, wide, width = 2, 3, 7  # two patches and a third of one
    images = keras.Input((2 * tall, None, COLOURS))
    masked = keras.layers.Masking(-1.0)(images)
    layer = PatchEmbedding(D, (tall, wide))
    vectors = layer(keras.layers.Rescaling(2.0, offset=5.0)(masked))
    model = randomise(keras.Model(images, [vectors, vectors._keras_mask]))
    given = np.abs(normal(B, 2 * tall, 11, COLOURS))
    given[0, :, width:] = -1.0
    together, mask = map(numpy64, model(given))
    assert mask.astype(int).tolist()[0] == [1, 1, 1, 0] * 2
    assert mask[1:].all()
    alone, alone_mask = model(given[:1, :, :width])
    assert_close(alone[0], together[0][mask[0] == 1])
    assert numpy64(alone_mask).all()
    filled = np.zeros((1, 2 * tall, 9, COLOURS))
    filled[:, :, :width] = 2.0 * given[:1, :, :width] + 5.0
    cut = filled.reshape(2, tall, 3, wide, COLOURS).transpose(0, 2, 1, 3, 4).reshape(6, -1)
    assert_close(alone[0], cut @ numpy64(layer.kernel) + numpy64(layer.bias))


def patches(shape, symbolic=False):
    images = keras.Input(shape[1:]) if symbolic else np.zeros(shape, "float32")
    return PatchEmbedding(D, SIZE)(images)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: MaskedConv1D(D, 3, padding="full"), "padding"),
        (lambda: MaskedConv1D(D, 3, data_format="channels_first"), "frames"),
        (lambda: PatchEmbedding(D, (2, 3, 4)), "an int or a pair"),
        *(
            (lambda shape=shape, symbolic=symbolic: patches(shape, symbolic), named)
            for symbolic in (False, True)
            for shape, named in (
                ((B, 10, 12, 3), "height of 10"),
                ((B, 8, 9, 3), "width of 9"),
                ((B, 8, 9), "height, width"),
            )
        ),
    ],
)
def test_options_and_images_that_do_not_fit_are_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()
