"""The fuzzers: random exports match Keras or are refused, and damage does no harm."""

import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers.tiers import full, nightly

pytest.importorskip("onnxruntime")

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture
def ModelJudge(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import judging

    return judging.ModelJudge


@pytest.mark.parametrize(
    "output, place, added, outcome",
    [
        ("unit", (0, 0), 0.3, "ill-conditioned"),  # the direction of a vector of norm 1e-9
        ("unit", (1, 0), 1e-3, "wrong"),
        ("floor", (1, 2), 1, "ill-conditioned"),  # of 2.9999998
        ("floor", (1, 1), 1, "wrong"),  # of 2
        ("floor", (1, 0), 1, "wrong"),
        ("unit", (1, 0), 1e-6, "right"),
    ],
)
def test_the_judge_excuses_numbers_that_noise_moves(ModelJudge, output, place, added, outcome):
    x = keras.Input((3,), name="x")
    unit = keras.layers.UnitNormalization()(keras.ops.silu(x))
    model = keras.Model(x, {"unit": unit, "floor": keras.ops.floor(x)})
    judge = ModelJudge(model, np.random.default_rng(0))
    feed = {"x": np.array([[-25, -26, -25], [1.3, 2, 2.9999998]], "float32")}
    expected = judge.answer(feed)
    found = {name: array.copy() for name, array in expected.items()}
    found[output][place] += added
    assert judge.verdict(feed, expected, found)[0] == outcome


def test_the_judge_excuses_a_file_that_is_closer_to_float64_than_keras(ModelJudge):
    def made(dtype):
        x = keras.Input((1,), name="x", dtype=dtype)
        norm = keras.layers.LayerNormalization(dtype=dtype)
        model = keras.Model(x, {"norm": norm(keras.ops.tile(x, (1, 2)))})
        norm.beta.assign([0.1, 0.3])
        return model

    judge = ModelJudge(made("float32"), np.random.default_rng(0), made)
    feed = {"x": np.array([[432.0]], "float32")}
    expected = judge.answer(feed)
    right, wrong = {"norm": np.array([[0.1, 0.3]])}, {"norm": np.array([[0.1, 0.31]])}
    assert np.abs(expected["norm"] - right["norm"]).max() > 1e-4  # float32 adds 432 / sqrt(0.001)
    assert judge.verdict(feed, expected, right)[0] == "ill-conditioned"
    assert judge.verdict(feed, expected, wrong)[0] == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, options, printed",
    [
        full("models", "--seed=1 --count=4", r"\| right \| [1-9]"),
        nightly("models", "--seed=1 --count=60 --searches=6", r"\| right \| [1-9]\d* \| [1-9]"),
        full("readers", "--seed=1 --count=300", r"\| glossary \|"),
        nightly("readers", "--seed=1 --count=1500", r"\| glossary \|"),
        nightly("protocols", "--seed=1 --count=1500", '"openai": {'),
        nightly("sounds", "--seed=1 --count=48", "ours {"),
        full("load", "--seed=1 --seconds=5", '"slow": {"right": '),
        nightly("load", "--seed=1 --seconds=15", '"slow": {"right": '),
        full("faults", "--only=tokenizer", r"(?m)^tokenizer, kill \{'whole': [1-9]\d*\}$"),
    ],
)
def test_no_case_of_a_fuzzer_is_wrong(script, options, printed):
    pytest.importorskip("tokenizers")
    command = [sys.executable, str(FOLDER / f"{script}.py"), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True)  # forks before TensorFlow runs
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(printed, done.stdout)
