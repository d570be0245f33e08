"""Moonshine from a folder to a file, its tokenizer, and sounds that do not fit.

`test_origins` compares outputs, searches and exports, and trains it.
"""

import numpy as np
import pytest
from helpers import origins as table
from helpers import texts
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

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
def origin(tmp_path_factory):
    case = table.case(table.moonshine_model, *table.MOONSHINE_CASE, vocab_size=BYTES)
    made = table.Origin(case, tmp_path_factory.mktemp("moonshine"))
    write_tokenizer(made.folder)
    return made


@pytest.fixture(scope="module")
def folder(origin):
    return origin.folder


@pytest.mark.full
def test_one_command_writes_a_file_with_the_texts_of_generate(origin, folder, tmp_path):
    out = tmp_path / "out"
    command = ["moonshine", str(folder), str(out), "--export", "onnx", "--quiet"]
    assert main([*command, "--max-length", str(table.MAX_LENGTH)]) == 0
    transcriber, (_, ours) = Transcriber(out, threads=1), moonshine.load(folder)
    assert transcriber.manifest["limits"]["source_length"] == 64 * 16_000
    sounds = [*table.samples(23), table.samples(1)[0, :3000], table.samples(1)[0, :895]]
    ids = [origin.generate({"samples": sound[None]}, 1)[0] for sound in sounds]
    assert transcriber.transcribe(sounds) == ours.decode(ids)
    assert len(set(map(tuple, ids))) > 5  # texts differ
    assert try_out(out).startswith(f"a recording of {SENTENCE!r} gives ")
    assert check(out) == 0  # 13 samples, filled with silence


def test_the_tokenizer_equals_theirs_on_odd_lines(folder):
    (_, ours), (order,) = moonshine.load(folder), moonshine.row_orders(folder)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for line in [*texts.odd_lines(), "ab cd", "<<ST_3>> a<s>b</s>"]:
        ids = ours.encode(line)
        expected = theirs.encode(line).ids
        assert order[ids].tolist() == expected, line
        assert 3 in ids or ours.decode(ids) == theirs.decode(expected)


@pytest.mark.parametrize("length", [13, 894, 64 * 16_000 + 1])
def test_a_sound_that_does_not_fit_is_refused(length, origin):
    with pytest.raises(ValueError, match=f"895 to 1,024,000 samples .* has {length:,}"):
        origin.ours.encoder(np.zeros((1, length), "float32"))


def more_pieces(content):
    """Returns a tokenizer with a piece that the model lacks."""
    return content.replace(b'"cd":', b'"zz":%d,"cd":' % BYTES, 1)


@pytest.mark.parametrize(
    "file, change, message",
    [
        (
            "config.json",
            {"eos_token_id": 5},
            "numbers '</s>' as 2, but config.json says eos_token_id",
        ),
        ("tokenizer.json", more_pieces, r"1 pieces for which the model has no row: \['zz'\]"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(file, change, message, folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        moonshine.load(table.altered(folder, tmp_path, {file: change}))
