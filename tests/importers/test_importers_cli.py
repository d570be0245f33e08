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


ABSENT = "nowhere does not exist"
OTHER = "is not an earlier result of this command"


@pytest.mark.parametrize(
    "names, message",
    [
        ([], ABSENT),
        (["model.keras", "tokenizer.model"], ABSENT),
        (["model.keras", "head.json", "tokenizer.model", "target_tokenizer.model"], ABSENT),
        (["model.keras", "notes.txt"], f"{OTHER} (it holds notes.txt)"),
        (["artefact.json"], f"{OTHER} (it holds artefact.json)"),  # of another program
        (None, f"{OTHER} (it is a file)"),
    ],
)
def test_other_content_at_the_target_stays(names, message, tmp_path, capsys):
    """A refusal of the target comes before the model is read."""
    out, files = tmp_path / "out", [tmp_path / "out"]
    if names is not None:
        out.mkdir()
        files = [out / name for name in names]
    for file in files:
        file.write_text("{}", "utf-8")
    assert main(["bergamot", str(tmp_path / "nowhere"), str(out)]) == 1
    assert message in capsys.readouterr().err
    assert [file.read_text("utf-8") for file in files] == ["{}"] * len(files)


@pytest.mark.full
def test_the_export_gives_the_strings_of_the_reference(folder, tmp_path):
    out = tmp_path / "out"
    command = ["bergamot", str(folder), str(out), "--export", "onnx", "--text", "--quiet"]
    assert main([*command, "--max-length", "12"]) == 0
    translator = Translator(out)  # the export has compared the text file with it
    assert list(translator.translate(LINES)) == translated(folder, LINES, 12)
    assert translator.manifest["text"] and translator.manifest["precision"] == "float32"
    assert translator.manifest["search"]["config"]["allow_unknown"] is False


def test_a_shortlist_needs_its_file(folder, tmp_path, capsys):
    command = ["bergamot", str(folder), str(tmp_path / "out"), "--export", "onnx", "--shortlist"]
    assert main(command) == 1
    assert "must hold one file lex*.bin" in capsys.readouterr().err


WITH_SEARCH = "only with --export onnx or litert or saved_model"


@pytest.mark.parametrize(
    "origin, flags, message",
    [
        ("bergamot", ["--precision", "int8"], "--precision: only with --export onnx"),
        ("bergamot", ["--export", "saved_model", "--text"], "--text: only with --export onnx"),
        ("bergamot", ["--shortlist"], "--shortlist: only with --export onnx"),
        ("bergamot", ["--max-length", "9"], f"--max-length: {WITH_SEARCH}"),
        ("bergamot", ["--beam-width", "4"], f"--beam-width: {WITH_SEARCH}"),
        (
            "bergamot",
            ["--export", "onnx", "--beam-width", "0"],
            "--beam-width must be at least 1, got 0",
        ),
        ("marian", ["--export", "onnx", "--shortlist"], "--shortlist: only bergamot has"),
        ("marian", ["--seconds", "30"], "--seconds: marian has no such option"),
        ("gpt2", ["--prompt", "query"], "--prompt: gpt2 has no such option"),
        ("bert", ["--export", "onnx", "--beam-width", "4"], "--beam-width: bert is an encoder"),
    ],
)
def test_arguments_that_do_not_apply_are_refused(origin, flags, message, capsys):
    with pytest.raises(SystemExit):
        parse([origin, "in", "out", *flags])
    assert message in capsys.readouterr().err
