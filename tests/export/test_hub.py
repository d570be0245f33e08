"""Artefacts by name: upload, download, model card and `verify`, against a server on loopback."""

import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import exports
from helpers.hub_server import HubServer
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.hub import model_card
from keras_transformer.export.runtime import Translator
from keras_transformer.export.verify import main, verify

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.usefixtures("forked_proofs")
NAME, LINES = "someone/english-german", ["two words", "the dog runs"]


@pytest.fixture
def folder():
    return exports.artefact(kt.BeamSearch(2, constraints=[kt.NoRepeatNgrams(3)]))


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


@pytest.mark.full
def test_a_pushed_artefact_is_loaded_and_verified_by_its_name(folder, hub):
    pushed = run(PUSH, folder, NAME)
    assert pushed.stdout.startswith(f"{hub.url}/{NAME}/commit/"), pushed.stderr
    files = {path.name for path in folder.iterdir()}
    assert set(hub.files[NAME]) == files | {"README.md"}
    opened = run(OPEN, NAME, *LINES)
    assert opened.stdout.strip() == str(Translator(folder).translate(LINES)), opened.stderr
    found = run(VERIFY, NAME)
    assert found.returncode == 0 and f"on onnxruntime\n{NAME}: verified\n" in found.stdout


def change_a_byte(hub):
    content = bytearray(hub.files[NAME]["model.onnx"])
    content[-9] ^= 1
    hub.files[NAME]["model.onnx"] = bytes(content)


NOT_GIVEN = rf"{NAME} is no folder here, and http://127.0.0.1:\d+ did not give it: .*name"
FAULTS = {
    "unknown name": (lambda hub: hub.files.clear(), NOT_GIVEN),
    "no server": (HubServer.close, NOT_GIVEN),
    "changed byte": (change_a_byte, "model.onnx.*checksum|SHA-256"),
    "lost connection": (lambda hub: hub.cut.add("model.onnx"), NOT_GIVEN),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", quick(FAULTS, "changed byte"))
def test_what_does_not_arrive_whole_is_refused(fault, folder, hub):
    spoil, expected = FAULTS[fault]
    hub.files[NAME] = {path.name: path.read_bytes() for path in folder.iterdir()}
    spoil(hub)
    found = run(VERIFY, NAME)
    assert found.returncode == 2 and not found.stdout, found.stdout
    assert re.search(expected, found.stderr, re.DOTALL), found.stderr
    assert "Traceback" not in found.stderr
    if fault == "lost connection":  # nothing half: the next call completes it
        hub.cut.clear()
        assert run(VERIFY, NAME).returncode == 0


@pytest.mark.full
def test_verify_compares_the_stored_answers(folder, tmp_path, capsys, monkeypatch):
    assert verify(folder) == []
    copy = pathlib.Path(shutil.copytree(folder, tmp_path / "copy"))
    manifest = read_artefact(folder).manifest
    example = manifest.pop("example")
    ids, scores = (np.array(example["outputs"][name]) for name in ("token_ids", "scores"))
    ids[0, 0, 0] += 1
    scores[0, 0] -= 0.1

    def faults(ids, scores):
        outputs = {"token_ids": ids.tolist(), "scores": scores.tolist()}
        sealed = seal({**manifest, "example": {**example, "outputs": outputs}})
        (copy / "artefact.json").write_bytes(sealed)
        return verify(copy)

    tokens_differ, scores_differ = faults(ids, scores)
    assert tokens_differ.startswith("token_ids: 1 of") and scores_differ.startswith("scores: 1 of")
    assert "shape" in faults(ids, scores[1:])[1]
    (copy / "artefact.json").write_bytes(seal(manifest))
    monkeypatch.setattr(sys, "argv", ["verify", str(copy)])
    assert main() == 0 and "only checksums" in capsys.readouterr().out
    (copy / "tokenizer.model").unlink()
    with pytest.raises(ArtefactError, match="tokenizer.model"):
        verify(copy)


def card_of(path, **changes):
    """Returns the model card of a folder, with other values in its manifest."""
    artefact = read_artefact(path)
    return model_card(artefact._replace(manifest={**artefact.manifest, **changes}), str(path))


def test_all_figures_of_the_card_come_from_the_manifest(folder):
    manifest, before = read_artefact(folder).manifest, card_of(folder)
    config = {**manifest["search"]["config"], "beam_width": 71, "constraints": []}
    sizes = {name: {**entry, "bytes": 73_210_000} for name, entry in manifest["files"].items()}
    changes = {
        "precision": ("weight_int4", "| precision | weight_int4 |"),
        "vocab_size": ({"source": 79, "target": 83}, "79 ids of the source, 83 ids of the target"),
        "limits": ({**manifest["limits"], "source_length": 89}, "longest input | 89 tokens"),
        "search": ({"class_name": "Other", "config": config}, "| search | Other, beam width 71 |"),
        "files": (sizes, "model.onnx (73.2 MB), tokenizer.model (73.2 MB)"),
        "special_ids": ({"pad": 97, "end": 101}, "Special ids: pad 97, end 101."),
        "head": ({"config": {"labels": ["nay", "yea"]}}, "| labels | nay, yea |"),
        "about": (
            {"languages": ["en", "de"], "scores": {"BLEU on some test": 35.2}},
            "| languages | en, de |\n| BLEU on some test | 35.2 |",
        ),
        "proof": (
            {**manifest["proof"], "same_tokens": [53, 59], "largest_difference": 0.0123},
            "53 of 59 outputs equal to Keras |\n| largest difference from Keras | 0.012 of",
        ),
        "example": (
            {"inputs": {"source_ids": [[7, 3, 0]]}, "outputs": {"token_ids": [[[11, 3]]]}},
            "model.onnx 7 3\n```\n\nIt prints 11.",
        ),
    }
    for name, (value, expected) in changes.items():
        assert expected not in before and expected in card_of(folder, **{name: value}), name
    same, lines = manifest["proof"]["same_tokens"]
    for part in (
        "pipeline_tag: translation",
        f"{same} of {lines} outputs equal to Keras",
        "| search | BeamSearch, beam width 2, NoRepeatNgrams |",
        f"keras_transformer.export.verify {folder}",
        "| `source_ids` | int32 | batch, source_length |",
    ):
        assert part in before, before
    without = {name: value for name, value in manifest.items() if name not in ("proof", "example")}
    card = model_card(read_artefact(folder)._replace(manifest=without), NAME)
    assert "equal to Keras" not in card and "It prints" not in card and "a small batch" not in card


def test_languages_and_scores_are_sealed_in_the_manifest(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    export.describe(copy, ["en", "de"], {"BLEU": 35.2, "lines": 1000})
    assert "language: [en, de]\n" in card_of(copy) and "| lines | 1000 |" in card_of(copy)
    assert verify(copy) == []
    for wrong in (([3], {}), (["en"], {"BLEU": "35"}), ([], {"BLEU": True})):
        with pytest.raises(ValueError, match="scores numbers by name"):
            export.describe(copy, *wrong)


def litert(path):
    pytest.importorskip("ai_edge_litert")
    model, options = exports.tiny(num_layers=1), {"max_length": 7, "verbose": False}
    export.export_litert(model, path, exports.tokenizer(), kt.GreedySearch(), **options)
    return path


def classifier(path):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = keras.layers.GlobalAveragePooling1D()(kt.TokenEmbedding(exports.VOCAB, 8)(ids))
    model, head = keras.Model(ids, keras.layers.Dense(2)(x)), export.Classification(["no", "yes"])
    export.export_onnx(model, path, exports.tokenizer(), head=head, verbose=False)
    return path


def pictures(path):
    pixels = keras.Input((5, 7), name="pixels")
    model = keras.Model(pixels, keras.layers.Dense(3)(keras.layers.Flatten()(pixels)))
    export.export_onnx(model, path, verbose=False)
    return path


# How to write each kind, and the languages of its card beside Python.
CARDS = {
    "translator": (lambda path: exports.artefact(), ["JavaScript", "C"]),
    "steps": (lambda path: exports.artefact(exports.BEAM, layout="steps"), []),
    "litert": (litert, []),
    "language model": (lambda path: exports.artefact(exports.GREEDY, "generate"), ["C"]),
    "sampling": (lambda path: exports.artefact(exports.SAMPLING, "generate"), []),
    "classifier": (classifier, []),
    "pictures": (pictures, []),
}

WITHOUT_WORDS = ("translator", "steps", "litert", "language model")  # these models may write none


@pytest.mark.full("litert", "steps")
@pytest.mark.parametrize("kind", quick(CARDS, "translator", "steps", "litert", "pictures"))
def test_cards_have_programs_that_run_and_artefacts_are_verified(kind, tmp_path, capsys):
    make, languages = CARDS[kind]
    path = make(tmp_path / "x")
    assert verify(path) == []
    card = card_of(path)
    titles = re.findall("^## (.*)$", card, re.MULTILINE)
    assert titles == ["Python", *languages, "Check it", "Inputs and outputs"]
    capsys.readouterr()
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.strip() or kind in WITHOUT_WORDS
    assert len(program.splitlines()) <= 4


def test_a_card_has_javascript_for_one_file_only(folder):
    assert 'import { Translator } from "keras-transformer-onnx";' in card_of(folder)
    data = {"model.onnx.data": {"sha256": "", "bytes": 1}}
    large = card_of(folder, files={**read_artefact(folder).manifest["files"], **data})
    assert "## JavaScript" not in large and "## C\n" in large


@pytest.mark.full
def test_the_card_of_a_whisper_model_transcribes_a_sound():
    pytest.importorskip("transformers")
    from helpers import whisper_folder

    card = card_of(whisper_folder.artefact())
    assert "pipeline_tag: automatic-speech-recognition" in card
    assert 'model.transcribe("sound.wav")' in card and "Transcriber.load(" in card
    assert "## C\n" not in card


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: verify("someone/model"), lambda: export.push_to_hub(tmp_path, "a/b")):
        with pytest.raises(ImportError, match=r"keras-transformer-onnx\[hub\]"):
            call()
