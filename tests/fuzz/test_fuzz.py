"""Random models and searches: what is exported is what Keras computes, or is refused."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

FUZZER = pathlib.Path(__file__).with_name("models.py")


@pytest.mark.slow
def test_random_models_and_searches_are_right_or_refused():
    command = [sys.executable, str(FUZZER), "--count", "60", "--searches", "6", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True)  # forks: no TensorFlow before
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
