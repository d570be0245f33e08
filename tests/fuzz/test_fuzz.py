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

FUZZER = pathlib.Path(__file__).with_name("models.py")


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
def test_the_judge_excuses_numbers_that_noise_moves(monkeypatch, output, place, added, outcome):
    monkeypatch.syspath_prepend(FUZZER.parent)
    from judging import ModelJudge

    x = keras.Input((3,), name="x")
    unit = keras.layers.UnitNormalization()(keras.ops.silu(x))
    model = keras.Model(x, {"unit": unit, "floor": keras.ops.floor(x)})
    judge = ModelJudge(model, np.random.default_rng(0))
    feed = {"x": np.array([[-25, -26, -25], [1.3, 2, 2.9999998]], "float32")}
    expected = judge.answer(feed)
    found = {name: array.copy() for name, array in expected.items()}
    found[output][place] += added
    assert judge.verdict(feed, expected, found)[0] == outcome


def test_the_judge_excuses_a_file_that_is_closer_to_float64_than_keras(monkeypatch):
    monkeypatch.syspath_prepend(FUZZER.parent)
    from judging import ModelJudge

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
@pytest.mark.parametrize("count, searches", [full(4, 0), nightly(60, 6)])
def test_random_models_and_searches_are_right_or_refused(count, searches):
    command = [sys.executable, str(FUZZER), "--seed", "1"]
    command += ["--count", str(count), "--searches", str(searches)]
    done = subprocess.run(command, capture_output=True, text=True)  # forks before TensorFlow runs
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.full
@pytest.mark.parametrize(
    "script, size, said",
    [
        ("readers", "--count=300", "| glossary |"),
        nightly("readers", "--count=1500", "| glossary |"),
        nightly("protocols", "--count=1500", '"openai": {'),
        nightly("sounds", "--count=48", "ours {"),
        ("load", "--seconds=5", '"slow": {"right": '),
        nightly("load", "--seconds=15", '"slow": {"right": '),
    ],
)
def test_damaged_files_and_requests_are_refused_or_answered(script, size, said):
    pytest.importorskip("tokenizers")
    command = [sys.executable, str(FUZZER.with_name(f"{script}.py")), "--seed", "1", size]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert said in done.stdout


@pytest.mark.full
def test_kills_and_full_disks_leave_files_whole():
    command = [sys.executable, str(FUZZER.with_name("faults.py")), "--only", "tokenizer"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(r"^tokenizer, kill \{'whole': [1-9]\d*\}$", done.stdout, re.MULTILINE)
