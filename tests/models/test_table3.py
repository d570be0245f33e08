"""Table 3 of the paper: constructor arguments give every variation and its size."""

import gc

import keras
import pytest
from helpers import tiers

from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import Transformer

V = 37_000  # section 5.1: about 37000 tokens, shared by source and target

# Row: changes from the base model, parameters as printed (millions), and by the formulas of the
# paper: V D for the table, 4 D H K for an attention, 2 D F + F + D for a network, 2 D for a norm.
ROWS = {
    "base": ({}, 65, 63_045_632),
    "A, one head": ({"num_heads": 1, "key_dim": 512}, 65, 63_045_632),
    "A, 4 heads": ({"num_heads": 4, "key_dim": 128}, 65, 63_045_632),
    "A, 16 heads": ({"num_heads": 16, "key_dim": 32}, 65, 63_045_632),
    "A, 32 heads": ({"num_heads": 32, "key_dim": 16}, 65, 63_045_632),
    "B, keys of 16": ({"key_dim": 16, "value_dim": 64}, 58, 55_967_744),
    "B, keys of 32": ({"key_dim": 32, "value_dim": 64}, 60, 58_327_040),
    "C, 2 layers": ({"num_layers": 2}, 36, 33_644_544),
    "C, 4 layers": ({"num_layers": 4}, 50, 48_345_088),
    "C, 8 layers": ({"num_layers": 8}, 80, 77_746_176),
    "C, width 256": ({"d_model": 256, "key_dim": 32}, 28, 26_816_512),
    "C, width 1024": ({"d_model": 1024, "key_dim": 128}, 168, 163_815_424),
    "C, inner width 1024": ({"d_ff": 1024}, 53, 50_450_432),
    "C, inner width 4096": ({"d_ff": 4096}, 90, 88_236_032),
    "D, no dropout": ({"dropout": 0.0}, 65, 63_045_632),
    "D, dropout 0.2": ({"dropout": 0.2}, 65, 63_045_632),
    "E, learned positions": ({"positions": LearnedPositionEncoding(512)}, 65, 63_569_920),
    "big": ({"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 213, 214_171_648),
}


@pytest.fixture(autouse=True)
def zeros_for_weights(monkeypatch):
    """Skips drawing 1.2 billion random weights, which takes a minute."""
    for initializer in (keras.initializers.RandomNormal, keras.initializers.VarianceScaling):
        monkeypatch.setattr(
            initializer, "__call__", lambda self, shape, dtype=None: keras.ops.zeros(shape, dtype)
        )


# Models of this size take seconds. The nightly suite has the rows between these.
FEW = ("base", "B, keys of 16", "E, learned positions", "big")


@pytest.mark.parametrize(
    "row", tiers.quick(ROWS, *FEW[:2], nightly=[row for row in ROWS if row not in FEW])
)
def test_a_row_of_table_3_has_its_number_of_parameters(row):
    """The number equals the formulas, and the printed figure within 7 %."""
    changes, printed, exact = ROWS[row]
    count = Transformer(V, **changes).count_params()
    keras.backend.clear_session()  # up to 860 MB each
    gc.collect()
    assert count == exact and abs(count - printed * 1e6) <= 0.07 * printed * 1e6


def test_the_defaults_are_the_base_model_of_the_paper():
    config = Transformer(7).get_config()
    base = {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1}
    assert {name: config[name] for name in base} == base and config["epsilon"] == 1e-5
