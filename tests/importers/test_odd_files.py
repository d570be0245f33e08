"""Damaged or malicious checkpoint files raise a `ValueError` that names the file.

A configuration may hold any number. Importers compare it with the tensors before they allocate.
"""

import json
import pathlib
import re
import struct
import zipfile

import numpy as np
import pytest
from helpers import bergamot_model
from helpers.checks import normal
from support.marian_writer import write_model

from keras_transformer.importers import bergamot, bert, gpt2, marian
from keras_transformer.importers.__main__ import main
from keras_transformer.importers.marian_binary import read_model, read_settings
from keras_transformer.importers.marian_shortlist import _checksum, read_shortlist

safetensors = pytest.importorskip("safetensors.numpy")
ORIGINS = {
    bert: {
        "model_type": "bert",
        "vocab_size": 37,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 29,
    },
    gpt2: {
        "model_type": "gpt2",
        "vocab_size": 37,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 29,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    marian: {
        "model_type": "marian",
        "vocab_size": 37,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "pad_token_id": 36,
        "eos_token_id": 0,
        "decoder_start_token_id": 36,
        "activation_function": "relu",
    },
}
LAYERS = {bert: "num_hidden_layers", gpt2: "n_layer", marian: "encoder_layers"}
DEEP = "[" * 100_000 + "]" * 100_000


def write(folder, origin, **changes):
    """Writes a folder with too few tensors, whose axes are long enough."""
    (folder / "config.json").write_text(json.dumps({**ORIGINS[origin], **changes}), "utf-8")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(33))]
    (folder / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(bergamot_model.vocabulary())
    tensors = {f"table{i}": np.zeros((70, 64), "float32") for i in range(5)}
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("load", ["load_model", "load"])
@pytest.mark.parametrize("name", ["vocab_size", "layers"])
@pytest.mark.parametrize("origin", ORIGINS, ids=lambda origin: origin.__name__.rpartition(".")[2])
def test_a_size_that_no_tensor_has_is_refused_before_allocation(origin, name, load, tmp_path):
    name = LAYERS[origin] if name == "layers" else name
    write(tmp_path, origin, **{name: 10**12})
    with pytest.raises(ValueError, match=rf"config\.json says .*{name}=1000000000000, .*but"):
        getattr(origin, load)(tmp_path)


def test_a_computed_table_of_positions_has_a_limited_length(tmp_path):
    write(tmp_path, marian, max_position_embeddings=10**12)
    with pytest.raises(ValueError, match=r"config\.json says max_position_embeddings=10000000"):
        marian.load_model(tmp_path)


@pytest.mark.parametrize("name", ["dim-emb", "transformer-dim-ffn", "enc-depth"])
def test_a_size_that_no_tensor_of_a_binary_file_has_is_refused(name, tmp_path):
    config = {
        "type": "transformer",
        "dim-emb": 12,
        "enc-depth": 1,
        "dec-depth": 1,
        "transformer-heads": 3,
        "transformer-dim-ffn": 19,
        "dec-cell": "ssru",
        "transformer-ffn-activation": "relu",
        "transformer-decoder-autoreg": "rnn",
    }
    write_model(tmp_path / "model.bin", {"Wemb": normal(23, 12)}, {**config, name: 10**12})
    with pytest.raises(ValueError, match=rf"model\.bin says {name}=1000000000000, but"):
        bergamot.load(tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocab_size": "10"}, "vocab_size='10', but must say an integer of at least 0"),
        ({"vocab_size": True}, "vocab_size=True, but must say an integer"),
        ({"hidden_size": -16}, "hidden_size=-16, but must say an integer"),
        ({"num_attention_heads": 2.5}, "num_attention_heads=2.5, but must say an integer"),
        ({"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\], but must say a string"),
        ({"hidden_dropout_prob": {"a": 1}}, "hidden_dropout_prob={'a': 1}, but must say a number"),
        ({"model_type": ["bert"] * 99}, r"architecture \['bert'.{0,100}, but this importer"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(changes, message, tmp_path):
    with pytest.raises(ValueError, match=rf"config\.json (says|describes the) {message}"):
        bert.load_model(write(tmp_path, bert, **changes))


@pytest.mark.parametrize(
    "content", ["[]", "{}", "3", '{"weight_map": ["a"]}', '{"weight_map": {"a": 5}}', DEEP]
)
def test_a_malformed_index_is_named(content, tmp_path):
    write(tmp_path, bert)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(content, "utf-8")
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json (is|has|must)"):
        bert.load_model(tmp_path)


def header_of(dtype):
    """Returns a `safetensors` file with a number type that NumPy lacks."""
    entry = {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, 6]}
    header = json.dumps({"table": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(6)


@pytest.mark.parametrize(
    "origin, file, content, message",
    [
        (
            bert,
            "model.safetensors",
            header_of("F8_E4M3"),
            r"model\.safetensors holds a number type",
        ),
        (bert, "config.json", DEEP.encode(), r"config\.json is no JSON file"),
        (marian, "target.spm", b"no model", r"target\.spm cannot be read.* no SentencePiece model"),
        (marian, "vocab.json", b'{"</s>": 0, "<unk>": [1]}', r"vocab\.json must hold a vocabulary"),
    ],
)
def test_a_file_with_other_content_is_named(origin, file, content, message, tmp_path):
    write(tmp_path, origin)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        origin.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        "{}",
        '{"model": []}',
        '{"model": {"vocab": [["a"]]}}',
        '{"model": {"vocab": {"a": "5"}}}',
        '{"model": {"vocab": {"a": 5}}, "added_tokens": ["b"]}',
        '{"model": {"vocab": {"a": 5}}, "added_tokens": [{"content": "b"}]}',
    ],
)
def test_a_tokenizer_without_a_vocabulary_of_ids_is_named(content, tmp_path, capsys):
    write(tmp_path, bert)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer.json").write_text(content, "utf-8")
    assert main(["bert", str(tmp_path), str(tmp_path / "out")]) == 1
    assert re.search(r"tokenizer\.json (must|has|is no JSON file)", capsys.readouterr().err)


class TestPickles:
    torch = pytest.importorskip("torch")

    def file(self, folder, state):
        write(folder, bert)
        (folder / "model.safetensors").unlink()
        self.torch.save(state, folder / "pytorch_model.bin")
        return folder / "pytorch_model.bin"

    def refused(self, path):
        message = r"pytorch_model\.bin could not be read .* more than the [\d,]+ of the file"
        with pytest.raises(ValueError, match=message):
            bert.load_model(path.parent)

    def test_compressed_parts_are_not_unpacked(self, tmp_path):
        path = self.file(tmp_path, {"table": self.torch.zeros(1009, 1013)})
        packed = pathlib.Path(tmp_path, "packed")
        with (
            zipfile.ZipFile(path) as old,
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for part in old.infolist():
                new.writestr(part.filename, old.read(part))
        packed.replace(path)
        self.refused(path)

    def test_an_expanded_tensor_is_not_copied(self, tmp_path):
        half = self.torch.zeros(1, dtype=self.torch.float16)
        self.refused(self.file(tmp_path, {"table": half.expand(10**6, 10**6)}))


def test_a_tensor_name_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    write_model(path, {"Wemb": normal(7, 4)}, {})
    path.write_bytes(path.read_bytes().replace(b"Wemb", b"W\xff\xfeb"))
    with pytest.raises(ValueError, match=r"model\.bin cannot be read as a model: .*codec"):
        read_model(path)


def test_long_lists_in_settings_are_read_and_mixed_ones_refused():
    assert read_settings("a:\n" + "  - 5\n" * 100_003)["a"] == [5] * 100_003
    with pytest.raises(ValueError, match="the setting 'a' is both a value and a list"):
        read_settings("a: 5\n  - 7\n")


def test_a_shortlist_without_offsets_is_named(tmp_path):
    path, data = tmp_path / "lex.bin", bergamot_model.shortlist_bytes()
    words = np.frombuffer(data[:48], "<u8").copy()
    words[4:] = 0  # neither offsets nor ids
    words[1] = _checksum(words[2:])
    path.write_bytes(words.tobytes())
    with pytest.raises(ValueError, match=r"lex\.bin cannot .* offsets beyond its ids"):
        read_shortlist(path)
