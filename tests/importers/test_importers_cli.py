"""`python -m keras_transformer.importers`: files, exports and errors."""

import keras
import pytest
from helpers import bergamot_model
from helpers.bergamot_model import LINES, translated

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.importers.__main__ import main, parse


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bergamot_model.write_folder(tmp_path_factory.mktemp("models") / "pten")


def test_the_model_and_its_tokenizer_are_written(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.keras").write_text("an earlier result")
    assert main(["bergamot", str(folder), str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.keras",
        "tokenizer.model",
    ]
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    tokenizer = kt.Tokenizer.load(tmp_path / "out" / "tokenizer.model")
    assert model.recurrent and model.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize("name, reason", [("file", "it is a file"), (".", "it holds file")])
def test_other_content_at_the_target_stays(name, reason, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    # The refusal comes before the model is read.
    assert main(["bergamot", str(tmp_path / "nowhere"), str(tmp_path / name)]) == 1
    assert f"is not an earlier result of this command ({reason})" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.full
def test_the_export_gives_the_strings_of_the_reference(folder, tmp_path):
    out = tmp_path / "out"
    command = ["bergamot", str(folder), str(out), "--export", "onnx", "--text", "--quiet"]
    assert main([*command, "--max-length", "12"]) == 0
    translator = Translator(out)  # the export has compared the text file with it
    assert list(translator.translate(LINES)) == translated(folder, LINES, 12)
    assert translator.manifest["text"] and translator.manifest["precision"] == "float32"
    assert translator.manifest["search"]["config"]["allow_unknown"] is False


def test_a_shortlist_needs_bergamot_and_its_file(folder, tmp_path, capsys):
    command = ["bergamot", str(folder), str(tmp_path / "out"), "--export", "onnx", "--shortlist"]
    assert main(command) == 1
    assert "must hold one file lex*.bin" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["marian", *command[1:]])
    assert "--shortlist: only bergamot has" in capsys.readouterr().err


def test_errors_are_printed_and_nothing_is_written(folder, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[:-3000])
    (broken / "vocab.pten.spm").write_bytes((folder / "vocab.pten.spm").read_bytes())
    for origin, source, message in (
        ("bergamot", broken, "is truncated"),
        ("bergamot", tmp_path / "nowhere", "nowhere does not exist"),
        ("marian", folder, "holds a model of bergamot"),
    ):
        assert main([origin, str(source), str(tmp_path / "out")]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--precision", "int8"], "--precision: only with --export onnx"),
        (["--export", "saved_model", "--text"], "--text: only with --export onnx"),
        (["--shortlist"], "--shortlist: only with --export onnx"),
        (["--max-length", "9"], "--max-length: only with --export onnx or litert or saved_model"),
        (["--beam-width", "4"], "--beam-width: only with --export onnx or litert or saved_model"),
        (["--export", "onnx", "--beam-width", "0"], "--beam-width must be at least 1, got 0"),
    ],
)
def test_arguments_that_do_not_apply_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        parse(["bergamot", "in", "out", *flags])
    assert message in capsys.readouterr().err


def test_an_encoder_has_no_beam(capsys):
    with pytest.raises(SystemExit):
        parse(["bert", "in", "out", "--export", "onnx", "--beam-width", "4"])
    assert "--beam-width: bert is an encoder" in capsys.readouterr().err
