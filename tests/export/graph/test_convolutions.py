"""Models with convolutions. ONNX Runtime folds their norms when it opens a file."""

import keras
import numpy as np
import pytest
from helpers.exports import check, fused, numbers
from keras import layers


def settled(model):
    """Makes weights and statistics neither 0 nor 1; returns the model."""
    random = np.random.default_rng(3)
    for variable in model.variables:
        if "seed" not in variable.path:
            variable.assign(variable + random.uniform(0.1, 0.5, variable.shape))
    return model


def residual_network():
    """Returns a stem, two residual blocks and a head, as in ResNets and MobileNets."""
    x = image = keras.Input((13, 11, 3), name="image")
    x = layers.MaxPooling2D(2)(layers.ZeroPadding2D(1)(layers.Conv2D(5, 3)(x)))
    for options in ({}, {"scale": False}):
        y = layers.ReLU(6)(layers.BatchNormalization(**options)(x))
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(7, 1, use_bias=False)(y)))
        y = layers.DepthwiseConv2D(3, padding="same")(y)
        y = layers.Activation("silu")(layers.BatchNormalization(center=False)(y))
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(7, 1, activation="hard_sigmoid")(gate)
        y = layers.Conv2D(5, 1)(layers.Multiply()([y, gate]))
        x = layers.Add()([x, y])
    x = layers.Concatenate()([x, layers.Conv2D(5, 3, padding="same", groups=5)(x)])
    return settled(keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x))))


def test_residual_networks_agree_with_keras():
    keras.utils.set_random_seed(3)
    model = residual_network()
    exported = fused(model)
    for batch in (1, 3):
        check(model, exported, image=numbers(batch, 13, 11, 3))


@pytest.mark.parametrize(
    "layer, shape",
    [
        (layers.Conv1DTranspose(3, 4, strides=3, output_padding=2), (7, 2)),
        (layers.Conv2DTranspose(3, (4, 5), strides=(3, 2), output_padding=(2, 1)), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 3, strides=3, output_padding=(0, 2)), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 3, strides=2, output_padding=1, padding="same"), (6, 7, 2)),
        (layers.Conv2DTranspose(3, 2, strides=3), (6, 7, 2)),  # a kernel smaller than its stride
        (layers.Conv3DTranspose(3, 2, strides=2, output_padding=(1, 0, 1)), (2, 3, 5, 2)),
    ],
)
def test_transposed_convolutions_may_have_output_padding(layer, shape):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, name="x")
    model = keras.Model(x, layers.Dense(2)(layer(x)))
    check(model, fused(model), x=numbers(3, *shape))
