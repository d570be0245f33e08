"""Saved models give the same results in a process that only imports the package, or on PyTorch."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import tiers

import keras_transformer as kt

LOAD = """
import sys
import keras, numpy as np
import keras_transformer
for path in sys.argv[1:]:
    model = keras.models.load_model(path + ".keras")
    inputs = dict(np.load(path + ".inputs.npz"))
    outputs = model(inputs if len(inputs) > 1 else inputs["ids"])
    outputs = [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]
    np.savez(path + ".outputs.npz", *outputs)
"""
SIZES = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17, "norm_first": True}
IDS = np.array([[5, 7, 3, 0], [8, 2, 6, 3]], "int32")


def layers_of_tasks():
    """Returns a model that pools text, a picture and frames to vectors, and its inputs."""
    ids, segments = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "segments"))
    image, frames = keras.Input((8, 8, 3), name="image"), keras.Input((None, 4), name="frames")
    text = kt.ClassToken()(kt.SegmentEmbedding()(kt.TokenEmbedding(11, 8)(ids), segments))
    sound = kt.MaskedConv1D(8, 3, strides=2)(keras.layers.Masking()(frames))
    blocks = [kt.EncoderBlock(2, 16)(x) for x in (text, sound, kt.PatchEmbedding(8, 4)(image))]
    pooled = [kt.SequencePooling(mode)(x) for x in blocks for mode in ("mean", "max")]
    inputs = {tensor.name: tensor for tensor in (ids, segments, image, frames)}
    rng = np.random.default_rng(0)
    given = {
        "ids": np.array([[5, 3, 7, 0], [0, 0, 0, 0]], "int32"),
        "segments": np.array([[1, 1, 2, 0], [0, 0, 0, 0]], "int32"),
        "image": rng.normal(size=(2, 8, 8, 3)).astype("float32"),
        "frames": rng.normal(size=(2, 9, 4)).astype("float32"),
    }
    given["frames"][1, 4:] = 0.0
    return keras.Model(inputs, pooled), given


def models_and_inputs():
    pair = {"source_ids": IDS, "target_ids": IDS[:, :3]}
    return {
        "translator": (kt.Transformer(13, **SIZES), pair),
        "recurrent": (kt.Transformer(13, **SIZES, recurrent_decoder=True), pair),
        "encoder": (kt.TransformerEncoder(13, **SIZES), {"ids": IDS}),
        "language_model": (kt.CausalTransformer(13, **SIZES), {"ids": IDS}),
        "layers": layers_of_tasks(),
    }


@pytest.mark.full
@pytest.mark.parametrize("backend", ["tensorflow", tiers.nightly("torch")])
def test_saved_models_give_equal_results_in_another_process(backend, tmp_path):
    pytest.importorskip(backend, reason=f"{backend} is missing")
    cases = models_and_inputs()
    for name, (model, inputs) in cases.items():
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.inputs.npz", **inputs)
    command = [sys.executable, "-c", LOAD, *(str(tmp_path / name) for name in cases)]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    for name, (model, inputs) in cases.items():
        found = dict(np.load(tmp_path / f"{name}.outputs.npz"))
        expected = model(inputs if len(inputs) > 1 else inputs["ids"])
        for file, ours in zip(found.values(), keras.tree.flatten(expected), strict=True):
            ours = keras.ops.convert_to_numpy(ours)
            np.testing.assert_allclose(file, ours, atol=1e-5, err_msg=name)


@keras.saving.register_keras_serializable("tests")
class Subclass(keras.Model):
    """Reads ids in `call`, which Keras traces with float placeholders before it loads weights."""

    def __init__(self, whole=False, **kwargs):
        super().__init__(**kwargs)
        self.whole = whole
        self.embedding = kt.TransformerEncoder(29, **SIZES) if whole else kt.TokenEmbedding(29, 22)
        self.segments = kt.SegmentEmbedding(29)
        self.block = kt.EncoderBlock(2, 17)

    def call(self, ids):
        return self.block(self.segments(self.embedding(ids), ids))

    def get_config(self):
        return {**super().get_config(), "whole": self.whole}


@pytest.mark.parametrize("whole", [False, True])
def test_a_subclassed_model_keeps_its_weights(whole, tmp_path):
    model = Subclass(whole)
    expected = np.asarray(model(IDS))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(np.asarray(loaded(IDS)), expected, atol=1e-6)
    with pytest.raises(TypeError, match="Token ids must be integers, but their dtype is float32"):
        loaded(IDS.astype("float32"))
