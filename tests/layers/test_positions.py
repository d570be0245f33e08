"""Position encodings against the formulas of section 3.5 and the invariants of rotation."""

import math

import keras
import numpy as np
import pytest
from helpers import reference
from helpers.checks import (
    assert_close,
    check_config,
    normal,
    numpy64,
    randomise,
    weights_of,
)

from keras_transformer.layers.positions import (
    GridPositionEncoding,
    LearnedPositionEncoding,
    RelativePositionBias,
    RotaryPositionEncoding,
    SinusoidalPositionEncoding,
)

B, T, D, K = 3, 5, 14, 22  # batch, length, d_model, key size: an even size is twice a prime


@pytest.mark.numeric
@pytest.mark.parametrize("offset", [0, 7])
def test_sinusoids_match_the_reference(offset):
    x = normal(B, T, D)
    ours = SinusoidalPositionEncoding()(x, offset=offset)
    assert_close(ours, x + reference.sinusoids(T, D, offset), 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("base", [10000.0, 16.0])
def test_the_base_sets_the_wavelengths(base):
    """With 4 channels, position 2 has the angles 2 and 2 / sqrt(base)."""
    row = SinusoidalPositionEncoding(base)(np.zeros((1, 3, 4), "float32"))[0, 2]
    slow = 2.0 / math.sqrt(base)
    assert_close(row, [math.sin(2.0), math.cos(2.0), math.sin(slow), math.cos(slow)], 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("start, offset", [(0, 0), (2, 0), (0, 7), (2, 7)])
def test_a_grid_has_the_sinusoids_of_row_and_column(start, offset):
    x = normal(B, T, 12)
    ours = GridPositionEncoding(columns=3, start=start)(x, offset=offset)
    row, column = np.divmod(np.arange(T) + offset - start, 3)
    first, second = (
        np.concatenate([reference.sinusoids(1, 6, int(place)) for place in places])
        for places in (row, column)
    )
    assert_close(ours, x + np.concatenate([first, second], axis=-1), 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("policy, unit", [("mixed_float16", 2.0**-11), ("mixed_bfloat16", 2.0**-8)])
def test_low_precision_sinusoids_stay_exact_at_large_positions(policy, unit):
    """Angles are float32 under every policy. Only the last cast rounds, a value of at most 1.

    The cast errs by at most unit (half of eps). The angle, up to 1021, errs by 1021 * 2^-23 in
    float32 before the sine, 1.3e-4 with the rounded product.
    """
    length = 1021
    x = np.zeros((1, length, D), "float32")
    ours = SinusoidalPositionEncoding(dtype=policy)(x)
    assert_close(ours, reference.sinusoids(length, D)[None], unit + 2e-4)


@pytest.mark.numeric
@pytest.mark.parametrize("offset", [0, 4])
def test_learned_positions_are_rows_of_the_table(offset):
    x, layer = normal(B, T, D), LearnedPositionEncoding(max_length=11)
    layer.build(x.shape)
    table = weights_of(randomise(layer))["embeddings"]
    assert table.shape == (11, D)
    assert_close(layer(x, offset=offset), x + table[offset : offset + T], 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("offset", [0, 7])
def test_rotary_rotates_each_plane(offset):
    x = normal(B, 2, T, K)
    ours = RotaryPositionEncoding()(x, offset=offset)
    assert_close(ours, reference.rotate(x.astype("float64"), offset))


@pytest.mark.numeric
def test_rotary_keeps_norms_and_scores_depend_on_distance_only():
    layer = RotaryPositionEncoding()
    query, key = normal(1, T, K, seed=1), normal(1, T, K, seed=2)
    np.testing.assert_allclose(
        np.linalg.norm(numpy64(layer(query)), axis=-1), np.linalg.norm(query, axis=-1), rtol=1e-5
    )
    near = numpy64(layer(query)) @ numpy64(layer(key)).swapaxes(1, 2)
    far = numpy64(layer(query, offset=31)) @ numpy64(layer(key, offset=31)).swapaxes(1, 2)
    np.testing.assert_allclose(near, far, atol=2e-4)  # angles to 35 in float32: 35 * 2^-23 * |q||k|


@pytest.mark.numeric
@pytest.mark.parametrize(
    "layer", [SinusoidalPositionEncoding(), GridPositionEncoding(3, 1), RotaryPositionEncoding()]
)
def test_a_slice_with_its_offset_equals_the_slice_of_the_whole(layer):
    x = normal(B, T, 12)
    assert_close(layer(x[:, 3:], offset=3), numpy64(layer(x))[:, 3:], 1e-6)
    together = numpy64(layer(x, offset=3, length=1))  # alternatives for position 3
    for i in range(T):
        assert_close(layer(x[:, i : i + 1], offset=3), together[:, i : i + 1], 1e-6)


def test_learned_positions_refuse_sequences_longer_than_the_table():
    layer = LearnedPositionEncoding(max_length=7)
    layer(normal(B, 7, D))
    with pytest.raises(ValueError, match="8.*max_length=7.*larger"):
        layer(normal(B, 8, D))
    with pytest.raises(ValueError, match="ends at position 8"):
        layer(normal(B, T, D), offset=3)


@pytest.mark.parametrize(
    "layer",
    [
        SinusoidalPositionEncoding(dtype="float32"),
        RotaryPositionEncoding(dtype="float32"),
        LearnedPositionEncoding(9, dtype="float32"),
        GridPositionEncoding(2, dtype="float32"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_positions_do_not_depend_on_the_default_dtype(layer):
    x, offset = normal(B, 1, 8), keras.ops.convert_to_tensor(7, "int32")
    expected = numpy64(layer(x, offset=offset, length=1))
    keras.config.set_floatx("float64")
    try:
        assert_close(layer(x, offset=offset, length=1), expected)
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends know lengths")
def test_learned_positions_check_dynamic_lengths_at_run_time():
    import tensorflow as tf

    layer = LearnedPositionEncoding(max_length=7)
    free = tf.function(layer, input_signature=[tf.TensorSpec([None, None, D])])
    np.testing.assert_array_equal(free(normal(B, 7, D)).shape, (B, 7, D))
    with pytest.raises(tf.errors.InvalidArgumentError):
        free(normal(B, 8, D))
    last = tf.function(lambda x: layer(x, offset=6), free.input_signature)
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:  # also if TensorFlow removes what it takes for redundant
        with pytest.raises(tf.errors.InvalidArgumentError):
            last(normal(B, 5, D))  # the last row does not serve all five
    finally:
        tf.config.optimizer.set_experimental_options(options)


def test_invalid_arguments_and_sizes_are_refused():
    for cls in (SinusoidalPositionEncoding, RotaryPositionEncoding):
        with pytest.raises(ValueError, match=f"{cls.__name__}.*even.*13.*Choose"):
            cls()(np.zeros((B, T, 13), "float32"))
    with pytest.raises(ValueError, match="base must be above 1, but 1 was passed"):
        SinusoidalPositionEncoding(base=1)
    with pytest.raises(ValueError, match="divisible by 4, but the input's last axis is 14"):
        GridPositionEncoding(3)(np.zeros((B, T, 14), "float32"))
    with pytest.raises(ValueError, match="start must be at least 0, but -1"):
        GridPositionEncoding(3, start=-1)


@pytest.mark.numeric
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("ranges, most", [(32, 128), (8, 20), (12, 7), (6, 100)])
def test_a_relative_bias_has_the_ranges_of_t5(ranges, most, bidirectional):
    layer = RelativePositionBias(ranges, most, bidirectional)
    layer.build((None, 3, None, K))
    table = weights_of(randomise(layer))["buckets"]
    found = layer.bias(np.arange(150), np.arange(150), 3)
    assert_close(found, reference.relative_bias(table, 150, 150, most, bidirectional), 1e-6)


def test_a_relative_bias_is_refused_without_ranges():
    config = {"num_buckets": 8, "max_distance": 9, "bidirectional": False, "window": 3}
    check_config(RelativePositionBias, config)
    for options in ({"num_buckets": 7}, {"num_buckets": 2}, {"num_buckets": 16, "max_distance": 4}):
        with pytest.raises(ValueError, match=f"num_buckets={options['num_buckets']}.*no ranges"):
            RelativePositionBias(**options)
    with pytest.raises(ValueError, match="cannot rotate size=24 of 22 channels"):
        RotaryPositionEncoding(size=24)(normal(B, T, K))
    with pytest.raises(ValueError, match="window=3 limits attention, but Sinusoidal.*does not act"):
        SinusoidalPositionEncoding(window=3)


def test_positions_work_with_dynamic_lengths():
    ends = keras.Input((None, D))
    outputs = LearnedPositionEncoding(max_length=11)(SinusoidalPositionEncoding()(ends))
    model = keras.Model(ends, outputs)
    assert model.output_shape == (None, None, D)
    assert model.predict(normal(B, T, D), verbose=0).shape == (B, T, D)
