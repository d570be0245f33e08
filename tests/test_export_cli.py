"""`python -m keras_transformer.export`: the exporters from the shell."""

import json

import exports
import pytest
from exports import tiny

from keras_transformer.export import __main__ as cli
from keras_transformer.search import BeamSearch, GreedySearch, Sampling


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved translator, a saved encoder and a tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    tiny(num_layers=1).save(folder / "translator.keras")
    tiny("encode", num_layers=1).save(folder / "encoder.keras")
    exports.tokenizer().save(folder / "pieces.model")
    return folder


def arguments(*given):
    return cli.parser().parse_args(["model.keras", "out", *given])


def test_arguments_choose_the_search():
    model, encoder = exports.shared_model(), tiny("encode", num_layers=1)
    assert cli.chosen_search(arguments(), model) == BeamSearch(4, 0.6)
    assert cli.chosen_search(arguments(), encoder) is None
    assert cli.chosen_search(arguments("--forward"), model) is None
    assert cli.chosen_search(arguments("--greedy"), model) == GreedySearch()
    beam = arguments("--beam-width", "7", "--length-penalty", "0.25")
    assert cli.chosen_search(beam, model) == BeamSearch(7, 0.25)
    sampling = arguments(
        "--sampling", "--temperature", "0.5", "--top-k", "5", "--top-p", "0.9", "--num-samples", "3"
    )
    assert cli.chosen_search(sampling, model) == Sampling(0.5, 5, 0.9, num_samples=3)


def test_exports_a_translator_in_integers_and_tells_progress(saved, tmp_path, capfd):
    status = cli.main(
        [str(saved / "translator.keras"), str(tmp_path / "out"), "--format", "onnx"]
        + ["--precision", "int8", "--beam-width", "2", "--max-length", "5"]
        + ["--tokenizer", str(saved / "pieces.model"), "--max-source-length", "61"]
    )
    printed = capfd.readouterr()
    assert status == 0, printed.err
    manifest = json.loads((tmp_path / "out" / "artefact.json").read_text())
    assert manifest["precision"] == "int8" and manifest["search"]["config"]["beam_width"] == 2
    assert manifest["limits"]["source_length"] == 61 and manifest["limits"]["target_length"] == 5
    assert "tokenizer.model" in manifest["files"]
    assert "converting to ONNX ... " in printed.err and printed.out == ""


def test_exports_a_saved_model_quietly(saved, tmp_path, capfd):
    command = [str(saved / "encoder.keras"), str(tmp_path / "out"), "--format", "saved_model"]
    assert cli.main([*command, "--quiet"]) == 0
    assert (tmp_path / "out" / "saved_model.pb").is_file()
    assert "tracing" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "given, told",
    [
        (["--tokenizer", "nowhere.model"], "nowhere.model"),
        (["--keep-float", "no/such/weight", "--precision", "int8"], "no/such/weight"),
        (["--beam-width", "3"], "has no decode_step"),
    ],
)
def test_what_is_wrong_is_told_and_the_status_is_one(saved, tmp_path, capfd, given, told):
    status = cli.main([str(saved / "encoder.keras"), str(tmp_path / "out"), "--quiet", *given])
    assert status == 1
    assert told in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_searches_at_once_are_refused(capfd):
    with pytest.raises(SystemExit) as stopped:
        arguments("--greedy", "--beam-width", "3")
    assert stopped.value.code == 2
    assert "not allowed with" in capfd.readouterr().err
