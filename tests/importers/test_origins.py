"""Every origin against `transformers`: outputs, searches, exports; training; wrong folders."""

import itertools
import pathlib
import pickle
import re
import zipfile

import numpy as np
import pytest
from helpers import origins as table
from helpers import published, tiers, whisper_folder
from helpers.origins import CASES, FOLDERS, GENERATING, MAX_LENGTH
from helpers.published import torch, transformers

import keras_transformer as kt
from keras_transformer import importers
from keras_transformer.export import export_onnx
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session
from keras_transformer.importers import checkpoint, marian
from keras_transformer.importers.__main__ import ORIGINS, main


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    return table.made(tmp_path_factory)


# fairseq does not count padding in positions, and we do.
SIDES = {name: ["right"] if name.startswith("fairseq") else ["left", "right"] for name in CASES}


PADDED = [(name, side) for name, sides in SIDES.items() for side in sides if name != "bert"]


@pytest.mark.parametrize(
    "name, side", tiers.quick(PADDED, *(pair for pair in PADDED if pair[1] == SIDES[pair[0]][0]))
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


@pytest.mark.full("whisper-4", "t5-4", "marian-4")
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


@pytest.mark.full
@pytest.mark.parametrize(
    "name, beams, layout",
    [
        ("marian", 4, "loop"),
        ("gpt2", 1, "loop"),
        ("whisper", 4, "loop"),
        ("moonshine", 4, "loop"),
        tiers.nightly("whisper", 4, "steps"),
        tiers.nightly("moonshine", 4, "steps"),
    ],
)
def test_onnx_runtime_equals_generate(origins, name, beams, layout, tmp_path):
    origin = origins(name)
    options = {"max_length": MAX_LENGTH, "layout": layout, "verbose": False}
    if name == "whisper":
        options["max_source_length"] = whisper_folder.FRAMES
    export_onnx(origin.ours, tmp_path / "onnx", None, SEARCHES[beams], **options)
    prompts = origin.prompts(100)
    given = prompts if isinstance(prompts, dict) else {"source_ids": prompts}
    session = open_session(read_artefact(tmp_path / "onnx"), threads=1)
    token_ids, _ = session.run(None, given)
    assert published.found(token_ids) == origin.generate(prompts, beams)


# Options of the importer, and the number of frozen tables of positions.
TRAINED = {
    "marian": ({"dtype": "mixed_bfloat16"}, 2),
    "bart": ({}, 0),
    "mbart: a language": ({}, 0),
    "pegasus": ({}, 2),
    "gpt2": ({}, 0),
    "whisper": ({"dtype": "mixed_bfloat16"}, 1),
    "moonshine": ({"dtype": "mixed_bfloat16"}, 0),
    "t5": ({"attention_dropout": 0.0}, 0),
}


LORA = ["bart", "mbart: a language", "pegasus", "t5"]


@pytest.mark.full
@pytest.mark.nightly("pegasus-None", "mbart: a language-None", "mbart: a language-3", "t5-3")
@pytest.mark.parametrize(
    "name, rank",
    tiers.quick(
        [*itertools.product(TRAINED, [None]), *itertools.product(LORA, [3])],
        ("t5", None),
        ("bart", 3),
    ),
)
def test_an_imported_model_trains_saves_and_loads(origins, name, rank, tmp_path):
    origin, (options, frozen) = origins(name), TRAINED[name]
    model = origin.case.importer.load_model(origin.folder, dropout=0.0, **options)
    positions = [weight for weight in model.non_trainable_weights if "positions" in weight.path]
    assert len(positions) == frozen
    inputs = origin.inputs(7)
    labels = np.roll(inputs["target_ids"], -1, axis=1)
    inputs = inputs["target_ids"] if origin.case.reads == "target" else inputs
    # Label smoothing over forbidden ids costs little.
    published.check_learning(model, tmp_path, inputs, labels, rank=rank, smoothing=0.1)


# Bad input


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("damage", ["missing", "left over", "misshapen"])
def test_every_tensor_is_checked(origins, name, damage, tmp_path):
    origin = origins(name)
    matrix, changes = origin.case.matrix, {"other": np.zeros(3, "float32")}
    array, message = table.tensors_of(origin.folder)[matrix], "other is left over"
    if damage == "missing":
        changes, message = {matrix: None}, f"{matrix} is missing"
    elif damage == "misshapen":
        changes = {matrix: array.T}
        message = rf"{matrix} has shape \({', '.join(map(str, array.shape[::-1]))}\), not"
    table.altered(origin.folder, tmp_path, {"model.safetensors": changes})
    with pytest.raises(ValueError, match=f"1 tensors of the checkpoint .*: {message}"):
        origin.case.importer.load_model(tmp_path)


WRONG = {
    "marian": [
        ({"decoder_ffn_dim": 32}, "{'encoder_ffn_dim': 24, 'decoder_ffn_dim': 32}"),
        ({"d_model": None}, r"lacks \['d_model'\]"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
        ({"max_position_embeddings": 10**12}, "config.json says max_position_embeddings=10000000"),
        ({"vocab_size": 10**12}, "config.json says .*vocab_size=1000000000000, .*but"),
        ({"encoder_layers": 10**12}, "config.json says .*encoder_layers=1000000000000, .*but"),
        ({"normalize_before": True}, "normalize_before=True"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 37 ids"),
        ({"encoder_layers": 3}, r"encoder.layers.2.fc1.weight is missing"),
    ],
    "gpt2": [
        (
            lambda data: data.replace(b'"bos_token_id": 40', b'"bos_token_id": null'),
            r"lacks \['bos_token_id'\]",
        ),
        ({"vocab_size": 10**12}, "config.json says .*vocab_size=1000000000000, .*but"),
        ({"n_layer": 10**12}, "config.json says .*n_layer=1000000000000, .*but"),
    ],
    "whisper": [
        ({"decoder_ffn_dim": 48}, "{'encoder_ffn_dim': 24, 'decoder_ffn_dim': 48}"),
        ({"vocab_size": 10**12}, "vocab_size=1000000000000"),
        ({"max_source_positions": 10**12}, "max_source_positions=1000000000000, but"),
        ({"encoder_layers": 3}, "encoder.layers.2.fc1.weight is missing"),
        ({"num_mel_bins": 7}, r"conv1.weight has shape \(16, 5, 3\), not \(16, 7, 3\)"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 61 ids"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
    ],
    "moonshine": [
        ({"attention_bias": True}, "attention_bias=True"),
        ({"encoder_num_key_value_heads": 1}, "'encoder_num_key_value_heads': 1.* must be equal"),
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
        ({"vocab_size": 10**12}, "config.json says .*vocab_size=1000000000000, .*but"),
        (
            {"num_hidden_layers": 10**12},
            "config.json says .*num_hidden_layers=1000000000000, .*but",
        ),
        ({"hidden_act": "gelu_10"}, "hidden_act is 'gelu_10'"),
    ],
}


@pytest.mark.parametrize(
    "name, values, message", [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_configurations_of_another_model_are_refused(origins, name, values, message, tmp_path):
    origin = origins(name)
    table.altered(origin.folder, tmp_path, {"config.json": values})
    with pytest.raises(ValueError, match=message):
        origin.case.importer.load_model(tmp_path)


# Files of other content, by a function of the old content, text or `None` for a missing file.
DAMAGED = {
    "model.safetensors": [
        (lambda data: data[:-100], "model.safetensors is no complete safetensors file"),
        (None, "neither model.safetensors nor"),
        (
            {"lm_head.weight": np.zeros((37, 16), "float32")},
            "lm_head.weight is not equal to model.shared.weight",
        ),
    ],
    "config.json": [(b"{", "config.json"), (b"[]", "config.json")],
}


@pytest.mark.parametrize(
    "file, change, message", [(file, *case) for file, cases in DAMAGED.items() for case in cases]
)
def test_damaged_files_are_refused(origins, file, change, message, tmp_path):
    table.altered(origins("marian").folder, tmp_path, {file: change})
    with pytest.raises((OSError, ValueError), match=message):
        marian.load_model(tmp_path)


class Code:
    """Runs when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def packed(state, path):
    """Writes a PyTorch file with compressed parts."""
    torch.save(state, path)
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, part in parts.items():
            new.writestr(name, part)


ROOM = r"more than the [\d,]+ of the file"
PICKLES = {
    "code of PyTorch": (torch.save, Code, "as a dict of"),
    "plain code": (lambda state, path: path.write_bytes(pickle.dumps(state)), Code, "as a dict of"),
    "compressed": (packed, lambda _: torch.zeros(1009, 1013), ROOM),
    "expanded": (torch.save, lambda _: torch.zeros(1).half().expand(10**6, 10**6), ROOM),
}


@pytest.mark.parametrize("case", PICKLES)
def test_pickles_run_no_code_and_take_no_more_memory_than_the_file(origins, case, tmp_path):
    save, make, message = PICKLES[case]
    folder = table.altered(origins("marian").folder, tmp_path, {"model.safetensors": None})
    save({"weight": make(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin could not be read .*{message}"):
        marian.load_model(folder)
    assert not (tmp_path / "ran").exists()


FILES = {
    "bergamot": {"model.enes.intgemm.bin": b"", "vocab.enes.spm": b"", "lex.enes.bin": b""},
    "ctranslate2": {"model.bin": b"", "config.json": {}, "shared_vocabulary.json": b"[]"},
    "keras_hub": {"config.json": {"module": "keras_hub.src.models.bert"}},
    **{
        name: {"config.json": {"model_type": name}, "model.safetensors": b""}
        for name in ("bert", "gpt2", "marian", "modernbert", "mt5", "t5", "whisper")
    },
}


@pytest.mark.parametrize("load", ["load", "load_model"])
@pytest.mark.parametrize("found", FILES)
@pytest.mark.parametrize("asked", ORIGINS)
def test_the_right_importer_is_named(asked, found, load, tmp_path):
    if asked == found or (asked, load) == ("bergamot", "load_model"):  # it has `load` only
        return
    table.alter(tmp_path, FILES[found])
    message = rf"holds a model of {found}, but this importer reads {asked}\. Use .* {found}\."
    with pytest.raises(ValueError, match=message):
        getattr(getattr(importers, asked.replace("-", "_")), load)(tmp_path)


LACKS = "folder has no {lacks}, so it holds no model of {origin}"
PASS = "Pass the folder with the published files"
WITHOUT_MODEL = {
    "empty": ({}, LACKS),
    "other": ({"README.md": b""}, LACKS),
    "missing": (None, f"folder does not exist. {PASS}"),
    "file": (b"mine", f"folder is a file. {PASS}"),
    "unknown": (
        {"config.json": {"model_type": "reformer"}},
        "the architecture 'reformer', but this importer reads '{origin}'. No importer",
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("kind", WITHOUT_MODEL)
def test_a_folder_without_a_model_says_what_it_lacks(origin, kind, tmp_path, capsys):
    folder, (content, message) = tmp_path / "folder", WITHOUT_MODEL[kind]
    lacks = {"bergamot": "model*.bin", "ctranslate2": "model.bin"}.get(origin, "config.json")
    if isinstance(content, dict):
        folder.mkdir()
        table.alter(folder, content)
    elif content is not None:
        folder.write_bytes(content)
    if kind == "unknown" and lacks != "config.json":
        message = LACKS
    assert main([origin, str(folder), str(tmp_path / "out")]) == 1
    assert message.format(lacks=lacks, origin=origin) in capsys.readouterr().err
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
