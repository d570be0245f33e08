"""Every origin: outputs and searches against `transformers`, damaged tensors, and wrong folders."""

import itertools
import json
import pathlib
import re

import numpy as np
import pytest
from helpers import origins as table
from helpers import published, tiers
from helpers.origins import CASES, FOLDERS, GENERATING, MAX_LENGTH
from helpers.published import torch, transformers

import keras_transformer as kt
from keras_transformer import importers
from keras_transformer.importers import checkpoint
from keras_transformer.importers.__main__ import ORIGINS, main


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    return table.made(tmp_path_factory)


# fairseq does not count padding in positions, and we do.
SIDES = {name: ["right"] if name.startswith("fairseq") else ["left", "right"] for name in CASES}


@pytest.mark.parametrize(
    "name, side",
    [(name, side) for name, sides in SIDES.items() for side in sides if name != "bert"],
)
def test_hidden_states_and_logits_equal_transformers(origins, name, side):
    origin = origins(name)
    inputs = origin.inputs(7, side)
    expected, target = origin.outputs(inputs), inputs["target_ids"]
    if origin.case.reads != "target":
        source = next(iter(inputs.values()))
        hidden = expected.encoder_last_hidden_state.numpy()
        memory = np.asarray(origin.ours.encoder(source))
        counted = source > 0 if "source_ids" in inputs else np.ones(memory.shape[:2], bool)
        assert published.relative(memory[counted], hidden[counted]) <= 1e-5
    given = target if origin.case.reads == "target" else inputs
    logits, order = np.asarray(origin.ours(given)), origin.orders[-1]
    counted = [row for row in range(len(order)) if logits[0, 0, row] > origin.case.never / 2]
    assert sorted(order[counted]) == list(range(expected.logits.shape[2]))  # each of theirs once
    expected = expected.logits.numpy()[..., order[counted]]
    assert published.relative(logits[target > 0][:, counted], expected[target > 0]) <= 1e-5


SEARCHES = {1: kt.GreedySearch(), 4: kt.BeamSearch(4, length_penalty=0.0)}


@pytest.mark.parametrize(
    "name, beams",
    tiers.quick(
        itertools.product(GENERATING, SEARCHES),
        *(("marian", 4), ("marian: two vocabularies", 1)),
        *(("gpt2: other settings", 4), ("whisper", 1), ("whisper", 4)),
        *(("t5", 4), ("t5: 1.1", 1)),
    ),
)
def test_searches_equal_generate(origins, name, beams):
    origin = origins(name)
    prompts = origin.prompts(100)
    ours = published.found(SEARCHES[beams](origin.ours, prompts, MAX_LENGTH).ids)
    assert ours == origin.generate(prompts, beams)
    assert len(set(map(tuple, ours))) > 5  # texts differ


# Bad input


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("damage", ["missing", "left over", "misshapen"])
def test_every_tensor_is_checked(origins, name, damage, tmp_path):
    origin = origins(name)
    tensors, matrix = table.tensors_of(origin.folder), origin.case.matrix
    message = f"{matrix} is missing"
    if damage == "left over":
        tensors["other"], message = np.zeros(3, "float32"), "other is left over"
    elif damage == "misshapen":
        message = rf"{matrix} has shape \({', '.join(map(str, tensors[matrix].shape[::-1]))}\), not"
        tensors[matrix] = tensors[matrix].T
    else:
        del tensors[matrix]
    table.changed(origin, tmp_path, tensors=tensors)
    with pytest.raises(ValueError, match=f"1 tensors of the checkpoint .*: {message}"):
        origin.case.importer.load_model(tmp_path)


WRONG = {
    "marian": [
        ({"decoder_ffn_dim": 32}, r"encoder_ffn_dim and decoder_ffn_dim are \[24, 32\]"),
        ({"d_model": None}, r"lacks \['d_model'\]"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
        ({"normalize_before": True}, "normalize_before=True"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 37 ids"),
        ({"encoder_layers": 3}, r"encoder.layers.2.fc1.weight is missing"),
    ],
    "gpt2": [({"bos_token_id": None}, r"lacks \['bos_token_id'\]")],
    "whisper": [
        ({"decoder_ffn_dim": 48}, "encoder_ffn_dim and decoder_ffn_dim are 24 and 48"),
        ({"vocab_size": 10**12}, "vocab_size=1000000000000"),
        ({"max_source_positions": 10**12}, "max_source_positions=1000000000000, but"),
        ({"encoder_layers": 3}, "encoder.layers.2.fc1.weight is missing"),
        ({"num_mel_bins": 7}, r"conv1.weight has shape \(16, 5, 3\), not \(16, 7, 3\)"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 61 ids"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
    ],
    "moonshine": [
        ({"attention_bias": True}, "attention_bias=True"),
        ({"encoder_num_key_value_heads": 1}, "'encoder_num_key_value_heads': 1.* are equal"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.3}}, "turns 3 of 12 channels"),
        ({"encoder_num_hidden_layers": 3}, "encoder.layers.2.mlp.fc1.weight is missing"),
        ({"decoder_hidden_act": "quick"}, "decoder_hidden_act is 'quick'"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 61 ids"),
    ],
    "t5": [
        ({"feed_forward_proj": "double-gelu"}, "feed_forward_proj is 'double-gelu'"),
        ({"feed_forward_proj": "gelu_10"}, "feed_forward_proj is 'gelu_10'"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
        ({"num_layers": 3}, "encoder.block.2.layer.0.layer_norm.weight is missing"),
    ],
    "bert": [
        ({"is_decoder": True}, "is_decoder=True"),
        ({"hidden_act": "gelu_10"}, "hidden_act is 'gelu_10'"),
    ],
}


@pytest.mark.parametrize(
    "name, values, message", [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_configurations_of_another_model_are_refused(origins, name, values, message, tmp_path):
    origin = origins(name)
    table.changed(origin, tmp_path, config=values)
    with pytest.raises(ValueError, match=message):
        origin.case.importer.load_model(tmp_path)


FILES = {
    "bergamot": {"model.enes.intgemm.bin": "", "vocab.enes.spm": "", "lex.enes.bin": ""},
    "ctranslate2": {"model.bin": "", "config.json": "{}", "shared_vocabulary.json": "[]"},
    "keras_hub": {"config.json": json.dumps({"module": "keras_hub.src.models.bert"})},
    **{
        name: {"config.json": json.dumps({"model_type": name}), "model.safetensors": ""}
        for name in ("bert", "gpt2", "marian", "modernbert", "mt5", "t5", "whisper")
    },
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8")
    return folder


@pytest.mark.parametrize("load", ["load", "load_model"])
@pytest.mark.parametrize("found", FILES)
@pytest.mark.parametrize("asked", ORIGINS)
def test_the_right_importer_is_named(asked, found, load, tmp_path):
    if asked == found or (asked, load) == ("bergamot", "load_model"):  # it has `load` only
        return
    write(tmp_path, FILES[found])
    message = rf"holds a model of {found}, but this importer reads {asked}\. Use .* {found}\."
    with pytest.raises(ValueError, match=message):
        getattr(getattr(importers, asked.replace("-", "_")), load)(tmp_path)


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("kind", ["empty", "missing", "file", "other", "unknown"])
def test_a_folder_without_a_model_says_what_it_lacks(origin, kind, tmp_path, capsys):
    folder = tmp_path / "folder"
    if kind == "file":
        folder.write_text("mine", "utf-8")
    elif kind != "missing":
        folder.mkdir()
        files = {
            "other": {"README.md": ""},
            "unknown": {"config.json": '{"model_type": "reformer"}'},
        }
        write(folder, files.get(kind, {}))
    assert main([origin, str(folder), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    lacks = {"bergamot": "model*.bin", "ctranslate2": "model.bin"}.get(origin, "config.json")
    if kind in ("file", "missing"):
        reason = "is a file" if kind == "file" else "does not exist"
        assert f"folder {reason}. Pass the folder with the published files" in error
    elif kind == "unknown" and lacks == "config.json":
        assert (
            f"the architecture 'reformer', but this importer reads '{origin}'. No importer" in error
        )
    else:
        assert f"folder has no {lacks}, so it holds no model of {origin}" in error
    assert not (tmp_path / "out").exists()


def test_the_origin_of_the_documentation_equals_transformers(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FILES", dict(checkpoint.FILES))  # the page adds "distilbert"
    page = pathlib.Path(__file__).parents[2] / "docs" / "weights.md"
    (code,) = re.findall("```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    importer: dict = {}
    exec(code, importer)
    config = transformers.DistilBertConfig(
        vocab_size=37, dim=16, hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=29
    )
    model, ids = published.drawn(transformers.DistilBertModel(config)), published.ids(37, rows=7)
    model.save_pretrained(tmp_path)
    pieces = ["[PAD]", "[SEP]", "[UNK]", "[CLS]", *(f"piece{id}" for id in range(4, 37))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    (ours, tokenizer), (order,) = importer["load"](tmp_path), importer["row_orders"](tmp_path)
    with torch.no_grad():
        theirs = model(published.theirs(order, ids), published.mask(ids)).last_hidden_state
    found = np.asarray(ours(ids))
    assert published.relative(found[ids > 0], theirs.numpy()[ids > 0]) <= 1e-5
    assert tokenizer.encode("piece7 piece9") == [2, 7, 9]
