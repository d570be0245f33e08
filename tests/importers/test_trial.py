"""The import command tries a sentence in the runtime, and replaces its earlier results."""

import pytest
from helpers import artefacts, bergamot_model, whisper_folder

from keras_transformer.importers import trial
from keras_transformer.importers.__main__ import main


def test_a_line_has_the_sentence_and_its_result(tmp_path):
    tokenizer = artefacts.tokenizer()
    folder = artefacts.write(tmp_path / "out", tokenizer)
    texts, _ = artefacts.expected_hypotheses(tokenizer, trial.SENTENCE)
    assert trial.try_out(folder) == f"{trial.SENTENCE!r} gives {texts[0]!r}"


def test_an_error_of_the_runtime_is_raised_and_an_empty_text_warned_about(tmp_path, monkeypatch):
    folder = artefacts.write(tmp_path / "out", artefacts.tokenizer())
    monkeypatch.setattr(trial, "SENTENCE", " ")
    with pytest.warns(UserWarning, match="The model writes nothing for ' '. If it was trained on"):
        assert trial.try_out(folder) == "' ' gives ''"
    monkeypatch.setattr(trial, "SENTENCE", "a " * artefacts.SOURCE_LIMIT)
    with pytest.raises(ValueError, match="The exported file failed for 'a a .*tokens, special"):
        trial.try_out(folder)


@pytest.mark.full
def test_a_recording_goes_through_a_speech_model():
    """The weights are random, so the text means nothing."""
    line = trial.try_out(whisper_folder.artefact())
    assert line.startswith(f"a recording of {trial.SENTENCE!r} gives ")
    assert "(language en, " in line or "(language de, " in line


@pytest.mark.full
def test_results_of_either_form_are_replaced(tmp_path, capsys):
    folder = bergamot_model.write_folder(tmp_path / "pten")
    out = tmp_path / "out"
    export = ["--export", "onnx", "--max-length", "7", "--alignments", "--tolerance", "1e-3"]
    for options in ([], export, [], [*export, "--keep-float", "token_embedding"]):
        status = main(["bergamot", str(folder), str(out), *options])
        told = capsys.readouterr().err
        if "--keep-float" in options:  # without effect in float32
            assert status == 1 and "--keep-float" in told and "keep_float" not in told
        else:
            assert status == 0, told
            assert (trial.SENTENCE in told) == bool(options)
        names = {path.name for path in out.iterdir()}
        written = {"artefact.json"} if options and status == 0 else {"model.keras"}
        assert written <= names
