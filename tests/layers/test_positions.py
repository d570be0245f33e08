"""Position encodings against the formulas of section 3.5 and the invariants of rotation."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
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


def grid(offset, start):
    """Returns the sinusoids (T, 12) of row and column."""
    places = np.divmod(np.arange(T) + offset - start, 3)
    rows = [[reference.sinusoids(1, 6, int(place)) for place in each] for each in places]
    return np.concatenate([np.concatenate(each) for each in rows], axis=-1)


@pytest.mark.numeric
@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize(
    "layer, expected",
    [
        (SinusoidalPositionEncoding(), lambda x, offset, _: x + reference.sinusoids(T, 12, offset)),
        (GridPositionEncoding(3), lambda x, offset, _: x + grid(offset, 0)),
        (GridPositionEncoding(3, start=2), lambda x, offset, _: x + grid(offset, 2)),
        (LearnedPositionEncoding(11), lambda x, offset, table: x + table[offset : offset + T]),
        (RotaryPositionEncoding(), lambda x, offset, _: reference.rotate(x, offset)),
    ],
    ids=["sinusoids", "grid", "grid after two", "learned", "rotary"],
)
def test_positions_follow_their_formula_at_an_offset(layer, expected, offset):
    layer, x = layer.from_config(layer.get_config()), normal(B, T, 12)
    layer.build(x.shape)
    table = weights_of(randomise(layer)).get("embeddings")
    assert_close(layer(x, offset=offset), expected(x.astype("float64"), offset, table))


@pytest.mark.numeric
@pytest.mark.parametrize("base", [10000.0, 16.0])
def test_the_base_sets_the_wavelengths(base):
    """With 4 channels, position 2 has the angles 2 and 2 / sqrt(base)."""
    row = SinusoidalPositionEncoding(base)(np.zeros((1, 3, 4), "float32"))[0, 2]
    slow = 2.0 / math.sqrt(base)
    assert_close(row, [math.sin(2.0), math.cos(2.0), math.sin(slow), math.cos(slow)], 1e-6)


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
@pytest.mark.parametrize(
    "layer", [SinusoidalPositionEncoding(), GridPositionEncoding(3, 1), RotaryPositionEncoding()]
)
def test_a_slice_with_its_offset_equals_the_slice_of_the_whole(layer):
    x = normal(B, T, 12)
    assert_close(layer(x[:, 3:], offset=3), numpy64(layer(x))[:, 3:], 1e-6)
    together = numpy64(layer(x, offset=3, length=1))  # alternatives for position 3
    for i in range(T):
        assert_close(layer(x[:, i : i + 1], offset=3), together[:, i : i + 1], 1e-6)


@pytest.mark.parametrize("eager", [False, True])
def test_training_on_sequences_longer_than_the_table_names_the_cause(eager):
    frames = keras.Input((None, 4))
    model = keras.Model(frames, LearnedPositionEncoding(max_length=7)(frames))
    model.compile("sgd", "mse", run_eagerly=eager)
    cause = "max_length=7" if eager else "sequence_is_longer_than_max_length_7"

    def batches(length):
        frames = tf.TensorSpec((None, None, 4))  # the length is known at run time only
        pair = np.zeros((2, length, 4)), np.zeros((2, length, 4))
        signature = (frames, frames)
        return tf.data.Dataset.from_generator(lambda: [pair] * 2, output_signature=signature)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=cause):
        model.fit(batches(8), steps_per_epoch=1, shuffle=False, verbose=0)
    model.fit(batches(7), steps_per_epoch=1, shuffle=False, verbose=0)


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


def zeros(layer, size):
    return layer(np.zeros((B, T, size), "float32"))


@pytest.mark.parametrize(
    "call, message",
    [
        *(
            (
                lambda cls=cls: zeros(cls(), 13),
                f"{cls.__name__}.*even.*13.*Choose",
            )
            for cls in (SinusoidalPositionEncoding, RotaryPositionEncoding)
        ),
        *(
            (
                lambda sizes=sizes: RelativePositionBias(*sizes),
                f"num_buckets={sizes[0]}.*no ranges",
            )
            for sizes in ((7,), (2,), (16, 4))
        ),
        (lambda: SinusoidalPositionEncoding(base=1), "base must be above 1, but 1 was passed"),
        (
            lambda: zeros(GridPositionEncoding(3), 14),
            "divisible by 4, but the input's last axis is 14",
        ),
        (lambda: GridPositionEncoding(3, start=-1), "start must be at least 0, but -1"),
        (
            lambda: zeros(RotaryPositionEncoding(size=24), 22),
            "cannot rotate size=24 of 22 channels",
        ),
        (
            lambda: SinusoidalPositionEncoding(window=3),
            "window=3 limits attention, but Sinusoidal.*does not act",
        ),
    ],
)
def test_invalid_arguments_and_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.numeric
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("ranges, most", [(32, 128), (8, 20), (12, 7), (6, 100)])
def test_a_relative_bias_has_the_ranges_of_t5(ranges, most, bidirectional):
    layer = RelativePositionBias(ranges, most, bidirectional)
    layer.build((None, 3, None, K))
    table = weights_of(randomise(layer))["buckets"]
    found = layer.bias(np.arange(150), np.arange(150), 3)
    assert_close(found, reference.relative_bias(table, 150, 150, most, bidirectional), 1e-6)


def test_the_configuration_of_a_relative_bias_is_complete():
    config = {"num_buckets": 8, "max_distance": 9, "bidirectional": False, "window": 3}
    check_config(RelativePositionBias, config)
