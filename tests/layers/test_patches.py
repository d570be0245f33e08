"""Patches: what a strided Conv2D gives, and no pixel left out in silence."""

import keras
import numpy as np
import pytest
from support.checks import assert_close, check_layer, normal, numpy64, randomise

from keras_transformer.layers.signals import PatchEmbedding

B, HEIGHT, WIDTH, C, SIZE, D = 2, 8, 12, 3, 4, 5


@pytest.mark.numeric
def test_it_is_a_convolution_whose_strides_are_its_kernel():
    layer, x = PatchEmbedding(D, SIZE), normal(B, HEIGHT, WIDTH, C)
    layer.build(x.shape)
    randomise(layer)
    convolution = keras.layers.Conv2D(D, SIZE, strides=SIZE)
    convolution.build(x.shape)
    kernel = numpy64(layer.kernel).reshape(SIZE, SIZE, C, D)
    convolution.set_weights([kernel, numpy64(layer.bias)])
    expected = numpy64(convolution(x)).reshape(B, -1, D)
    assert_close(layer(x), expected)


def test_layer_promises(tmp_path):
    config = {"d_model": D, "patch_size": SIZE}
    check_layer(
        PatchEmbedding, config, [normal(B, HEIGHT, WIDTH, C)[:, :, :8]], tmp_path, masked=False
    )


def test_sizes_may_be_known_at_run_time_only():
    ends = keras.Input((None, None, C))
    layer = PatchEmbedding(D, SIZE)
    model = keras.Model(ends, layer(ends))
    assert model.output_shape == (None, None, D)
    for height, width in [(4, 8), (12, 4)]:
        x = normal(B, height, width, C)
        assert_close(model(x), numpy64(layer(x)), 1e-6)


@pytest.mark.parametrize(
    "shape, named",
    [((B, 10, 12, C), "height of 10"), ((B, 8, 9, C), "width of 9"), ((B, 8, 9), "height, width")],
)
def test_images_that_do_not_divide_are_refused(shape, named):
    with pytest.raises(ValueError, match=named):
        PatchEmbedding(D, SIZE)(np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=named):
        PatchEmbedding(D, SIZE)(keras.Input(shape[1:]))


def test_images_that_do_not_divide_are_refused_at_run_time():
    ends = keras.Input((None, None, C))
    model = keras.Model(ends, PatchEmbedding(D, SIZE)(ends))
    with pytest.raises(Exception, match="height of 10"):
        model.predict(np.zeros((B, 10, 8, C), "float32"), verbose=0)


@pytest.mark.parametrize("sizes, named", [((0, 4), "d_model"), ((4, 0), "patch_size")])
def test_sizes_that_are_not_positive_are_refused(sizes, named):
    with pytest.raises(ValueError, match=f"{named} must be at least 1"):
        PatchEmbedding(*sizes)
