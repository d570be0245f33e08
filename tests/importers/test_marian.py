"""Marian folders: outputs and searches against `transformers`, in Keras and in ONNX Runtime.

Shapes: B batch, S source length, T target length, U their vocabulary, V ours.
"""

import functools
import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
from helpers import exports, published, tiers
from helpers.published import torch, transformers

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.importers import marian
from keras_transformer.importers.mapping import NEVER

SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 29,
    "forced_eos_token_id": None,
}
OPUS = {
    "vocab_size": 37,
    "pad_token_id": 36,
    "eos_token_id": 0,
    "decoder_start_token_id": 36,
    "activation_function": "swish",
    "scale_embedding": True,
}
VARIANTS = {
    "as OPUS-MT": OPUS,
    "other ids, no scale": {
        **OPUS,
        "pad_token_id": 3,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
        "activation_function": "relu",
        "scale_embedding": False,
    },
    "two vocabularies": {
        **OPUS,
        "vocab_size": 41,
        "decoder_vocab_size": 43,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "unk_token_id": 2,
        "decoder_start_token_id": 1,
        "scale_embedding": False,
        "share_encoder_decoder_embeddings": False,
    },
    "own output": {
        **OPUS,
        "vocab_size": 37,
        "decoder_vocab_size": 43,
        "activation_function": "quick_gelu",
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
}
MAX_LENGTH = 12


class Origin:
    """A model of `transformers`, its folder, and the imported model."""

    def __init__(self, folder, options):
        self.folder, config = folder, transformers.MarianConfig(**SIZES, **options)
        self.model = published.drawn(transformers.MarianMTModel(config))
        self.model.final_logits_bias[0, config.eos_token_id] += 2.0  # so that some texts end
        self.model.save_pretrained(folder)
        self.ours = marian.load_model(folder)
        orders = marian.row_orders(folder)
        self.source, self.target = orders[0], orders[-1]
        never = {config.pad_token_id, config.decoder_start_token_id} - {config.eos_token_id}
        self.never = [[id] for id in never]  # as in our searches

    def generate(self, source, beams):
        """Returns our ids that `transformers` writes, one list per sentence."""
        with torch.no_grad():
            generated = self.model.generate(
                input_ids=published.theirs(self.source, source),
                attention_mask=published.mask(source),
                max_new_tokens=MAX_LENGTH,
                num_beams=beams,
                do_sample=False,
                **({"length_penalty": 0.0} if beams > 1 else {}),
                bad_words_ids=self.never,
            )
        return published.tokens(self.target, generated[:, 1:], end=3)


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """Returns a function from the name of a variant to its `Origin`, made once."""
    folder = tmp_path_factory.mktemp("marian")
    return functools.cache(lambda name: Origin(folder / name, VARIANTS[name]))


@pytest.fixture(params=VARIANTS)
def origin(request, origins):
    return origins(request.param)


@pytest.fixture
def opus(origins):
    return origins("as OPUS-MT")


@pytest.mark.parametrize("side", ["left", "right"])
def test_hidden_states_and_logits_equal_transformers(origin, side):
    source = published.ids(len(origin.source), rows=7, side=side)
    target = published.ids(len(origin.target), rows=7, end=False, seed=1)
    target[:, 0] = 2
    with torch.no_grad():
        expected = origin.model(
            input_ids=published.theirs(origin.source, source),
            attention_mask=published.mask(source),
            decoder_input_ids=published.theirs(origin.target, target),
        )
    memory = origin.ours.encoder(source)
    hidden = expected.encoder_last_hidden_state.numpy()
    assert published.relative(memory[source > 0], hidden[source > 0]) <= 1e-5
    logits = np.asarray(origin.ours({"source_ids": source, "target_ids": target}))
    counted = [row for row in range(logits.shape[2]) if logits[0, 0, row] > NEVER / 2]
    assert sorted(origin.target[counted]) == list(range(expected.logits.shape[2]))  # each once
    expected = expected.logits.numpy()[..., origin.target[counted]]
    assert published.relative(logits[target > 0][:, counted], expected[target > 0]) <= 1e-5


@pytest.mark.parametrize(
    "variant, beams",
    tiers.quick(itertools.product(VARIANTS, (1, 4)), ("as OPUS-MT", 4), ("two vocabularies", 1)),
)
def test_searches_equal_generate(origins, variant, beams):
    origin = origins(variant)
    source = published.ids(len(origin.source))
    search = kt.GreedySearch() if beams == 1 else kt.BeamSearch(beams, length_penalty=0.0)
    ours = published.found(search(origin.ours, source, MAX_LENGTH).ids)
    assert ours == origin.generate(source, beams)
    assert len(set(map(tuple, ours))) > 5 and len(set(map(len, ours))) > 1  # texts differ


@pytest.mark.full
@pytest.mark.parametrize("precision", tiers.quick(["float32", "int8"], "float32"))
def test_onnx_runtime_equals_generate(opus, precision, tmp_path):
    """int8 with float logits writes most of these short texts alike."""
    source = published.ids(len(opus.source))
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


def mapped(opus, tensors):
    """Returns a dict from our path to array of these tensors."""
    return marian.ORIGIN.read(opus.folder, {}, tokenizers=False)[0].read(tensors)


def test_position_tables_in_the_file_are_used(opus, tmp_path):
    tensors = tensors_of(opus.folder)
    table = np.random.default_rng(0).normal(size=(29, 16)).astype("float32")
    tensors["model.decoder.embed_positions.weight"] = table
    arrays = mapped(opus, tensors)
    np.testing.assert_array_equal(arrays["target_positions/embeddings"], table)
    sinusoids = opus.model.model.encoder.embed_positions.weight.numpy()
    np.testing.assert_allclose(arrays["source_positions/embeddings"], sinusoids, atol=1e-6)


# Bad input


def tensors_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


@pytest.fixture
def copy(opus, tmp_path):
    return shutil.copytree(opus.folder, tmp_path / "copy")


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **values}), "utf-8")


FC1 = "model.encoder.layers.1.fc1.weight"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda tensors: tensors.pop(FC1), f"{FC1} is missing"),
        (lambda tensors: tensors.update(other=np.zeros(3)), "other is left over"),
        (
            lambda tensors: tensors.update({FC1: tensors[FC1].T}),
            rf"{FC1} has shape \(16, 24\), not \(24, 16\)",
        ),
        (
            lambda tensors: tensors.update({"lm_head.weight": np.zeros((37, 16))}),
            "lm_head.weight is not equal to model.shared.weight",
        ),
    ],
)
def test_every_tensor_is_checked(opus, change, message):
    tensors = tensors_of(opus.folder)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        mapped(opus, tensors)


def test_a_copy_may_replace_the_shared_matrix(opus):
    tensors = tensors_of(opus.folder)
    expected = mapped(opus, tensors)
    tensors["model.encoder.embed_tokens.weight"] = tensors.pop("model.shared.weight")
    arrays = mapped(opus, tensors)
    table = "token_embedding/embeddings"
    np.testing.assert_array_equal(arrays[table], expected[table])


def test_a_truncated_file_is_refused(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors is no complete safetensors file"):
        marian.load_model(copy)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model_type": "t5"}, "architecture 't5', but this importer reads 'marian'"),
        ({"decoder_ffn_dim": 48}, r"encoder_ffn_dim and decoder_ffn_dim are \[24, 48\]"),
        ({"d_model": None}, r"lacks \['d_model'\]"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
        ({"normalize_before": True}, "normalize_before=True"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 37 ids"),
        ({"encoder_layers": 3}, r"encoder.layers.2.fc1.weight is missing"),
    ],
)
def test_configurations_of_another_model_are_refused(copy, values, message):
    changed(copy, **values)
    with pytest.raises(ValueError, match=message):
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
