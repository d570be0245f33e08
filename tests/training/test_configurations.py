"""The configurations of losses, metrics and schedules, a table: complete, and they round-trip.

A new loss, metric or schedule is a row: a value other than the default for each argument.
"""

import pytest
from helpers.checks import check_config

import keras_transformer as kt

TABLE = [
    (kt.SequenceCrossentropy, {"label_smoothing": 0.1, "pad_id": 5, "name": "mine"}, []),
    (kt.PairCrossentropy, {"name": "mine"}, []),
    (kt.AlignmentCrossentropy, {"name": "mine"}, []),
    # `test_model_losses` saves the losses inside, and teachers are not saved.
    (kt.RDrop, {"alpha": 3.0, "name": "mine"}, ["loss"]),
    (kt.Distillation, {"weight": 0.5, "name": "mine"}, ["loss", "teacher"]),
    (kt.TokenAccuracy, {"pad_id": 3, "name": "mine", "dtype": "float64"}, []),
    (kt.Perplexity, {"pad_id": 3, "name": "mine", "dtype": "float64"}, []),
    (
        kt.InverseSquareRootWarmup,
        {"d_model": 7, "warmup_steps": 13, "scale": 2.0},
        ["peak", "initial"],
    ),
    (
        kt.InverseSquareRootWarmup,
        {"warmup_steps": 13, "peak": 0.1, "initial": 0.01},
        ["d_model", "scale"],
    ),
]


@pytest.mark.parametrize("cls, config, elsewhere", TABLE)
def test_a_configuration_is_complete_and_round_trips(cls, config, elsewhere):
    check_config(cls, config, elsewhere)
