"""`python -m keras_transformer.export`: the exporters from the shell."""

import datetime
import json
import signal
import sys
import time

import pytest
from helpers import artefacts, exports, processes, runtime_process
from helpers.exports import tiny
from helpers.tiers import quick

from keras_transformer import export
from keras_transformer.export import __main__ as cli
from keras_transformer.export.staging import Progress
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
    return cli.parse(["model.keras", "out", *given])


# TensorFlow imports JAX. Its garbage collection hook would drop the exception that a signal raises,
# and print a traceback.
COMMAND = """
import gc, runpy
gc.callbacks.clear()
runpy.run_module("keras_transformer.export", run_name="__main__", alter_sys=True)
"""


def started(*given):
    """Starts the command in another process."""
    return processes.Python("-c", COMMAND, *given)


CHOSEN = [
    ("", BeamSearch(4, 0.6)),
    ("--forward", None),
    ("--greedy", GreedySearch()),
    ("--beam-width 7 --length-penalty 0.25", BeamSearch(7, 0.25)),
    (
        "--sampling --temperature 0.5 --top-k 5 --top-p 0.9 --num-samples 3",
        Sampling(0.5, 5, 0.9, num_samples=3),
    ),
    (
        "--greedy --token-scores --alignments=-1:0,1:2",
        GreedySearch(token_scores=True, alignments=[(-1, 0), (1, 2)]),
    ),
    ("--alignments", BeamSearch(alignments=True)),
]


@pytest.mark.parametrize("given, expected", CHOSEN)
def test_arguments_choose_the_search(given, expected):
    assert cli.chosen_search(arguments(*given.split()), exports.shared_model()) == expected


def test_a_model_that_generates_nothing_has_no_search():
    assert cli.chosen_search(arguments(), exports.shared_model("encode")) is None


@pytest.mark.full
def test_exports_a_translator_as_int8_and_prints_progress(saved, tmp_path, capfd):
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
    proof = manifest["proof"]
    assert 0 < proof["largest_difference"] < 0.15 and proof["relative_to"] == "spread"
    assert proof["date"] == datetime.date.today().isoformat() and proof["cases"] == 3
    same, lines = proof["same_tokens"][0], proof["lines"]
    assert f"the same tokens in {same} of {lines} lines of random input\n" in printed.err
    assert "tokenizer.model" in manifest["files"]
    assert "converting to ONNX ... " in printed.err and printed.out == ""


@pytest.mark.full
@pytest.mark.parametrize(
    "given, model, file",
    [
        ("saved_model", "encoder.keras", "saved_model.pb"),
        ("ctranslate2 --precision int8 --tokenizer", "translator.keras", "model.bin"),
        ("marian --max-length 61 --tokenizer", "translator.keras", "config.json"),
    ],
)
def test_exports_other_formats_quietly(saved, tmp_path, capfd, given, model, file):
    kind, *options = given.split()
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="CTranslate2, the other engine, is missing")
    options += [str(saved / "pieces.model")] * (options[-1:] == ["--tokenizer"])
    command = [str(saved / model), str(tmp_path / "out"), "--quiet", "--format", kind, *options]
    assert cli.main(command) == 0
    assert (tmp_path / "out" / file).is_file()
    assert "tracing" not in capfd.readouterr().err


def test_writes_an_artefact_for_triton_without_a_framework(tmp_path):
    folder = artefacts.write(tmp_path / "onnx", artefacts.tokenizer())
    code = "from keras_transformer.export.__main__ import main; import sys; sys.exit(main())"
    options = ["--format", "triton", "--name", "m", "--threads", 2]
    repository = tmp_path / "repository"
    assert runtime_process.run(code, folder, repository, *options) == f"{repository / 'm'}\n"
    assert 'string_value: "2"' in (repository / "m" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    "given, told",
    [
        (["--tokenizer", "nowhere.model"], "nowhere.model"),
        (["--keep-float", "no/such/weight", "--precision", "int8"], "no/such/weight"),
        (["--beam-width", "3"], "has no decode_step"),
        (["--length-penalty", "3"], "has no decode_step"),
        (["--max-length", "3"], "pass a search"),
        (["--format", "triton"], "is not an artefact"),
    ],
)
def test_errors_are_printed_and_the_status_is_one(saved, tmp_path, capfd, given, told):
    status = cli.main([str(saved / "encoder.keras"), str(tmp_path / "out"), *given])
    assert status == 1
    assert told in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given, told",
    [
        ("--format saved_model --text", "--text: only with --format onnx or triton"),
        ("--format marian --no-fuse", "--no-fuse: only with --format onnx"),
        (
            "--format saved_model --precision int8",
            "--precision: only with --format onnx or litert or ctr",
        ),
        ("--format marian --greedy", "--greedy: only with --format onnx or litert or saved_model"),
        (
            "--format marian --tolerance 1",
            "--tolerance: only with --format onnx or litert or saved_model or",
        ),
        ("--format ctranslate2 --layout steps", "--layout: only with --format onnx"),
        (
            "--format triton --max-length 5",
            "--max-length: only with --format onnx or litert or saved",
        ),
        ("--threads 5", "--threads: only with --format triton"),
        ("--greedy --length-penalty 3", "--length-penalty: only with a beam search"),
        ("--greedy --temperature 0.5", "--temperature: only with --sampling"),
        ("--top-k 5 --top-p 0.5", "--top-k, --top-p: only with --sampling"),
        ("--sampling --length-penalty 3", "--length-penalty: only with a beam search"),
        ("--forward --max-length 3", "--max-length: only with a search"),
        ("--greedy --beam-width 3", "not allowed with"),
        ("--alignments 1", "--alignments"),
        ("--alignments 1:x", "--alignments"),
        ("--forward --token-scores", "--token-scores: only with a search"),
    ],
)
def test_options_that_do_not_apply_are_refused(capfd, given, told):
    with pytest.raises(SystemExit) as stopped:
        arguments(*given.split())
    assert stopped.value.code == 2
    assert told in capfd.readouterr().err


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(
    "name, status", quick([("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)], ("SIGINT", 130))
)
def test_stopped_export_leaves_nothing_behind(saved, tmp_path, name, status):
    process = started(saved / "encoder.keras", tmp_path / "out")
    while "tracing ..." not in process.stderr.read_text():
        assert process.is_alive(), process.stderr.read_text()
        time.sleep(0.01)
    assert len(list(tmp_path.iterdir())) == 1  # the temporary folder
    process.send_signal(getattr(signal, name))
    done = process.wait()
    told = done.stderr
    assert done.returncode == status, told
    assert f"stopped by {name}" in told
    # Interrupted compiled code may print a traceback and raise SystemError.
    assert "Traceback" not in told or "SystemError" in told
    assert list(tmp_path.iterdir()) == []


def test_signal_whose_exception_was_lost_stops_the_next_stage(saved, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Progress, "pending", cli.Stopped(signal.SIGTERM))
    assert cli.main([str(saved / "encoder.keras"), str(tmp_path / "out")]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [SystemError("from compiled code"), ValueError("16 atoms")])
def test_signal_that_became_another_error_is_reported_as_a_signal(
    saved, tmp_path, monkeypatch, capfd, error
):
    def interrupted(*args, **options):
        with pytest.raises(cli.Stopped):
            cli.stop(signal.SIGINT, None)
        raise error

    monkeypatch.setattr(Progress, "pending", None)
    monkeypatch.setattr(export, "export_onnx", interrupted)
    assert cli.main([str(saved / "encoder.keras"), str(tmp_path / "out")]) == 128 + signal.SIGINT
    told = capfd.readouterr().err
    assert "stopped by SIGINT" in told and str(error) not in told


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
@pytest.mark.parametrize("given", quick([[], ["--format", "saved_model"]], []))
def test_full_disk_is_reported_and_leaves_nothing_behind(saved, tmp_path, given):
    code = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
runpy.run_module("keras_transformer.export", run_name="__main__", alter_sys=True)
"""
    done = processes.run("-c", code, saved / "encoder.keras", tmp_path / "out", *given)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "Failed at writing: " in done.stderr and "too large" in done.stderr
    assert list(tmp_path.iterdir()) == []
