"""Moonshine from a folder to a file, its tokenizer, and sounds that do not fit.

`test_origins` compares outputs and searches.
"""

import json

import keras
import numpy as np
import pytest
from helpers import origins as table
from helpers import published, texts
from helpers.tiers import nightly
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Transcriber
from keras_transformer.export.runtime.check import check
from keras_transformer.importers import moonshine
from keras_transformer.importers.__main__ import main
from keras_transformer.importers.trial import SENTENCE, try_out

WORDS = [*"\u2581abcdefghij", "\u2581a", "ab", "\u2581ab", "cd"]
MERGES = [("\u2581", "a"), ("a", "b"), ("\u2581a", "b"), ("c", "d")]
BYTES = 300  # ids


def write_tokenizer(folder):
    """Writes a tokenizer of the form of Llama's: pieces, and bytes for other characters."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    ids = {name: id for id, name in enumerate(names)}
    made = Tokenizer(models.BPE(ids, MERGES, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    replace = decoders.Replace("\u2581", " ")
    parts = [replace, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    special = [AddedToken(name, normalized=False) for name in names[:3]]
    made.add_special_tokens([*special, *(f"<<ST_{n}>>" for n in range(BYTES - len(names)))])
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def model():
    return table.moonshine_model(vocab_size=BYTES)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("moonshine")
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def generated(model, folder, sounds, beams):
    """Returns our ids that `transformers` writes."""
    origin = table.Origin.__new__(table.Origin)
    origin.case, origin.model = table.CASES["moonshine"], model
    origin.orders = moonshine.row_orders(folder)
    return origin.generate({"samples": sounds}, beams)


def test_one_command_writes_a_file_with_the_texts_of_generate(model, folder, tmp_path):
    out = tmp_path / "out"
    command = ["moonshine", str(folder), str(out), "--export", "onnx", "--quiet"]
    assert main([*command, "--max-length", str(table.MAX_LENGTH)]) == 0
    transcriber, (_, ours) = Transcriber(out, threads=1), moonshine.load(folder)
    assert transcriber.manifest["limits"]["source_length"] == 64 * 16_000
    sounds = [*table.samples(23), table.samples(1)[0, :3000], table.samples(1)[0, :895]]
    ids = [generated(model, folder, sound[None], 1)[0] for sound in sounds]
    assert transcriber.transcribe(sounds) == ours.decode(ids)
    assert len(set(map(tuple, ids))) > 5  # texts differ
    assert try_out(out).startswith(f"a recording of {SENTENCE!r} gives ")
    assert check(out) == 0  # 13 samples, filled with silence


@pytest.mark.full
@pytest.mark.parametrize("layout", ["loop", nightly("steps")])
def test_a_beam_in_onnx_runtime_equals_generate(model, folder, layout, tmp_path):
    search, options = kt.BeamSearch(4, length_penalty=0.0), {"max_length": table.MAX_LENGTH}
    ours, tokenizer = moonshine.load(folder)
    options |= {"layout": layout, "verbose": False}
    export_onnx(ours, tmp_path / "out", tokenizer, search, **options)
    sounds = table.samples(100)
    found, _ = Transcriber(tmp_path / "out", threads=1).session.run(None, {"samples": sounds})
    assert published.found(found) == generated(model, folder, sounds, 4)


def test_the_tokenizer_equals_theirs_on_odd_lines(folder):
    _, ours = moonshine.load(folder)
    (order,) = moonshine.row_orders(folder)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for line in [*texts.odd_lines(), "ab cd", "<<ST_3>> a<s>b</s>"]:
        ids = ours.encode(line)
        expected = theirs.encode(line).ids
        assert order[ids].tolist() == expected, line
        assert 3 in ids or ours.decode(ids) == theirs.decode(expected)


def test_an_imported_model_trains_saves_and_loads(folder, tmp_path):
    model = moonshine.load_model(folder, dropout=0.1, dtype="mixed_bfloat16")
    target = published.ids(BYTES, rows=5, end=False)
    target[:, 0] = 2
    inputs, labels = {"samples": table.samples(5), "target_ids": target}, np.roll(target, -1, 1)
    model.compile("adam", kt.SequenceCrossentropy())
    model.optimizer.learning_rate = 0.01
    losses = model.fit(inputs, labels, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.max_length == 29
    np.testing.assert_array_equal(again(inputs), model(inputs))


@pytest.mark.parametrize("length", [13, 894, 64 * 16_000 + 1])
def test_a_sound_that_does_not_fit_is_refused(length, folder):
    model = moonshine.load_model(folder)
    with pytest.raises(ValueError, match=f"895 to 1,024,000 samples .* has {length:,}"):
        model.encoder(np.zeros((1, length), "float32"))


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    origin = table.Origin.__new__(table.Origin)
    origin.folder = folder
    table.changed(origin, tmp_path, config={"eos_token_id": 5})
    with pytest.raises(ValueError, match="numbers '</s>' as 2, but config.json says eos_token_id"):
        moonshine.load(tmp_path)
    read = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    read["model"]["vocab"]["zz"] = BYTES
    (tmp_path / "config.json").write_text((folder / "config.json").read_text("utf-8"), "utf-8")
    (tmp_path / "tokenizer.json").write_text(json.dumps(read), "utf-8")
    with pytest.raises(ValueError, match=r"1 pieces for which the model has no row: \['zz'\]"):
        moonshine.load(tmp_path)
