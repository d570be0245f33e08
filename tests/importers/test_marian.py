"""Marian folders in ONNX Runtime and in training, and their files."""

import pickle

import numpy as np
import pytest
from helpers import exports, published, tiers
from helpers import origins as table
from helpers.origins import MAX_LENGTH, changed, tensors_of
from helpers.published import torch

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.importers import marian


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    return table.made(tmp_path_factory)("marian")


@pytest.mark.full
@pytest.mark.parametrize("precision", tiers.quick(["float32", "int8"], "float32"))
def test_onnx_runtime_equals_generate(opus, precision, tmp_path):
    """int8 with float logits writes most of these short texts alike."""
    source = published.ids(len(opus.orders[0]))
    reduced = {} if precision == "float32" else {"keep_float": ["token_embedding"]}
    export_onnx(
        opus.ours,
        tmp_path / "onnx",
        None,
        kt.BeamSearch(4, length_penalty=0.0),
        max_length=MAX_LENGTH,
        precision=precision,
        verbose=False,
        **reduced,
    )
    token_ids, _ = exports.session(tmp_path / "onnx").run(None, {"source_ids": source})
    pairs = zip(published.found(token_ids), opus.generate(source, 4), strict=True)
    same = [ours == theirs for ours, theirs in pairs]
    assert np.mean(same) == 1.0 if precision == "float32" else np.mean(same) > 0.5


@pytest.mark.full
def test_an_imported_model_trains_with_frozen_positions_in_mixed_precision(opus, tmp_path):
    model = marian.load_model(opus.folder, dtype="mixed_bfloat16", dropout=0.0)
    assert model.encoder_stack.blocks[0].compute_dtype == "bfloat16"
    tables = [w for w in model.non_trainable_weights if "positions" in w.path]
    assert len(tables) == 2
    source, target = published.ids(38, rows=8), published.ids(38, rows=8, end=False)
    model.compile("adam", kt.SequenceCrossentropy(label_smoothing=0.1), run_eagerly=True)
    inputs = {"source_ids": source, "target_ids": target}
    loss = model.fit(inputs, np.roll(target, -1, axis=1), verbose=0).history["loss"]
    assert np.isfinite(loss).all() and loss[0] < 50  # label smoothing over all ids costs little
    model.save(tmp_path / "model.keras")
    again = kt.importers.marian.load_model(opus.folder)
    assert again.get_layer("source_positions").trainable is False


def test_position_tables_in_the_file_are_used(opus, tmp_path):
    tensors, random = tensors_of(opus.folder), np.random.default_rng(0)
    table = random.normal(size=(29, 16)).astype("float32")
    tensors["model.decoder.embed_positions.weight"] = table
    model = marian.load_model(changed(opus, tmp_path, tensors=tensors))
    np.testing.assert_array_equal(model.get_layer("target_positions").embeddings, table)
    sinusoids = opus.model.model.encoder.embed_positions.weight.numpy()
    found = model.get_layer("source_positions").embeddings
    np.testing.assert_allclose(found, sinusoids, atol=1e-6)


# Files


def test_a_copy_must_equal_its_original_and_may_replace_it(opus, tmp_path):
    tensors = tensors_of(opus.folder)
    changed(opus, tmp_path, tensors={**tensors, "lm_head.weight": np.zeros((37, 16), "float32")})
    with pytest.raises(ValueError, match="lm_head.weight is not equal to model.shared.weight"):
        marian.load_model(tmp_path)
    tensors["model.encoder.embed_tokens.weight"] = tensors.pop("model.shared.weight")
    again = marian.load_model(changed(opus, tmp_path, tensors=tensors))
    for ours, expected in zip(again.weights, opus.ours.weights, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.fixture
def copy(opus, tmp_path):
    return changed(opus, tmp_path / "copy")


def test_a_truncated_file_is_refused(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors is no complete safetensors file"):
        marian.load_model(copy)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_malformed_configuration_is_refused(copy, text):
    (copy / "config.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match="config.json"):
        marian.load_model(copy)


def test_a_folder_without_tensors_is_refused(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        marian.load_model(copy)


def test_a_pytorch_file_is_read(copy, opus):
    (copy / "model.safetensors").unlink()
    torch.save(opus.model.state_dict(), copy / "pytorch_model.bin")
    source = published.ids(38, rows=3)
    inputs = {"source_ids": source, "target_ids": source}
    np.testing.assert_array_equal(marian.load_model(copy)(inputs), opus.ours(inputs))


class Code:
    """Runs when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    "save",
    [torch.save, lambda state, file: file.write_bytes(pickle.dumps(state))],
    ids=["of PyTorch", "plain"],
)
def test_a_pickle_with_code_is_refused_and_never_run(copy, save, tmp_path):
    (copy / "model.safetensors").unlink()
    save({"weight": Code(tmp_path / "ran")}, copy / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin could not be read as a dict of"):
        marian.load_model(copy)
    assert not (tmp_path / "ran").exists()
