"""Marian folders: tables of positions and copies of tensors in the file."""

import numpy as np
import pytest
from helpers import origins
from helpers.origins import altered, tensors_of

from keras_transformer.importers import marian


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    return origins.made(tmp_path_factory)("marian")


def test_position_tables_in_the_file_are_used(opus, tmp_path):
    table = np.random.default_rng(0).normal(size=(29, 16)).astype("float32")
    tensors = {"model.decoder.embed_positions.weight": table}
    model = marian.load_model(altered(opus.folder, tmp_path, {"model.safetensors": tensors}))
    np.testing.assert_array_equal(model.get_layer("target_positions").embeddings, table)
    sinusoids = opus.model.model.encoder.embed_positions.weight.numpy()
    found = model.get_layer("source_positions").embeddings
    np.testing.assert_allclose(found, sinusoids, atol=1e-6)


def test_a_copy_may_replace_its_original(opus, tmp_path):
    table = tensors_of(opus.folder)["model.shared.weight"]
    tensors = {"model.shared.weight": None, "model.encoder.embed_tokens.weight": table}
    again = marian.load_model(altered(opus.folder, tmp_path, {"model.safetensors": tensors}))
    for ours, expected in zip(again.weights, opus.ours.weights, strict=True):
        np.testing.assert_array_equal(ours, expected)
