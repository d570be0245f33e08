"""Fixtures of the runtime tests: predictors of small artefacts, and a CUDA that falls back."""

import functools

import onnxruntime
import pytest
from helpers import head_artefacts

from keras_transformer.export.runtime import Predictor
from keras_transformer.export.runtime.session import CPU, CUDA


@pytest.fixture(scope="package")
def served(tokenizer, tmp_path_factory):
    """Returns a function from a name in `head_artefacts` to its `Predictor`, made once."""

    @functools.cache
    def serve(name):
        read = None if name == "series" else tokenizer
        folder = head_artefacts.write(tmp_path_factory.mktemp(name), read, name)
        return Predictor(folder, threads=1)

    return serve


@pytest.fixture
def cuda_that_falls_back(monkeypatch):
    """Makes onnxruntime list CUDA, print that a library is missing, and run on the CPU."""
    real, preloaded = onnxruntime.InferenceSession, []

    def on_cpu(path, options, providers, enable_fallback):
        assert not enable_fallback
        return real(path, options, providers=[CPU])

    def preload():
        preloaded.append(1)
        print("Failed to load")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", on_cpu)
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    return preloaded
