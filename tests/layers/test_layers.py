"""What every layer promises, a table: values, gradients, masks, saving, dtype policies, sizes.

A new layer is a `Row`: its arguments, its inputs and its formula in NumPy. The other files of this
folder test what only one layer does.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
F d_ff, V vocabulary. Inputs of attention have the sizes D, E and M.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
from helpers import reference
from helpers.checks import (
    LOW_PRECISION,
    assert_close,
    assert_rounding_only,
    check_gradients,
    check_layer,
    gradients,
    integers,
    normal,
    numpy64,
    randomise,
    weights_of,
)

import keras_transformer as kt

B, T, S, H, K, U, D, E, F, M, V = 2, 5, 7, 3, 11, 13, 17, 19, 29, 23, 31

QUERY, VALUE, KEY = normal(B, T, D), normal(B, S, E, seed=1), normal(B, S, M, seed=2)
IDS = integers(1, V, B, T)


def masks_of_length(length):
    """Returns masks (B, length), padded on either side, with one row that is full."""
    left = np.ones((B, length), bool)
    left[0, : length // 2] = False
    return {"left": left, "right": left[:, ::-1].copy()}


def masks_of_pairs(length):
    """Returns a mask (B, T, length) with a row that is fully masked."""
    mask = np.random.default_rng(4).random((B, T, length)) < 0.6
    mask[0, 2] = False
    return mask


TARGET, SOURCE = masks_of_length(T), masks_of_length(S)


def rows_to_pairs(mask):
    return mask[:, None] if mask is not None and mask.ndim == 2 else mask


def attention(config, weights, query, value, key, attention_mask=None):
    mask, positions = rows_to_pairs(attention_mask), as_object(config.get("positions"))
    arguments = weights, config["num_heads"], query, value, key, mask, positions
    return reference.multi_head_attention(*arguments)[0]


def additive(config, weights, query, value, key, attention_mask=None):
    return reference.additive_attention(weights, query, value, key, rows_to_pairs(attention_mask))


def as_object(positions):
    return keras.saving.deserialize_keras_object(positions)


def block(compute, config, weights, *inputs, **masks):
    names = {"num_heads", "norm_first", "activation", "positions"} & set(config)
    options = {name: as_object(config[name]) for name in names}
    if "feed_forward" in config:
        options["activation"] = config["feed_forward"]["config"]["activation"]
    return compute(weights, *inputs, *masks.values(), **options)


def recurrence(config, weights, x, attention_mask=None):
    return np.maximum(reference.recurrent_states(weights, x, attention_mask), 0.0)


@dataclass
class Row:
    """A layer.

    Args:
        layer: its class.
        config: a value other than the default for each argument of its constructor.
        inputs: the positional arguments of a call.
        expected: its formula: function from the constructor's arguments, weights, inputs and masks
            to an array.
        variants: the constructor's arguments to compare with `expected`.
        masks: keyword arguments of calls to compare with `expected`.
        roundings: number of roundings in sequence in low precision; `None` if it is not tested.
        sizes: names of arguments that must be positive integers.
        keeps_mask: whether the output has the Keras mask of the first input.
        elsewhere: arguments that have separate tests.
    """

    layer: type
    config: dict
    inputs: list
    expected: Callable | None = None
    variants: list = field(default_factory=list)
    masks: list = field(default_factory=lambda: [{}])
    roundings: int | None = None
    sizes: tuple = ()
    keeps_mask: bool = True
    elsewhere: tuple = ()

    def made(self, config, **options):
        """Returns a built layer with random weights."""
        layer = self.layer(**config, **options)
        layer(*self.inputs)
        return randomise(layer)


HEADS = {"num_heads": H, "key_dim": K, "value_dim": U}
BLOCK = {
    **HEADS,
    "key_dim": K + 1,
    "d_ff": F,
    "dropout": 0.3,
    "activation": "gelu",
    "norm_first": True,
    "attention_dropout": 0.2,
    "use_bias": True,
    "epsilon": 1e-3,
}
BLOCKS = [
    {**HEADS, "d_ff": F},
    {**HEADS, "d_ff": F, "norm_first": True, "activation": "gelu"},
    {**HEADS, "d_ff": F, "positions": "rotary", "key_dim": K + 1, "use_bias": True},
]
GATED = keras.saving.serialize_keras_object(kt.GatedFeedForward(F, "silu", use_bias=False))
CENTRED = keras.saving.serialize_keras_object(
    keras.layers.LayerNormalization(center=False, epsilon=1e-5)
)
LOCAL = keras.saving.serialize_keras_object(kt.RotaryPositionEncoding(50.0, K - 1, window=2))
RELATIVE = keras.saving.serialize_keras_object(kt.RelativePositionBias(8, 6, window=3))
PARTS = [
    {**HEADS, "d_ff": F, "norm_first": "feed_forward", "norm": "rms"},
    {**HEADS, "feed_forward": GATED, "norm": CENTRED, "positions": LOCAL},
    {**HEADS, "feed_forward": GATED, "norm": CENTRED, "norm_first": True, "positions": RELATIVE},
]
PART = {
    **{name: BLOCK[name] for name in BLOCK if name not in ("d_ff", "activation", "epsilon")},
    "feed_forward": GATED,
    "norm": CENTRED,
}
PAIR_MASKS = [
    {"attention_mask": SOURCE["left"]},
    {"attention_mask": SOURCE["right"]},
    {},
    {"attention_mask": masks_of_pairs(S)},
]
ROTARY = {**HEADS, "key_dim": K + 1, "positions": "rotary", "use_bias": False}

# Roundings in sequence in an attention: inputs, kernels, projections, scale, scores, weights,
# means, output kernel and output. A block adds 5 in the feed-forward network (inputs, kernel,
# hidden, kernel, output), and each sum and norm.
TABLE = [
    Row(
        kt.MultiHeadAttention,
        {**HEADS, "key_dim": K + 1, "dropout": 0.3, "use_bias": False, "positions": "rotary"},
        [QUERY, VALUE, KEY],
        attention,
        [HEADS, ROTARY, {**HEADS, "positions": LOCAL}, {**HEADS, "positions": RELATIVE}],
        PAIR_MASKS,
        roundings=9,
        sizes=("num_heads", "key_dim", "value_dim"),
    ),
    Row(
        kt.AdditiveAttention,
        {"units": U},
        [QUERY, VALUE, KEY],
        additive,
        [{"units": U}],
        PAIR_MASKS,
        sizes=("units",),
    ),
    Row(
        kt.FeedForward,
        {"d_ff": F, "activation": "gelu", "use_bias": False},
        [QUERY],
        lambda config, weights, x: reference.feed_forward(weights, x, config["activation"]),
        [{"d_ff": F, "activation": name} for name in ("relu", "gelu", "silu", "tanh")],
        sizes=("d_ff",),
    ),
    Row(
        kt.GatedFeedForward,
        {"d_ff": F, "activation": "silu", "use_bias": False},
        [QUERY],
        lambda config, weights, x: reference.feed_forward(
            weights, x, config.get("activation", "gelu")
        ),
        [{"d_ff": F}, {"d_ff": F, "activation": "silu", "use_bias": False}],
        sizes=("d_ff",),
    ),
    Row(
        kt.EncoderBlock,
        {**BLOCK, "positions": "rotary", "norm": "rms"},
        [QUERY],
        functools.partial(block, reference.encoder_block),
        [*BLOCKS, *PARTS],
        [{"attention_mask": mask} for mask in (*TARGET.values(), masks_of_pairs(T))],
        roundings=9 + 5 + 2 * 2,
        sizes=("num_heads", "d_ff"),
        elsewhere=("feed_forward",),  # below, because it excludes `d_ff`
    ),
    Row(
        kt.EncoderBlock,
        {**PART, "positions": RELATIVE},
        [QUERY],
        elsewhere=("d_ff", "activation", "epsilon"),
    ),
    Row(
        kt.DecoderBlock,
        {**BLOCK, "positions": "rotary", "norm": "rms"},
        [QUERY, VALUE],
        functools.partial(block, reference.decoder_block),
        [*BLOCKS, *PARTS],
        [
            {"attention_mask": TARGET["left"], "memory_mask": SOURCE["right"]},
            {"attention_mask": TARGET["right"], "memory_mask": SOURCE["left"]},
            {"attention_mask": masks_of_pairs(T), "memory_mask": masks_of_pairs(S)},
        ],
        roundings=2 * 9 + 5 + 3 * 2,
        sizes=("num_heads", "d_ff"),
        elsewhere=("feed_forward",),
    ),
    Row(
        kt.DecoderBlock,
        {**PART, "positions": LOCAL},
        [QUERY, VALUE],
        elsewhere=("d_ff", "activation", "epsilon"),
    ),
    Row(
        kt.RecurrentDecoderBlock,
        {**BLOCK, "norm": "rms"},
        [QUERY, VALUE],
        sizes=("d_ff",),
        elsewhere=("positions", "feed_forward"),  # it refuses positions
    ),
    Row(
        kt.SSRU,
        {},
        [QUERY],
        recurrence,
        [{}],
        [{}, *({"attention_mask": mask} for mask in TARGET.values())],
        roundings=8,
    ),
    Row(
        kt.TokenEmbedding,
        {"vocab_size": V, "d_model": D, "tie_output": False, "output_bias": True},
        [IDS],
        lambda config, weights, ids: weights["embeddings"][ids] * math.sqrt(D),
        [{"vocab_size": V, "d_model": D}],
        sizes=("vocab_size", "d_model"),
        keeps_mask=False,
    ),
    Row(
        kt.SegmentEmbedding,
        {"num_segments": 3},
        [QUERY, integers(0, 3, B, T)],
        lambda config, weights, x, ids: x + weights["embeddings"][ids],
        [{}],
        sizes=("num_segments",),
    ),
    Row(
        kt.ClassToken,
        {},
        [QUERY],
        lambda config, weights, x: np.concatenate(
            [np.tile(weights["embedding"], (B, 1, 1)), x], axis=1
        ),
        [{}],
        keeps_mask=False,
    ),
    Row(kt.SequencePooling, {"mode": "max"}, [QUERY], keeps_mask=False),
    Row(
        kt.MaskedConv1D,
        {"filters": D, "kernel_size": (3,), "strides": (2,), "padding": "valid"},
        [QUERY],
        keeps_mask=False,
    ),
    Row(
        kt.PatchEmbedding,
        {"d_model": D, "patch_size": 4},
        [normal(B, 8, 8, 3)],
        sizes=("d_model", "patch_size"),
        keeps_mask=False,
    ),
    # A window is refused outside attention.
    Row(kt.PositionEncoding, {}, [normal(B, T, 12)], elsewhere=("window",)),
    Row(
        kt.SinusoidalPositionEncoding,
        {"base": 50.0},
        [normal(B, T, 12)],
        lambda config, weights, x: x + reference.sinusoids(T, 12),
        [{}],
    ),
    Row(
        kt.LearnedPositionEncoding,
        {"max_length": 11},
        [normal(B, T, 12)],
        lambda config, weights, x: x + weights["embeddings"][:T],
        [{"max_length": 11}],
        sizes=("max_length",),
    ),
    Row(
        kt.RotaryPositionEncoding,
        {"base": 50.0, "size": 8, "window": 3},
        [normal(B, T, 12)],
        lambda config, weights, x: reference.rotate(x, **config),
        [{}, {"base": 50.0, "size": 8}],
    ),
    Row(
        kt.GridPositionEncoding,
        {"columns": 3, "start": 1, "base": 50.0},
        [normal(B, T, 12)],
        sizes=("columns",),
    ),
]


def cases(*rows):
    """Returns parameters, one for each (row, *others), named by the layer."""
    return [pytest.param(*each, id=f"{each[0].layer.__name__}-{i}") for i, each in enumerate(rows)]


@pytest.mark.parametrize("row", cases(*((row,) for row in TABLE)))
def test_layer_promises(row, tmp_path):
    options = {"masked": row.keeps_mask, "elsewhere": row.elsewhere}
    check_layer(row.layer, row.config, row.inputs, tmp_path, **options)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "row, config, masks",
    cases(*((row, config, mask) for row in TABLE for config in row.variants for mask in row.masks)),
)
def test_a_layer_matches_its_formula(row, config, masks):
    layer = row.made(config)
    expected = row.expected(config, weights_of(layer), *row.inputs, **masks)
    assert_close(layer(*row.inputs, **masks), expected)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "row, config", cases(*((row, config) for row in TABLE for config in row.variants))
)
def test_a_layer_has_the_right_gradients(row, config):
    layer, masks = row.made(config), row.masks[-1]
    cotangent = normal(*layer.compute_output_shape(*(x.shape for x in row.inputs)), seed=5)

    def loss(weights):
        return np.sum(row.expected(config, weights, *row.inputs, **masks) * cotangent)

    if layer.weights:
        found = gradients(layer, cotangent, *row.inputs, **masks)
        check_gradients(found, weights_of(layer), loss)


@pytest.mark.numeric
@pytest.mark.parametrize("policy", LOW_PRECISION)
@pytest.mark.parametrize("row", cases(*((row,) for row in TABLE if row.roundings)))
def test_low_precision_errors_are_rounding_only(row, policy):
    config, masks = row.variants[0], row.masks[0]
    layer = row.made(config, dtype=policy)
    expected = row.expected(config, weights_of(layer), *row.inputs, **masks)
    assert_rounding_only(layer(*row.inputs, **masks), expected, policy, row.roundings)


@pytest.mark.numeric
@pytest.mark.parametrize("row", cases(*((row,) for row in TABLE if row.expected)))
def test_fully_masked_inputs_stay_finite(row):
    nothing = {name: np.zeros_like(mask) for name, mask in row.masks[-1].items()}
    layer = row.made(row.variants[0])
    output = layer(*row.inputs, **nothing)
    assert np.isfinite(numpy64(output)).all()
    if layer.weights:
        found = gradients(layer, np.ones(output.shape, "float32"), *row.inputs, **nothing)
        assert all(np.isfinite(gradient).all() for gradient in found.values())


@pytest.mark.parametrize("row", cases(*((row,) for row in TABLE if row.sizes)))
def test_sizes_are_positive_integers(row):
    for name in row.sizes:
        with pytest.raises(ValueError, match=f"{name} must be at least 1, but 0|num_heads=0"):
            row.layer(**{**row.config, name: 0})(*row.inputs)
    of_numpy = {name: np.int64(row.config[name]) for name in row.sizes}
    layer = row.layer(**{**row.config, **of_numpy})
    expected = row.layer(**row.config).compute_output_shape(*(x.shape for x in row.inputs))
    assert tuple(layer(*row.inputs).shape) == tuple(expected)


def test_every_layer_has_a_row():
    """Layers without a row are tested in files of their own."""
    layers = {
        name
        for name in kt.__all__
        if isinstance(one := getattr(kt, name), type)
        and issubclass(one, keras.Layer)
        and not issubclass(one, keras.Model)
    }
    assert layers - {row.layer.__name__ for row in TABLE} == {"LogMel", "RelativePositionBias"}
