"""The layers that tasks need give equal vectors on Keras' PyTorch backend, from a saved model."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

pytestmark = pytest.mark.full

LOAD = """
import sys
import keras, numpy as np
import keras_transformer
model = keras.models.load_model(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
outputs = [keras.ops.convert_to_numpy(x) for x in model(inputs)]
np.savez(sys.argv[3], *outputs)
"""


def model_of_all():
    """Text in two segments, a picture and frames; each pooled to a vector."""
    ids, segments = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "segments"))
    image = keras.Input((8, 8, 3), name="image")
    frames = keras.Input((None, 4), name="frames")
    text = kt.ClassToken()(kt.SegmentEmbedding()(kt.TokenEmbedding(11, 8)(ids), segments))
    sound = kt.MaskedConv1D(8, 3, strides=2)(keras.layers.Masking()(frames))
    patches = kt.PatchEmbedding(8, 4)(image)
    blocks = [kt.EncoderBlock(2, 16)(x) for x in (text, sound, patches)]
    pooled = [kt.SequencePooling(mode)(x) for x in blocks for mode in ("mean", "max")]
    return keras.Model([ids, segments, image, frames], pooled)


def test_they_give_equal_vectors_on_torch(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is missing: extra `parity`")
    model, rng = model_of_all(), np.random.default_rng(0)
    inputs = {
        "ids": np.array([[5, 3, 7, 0], [0, 0, 0, 0]], "int32"),
        "segments": np.array([[1, 1, 2, 0], [0, 0, 0, 0]], "int32"),
        "image": rng.normal(size=(2, 8, 8, 3)).astype("float32"),
        "frames": rng.normal(size=(2, 9, 4)).astype("float32"),
    }
    inputs["frames"][1, 4:] = 0.0
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **inputs)
    subprocess.run(
        [
            sys.executable,
            "-c",
            LOAD,
            *(tmp_path / f"{n}" for n in ("model.keras", "inputs.npz", "outputs.npz")),
        ],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        check=True,
    )
    found = np.load(tmp_path / "outputs.npz")
    expected = [keras.ops.convert_to_numpy(x) for x in model(inputs)]
    assert len(found.files) == len(expected) == 6
    for name, reference in zip(found.files, expected, strict=True):
        np.testing.assert_allclose(found[name], reference, atol=1e-5)
