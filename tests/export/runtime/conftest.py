"""Fixtures of the runtime tests: small artefacts, their predictors, and a CUDA that falls back."""

import functools

import onnxruntime
import pytest
from helpers import array_search, head_artefacts, seeded_artefact

from keras_transformer.export.runtime import Predictor
from keras_transformer.export.runtime.session import CPU, CUDA


@pytest.fixture(scope="package")
def made(tokenizer, tmp_path_factory):
    """Returns a function from a name to the folder of its artefact. Tests must not change it.

    The names are "sample", "transcribe", and the keys of `head_artefacts.MODELS`.
    """
    searches = {"sample": seeded_artefact, "transcribe": array_search}

    @functools.cache
    def folder(name):
        path = tmp_path_factory.mktemp(name)
        if name in searches:
            return searches[name].write(path, tokenizer)
        return head_artefacts.write(path, None if name == "series" else tokenizer, name)

    return folder


@pytest.fixture(scope="package")
def served(made):
    """Returns a function from a name in `head_artefacts` to its `Predictor`, made once."""
    return functools.cache(lambda name: Predictor(made(name), threads=1))


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
