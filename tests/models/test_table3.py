"""Table 3 of the paper: constructor arguments give every variation and its size."""

import gc

import keras
import pytest
from helpers import tiers

from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import Transformer

V = 37_000  # section 5.1: about 37000 tokens, shared by source and target

# Row: changes from the base model, parameters as printed (millions), and by the closed formula
# (millions).
ROWS = {
    "base": ({}, 65, 63.0),
    "A, one head": ({"num_heads": 1, "key_dim": 512}, 65, 63.0),
    "A, 4 heads": ({"num_heads": 4, "key_dim": 128}, 65, 63.0),
    "A, 16 heads": ({"num_heads": 16, "key_dim": 32}, 65, 63.0),
    "A, 32 heads": ({"num_heads": 32, "key_dim": 16}, 65, 63.0),
    "B, keys of 16": ({"key_dim": 16, "value_dim": 64}, 58, 56.0),
    "B, keys of 32": ({"key_dim": 32, "value_dim": 64}, 60, 58.3),
    "C, 2 layers": ({"num_layers": 2}, 36, 33.6),
    "C, 4 layers": ({"num_layers": 4}, 50, 48.3),
    "C, 8 layers": ({"num_layers": 8}, 80, 77.7),
    "C, width 256": ({"d_model": 256, "key_dim": 32}, 28, 26.8),
    "C, width 1024": ({"d_model": 1024, "key_dim": 128}, 168, 163.8),
    "C, inner width 1024": ({"d_ff": 1024}, 53, 50.5),
    "C, inner width 4096": ({"d_ff": 4096}, 90, 88.2),
    "D, no dropout": ({"dropout": 0.0}, 65, 63.0),
    "D, dropout 0.2": ({"dropout": 0.2}, 65, 63.0),
    "E, learned positions": ({"positions": LearnedPositionEncoding(512)}, 65, 63.0),
    "big": ({"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 213, 214.2),
}


def closed_formula(
    num_layers=6,
    d_model=512,
    num_heads=8,
    d_ff=2048,
    key_dim=None,
    value_dim=None,
    positions="sinusoidal",
    dropout=0.1,
):
    """Returns the number of parameters of a model without attention biases."""
    keys = num_heads * (key_dim or d_model // num_heads)
    values = num_heads * value_dim if value_dim else keys
    attention = 2 * d_model * keys + 2 * d_model * values  # W^Q, W^K; W^V, W^O
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder_block = attention + feed_forward + 2 * norm
    decoder_block = 2 * attention + feed_forward + 3 * norm
    table = 2 * getattr(positions, "max_length", 0) * d_model  # learned positions of both sides
    embeddings = V * d_model + table
    return embeddings + num_layers * (encoder_block + decoder_block)


@pytest.fixture(autouse=True)
def zeros_for_weights(monkeypatch):
    """Skips drawing 1.2 billion random weights, which takes a minute."""
    for initializer in (keras.initializers.RandomNormal, keras.initializers.VarianceScaling):
        monkeypatch.setattr(
            initializer, "__call__", lambda self, shape, dtype=None: keras.ops.zeros(shape, dtype)
        )


# Models of this size take seconds. The nightly suite has the rows between these.
FEW = ("base", "B, keys of 16", "E, learned positions", "big")


@pytest.mark.full("base")
@pytest.mark.parametrize(
    "row", tiers.quick(ROWS, *FEW[:2], nightly=[row for row in ROWS if row not in FEW])
)
def test_a_row_of_table_3_has_its_number_of_parameters(row):
    """The number equals the closed formula, and the printed figure within 7 %."""
    changes, printed, formula = ROWS[row]
    model = Transformer(V, **changes)
    count = model.count_params()
    del model  # up to 860 MB each
    keras.backend.clear_session()
    gc.collect()
    assert count == closed_formula(**changes)
    assert abs(count - printed * 1e6) <= 0.07 * printed * 1e6
    positions = 2 * 512 * 512 if "positions" in changes else 0
    assert round((count - positions) / 1e6, 1) == formula


def test_the_defaults_are_the_base_model_of_the_paper():
    config = Transformer(7).get_config()
    base = {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1}
    assert {name: config[name] for name in base} == base and config["epsilon"] == 1e-5
