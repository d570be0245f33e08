"""The configurations of losses, metrics and schedules, a table: complete, and they round-trip.

A new loss, metric or schedule is a row: a value other than the default for each argument. A second
table has arguments that losses, schedules, callbacks and runs refuse.
"""

import numpy as np
import pytest
from helpers.checks import check_config
from helpers.resuming import Letters

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


PADDING = np.zeros((3, 5), "int32")
BLEU = {"search": None, "tokenizer": Letters(), "source_lines": ["a"], "reference_lines": ["a"]}
REFUSED = [
    (kt.InverseSquareRootWarmup, {}, "either d_model"),
    (kt.InverseSquareRootWarmup, {"d_model": 7, "peak": 0.1}, "either d_model"),
    (kt.InverseSquareRootWarmup, {"d_model": 7, "warmup_steps": 0}, "warmup_steps must be at leas"),
    (kt.InverseSquareRootWarmup, {"d_model": 7, "initial": 0.1}, "with peak only"),
    (kt.InverseSquareRootWarmup, {"peak": 0.1, "scale": 2.0}, "scale the peak itself"),
    (kt.SequenceCrossentropy, {"label_smoothing": -0.1}, "label_smoothing must be in"),
    (kt.SequenceCrossentropy, {"label_smoothing": 1.0}, "label_smoothing must be in"),
    (kt.RDrop, {"alpha": -1}, "alpha must not be negative"),
    (kt.Distillation, {"weight": 5}, "weight must be in"),
    (kt.BleuCallback, {**BLEU, "source_lines": [], "reference_lines": []}, "at least one sentence"),
    (kt.BleuCallback, {**BLEU, "reference_lines": ["a", "b"]}, "1 sentences and 2 references"),
    (kt.BleuCallback, {**BLEU, "every": 0}, "every must be at least 1"),
    (kt.Throughput, {}, "either data or tokens_per_batch"),
    (kt.Throughput, {"data": [(PADDING, PADDING)]}, "no tokens to count"),
    (kt.CheckpointAveraging, {"folder": "x", "last": 0}, "last must be at least 1"),
    (kt.Run, {"folder": "x", "every": 0}, "every must be at least 1"),
    (kt.Run, {"folder": "x", "keep": 0}, "keep must be at least 1"),
]


@pytest.mark.parametrize(("cls", "arguments", "message"), REFUSED)
def test_arguments_out_of_range_are_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)
