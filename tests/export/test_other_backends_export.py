"""Exports to other engines on JAX and PyTorch, in a process without TensorFlow."""

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import artefacts, tiers

import keras_transformer as kt
from keras_transformer.padding import pad_rows

CODE = """
import sys
for name in ("tensorflow", "tensorflow_text", "tf2onnx"):
    sys.modules[name] = None
import keras
import keras_transformer as kt
from keras_transformer import export

tokenizer = kt.Tokenizer.load("shared.model")
model = keras.models.load_model("model.keras")
export.export_ctranslate2(model, "ctranslate2", tokenizer, verbose=False)
export.export_marian(model, "marian", tokenizer, verbose=False)
try:
    export.export_onnx
except ImportError as error:
    assert "keras_transformer.export.export_onnx needs tensorflow" in str(error), error
else:
    raise AssertionError("export_onnx was imported without TensorFlow")
"""


@pytest.mark.full
@pytest.mark.parametrize("backend", ["jax", tiers.nightly("torch")])
def test_files_of_other_backends_translate_as_keras(backend, tmp_path):
    pytest.importorskip(backend)
    ctranslate2 = pytest.importorskip("ctranslate2")
    tokenizer = artefacts.tokenizer()
    tokenizer.save(tmp_path / "shared.model")
    model = kt.Transformer(
        tokenizer.vocab_size, num_layers=1, d_model=12, num_heads=2, d_ff=13, dropout=0.1
    )
    model.save(tmp_path / "model.keras")
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-c", CODE]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    source = pad_rows([[7, 11, 5, 3], [17, 3]])
    best = kt.GreedySearch()(model, source, max_length=9).ids.numpy()[:, 0]
    pieces = [[tokenizer.pieces[i] for i in row if i > 3] for row in source]
    engine = ctranslate2.Translator(str(tmp_path / "ctranslate2"), compute_type="float32")
    found = engine.translate_batch(
        pieces, beam_size=1, max_decoding_length=9, min_decoding_length=0, return_end_token=True
    )
    ids = [[tokenizer.pieces.index(piece) for piece in one.hypotheses[0]] for one in found]
    np.testing.assert_array_equal(pad_rows(ids), best[:, : max(map(len, ids))])
    read, _ = kt.importers.marian.load(tmp_path / "marian")
    inputs = {"source_ids": source, "target_ids": np.array([[2, 5, 9], [2, 8, 4]])}
    np.testing.assert_allclose(read(inputs)[..., 1:], model(inputs)[..., 1:], atol=1e-5)
