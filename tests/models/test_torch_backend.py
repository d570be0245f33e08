"""A saved model gives the same logits on Keras' PyTorch backend, in a process of its own."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer.models import CausalTransformer, Transformer

LOAD = """
import sys
import keras, numpy as np
import keras_transformer
model = keras.models.load_model(sys.argv[1])
ids = np.array([[5, 7, 3, 0], [8, 2, 6, 3]], "int32")
inputs = ids if len(model.inputs) == 1 else {"source_ids": ids, "target_ids": ids[:, :3]}
np.save(sys.argv[2], keras.ops.convert_to_numpy(model(inputs)))
"""


@pytest.mark.parametrize("cls", [Transformer, CausalTransformer])
def test_saved_model_gives_equal_logits_on_torch(cls, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is missing: extra `parity`")
    model = cls(13, num_layers=2, d_model=22, num_heads=2, d_ff=17, norm_first=True)
    model.save(tmp_path / "model.keras")
    ids = np.array([[5, 7, 3, 0], [8, 2, 6, 3]], "int32")
    inputs = ids if cls is CausalTransformer else {"source_ids": ids, "target_ids": ids[:, :3]}
    expected = keras.ops.convert_to_numpy(model(inputs))
    subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path / "model.keras", tmp_path / "logits.npy"],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        check=True,
    )
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, atol=1e-5)
