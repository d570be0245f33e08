"""A saved model gives the same logits on Keras' PyTorch backend, in a process of its own."""

import os
import subprocess
import sys
from functools import partial

import keras
import numpy as np
import pytest

from keras_transformer.models import CausalTransformer, Transformer

pytestmark = pytest.mark.full

LOAD = """
import sys
import keras, numpy as np
import keras_transformer
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    ids = np.array([[5, 7, 3, 0], [8, 2, 6, 3]], "int32")
    inputs = ids if len(model.inputs) == 1 else {"source_ids": ids, "target_ids": ids[:, :3]}
    np.save(path + ".npy", keras.ops.convert_to_numpy(model(inputs)))
"""
MODELS = {
    "translator": Transformer,
    "recurrent translator": partial(Transformer, recurrent_decoder=True),
    "language model": CausalTransformer,
}


@pytest.fixture(scope="module")
def logits(tmp_path_factory):
    """For each of `MODELS` its logits here, and those on PyTorch of what was saved."""
    pytest.importorskip("torch", reason="PyTorch is missing: extra `parity`")
    folder, expected = tmp_path_factory.mktemp("torch"), {}
    ids = np.array([[5, 7, 3, 0], [8, 2, 6, 3]], "int32")
    for name, cls in MODELS.items():
        model = cls(13, num_layers=2, d_model=22, num_heads=2, d_ff=17, norm_first=True)
        model.save(folder / f"{name}.keras")
        inputs = ids if cls is CausalTransformer else {"source_ids": ids, "target_ids": ids[:, :3]}
        expected[name] = keras.ops.convert_to_numpy(model(inputs))
    subprocess.run(
        [sys.executable, "-c", LOAD, *(folder / f"{name}.keras" for name in MODELS)],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        check=True,
    )
    return {name: (expected[name], np.load(folder / f"{name}.keras.npy")) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_saved_model_gives_equal_logits_on_torch(logits, name):
    expected, found = logits[name]
    np.testing.assert_allclose(found, expected, atol=1e-5)
