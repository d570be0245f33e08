"""Artefacts by name: upload, download, model card and `verify`, against a server on loopback."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from helpers import exports
from helpers.hub_server import HubServer
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.hub import model_card
from keras_transformer.export.runtime import Predictor, Translator
from keras_transformer.export.verify import main, verify

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.usefixtures("forked_proofs")
NAME, LINES = "someone/english-german", ["two words", "the dog runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "onnx"
    options = {"max_length": exports.MAX_LENGTH, "verbose": False}
    search = kt.BeamSearch(2, constraints=[kt.NoRepeatNgrams(3)])
    export.export_onnx(exports.tiny(num_layers=1), path, exports.tokenizer(), search, **options)
    return path


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    monkeypatch.setenv("KERAS_TRANSFORMER_SERVES", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # other tests set it
    yield server
    server.close()


def run(code, *arguments):
    """Runs code in a process, because the library reads its settings when it is imported."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


PUSH = "import sys; from keras_transformer import export; print(export.push_to_hub(*sys.argv[1:]))"
OPEN = """
import sys
from keras_transformer.export.runtime import Translator
print(Translator.from_hub(sys.argv[1], threads=1).translate(sys.argv[2:]))
"""
VERIFY = "import sys; from keras_transformer.export import verify; sys.exit(verify.main())"


def test_a_pushed_artefact_is_loaded_and_verified_by_its_name(folder, hub):
    pushed = run(PUSH, folder, NAME)
    assert pushed.stdout.startswith(f"{hub.url}/{NAME}/commit/"), pushed.stderr
    files = {path.name for path in folder.iterdir()}
    assert set(hub.files[NAME]) == files | {"README.md"}
    opened = run(OPEN, NAME, *LINES)
    assert opened.stdout.strip() == str(Translator(folder).translate(LINES)), opened.stderr
    found = run(VERIFY, NAME)
    assert found.returncode == 0 and f"on onnxruntime\n{NAME}: verified\n" in found.stdout


FAULTS = ["unknown name", "no server", "changed byte", "lost connection"]


@pytest.mark.parametrize("fault", quick(FAULTS, "changed byte"))
def test_what_does_not_arrive_whole_is_refused(fault, folder, hub, tmp_path):
    name = "someone/nothing" if fault == "unknown name" else NAME
    hub.files[NAME] = {path.name: path.read_bytes() for path in folder.iterdir()}
    content = hub.files[NAME]["model.onnx"]
    expected = rf"{re.escape(name)} is no folder here, and {hub.url} did not give it: .*name"
    if fault == "no server":
        hub.close()
    elif fault == "changed byte":
        hub.files[NAME]["model.onnx"] = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        expected = "model.onnx.*checksum|SHA-256"
    elif fault == "lost connection":
        hub.cut.add("model.onnx")
    found = run(VERIFY, name)
    assert found.returncode == 2 and not found.stdout, found.stdout
    assert re.search(expected, found.stderr, re.DOTALL), found.stderr
    assert "Traceback" not in found.stderr
    if fault == "lost connection":  # nothing half: the next call completes it
        hub.cut.clear()
        assert run(VERIFY, name).returncode == 0


def changed(folder, tmp_path, change):
    """Returns a copy of a folder whose manifest was changed and sealed again."""
    copy = pathlib.Path(shutil.copytree(folder, tmp_path / "copy"))
    manifest = json.loads((copy / "artefact.json").read_text())
    change(manifest)
    for name in ("format", "format_version", "checksum"):
        del manifest[name]
    (copy / "artefact.json").write_bytes(seal(manifest))
    return copy


def test_verify_compares_the_stored_answers(folder, tmp_path, capsys, monkeypatch):
    assert verify(folder) == []

    def another_answer(manifest):
        outputs = manifest["example"]["outputs"]
        outputs["token_ids"][0][0][0] += 1
        outputs["scores"][0][0] -= 0.1

    copy = changed(folder, tmp_path, another_answer)
    tokens, scores = verify(copy)
    assert tokens.startswith("token_ids: 1 of") and scores.startswith("scores: 1 of")
    shutil.rmtree(copy)
    copy = changed(folder, tmp_path, lambda m: m["example"]["outputs"]["scores"].pop())
    assert "shape" in verify(copy)[0]
    shutil.rmtree(copy)
    copy = changed(folder, tmp_path, lambda manifest: manifest.pop("example"))
    assert verify(copy) is None
    monkeypatch.setattr(sys, "argv", ["verify", str(copy)])
    assert main() == 0 and "only checksums" in capsys.readouterr().out
    (copy / "tokenizer.model").unlink()
    with pytest.raises(ArtefactError, match="tokenizer.model"):
        verify(copy)


def test_models_without_a_search_and_of_litert_are_verified(folder, tmp_path):
    export.export_onnx(exports.tiny("encode", num_layers=1), tmp_path / "encoder", verbose=False)
    assert verify(tmp_path / "encoder") == []
    assert "example" in read_artefact(tmp_path / "encoder").manifest
    assert Predictor.from_hub(tmp_path / "encoder").manifest["task"] == "forward"
    pytest.importorskip("ai_edge_litert")
    model, options = exports.tiny(num_layers=1), {"max_length": 7, "verbose": False}
    export.export_litert(
        model, tmp_path / "lite", exports.tokenizer(), kt.GreedySearch(), **options
    )
    assert verify(tmp_path / "lite") == []


def test_all_figures_of_the_card_come_from_the_manifest(folder):
    manifest = read_artefact(folder).manifest
    card = model_card(manifest, NAME)
    same, lines = manifest["proof"]["same_tokens"]
    size = sum(path.stat().st_size for path in folder.iterdir() if path.name != "artefact.json")
    for part in (
        "pipeline_tag: translation",
        f"| size | {size / 1e6:.1f} MB in 2 files |",
        f"| outputs equal to Keras | {same} of {lines} |",
        f"| ids of source and target | {exports.VOCAB} and {exports.VOCAB} |",
        "| search | BeamSearch, NoRepeatNgrams |",
        f'Translator.from_hub("{NAME}").translate(["..."])',
        f"keras_transformer.export.verify {NAME}",
        "`source_ids` int32 ['batch', 'source_length']",
    ):
        assert part in card, card


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: verify("someone/model"), lambda: export.push_to_hub(tmp_path, "a/b")):
        with pytest.raises(ImportError, match=r"keras-transformer-onnx\[hub\]"):
            call()
